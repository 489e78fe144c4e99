//! Disks that do not answer.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Duration;

use exo_api::PullRequest;
use exo_node::{Host, SystemHost};
use exo_types::DeviceFacts;

use crate::support::{spawn_on, until};

/// A machine whose home folder is on a disk that can be made to hang.
#[derive(Default)]
struct HungHome {
    disk: Mutex<Disk>,
    changed: Condvar,
}

#[derive(Default)]
struct Disk {
    is_hung: bool,
    waiting: u32,
}

impl HungHome {
    fn hang(&self, is_hung: bool) {
        self.disk.lock().unwrap().is_hung = is_hung;
        self.changed.notify_all();
    }

    fn is_waited_for(&self) -> bool {
        self.disk.lock().unwrap().waiting > 0
    }
}

impl Host for HungHome {
    fn mains_power(&self) -> Option<bool> {
        SystemHost.mains_power()
    }

    fn processor(&self) -> DeviceFacts {
        SystemHost.processor()
    }

    fn platform(&self) -> String {
        SystemHost.platform()
    }

    fn process_bytes(&self) -> Option<u64> {
        None
    }

    fn home(&self) -> Option<PathBuf> {
        let mut disk = self.disk.lock().unwrap();
        disk.waiting += 1;
        let mut disk = self.changed.wait_while(disk, |disk| disk.is_hung).unwrap();
        disk.waiting -= 1;
        None
    }

    fn variable(&self, name: &str) -> Option<String> {
        (name == "HF_HUB_OFFLINE").then(|| "1".to_owned())
    }
}

/// Who waits for it on the only thread of the tasks has the loop wait, too; so has who waits with the lock of
/// the list, which the loop shows.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_home_folder_that_does_not_answer_holds_up_neither_the_loop_nor_the_list_of_downloads() {
    let host = Arc::new(HungHome::default());
    let node = spawn_on(host.clone(), "hung", &[], |_| {}).await;
    host.hang(true);
    // From another thread, or nothing would ever end this test.
    let ((answered, asked), released) = (mpsc::channel::<()>(), host.clone());
    let releasing = std::thread::spawn(move || {
        let in_time = asked.recv_timeout(Duration::from_secs(10)).is_ok();
        released.hang(false);
        in_time
    });
    let pull = PullRequest { reference: "hf.co/org/repo".to_owned(), ..PullRequest::default() };
    let facade = node.facade.clone();
    let pulling = tokio::spawn(async move { facade.downloads().start(pull).await });
    until(Duration::from_secs(20), "the home folder is read", || {
        let is_read = host.is_waited_for();
        async move { is_read }
    })
    .await;
    node.facade.requests().await.unwrap();
    assert!(node.facade.downloads().list().is_empty());
    let _ = answered.send(());
    assert!(releasing.join().unwrap(), "the node answered only when the disk did");
    assert_eq!(pulling.await.unwrap().unwrap().source, "huggingface.co");
    node.node.shutdown().await;
}
