//! AMD's libraries, opened at run time: the driver (`libamdhip64`) and the compiler of kernels (`libhiprtc`,
//! which older versions have in the driver's library).

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use libloading::Library;

use super::{Call, CallError, Code, HipCalls, check};

/// The driver's library, newest first.
const DRIVERS: [&str; 4] = ["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"];
const COMPILERS: [&str; 4] = ["libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so.5", "libhiprtc.so"];
/// Products and sums are not joined, as in the PTX: all kernels of a product must round alike.
const HOW: [&CStr; 3] = [c"-O3", c"-std=c++17", c"-ffp-contract=off"];
/// The most that is shown of what the compiler says.
const LOG_BYTES_MAX: usize = 4000;

type Program = *mut c_void;

/// The compiler's functions.
#[derive(Debug)]
struct Compiler {
    create: CreateProgram,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> Code,
    code_size: unsafe extern "C" fn(Program, *mut usize) -> Code,
    code: unsafe extern "C" fn(Program, *mut c_char) -> Code,
    log_size: unsafe extern "C" fn(Program, *mut usize) -> Code,
    log: unsafe extern "C" fn(Program, *mut c_char) -> Code,
    destroy: unsafe extern "C" fn(*mut Program) -> Code,
    error_string: unsafe extern "C" fn(Code) -> *const c_char,
}

type CreateProgram = unsafe extern "C" fn(
    *mut Program,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> Code;

/// Both libraries, for the process's life.
#[derive(Debug)]
struct Hip {
    calls: HipCalls,
    compiler: Compiler,
    _libraries: [Option<Library>; 2],
}

/// Why the libraries cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Missing {
    /// There is no driver.
    Driver,
    /// There is a library, without a function that AMD's has.
    Functions,
}

fn libraries() -> Result<&'static Hip, Missing> {
    static HIP: OnceLock<Result<Hip, Missing>> = OnceLock::new();
    HIP.get_or_init(open).as_ref().map_err(|missing| *missing)
}

fn open() -> Result<Hip, Missing> {
    let first = |names: [&str; 4]| {
        // SAFETY: opens a library of the system, whose initialisers are AMD's.
        names.into_iter().find_map(|name| unsafe { Library::new(name) }.ok())
    };
    let driver = first(DRIVERS).ok_or(Missing::Driver)?;
    let compiler = first(COMPILERS);
    // SAFETY: the libraries are AMD's, by their names, and are kept beside what was found in them.
    let found = unsafe { (HipCalls::of(&driver), Compiler::of(compiler.as_ref().unwrap_or(&driver))) };
    match found {
        (Ok(calls), Ok(compiler_calls)) => {
            Ok(Hip { calls, compiler: compiler_calls, _libraries: [Some(driver), compiler] })
        }
        _ => Err(Missing::Functions),
    }
}

/// Whether the libraries can be used.
pub(crate) fn look() -> Result<(), Missing> {
    libraries().map(drop)
}

/// Calls a function of the driver.
pub(crate) fn call(name: &'static str, function: impl FnOnce(&HipCalls) -> Code) -> Call<()> {
    let all = &library(name)?.calls;
    check(name, function(all), |code| {
        // SAFETY: both take any number.
        unsafe { [(all.hipGetErrorName)(code), (all.hipGetErrorString)(code)] }
    })
}

fn library(call: &'static str) -> Call<&'static Hip> {
    let text = "AMD's driver library could not be opened".to_owned();
    libraries().map_err(|_| CallError { call, name: "no library".to_owned(), text, code: Code::MAX })
}

impl Compiler {
    /// Looks its functions up. The library must be AMD's, and stay.
    unsafe fn of(library: &Library) -> Result<Self, libloading::Error> {
        // SAFETY: a library that has these names has these functions, by contract.
        unsafe {
            Ok(Self {
                create: *library.get("hiprtcCreateProgram")?,
                compile: *library.get("hiprtcCompileProgram")?,
                code_size: *library.get("hiprtcGetCodeSize")?,
                code: *library.get("hiprtcGetCode")?,
                log_size: *library.get("hiprtcGetProgramLogSize")?,
                log: *library.get("hiprtcGetProgramLog")?,
                destroy: *library.get("hiprtcDestroyProgram")?,
                error_string: *library.get("hiprtcGetErrorString")?,
            })
        }
    }

    fn check(&self, call: &'static str, code: Code) -> Call<()> {
        // SAFETY: takes any number.
        check(call, code, |code| [ptr::null(), unsafe { (self.error_string)(code) }])
    }

    /// What the compiler says of a program.
    fn log(&self, program: Program) -> String {
        let mut bytes = 0;
        // SAFETY: writes one number about a program that is there.
        if unsafe { (self.log_size)(program, &mut bytes) } != 0 || bytes == 0 {
            return String::new();
        }
        let mut text = vec![0u8; bytes];
        // SAFETY: the text is as long as the compiler says.
        unsafe { (self.log)(program, text.as_mut_ptr().cast()) };
        text.truncate(LOG_BYTES_MAX);
        String::from_utf8_lossy(&text).trim_end_matches('\0').to_owned()
    }

    fn code(&self, program: Program) -> Call<Vec<u8>> {
        let mut bytes = 0;
        // SAFETY: writes one number about a compiled program.
        self.check("hiprtcGetCodeSize", unsafe { (self.code_size)(program, &mut bytes) })?;
        let mut code = vec![0u8; bytes];
        // SAFETY: the memory is as long as the compiler says.
        self.check("hiprtcGetCode", unsafe { (self.code)(program, code.as_mut_ptr().cast()) })?;
        Ok(code)
    }
}

/// A text with its file's name.
pub(crate) type Source = (&'static CStr, &'static str);

/// Compiles a source and what it includes for the thread's current card, or for `target`, such as `gfx1030`.
pub(crate) fn compile((name, source): Source, headers: &[Source], target: Option<&str>) -> Call<Vec<u8>> {
    let compiler = &library("hiprtcCreateProgram")?.compiler;
    // Our own texts hold no zero.
    let owned = |text: &str| CString::new(text).unwrap_or_default();
    let (source, texts) = (owned(source), headers.iter().map(|(_, text)| owned(text)).collect::<Vec<_>>());
    let texts: Vec<_> = texts.iter().map(|text| text.as_ptr()).collect();
    let names: Vec<_> = headers.iter().map(|(name, _)| name.as_ptr()).collect();
    let target = target.map(|target| owned(&format!("--offload-arch={target}")));
    let options: Vec<_> = HOW.iter().copied().chain(target.as_deref()).map(CStr::as_ptr).collect();
    let mut program = ptr::null_mut();
    // SAFETY: all texts end in a zero and outlive the program; there are as many names as headers.
    let created = unsafe {
        let count = names.len() as c_int;
        (compiler.create)(&mut program, source.as_ptr(), name.as_ptr(), count, texts.as_ptr(), names.as_ptr())
    };
    compiler.check("hiprtcCreateProgram", created)?;
    // SAFETY: the program was made above; the options end in a zero each.
    let compiled = unsafe { (compiler.compile)(program, options.len() as c_int, options.as_ptr()) };
    let compiled = compiler.check("hiprtcCompileProgram", compiled);
    let code = match compiled {
        Ok(()) => compiler.code(program),
        Err(error) => Err(CallError { text: format!("{}: {}", error.text, compiler.log(program)), ..error }),
    };
    // SAFETY: made above, and not used again. A program that stays costs some memory and nothing else.
    unsafe { (compiler.destroy)(&mut program) };
    code
}
