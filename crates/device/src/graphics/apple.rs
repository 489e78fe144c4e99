//! macOS: the registry of devices that the kernel keeps (I/O Kit).
#![allow(unsafe_code, reason = "the system is called through pointers")]

use std::ffi::{CStr, c_char};
use std::path::Path;
use std::ptr::{self, NonNull};

use exo_types::Monitor;
use objc2_core_foundation::{
    CFData, CFDictionary, CFMutableDictionary, CFNumber, CFRetained, CFString, CFType,
};
use objc2_io_kit::{
    IOIteratorNext, IOObjectRelease, IORegistryEntryCreateCFProperties, IORegistryEntryGetRegistryEntryID,
    IORegistryEntrySearchCFProperty, IOServiceGetMatchingServices, IOServiceMatching, io_object_t,
    kIORegistryIterateParents, kIORegistryIterateRecursively,
};

use super::GraphicsCard;
use super::ioreg::{self, Accelerator, Table, Value};

/// What the calls mean by the kernel.
const KERNEL: u32 = 0;

/// Tables in tables: what drivers tell of the moment is one in the first.
const DEPTH_MAX: usize = 2;

/// The tree in which drivers hang below what they drive.
const PLANE: &[u8] = b"IOService";

pub fn cards(_root: &Path) -> Vec<GraphicsCard> {
    let devices: Vec<Table> = entries(c"IOPCIDevice").iter().filter_map(Entry::properties).collect();
    ioreg::cards(&devices, &accelerators())
}

pub fn add_memory(card: &mut GraphicsCard) {
    card.memory_free_bytes = ioreg::memory_free_bytes(&card.pci_address, card.memory_bytes, &accelerators());
}

pub fn memory_free_bytes(root: &Path, pci_address: &str) -> Option<u64> {
    let memory_bytes = cards(root).into_iter().find(|card| card.pci_address == pci_address)?.memory_bytes;
    ioreg::memory_free_bytes(pci_address, memory_bytes, &accelerators())
}

pub fn sensors(pci_address: &str) -> Monitor {
    ioreg::sensors(pci_address, &accelerators())
}

pub fn registered_address(registry_id: u64) -> Option<String> {
    ioreg::address(registry_id, &accelerators())
}

fn accelerators() -> Vec<Accelerator> {
    let read = |entry: &Entry| {
        Some(Accelerator {
            registry_id: entry.registry_id()?,
            properties: entry.properties()?,
            slot: entry.slot(),
        })
    };
    entries(c"IOAccelerator").iter().filter_map(read).collect()
}

/// What the kernel lent us, given back when it is dropped.
struct Entry(io_object_t);

impl Drop for Entry {
    fn drop(&mut self) {
        IOObjectRelease(self.0);
    }
}

/// The entries of a class and of those that are derived from it.
fn entries(class: &CStr) -> Vec<Entry> {
    // SAFETY: the name ends with a zero and outlives the call.
    let Some(wanted) = (unsafe { IOServiceMatching(class.as_ptr()) }) else { return Vec::new() };
    // SAFETY: a dictionary that may be changed is one.
    let wanted: CFRetained<CFDictionary> = unsafe { CFRetained::cast_unchecked(wanted) };
    let mut list = 0;
    // SAFETY: the dictionary is one that this call takes, and the list outlives it.
    if unsafe { IOServiceGetMatchingServices(KERNEL, Some(wanted), &mut list) } != 0 {
        return Vec::new();
    }
    let list = Entry(list);
    std::iter::from_fn(|| Some(IOIteratorNext(list.0)).filter(|entry| *entry != 0).map(Entry)).collect()
}

impl Entry {
    fn registry_id(&self) -> Option<u64> {
        let mut id = 0;
        // SAFETY: the entry is held, and the number outlives the call.
        (unsafe { IORegistryEntryGetRegistryEntryID(self.0, &mut id) } == 0).then_some(id)
    }

    fn properties(&self) -> Option<Table> {
        let mut made: *mut CFMutableDictionary = ptr::null_mut();
        // SAFETY: the entry is held, and the pointer outlives the call; without an allocator the usual one is
        // meant.
        let error = unsafe { IORegistryEntryCreateCFProperties(self.0, &mut made, None, 0) };
        let made = NonNull::new(made).filter(|_| error == 0)?;
        // SAFETY: the dictionary was made for us.
        let made: CFRetained<CFMutableDictionary> = unsafe { CFRetained::from_raw(made) };
        Some(table(&made, DEPTH_MAX))
    }

    /// `pcidebug` of the PCI device that it is, or that it hangs below.
    fn slot(&self) -> Option<String> {
        let mut plane = [0 as c_char; 128];
        plane.iter_mut().zip(PLANE).for_each(|(to, from)| *to = *from as c_char);
        let key = CFString::from_static_str("pcidebug");
        let upwards = kIORegistryIterateRecursively | kIORegistryIterateParents;
        // SAFETY: the entry is held, and the name of the tree ends with a zero and outlives the call.
        let found =
            unsafe { IORegistryEntrySearchCFProperty(self.0, &mut plane, Some(&key), None, upwards) }?;
        found.downcast_ref::<CFString>().map(ToString::to_string)
    }
}

/// Tables that lie deeper than `depth` are left out, as are values of kinds that no one needs.
fn table(dictionary: &CFDictionary, depth: usize) -> Table {
    // SAFETY: the kernel's tables have texts as keys and objects as values.
    let dictionary = unsafe { dictionary.cast_unchecked::<CFString, CFType>() };
    let (keys, values) = dictionary.to_vecs();
    let entries = keys.iter().zip(&values);
    entries.filter_map(|(key, found)| Some((key.to_string(), value(found, depth)?))).collect()
}

fn value(found: &CFType, depth: usize) -> Option<Value> {
    if let Some(number) = found.downcast_ref::<CFNumber>() {
        return number.as_i64().map(Value::Number);
    }
    if let Some(text) = found.downcast_ref::<CFString>() {
        return Some(Value::Text(text.to_string()));
    }
    if let Some(data) = found.downcast_ref::<CFData>() {
        return Some(Value::Bytes(data.to_vec()));
    }
    let inner = found.downcast_ref::<CFDictionary>().filter(|_| depth > 1)?;
    Some(Value::Table(table(inner, depth - 1)))
}
