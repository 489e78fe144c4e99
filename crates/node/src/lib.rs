//! The running process: the one home of tasks and timers.
