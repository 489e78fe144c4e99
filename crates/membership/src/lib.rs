//! Who is alive, who leads, in which epoch: a state machine over messages.
