//! Windows: Plug and Play's list of the PCI bus, and the kernel's part of Direct3D for what drivers tell.
//!
//! Both are parts of Windows; DXGI, which asks the same kernel, is passed by, for it may load a vendor's
//! library into the process.
#![allow(unsafe_code, reason = "the system is called through pointers")]

use std::ffi::c_void;
use std::path::Path;

use exo_types::Monitor;
use windows::Wdk::Graphics::Direct3D::{
    D3DKMT_ADAPTER_PERFDATA, D3DKMT_ADAPTERADDRESS, D3DKMT_CLOSEADAPTER, D3DKMT_MEMORY_SEGMENT_GROUP_LOCAL,
    D3DKMT_OPENADAPTERFROMLUID, D3DKMT_QUERYADAPTERINFO, D3DKMT_QUERYVIDEOMEMORYINFO, D3DKMT_SEGMENTSIZEINFO,
    D3DKMTCloseAdapter, D3DKMTOpenAdapterFromLuid, D3DKMTQueryAdapterInfo, D3DKMTQueryVideoMemoryInfo,
    KMTQAITYPE_ADAPTERADDRESS, KMTQAITYPE_ADAPTERPERFDATA, KMTQAITYPE_GETSEGMENTSIZE,
    KMTQUERYADAPTERINFOTYPE,
};
use windows::Win32::Devices::DeviceAndDriverInstallation::{
    DIGCF_ALLCLASSES, DIGCF_PRESENT, GUID_DEVCLASS_DISPLAY, HDEVINFO, SP_DEVINFO_DATA, SetupDiEnumDeviceInfo,
    SetupDiGetClassDevsW, SetupDiGetDevicePropertyW,
};
use windows::Win32::Devices::Properties::{
    DEVPKEY_Device_Address, DEVPKEY_Device_BusNumber, DEVPKEY_Device_DeviceDesc,
    DEVPKEY_Device_DriverVersion, DEVPKEY_Device_HardwareIds, DEVPKEY_Device_ProblemCode,
    DEVPKEY_Device_Service, DEVPROP_TYPE_STRING, DEVPROP_TYPE_STRING_LIST, DEVPROP_TYPE_UINT32,
    DEVPROP_TYPE_UINT64, DEVPROPTYPE,
};
use windows::Win32::Foundation::{DEVPROPKEY, LUID};
use windows::core::{GUID, Owned, w};

use super::GraphicsCard;
use super::pnp::{Device, celsius, is_at, texts};

/// By which name the kernel's part of Direct3D knows a device, since Windows 10. Microsoft does not document
/// it; that it means the right card is checked with the card's address.
const DIRECT3D_NAME: DEVPROPKEY =
    DEVPROPKEY { fmtid: GUID::from_u128(0x60b193cb_5276_4d0f_96fc_f173abad3ec6), pid: 2 };

/// More than a machine has on its bus; a list that does not end is left.
const DEVICES_MAX: u32 = 4096;

/// Of one property: some identifiers of some dozens of letters.
const PROPERTY_BYTES_MAX: usize = 8192;

pub fn cards(_root: &Path) -> Vec<GraphicsCard> {
    Bus::look().map(|bus| bus.cards().map(|(_, card)| card).collect()).unwrap_or_default()
}

pub fn add_memory(card: &mut GraphicsCard) {
    if let Some(adapter) = Adapter::at(&card.pci_address) {
        (card.memory_bytes, card.memory_free_bytes) = (adapter.memory_bytes(), adapter.memory_free_bytes());
    }
}

pub fn memory_free_bytes(_root: &Path, pci_address: &str) -> Option<u64> {
    Adapter::at(pci_address)?.memory_free_bytes()
}

pub fn sensors(pci_address: &str) -> Monitor {
    let temperature_c = Adapter::at(pci_address).and_then(|adapter| adapter.temperature_c());
    Monitor { temperature_c, ..Monitor::default() }
}

/// There is no such registry.
pub fn registered_address(_registry_id: u64) -> Option<String> {
    None
}

/// The devices that are on the bus at this moment.
struct Bus(Owned<HDEVINFO>);

impl Bus {
    fn look() -> Option<Self> {
        // SAFETY: nothing but constants is handed over.
        let list =
            unsafe { SetupDiGetClassDevsW(None, w!("PCI"), None, DIGCF_ALLCLASSES | DIGCF_PRESENT) }.ok()?;
        // SAFETY: the list was made for us and is ended by no one else.
        Some(Self(unsafe { Owned::new(list) }))
    }

    fn cards(&self) -> impl Iterator<Item = (SP_DEVINFO_DATA, GraphicsCard)> {
        let entries = (0..DEVICES_MAX).map_while(|index| self.entry(index));
        entries.filter_map(|entry| Some((entry, self.device(&entry).card()?)))
    }

    /// `None` after the last.
    fn entry(&self, index: u32) -> Option<SP_DEVINFO_DATA> {
        let size = size_of::<SP_DEVINFO_DATA>() as u32;
        let mut entry = SP_DEVINFO_DATA { cbSize: size, ..SP_DEVINFO_DATA::default() };
        // SAFETY: the list lives, and the entry says how large it is.
        unsafe { SetupDiEnumDeviceInfo(*self.0, index, &mut entry) }.ok()?;
        Some(entry)
    }

    /// Of what is no graphics card, no more is read than what shows that.
    fn device(&self, entry: &SP_DEVINFO_DATA) -> Device {
        let list = self.property(entry, &DEVPKEY_Device_HardwareIds, DEVPROP_TYPE_STRING_LIST);
        let known = Device {
            hardware_ids: texts(&list.unwrap_or_default()),
            is_display: entry.ClassGuid == GUID_DEVCLASS_DISPLAY,
            ..Device::default()
        };
        if !known.is_graphics() {
            return known;
        }
        let text = |key| texts(&self.property(entry, key, DEVPROP_TYPE_STRING)?).into_iter().next();
        let number =
            |key| Some(u32::from_le_bytes(*self.property(entry, key, DEVPROP_TYPE_UINT32)?.first_chunk()?));
        Device {
            bus: number(&DEVPKEY_Device_BusNumber),
            address: number(&DEVPKEY_Device_Address),
            service: text(&DEVPKEY_Device_Service),
            driver_version: text(&DEVPKEY_Device_DriverVersion),
            description: text(&DEVPKEY_Device_DeviceDesc),
            problem: number(&DEVPKEY_Device_ProblemCode),
            ..known
        }
    }

    /// A property's bytes, if it is there, of that type and not overlong.
    fn property(&self, entry: &SP_DEVINFO_DATA, key: &DEVPROPKEY, of_type: DEVPROPTYPE) -> Option<Vec<u8>> {
        let mut bytes = vec![0; PROPERTY_BYTES_MAX];
        let (mut found, mut len) = (DEVPROPTYPE::default(), 0);
        let (buffer, needed) = (Some(bytes.as_mut_slice()), Some(&raw mut len));
        // SAFETY: the entry is of this list, and everything that is written to outlives the call.
        unsafe { SetupDiGetDevicePropertyW(*self.0, entry, key, &mut found, buffer, needed, 0) }.ok()?;
        bytes.truncate(len as usize);
        (found == of_type).then_some(bytes)
    }
}

/// A card as the kernel's part of Direct3D has it.
struct Adapter(u32);

impl Adapter {
    /// `None` for a card without a driver, or one that is there for computing only.
    fn at(pci_address: &str) -> Option<Self> {
        let bus = Bus::look()?;
        let (entry, _) = bus.cards().find(|(_, card)| card.pci_address == pci_address)?;
        let name = bus.property(&entry, &DIRECT3D_NAME, DEVPROP_TYPE_UINT64)?;
        let adapter = Self::open(u64::from_le_bytes(*name.first_chunk()?))?;
        adapter.is_at(pci_address).then_some(adapter)
    }

    fn open(name: u64) -> Option<Self> {
        let luid = LUID { LowPart: name as u32, HighPart: (name >> 32) as i32 };
        let mut call = D3DKMT_OPENADAPTERFROMLUID { AdapterLuid: luid, hAdapter: 0 };
        // SAFETY: the structure is the one that the call takes and outlives it.
        unsafe { D3DKMTOpenAdapterFromLuid(&mut call) }.is_ok().then_some(Self(call.hAdapter))
    }

    fn is_at(&self, pci_address: &str) -> bool {
        let mut place = D3DKMT_ADAPTERADDRESS::default();
        // SAFETY: this question is answered with that structure.
        let is_told = unsafe { self.ask(KMTQAITYPE_ADAPTERADDRESS, &mut place) };
        is_told && is_at(pci_address, place.BusNumber, place.DeviceNumber, place.FunctionNumber)
    }

    fn memory_bytes(&self) -> Option<u64> {
        let mut sizes = D3DKMT_SEGMENTSIZEINFO::default();
        // SAFETY: this question is answered with that structure.
        let is_told = unsafe { self.ask(KMTQAITYPE_GETSEGMENTSIZE, &mut sizes) };
        Some(sizes.DedicatedVideoMemorySize).filter(|bytes| is_told && *bytes > 0)
    }

    /// What Windows would let this process hold of the adapter's own memory, less what it holds.
    fn memory_free_bytes(&self) -> Option<u64> {
        let mut call = D3DKMT_QUERYVIDEOMEMORYINFO {
            hAdapter: self.0,
            MemorySegmentGroup: D3DKMT_MEMORY_SEGMENT_GROUP_LOCAL,
            ..D3DKMT_QUERYVIDEOMEMORYINFO::default()
        };
        // SAFETY: the structure is the one that the call takes and outlives it; without a process it means
        // this one.
        let is_told = unsafe { D3DKMTQueryVideoMemoryInfo(&mut call) }.is_ok() && call.Budget > 0;
        is_told.then(|| call.Budget.saturating_sub(call.CurrentUsage))
    }

    fn temperature_c(&self) -> Option<f32> {
        let mut now = D3DKMT_ADAPTER_PERFDATA::default();
        // SAFETY: this question is answered with that structure.
        let is_told = unsafe { self.ask(KMTQAITYPE_ADAPTERPERFDATA, &mut now) };
        celsius(now.Temperature).filter(|_| is_told)
    }

    /// Whether the kernel wrote an answer.
    ///
    /// # Safety
    ///
    /// `T` is the structure that this question is answered with, and any bytes are a value of it.
    unsafe fn ask<T>(&self, question: KMTQUERYADAPTERINFOTYPE, answer: &mut T) -> bool {
        let mut call = D3DKMT_QUERYADAPTERINFO {
            hAdapter: self.0,
            Type: question,
            pPrivateDriverData: (&raw mut *answer).cast::<c_void>(),
            PrivateDriverDataSize: size_of::<T>() as u32,
        };
        // SAFETY: the answer is as large as is said and outlives the call; what it is made of, the caller
        // knows.
        unsafe { D3DKMTQueryAdapterInfo(&mut call) }.is_ok()
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        // SAFETY: we opened it, and no one else has it. Of a failure nothing follows that could be done.
        let _ = unsafe { D3DKMTCloseAdapter(&D3DKMT_CLOSEADAPTER { hAdapter: self.0 }) };
    }
}
