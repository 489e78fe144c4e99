//! The kernels that are part of the program, as compressed PTX and as sources for AMD's compiler, and those
//! that a card has loaded.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use exo_backend::RunError;

#[cfg(feature = "hip")]
use crate::api::hip::{self, Source};
use crate::api::{Api, CallError};
use crate::driver::{Context, Function, Module};

/// The files of kernels, and what is made of each.
macro_rules! files {
    ($($file:ident = $name:literal),*) => {
        /// A file of kernels.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub(crate) enum File {
            $($file),*
        }

        impl File {
            #[cfg(test)]
            const ALL: &'static [Self] = &[$(Self::$file),*];

            /// PTX as `cargo xtask ptx` packs it: one stream of zlib.
            fn packed_ptx(self) -> &'static [u8] {
                match self {
                    $(Self::$file => include_bytes!(concat!("../ptx/", $name, ".ptx.z"))),*
                }
            }

            /// Whether it has instructions of NVIDIA's tensor cores.
            #[cfg(all(test, feature = "hip"))]
            fn is_nvidias(self) -> bool {
                matches!(self, Self::MatMulMma | Self::MatMulHalfMma)
            }

            /// What it was made of.
            #[cfg(feature = "hip")]
            fn source(self) -> Source {
                match self {
                    $(Self::$file => source!($name, ".cu")),*
                }
            }
        }
    };
}

#[cfg(feature = "hip")]
macro_rules! source {
    ($name:literal, $end:literal) => {
        (const_name(concat!($name, $end, "\0")), include_str!(concat!("../kernels/", $name, $end)))
    };
}

files! {
    Add = "add",
    ArgMax = "arg_max",
    Attention = "attention",
    Embed = "embed",
    Halves = "halves",
    KvWrite = "kv_write",
    MatMulHalfMma = "matmul_half_mma",
    MatMulMma = "matmul_mma",
    MatMulTile = "matmul_tile",
    MatMulVec = "matmul_vec",
    RmsNorm = "rms_norm",
    Rope = "rope",
    Round8 = "round8",
    SelectRows = "select_rows",
    SwiGlu = "swiglu"
}

/// What the sources include.
#[cfg(feature = "hip")]
const HEADERS: [Source; 9] = [
    source!("eight", ".cuh"),
    source!("fault", ".cuh"),
    source!("halves", ".cuh"),
    source!("pages", ".cuh"),
    source!("platform", ".cuh"),
    source!("platform_hip", ".cuh"),
    source!("rounded", ".cuh"),
    source!("tile", ".cuh"),
    source!("weights", ".cuh"),
];

/// A name that ends in its only zero.
#[cfg(feature = "hip")]
const fn const_name(name: &'static str) -> &'static std::ffi::CStr {
    match std::ffi::CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a file's name has a zero in it"),
    }
}

/// More than twice the largest.
const PTX_BYTES_MAX: usize = 2 << 20;

/// What begins a kernel in PTX, before its name.
const ENTRY: &str = "\n.visible .entry ";

impl File {
    fn ptx(self) -> String {
        let text = miniz_oxide::inflate::decompress_to_vec_zlib_with_limit(self.packed_ptx(), PTX_BYTES_MAX)
            .expect("a test unpacks every file that is part of the program");
        String::from_utf8(text).expect("the same test reads it as text")
    }

    /// PTX of one kernel, with the zero behind it that the driver looks for: what all kernels of the file
    /// share, which is in front of them, and its own. The driver finds none that is not in the file.
    fn ptx_of(self, kernel: &str) -> Vec<u8> {
        let text = self.ptx();
        let mut parts = text.split(ENTRY);
        let shared = parts.next().unwrap_or_default();
        let own = parts.find(|part| part.strip_prefix(kernel).is_some_and(|rest| rest.starts_with('(')));
        [shared, own.map_or("", |_| ENTRY), own.unwrap_or_default(), "\0"].concat().into_bytes()
    }

    /// What a driver loads: for AMD's, the whole file, compiled for the thread's current card.
    fn load(self, kernel: &str, context: &Arc<Context>) -> Result<Arc<Module>, CallError> {
        match context.api() {
            Api::Cuda => context.module(&self.ptx_of(kernel)),
            #[cfg(feature = "hip")]
            Api::Hip => {
                context.enter()?;
                context.module(&hip::compile(self.source(), &HEADERS, None)?)
            }
        }
    }
}

/// What a card has loaded. NVIDIA's driver compiles for the card what it loads, and takes tens to hundreds of
/// milliseconds for a kernel that it sees for the first time: so each is loaded by itself, when it is first
/// asked for. AMD's compiler reads all headers again for each file, which is loaded whole.
#[derive(Default, Debug)]
pub(crate) struct Kernels(Mutex<HashMap<(File, String), Arc<Module>>>);

impl Kernels {
    pub(crate) fn get(&self, context: &Arc<Context>, file: File, name: &str) -> Result<Function, RunError> {
        self.find(context, file, name).map_err(|error| context.lost_run(&error))
    }

    fn find(&self, context: &Arc<Context>, file: File, name: &str) -> Result<Function, CallError> {
        let mut loaded = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let part = match context.api() {
            Api::Cuda => name,
            #[cfg(feature = "hip")]
            Api::Hip => "",
        };
        let key = (file, part.to_owned());
        let module = match loaded.get(&key) {
            Some(module) => Arc::clone(module),
            None => {
                let module = file.load(name, context)?;
                loaded.insert(key, Arc::clone(&module));
                module
            }
        };
        module.function(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_unpacks_to_ptx_and_each_of_its_kernels_is_found_alone() {
        for file in File::ALL {
            let ptx = file.ptx();
            assert!(ptx.contains(".version 8.0\n") && !ptx.contains('\0'), "{file:?}");
            assert!(ptx.len() < PTX_BYTES_MAX / 2, "{file:?}: {} bytes", ptx.len());
            let names: Vec<&str> =
                ptx.split(ENTRY).skip(1).map(|part| part.split('(').next().unwrap()).collect();
            assert!(!names.is_empty(), "{file:?}");
            // Nothing that others could need is behind the first.
            let (_, kernels) = ptx.split_once(ENTRY).unwrap();
            let shared =
                [".const", ".extern", ".func", ".global", ".visible .func", ".visible .global", ".weak"];
            let is_shared = |line: &str| shared.iter().any(|word| line.starts_with(word));
            assert_eq!(kernels.lines().find(|line| is_shared(line)), None, "{file:?}");
            for name in names {
                let alone = String::from_utf8(file.ptx_of(name)).unwrap();
                assert_eq!(alone.matches(".entry ").count(), 1, "{name}");
                assert!(alone.contains(&format!(".entry {name}(")), "{name}");
                assert_eq!(alone.find('\0'), Some(alone.len() - 1), "{name}");
                assert_eq!(alone.matches('{').count(), alone.matches('}').count(), "{name}");
            }
            assert!(!String::from_utf8(file.ptx_of("none")).unwrap().contains(".entry "), "{file:?}");
        }
    }

    /// AMD's own compiler needs no card. A machine without it says so in the report of `cargo xtask test`.
    #[cfg(feature = "hip")]
    #[test]
    fn amds_compiler_takes_every_kernel() {
        if hip::look().is_err() {
            let line = "AMD's compiler and the kernels: libamdhip64 and libhiprtc are not on this machine";
            println!("skipped: {line}");
            if let Some(path) = std::env::var_os("EXO_TEST_SKIPS") {
                let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
                std::io::Write::write_all(&mut file, format!("{line}\n").as_bytes()).unwrap();
            }
            return;
        }
        // RDNA 2, and Vega with waves of 64 threads: the newest that all versions from 5.2 on know.
        for target in ["gfx1030", "gfx906"] {
            for file in File::ALL.iter().filter(|file| !file.is_nvidias()) {
                let code = hip::compile(file.source(), &HEADERS, Some(target)).unwrap();
                assert!(code.starts_with(b"\x7fELF") || code.len() > 1000, "{file:?} for {target}");
            }
        }
        let (name, _) = File::Add.source();
        let error = hip::compile((name, "nonsense"), &[], Some("gfx1030")).unwrap_err();
        assert!(error.to_string().contains("nonsense"), "{error}");
    }
}
