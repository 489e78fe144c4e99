//! The functions of the drivers, one line each: NVIDIA's (CUDA, through `cudarc`) and AMD's (HIP, behind the
//! feature `hip`), which differ in their names and in the few functions at the end.

use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};

use cudarc::driver::sys;

#[cfg(feature = "hip")]
pub(crate) mod hip;

/// Whose driver.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Api {
    /// NVIDIA's driver API.
    Cuda,
    /// AMD's driver API.
    #[cfg(feature = "hip")]
    Hip,
}

impl Api {
    /// Every driver that this program was built for, the preferred ones first.
    pub const ALL: &[Self] = &[
        Self::Cuda,
        #[cfg(feature = "hip")]
        Self::Hip,
    ];

    /// Lower-case name, as in settings and in [`exo_types::DeviceFacts::backend`].
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            #[cfg(feature = "hip")]
            Self::Hip => "hip",
        }
    }

    /// Who makes the cards.
    pub const fn vendor_name(self) -> &'static str {
        match self {
            Self::Cuda => "NVIDIA",
            #[cfg(feature = "hip")]
            Self::Hip => "AMD",
        }
    }

    /// The vendor's PCI number.
    pub const fn vendor(self) -> u32 {
        match self {
            Self::Cuda => 0x10de,
            #[cfg(feature = "hip")]
            Self::Hip => 0x1002,
        }
    }
}

/// The driver refused a call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed with {name}: {text}")]
#[allow(missing_docs)] // the messages say what the fields are
pub struct CallError {
    pub call: &'static str,
    pub name: String,
    pub text: String,
    pub(crate) code: Code,
}

/// What a function of a driver returns. Both drivers have these numbers.
pub(crate) type Code = c_uint;
const SUCCESS: Code = 0;
const OUT_OF_MEMORY: Code = 2;
const NO_DEVICE: Code = 100;
const INVALID_DEVICE: Code = 101;
pub(crate) const NOT_READY: Code = 600;

impl CallError {
    pub(crate) fn is_out_of_memory(&self) -> bool {
        self.code == OUT_OF_MEMORY
    }

    /// Something took longer than is waited for.
    pub(crate) fn late(call: &'static str, text: String) -> Self {
        Self { call, name: "no answer".to_owned(), text, code: Code::MAX }
    }

    /// AMD's driver says before a card is named that a card is invalid, when there is none.
    pub(crate) fn is_no_device(&self) -> bool {
        self.code == NO_DEVICE || self.code == INVALID_DEVICE
    }
}

pub(crate) type Call<T> = Result<T, CallError>;

/// A driver's word for what its function returned; `words` gives it names and texts, each null if it knows
/// none.
pub(crate) fn check(
    call: &'static str,
    code: Code,
    words: impl FnOnce(Code) -> [*const c_char; 2],
) -> Call<()> {
    if code == SUCCESS {
        return Ok(());
    }
    let [name, text] = words(code).map(|word| {
        // SAFETY: the drivers give texts of their own, which end in a zero and live for ever, or null.
        let word = (!word.is_null()).then(|| unsafe { CStr::from_ptr(word) });
        word.map(|word| word.to_string_lossy().into_owned())
    });
    Err(CallError {
        call,
        name: name.unwrap_or_else(|| format!("error {code}")),
        text: text.unwrap_or_else(|| "without words".to_owned()),
        code,
    })
}

fn cuda(call: &'static str, result: sys::CUresult) -> Call<()> {
    check(call, result as Code, |_| {
        let mut words = [std::ptr::null(); 2];
        // SAFETY: each writes a pointer to a text of the driver's own, or leaves null for a number it does
        // not know.
        unsafe {
            sys::cuGetErrorName(result, &mut words[0]);
            sys::cuGetErrorString(result, &mut words[1]);
        }
        words
    })
}

/// Methods of [`Api`] that call one function or the other, which take the same, and the list of AMD's that
/// are looked up.
macro_rules! calls {
    (
        both { $($name:ident($($arg:ident: $kind:ty),*) = $cuda:ident, $hip:ident;)* }
        hip { $($only:ident($($hip_arg:ident: $hip_kind:ty),*) -> $result:ty;)* }
    ) => {
        impl Api {
            $(
                /// As the driver's documentation has it, for this thread's current card.
                #[allow(clippy::too_many_arguments, reason = "the drivers' own")]
                pub(crate) unsafe fn $name(self, $($arg: $kind),*) -> Call<()> {
                    match self {
                        // SAFETY: the caller keeps to the function's documentation.
                        Self::Cuda => cuda(stringify!($cuda), unsafe { sys::$cuda($($arg),*) }),
                        #[cfg(feature = "hip")]
                        // SAFETY: as above; looked up under this name, whose signature this is.
                        Self::Hip => hip::call(stringify!($hip), |all| unsafe { (all.$hip)($($arg),*) }),
                    }
                }
            )*
        }

        /// AMD's functions.
        #[cfg(feature = "hip")]
        #[allow(non_snake_case, reason = "AMD's names")]
        #[derive(Debug)]
        pub(crate) struct HipCalls {
            $(pub(crate) $hip: unsafe extern "C" fn($($kind),*) -> Code,)*
            $(pub(crate) $only: unsafe extern "C" fn($($hip_kind),*) -> $result,)*
        }

        #[cfg(feature = "hip")]
        impl HipCalls {
            /// Looks all of them up. The library must be AMD's driver, and stay.
            pub(crate) unsafe fn of(library: &libloading::Library) -> Result<Self, libloading::Error> {
                // SAFETY: a library that has these names has these functions, by contract.
                unsafe {
                    Ok(Self {
                        $($hip: *library.get(stringify!($hip))?,)*
                        $($only: *library.get(stringify!($only))?,)*
                    })
                }
            }
        }
    };
}

calls! {
    both {
        init(flags: c_uint) = cuInit, hipInit;
        driver_version(version: *mut c_int) = cuDriverGetVersion, hipDriverGetVersion;
        device_count(count: *mut c_int) = cuDeviceGetCount, hipGetDeviceCount;
        device_name(name: *mut c_char, len: c_int, device: c_int) = cuDeviceGetName, hipDeviceGetName;
        device_pci_bus_id(id: *mut c_char, len: c_int, device: c_int) = cuDeviceGetPCIBusId, hipDeviceGetPCIBusId;
        device_total_mem(bytes: *mut usize, device: c_int) = cuDeviceTotalMem_v2, hipDeviceTotalMem;
        mem_info(free: *mut usize, total: *mut usize) = cuMemGetInfo_v2, hipMemGetInfo;
        mem_alloc(at: *mut u64, bytes: usize) = cuMemAlloc_v2, hipMalloc;
        mem_free(at: u64) = cuMemFree_v2, hipFree;
        mem_host_alloc(at: *mut *mut c_void, bytes: usize, flags: c_uint) = cuMemHostAlloc, hipHostMalloc;
        mem_host_free(at: *mut c_void) = cuMemFreeHost, hipHostFree;
        copy_to_card(to: u64, from: *const c_void, bytes: usize, stream: sys::CUstream) = cuMemcpyHtoDAsync_v2, hipMemcpyHtoDAsync;
        copy_from_card(to: *mut c_void, from: u64, bytes: usize, stream: sys::CUstream) = cuMemcpyDtoHAsync_v2, hipMemcpyDtoHAsync;
        copy_on_card(to: u64, from: u64, bytes: usize, stream: sys::CUstream) = cuMemcpyDtoDAsync_v2, hipMemcpyDtoDAsync;
        set_bytes(to: u64, value: c_uchar, count: usize, stream: sys::CUstream) = cuMemsetD8Async, hipMemsetD8Async;
        module_load(module: *mut sys::CUmodule, image: *const c_void) = cuModuleLoadData, hipModuleLoadData;
        module_unload(module: sys::CUmodule) = cuModuleUnload, hipModuleUnload;
        module_function(function: *mut sys::CUfunction, module: sys::CUmodule, name: *const c_char) = cuModuleGetFunction, hipModuleGetFunction;
        launch(
            function: sys::CUfunction, x: c_uint, y: c_uint, z: c_uint, threads_x: c_uint, threads_y: c_uint, threads_z: c_uint,
            shared_bytes: c_uint, stream: sys::CUstream, params: *mut *mut c_void, extra: *mut *mut c_void
        ) = cuLaunchKernel, hipModuleLaunchKernel;
        stream_create(stream: *mut sys::CUstream, flags: c_uint) = cuStreamCreate, hipStreamCreateWithFlags;
        stream_destroy(stream: sys::CUstream) = cuStreamDestroy_v2, hipStreamDestroy;
        begin_capture(stream: sys::CUstream, mode: sys::CUstreamCaptureMode) = cuStreamBeginCapture_v2, hipStreamBeginCapture;
        end_capture(stream: sys::CUstream, graph: *mut sys::CUgraph) = cuStreamEndCapture, hipStreamEndCapture;
        graph_instantiate(exec: *mut sys::CUgraphExec, graph: sys::CUgraph, flags: c_ulonglong) = cuGraphInstantiateWithFlags, hipGraphInstantiateWithFlags;
        graph_destroy(graph: sys::CUgraph) = cuGraphDestroy, hipGraphDestroy;
        graph_exec_destroy(exec: sys::CUgraphExec) = cuGraphExecDestroy, hipGraphExecDestroy;
        graph_launch(exec: sys::CUgraphExec, stream: sys::CUstream) = cuGraphLaunch, hipGraphLaunch;
        event_create(event: *mut sys::CUevent, flags: c_uint) = cuEventCreate, hipEventCreateWithFlags;
        event_destroy(event: sys::CUevent) = cuEventDestroy_v2, hipEventDestroy;
        event_record(event: sys::CUevent, stream: sys::CUstream) = cuEventRecord, hipEventRecord;
        event_query(event: sys::CUevent) = cuEventQuery, hipEventQuery;
    }
    hip {
        hipDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) -> Code;
        hipSetDevice(device: c_int) -> Code;
        hipGetErrorName(error: Code) -> *const c_char;
        hipGetErrorString(error: Code) -> *const c_char;
    }
}

/// A property of a card that is a number.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Attribute {
    Multiprocessors,
    Integrated,
    CapabilityMajor,
    CapabilityMinor,
}

impl Attribute {
    fn of_cuda(self) -> sys::CUdevice_attribute {
        match self {
            Self::Multiprocessors => sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
            Self::Integrated => sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED,
            Self::CapabilityMajor => sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            Self::CapabilityMinor => sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        }
    }

    /// `hipDeviceAttribute_t` since HIP 4.3.
    #[cfg(feature = "hip")]
    fn of_hip(self) -> c_int {
        match self {
            Self::Multiprocessors => 63,
            Self::Integrated => 16,
            Self::CapabilityMajor => 23,
            Self::CapabilityMinor => 61,
        }
    }
}

/// A card, by its place in its driver's list, and the context that it has with NVIDIA's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CardHandle {
    pub(crate) api: Api,
    pub(crate) device: c_int,
    /// Null with AMD's, whose threads know a card by its number.
    pub(crate) context: sys::CUcontext,
}

/// What the drivers do not have alike.
impl Api {
    /// Whether a copy to the card from memory that is not pinned may still read it when the call has
    /// returned.
    pub(crate) fn reads_after_return(self) -> bool {
        match self {
            Self::Cuda => false,
            #[cfg(feature = "hip")]
            Self::Hip => true,
        }
    }

    pub(crate) fn attribute(self, attribute: Attribute, device: c_int) -> Call<i32> {
        let mut value = 0;
        match self {
            Self::Cuda => {
                // SAFETY: writes one number.
                let result = unsafe { sys::cuDeviceGetAttribute(&mut value, attribute.of_cuda(), device) };
                cuda("cuDeviceGetAttribute", result)?;
            }
            #[cfg(feature = "hip")]
            // SAFETY: as above.
            Self::Hip => hip::call("hipDeviceGetAttribute", |all| unsafe {
                (all.hipDeviceGetAttribute)(&mut value, attribute.of_hip(), device)
            })?,
        }
        Ok(value)
    }
}

impl CardHandle {
    /// Takes the card into use; [`Self::close`] ends that.
    pub(crate) fn open(api: Api, device: c_int) -> Call<Self> {
        let mut context = std::ptr::null_mut();
        match api {
            // SAFETY: writes a handle, which `close` gives back.
            Api::Cuda => cuda("cuDevicePrimaryCtxRetain", unsafe {
                sys::cuDevicePrimaryCtxRetain(&mut context, device)
            })?,
            #[cfg(feature = "hip")]
            Api::Hip => {}
        }
        let place = Self { api, device, context };
        place.enter().map(|()| place)
    }

    /// Makes it this thread's current one, as most calls need it.
    pub(crate) fn enter(&self) -> Call<()> {
        match self.api {
            // SAFETY: the context is retained until `close`.
            Api::Cuda => cuda("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.context) }),
            #[cfg(feature = "hip")]
            // SAFETY: changes what this thread's next calls are about.
            Api::Hip => hip::call("hipSetDevice", |all| unsafe { (all.hipSetDevice)(self.device) }),
        }
    }

    pub(crate) fn close(&self) -> Call<()> {
        match self.api {
            Api::Cuda => {
                // SAFETY: retained once, in `open`.
                cuda("cuDevicePrimaryCtxRelease", unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) })
            }
            #[cfg(feature = "hip")]
            Api::Hip => Ok(()),
        }
    }
}
