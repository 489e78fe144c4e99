//! What a user should hear while drivers are asked.

/// Something a user should hear while it happens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// What goes on.
    Note(String),
    /// What is wrong.
    Warning(String),
}

/// Passes on what a user should hear.
pub type Tell<'a> = &'a (dyn Fn(Message) + Sync);
