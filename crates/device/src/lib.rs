//! What this machine has: processor, memory, measured bandwidth.
