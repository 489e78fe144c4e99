//! One model to one file: planned, then run.

use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use exo_formats::write::GgufWriter;
use exo_formats::{Model, TensorError};
use exo_types::DType;

use crate::mix::matrix_type;
use crate::output::Output;
use crate::report::Report;
use crate::rows::{Stop, write_tensor};
use crate::source::{self, Tensor};
use crate::{QuantError, Target, keys, rope};

/// A conversion that can be done: everything but the weights' own values is known to be in order.
pub struct Conversion {
    model: Model,
    target: Target,
    header: GgufWriter<'static>,
    tensors: Vec<(Tensor, DType)>,
}

/// How a job is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Threads that quantise.
    pub threads: usize,
    /// Whether a file of that name may be replaced.
    pub replace: bool,
}

/// How far a job is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress<'a> {
    /// The tensor at work.
    pub tensor: &'a str,
    /// Elements finished.
    pub elements_done: u64,
    /// Elements in all.
    pub elements_total: u64,
}

impl Conversion {
    /// Plans a file of type `target`. A source that is quantised already is refused unless `requantise`.
    pub fn new(model: Model, target: Target, requantise: bool) -> Result<Self, QuantError> {
        let unreadable = |source: TensorError| QuantError::Tensor { model: model.name.clone(), source };
        let tensors = source::tensors(&model).map_err(unreadable)?;
        let is_rounded = |t: &&Tensor| t.dtype.is_quantised() && t.is_matrix();
        if let Some(tensor) = tensors.iter().find(is_rounded).filter(|_| !requantise) {
            return Err(QuantError::AlreadyQuantised {
                model: model.name.clone(),
                tensor: tensor.name.clone(),
                dtype: tensor.dtype,
                target,
            });
        }
        let with_type = |tensor: Tensor| {
            let dtype = match tensor.role.filter(|_| tensor.is_matrix()) {
                Some(name) => matrix_type(target, &model.config, name, tensor.cols),
                None => DType::F32,
            };
            (tensor, dtype)
        };
        let tensors: Vec<_> = tensors.into_iter().map(with_type).collect();
        let mut header = keys::header(&model, target)?;
        for (tensor, dtype) in &tensors {
            header.declare(&tensor.name, *dtype, &tensor.dims);
        }
        Ok(Self { model, target, header, tensors })
    }

    /// Length of the new file.
    pub fn file_bytes(&self) -> u64 {
        self.header.len_bytes()
    }

    /// The model's name without the type it has, and the new type: what such files are called.
    pub fn file_name(&self) -> String {
        let name = self.model.name.as_str();
        let suffixes = Target::ALL.map(|t| format!("-{t}"));
        let bare = suffixes.iter().find_map(|suffix| {
            let at =
                name.len().checked_sub(suffix.len()).filter(|at| *at > 0 && name.is_char_boundary(*at))?;
            name[at..].eq_ignore_ascii_case(suffix).then_some(&name[..at])
        });
        format!("{}-{}.gguf", bare.unwrap_or(name).replace(['/', '\\'], "_"), self.target)
    }

    /// What llama.cpp will do otherwise with the new file, if anything.
    pub fn caveat(&self) -> Option<String> {
        let window = self.model.config.sliding_window?;
        let is_llama = rope::is_interleaved(self.model.config.architecture);
        is_llama.then(|| {
            format!(
                "the model looks back {window} tokens at most; exo keeps to that, llama.cpp sees them all"
            )
        })
    }

    /// Writes the file. When this returns an error, or `cancel` was set, no file is left behind.
    pub fn run(
        &self,
        path: &Path,
        options: Options,
        progress: &mut dyn FnMut(Progress<'_>),
        cancel: &AtomicBool,
    ) -> Result<Report, QuantError> {
        let output = Output::create(path, self.file_bytes(), options.replace, &self.model)?;
        let mut report =
            Report { path: path.to_owned(), file_bytes: self.file_bytes(), types: Default::default() };
        let elements_total = self.tensors.iter().map(|(t, _)| t.elements()).sum();
        let mut elements_done = 0;
        let mut failure = None;
        let mut file = BufWriter::with_capacity(1 << 20, output.file());
        let fill = |index: usize, out: &mut dyn Write| {
            let (tensor, dtype) = &self.tensors[index];
            let mut after = |rows: u64| {
                elements_done += rows * tensor.cols;
                progress(Progress { tensor: &tensor.name, elements_done, elements_total });
                if cancel.load(Ordering::Relaxed) { Err(QuantError::Cancelled) } else { Ok(()) }
            };
            match write_tensor(tensor, *dtype, options.threads, out, &mut after) {
                Ok(one) => {
                    report.types.entry(*dtype).or_default().add(&one);
                    Ok(())
                }
                Err(Stop::Write(error)) => Err(error),
                Err(Stop::Failed(error)) => {
                    failure = Some(error);
                    Err(io::Error::other("a tensor could not be quantised"))
                }
            }
        };
        let written = self.header.write_with(&mut file, fill).and_then(|_| file.flush());
        drop(file);
        // A source that shrank meanwhile explains whatever else went wrong.
        self.model.check()?;
        match (failure, written) {
            (Some(error), _) => return Err(error),
            (None, Err(error)) => return Err(output.write_failed(error)),
            (None, Ok(())) => output.finish(cancel)?,
        }
        Ok(report)
    }
}
