//! Windows' network categories, from its list of networks (`INetworkListManager`).
#![allow(unsafe_code)]

use windows::Win32::Networking::NetworkListManager::{
    INetworkConnection, INetworkListManager, NLM_NETWORK_CATEGORY_DOMAIN_AUTHENTICATED,
    NLM_NETWORK_CATEGORY_PRIVATE, NetworkListManager,
};
use windows::Win32::System::Com::{
    CLSCTX_ALL, COINIT_MULTITHREADED, CoCreateInstance, CoInitializeEx, CoUninitialize,
};
use windows::core::Result;

use super::Marks;

/// Connections that are read: a bound, far above what a machine has.
const CONNECTIONS_MAX: usize = 256;

/// A system that does not answer knows no network.
pub(crate) fn ask() -> Option<Marks> {
    let marks = Com::begin().and_then(|_com| read());
    let marks =
        marks.inspect_err(|error| tracing::warn!(%error, "Windows does not tell which networks are private"));
    Some(marks.unwrap_or_default())
}

/// What the system calls the adapter that has this address.
pub(crate) fn adapter(address: &if_addrs::Interface) -> &str {
    &address.adapter_name
}

/// COM on this thread, until it is dropped.
struct Com;

impl Com {
    fn begin() -> Result<Self> {
        // SAFETY: takes no pointer of ours; what succeeds is undone once, by `drop`, on the same thread.
        unsafe { CoInitializeEx(None, COINIT_MULTITHREADED) }.ok()?;
        Ok(Self)
    }
}

impl Drop for Com {
    fn drop(&mut self) {
        // SAFETY: `begin` succeeded on this thread, and every object that `read` made is released by now.
        unsafe { CoUninitialize() };
    }
}

/// Needs COM on this thread.
fn read() -> Result<Marks> {
    let mut marks = Marks::new();
    // SAFETY: COM is on, the class and the interface belong together, and the objects are counted by their
    // types.
    unsafe {
        let manager: INetworkListManager = CoCreateInstance(&NetworkListManager, None, CLSCTX_ALL)?;
        let connections = manager.GetNetworkConnections()?;
        while marks.len() < CONNECTIONS_MAX {
            let mut next = [None::<INetworkConnection>];
            connections.Next(&mut next, None)?;
            let [Some(connection)] = next else { break };
            let category = connection.GetNetwork()?.GetCategory()?;
            let is_private =
                [NLM_NETWORK_CATEGORY_PRIVATE, NLM_NETWORK_CATEGORY_DOMAIN_AUTHENTICATED].contains(&category);
            marks.push((format!("{:?}", connection.GetAdapterId()?), is_private));
        }
    }
    Ok(marks)
}
