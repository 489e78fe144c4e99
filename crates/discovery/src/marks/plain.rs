use super::Marks;

/// There are none on this system.
pub(crate) fn ask() -> Option<Marks> {
    None
}

/// What the system calls the adapter that has this address.
pub(crate) fn adapter(address: &if_addrs::Interface) -> &str {
    &address.name
}
