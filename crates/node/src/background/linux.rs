use std::io;

/// The highest nice value.
const LOWEST: i32 = 19;

/// On Linux a nice value is a thread's, and 0 is the calling one.
pub(super) fn lower_priority() -> io::Result<()> {
    Ok(rustix::process::setpriority_process(None, LOWEST)?)
}

#[cfg(test)]
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
        crate::background::run("test", move || tell.send(nice()).unwrap()).unwrap();
        assert_eq!(told.recv_timeout(Duration::from_secs(10)).unwrap(), 19);
        assert_eq!(nice(), before, "this one is as it was");
    }
}
