//! The PTX that is part of the program, and the kernels of it that a card has loaded.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use exo_backend::RunError;

use crate::driver::{CallError, Context, Function, Module};

/// A file of kernels. Each is loaded when its first kernel is asked for: the driver compiles it for the card, once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum File {
    Add,
    Attention,
    Embed,
    KvWrite,
    MatMulMma,
    MatMulTile,
    MatMulVec,
    RmsNorm,
    Rope,
    Round8,
    SelectRows,
    SwiGlu,
}

impl File {
    fn ptx(self) -> &'static str {
        match self {
            Self::Add => include_str!("../ptx/add.ptx"),
            Self::Attention => include_str!("../ptx/attention.ptx"),
            Self::Embed => include_str!("../ptx/embed.ptx"),
            Self::KvWrite => include_str!("../ptx/kv_write.ptx"),
            Self::MatMulMma => include_str!("../ptx/matmul_mma.ptx"),
            Self::MatMulTile => include_str!("../ptx/matmul_tile.ptx"),
            Self::MatMulVec => include_str!("../ptx/matmul_vec.ptx"),
            Self::RmsNorm => include_str!("../ptx/rms_norm.ptx"),
            Self::Rope => include_str!("../ptx/rope.ptx"),
            Self::Round8 => include_str!("../ptx/round8.ptx"),
            Self::SelectRows => include_str!("../ptx/select_rows.ptx"),
            Self::SwiGlu => include_str!("../ptx/swiglu.ptx"),
        }
    }
}

/// What a card has loaded.
#[derive(Default, Debug)]
pub(crate) struct Kernels(Mutex<HashMap<File, Arc<Module>>>);

impl Kernels {
    pub(crate) fn get(&self, context: &Arc<Context>, file: File, name: &str) -> Result<Function, RunError> {
        self.find(context, file, name).map_err(|error| context.lost_run(&error))
    }

    fn find(&self, context: &Arc<Context>, file: File, name: &str) -> Result<Function, CallError> {
        let mut loaded = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let module = match loaded.get(&file) {
            Some(module) => Arc::clone(module),
            None => {
                let module = context.module(file.ptx())?;
                loaded.insert(file, Arc::clone(&module));
                module
            }
        };
        module.function(name)
    }
}
