//! Work that no one waits for within milliseconds, such as a plan: on a thread that gets what others leave
//! over.

use std::io;

/// Runs `work` on a thread of its own, with the lowest priority where a thread can have one. A thread that
/// has it cannot take it back, so none that serves others is used for it.
pub fn run(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let lowered = move || {
        lower_priority();
        work();
    };
    std::thread::Builder::new().name(name.to_owned()).spawn(lowered).map(drop)
}

/// Gives this thread the lowest priority, which it cannot take back: for a process that does nothing else. On
/// Linux a nice value is a thread's, and 19 is the highest; elsewhere it is a whole process's, or there is
/// none, and nothing is done.
pub fn lower_priority() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, 19) {
        tracing::debug!(%error, "this thread keeps its priority");
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    /// The 19th field of the thread's line, the 17th behind its name: its nice value.
    fn nice() -> i64 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let (_, behind_name) = stat.rsplit_once(')').unwrap();
        behind_name.split_whitespace().nth(16).unwrap().parse().unwrap()
    }

    #[test]
    fn only_the_thread_of_the_work_has_the_lowest_priority() {
        let (tell, told) = mpsc::channel();
        let before = nice();
        super::run("test", move || tell.send(nice()).unwrap()).unwrap();
        assert_eq!(told.recv_timeout(Duration::from_secs(10)).unwrap(), 19);
        assert_eq!(nice(), before, "this one is as it was");
    }
}
