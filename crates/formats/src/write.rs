//! GGUF files, written: by tests, and by whoever makes a model or another quantisation of one.

use std::borrow::Cow;
use std::io::{self, Write};

use exo_types::DType;

use crate::gguf::{MAGIC, Value, ValueKind, number_of};

const ALIGNMENT: u64 = 32;

/// Collects metadata and tensors, then writes them as one GGUF file of version 3.
///
/// A tensor's bytes are either given with it ([`GgufWriter::tensor`]) or made when its turn comes
/// ([`GgufWriter::declare`], [`GgufWriter::write_with`]), so that a file need not fit in memory.
#[derive(Clone, Debug, Default)]
pub struct GgufWriter<'a> {
    entries: Vec<u8>,
    entry_count: u64,
    tensors: Vec<Tensor<'a>>,
}

#[derive(Clone, Debug)]
struct Tensor<'a> {
    name: String,
    dtype: DType,
    dims: Vec<u64>,
    bytes: u64,
    data: Option<Cow<'a, [u8]>>,
}

impl<'a> GgufWriter<'a> {
    /// An empty file.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a text.
    pub fn text(&mut self, key: &str, value: &str) -> &mut Self {
        self.key(key, ValueKind::String);
        push_text(&mut self.entries, value);
        self
    }

    /// Adds a number.
    pub fn u32(&mut self, key: &str, value: u32) -> &mut Self {
        self.scalar(key, ValueKind::U32, &value.to_le_bytes())
    }

    /// Adds a real number.
    pub fn f32(&mut self, key: &str, value: f32) -> &mut Self {
        self.scalar(key, ValueKind::F32, &value.to_le_bytes())
    }

    /// Adds a truth value.
    pub fn flag(&mut self, key: &str, value: bool) -> &mut Self {
        self.scalar(key, ValueKind::Bool, &[u8::from(value)])
    }

    /// Adds a list of texts.
    pub fn texts<T: AsRef<str>>(
        &mut self,
        key: &str,
        values: impl IntoIterator<Item = T, IntoIter: ExactSizeIterator>,
    ) -> &mut Self {
        let values = values.into_iter();
        self.array(key, ValueKind::String, values.len());
        values.for_each(|v| push_text(&mut self.entries, v.as_ref()));
        self
    }

    /// Adds a list of reals.
    pub fn f32s(&mut self, key: &str, values: &[f32]) -> &mut Self {
        self.array(key, ValueKind::F32, values.len());
        self.entries.extend(values.iter().flat_map(|v| v.to_le_bytes()));
        self
    }

    /// Adds a list of integers.
    pub fn i32s(&mut self, key: &str, values: &[i32]) -> &mut Self {
        self.array(key, ValueKind::I32, values.len());
        self.entries.extend(values.iter().flat_map(|v| v.to_le_bytes()));
        self
    }

    /// Adds a value as another file has it; `file` is that file, whose bytes an array still lies in.
    pub fn value(&mut self, key: &str, value: &Value, file: &[u8]) -> &mut Self {
        match value {
            Value::U8(v) => self.scalar(key, ValueKind::U8, &v.to_le_bytes()),
            Value::I8(v) => self.scalar(key, ValueKind::I8, &v.to_le_bytes()),
            Value::U16(v) => self.scalar(key, ValueKind::U16, &v.to_le_bytes()),
            Value::I16(v) => self.scalar(key, ValueKind::I16, &v.to_le_bytes()),
            Value::U32(v) => self.u32(key, *v),
            Value::I32(v) => self.scalar(key, ValueKind::I32, &v.to_le_bytes()),
            Value::F32(v) => self.f32(key, *v),
            Value::Bool(v) => self.flag(key, *v),
            Value::String(v) => self.text(key, v),
            Value::U64(v) => self.scalar(key, ValueKind::U64, &v.to_le_bytes()),
            Value::I64(v) => self.scalar(key, ValueKind::I64, &v.to_le_bytes()),
            Value::F64(v) => self.scalar(key, ValueKind::F64, &v.to_le_bytes()),
            Value::Array(array) => {
                self.array(key, array.kind, array.len as usize);
                self.entries.extend(array.bytes(file));
                self
            }
        }
    }

    /// Adds a tensor with its bytes. `dims` has the contiguous dimension first: `[inputs, outputs]`.
    ///
    /// Panics if `bytes` is not as long as type and dimensions say.
    pub fn tensor(
        &mut self,
        name: &str,
        dtype: DType,
        dims: &[u64],
        bytes: impl Into<Cow<'a, [u8]>>,
    ) -> &mut Self {
        let data = bytes.into();
        self.declare(name, dtype, dims);
        let declared = self.tensors.last_mut().expect("declare pushed it");
        assert_eq!(data.len() as u64, declared.bytes, "bytes of tensor {name}, {dtype} {dims:?}");
        declared.data = Some(data);
        self
    }

    /// Adds a tensor whose bytes [`GgufWriter::write_with`] will ask for.
    ///
    /// Panics if there are no dimensions or a row does not fill whole blocks.
    pub fn declare(&mut self, name: &str, dtype: DType, dims: &[u64]) -> &mut Self {
        let (cols, rest) = dims.split_first().expect("a tensor has at least one dimension");
        let row = dtype.bytes_of(*cols).unwrap_or_else(|| panic!("rows of {name} are {cols} {dtype}"));
        let bytes = rest.iter().product::<u64>() * row;
        self.tensors.push(Tensor { name: name.to_owned(), dtype, dims: dims.to_vec(), bytes, data: None });
        self
    }

    /// Length of the file that [`GgufWriter::write_with`] will write.
    pub fn len_bytes(&self) -> u64 {
        let tensors = self.tensors.iter().map(|t| t.bytes.next_multiple_of(ALIGNMENT));
        self.header().len() as u64 + tensors.sum::<u64>()
    }

    /// Writes the file. `fill(i, out)` writes exactly the bytes of the `i`-th tensor (from 0, in the order
    /// they were added); it is asked only for declared ones. Returns the length of the file.
    pub fn write_with(
        &self,
        out: &mut dyn Write,
        mut fill: impl FnMut(usize, &mut dyn Write) -> io::Result<()>,
    ) -> io::Result<u64> {
        let header = self.header();
        out.write_all(&header)?;
        let mut written = header.len() as u64;
        for (i, tensor) in self.tensors.iter().enumerate() {
            let mut counted = Counted { out: &mut *out, bytes: 0 };
            match &tensor.data {
                Some(data) => counted.write_all(data)?,
                None => fill(i, &mut counted)?,
            }
            if counted.bytes != tensor.bytes {
                let (name, expected, found) = (&tensor.name, tensor.bytes, counted.bytes);
                let text = format!("tensor {name} was given {found} bytes, it has {expected}");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
            }
            let padding = tensor.bytes.next_multiple_of(ALIGNMENT) - tensor.bytes;
            out.write_all(&[0; ALIGNMENT as usize][..padding as usize])?;
            written += tensor.bytes + padding;
        }
        Ok(written)
    }

    /// The whole file in memory. Panics if a tensor was declared without bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let no_bytes = |i: usize, _: &mut dyn Write| -> io::Result<()> {
            Err(io::Error::other(format!("tensor {} has no bytes", self.tensors[i].name)))
        };
        self.write_with(&mut out, no_bytes)
            .expect("every tensor was given with its bytes; memory does not fail");
        out
    }

    /// Magic to tensor table, padded to where the data begins.
    fn header(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend(self.entry_count.to_le_bytes());
        out.extend(&self.entries);
        let mut offset = 0u64;
        for tensor in &self.tensors {
            push_text(&mut out, &tensor.name);
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            out.extend(tensor.dims.iter().flat_map(|d| d.to_le_bytes()));
            out.extend(number_of(tensor.dtype).to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset += tensor.bytes.next_multiple_of(ALIGNMENT);
        }
        out.resize(out.len().next_multiple_of(ALIGNMENT as usize), 0);
        out
    }

    fn key(&mut self, key: &str, kind: ValueKind) {
        push_text(&mut self.entries, key);
        self.entries.extend((kind as u32).to_le_bytes());
        self.entry_count += 1;
    }

    fn scalar(&mut self, key: &str, kind: ValueKind, bytes: &[u8]) -> &mut Self {
        self.key(key, kind);
        self.entries.extend(bytes);
        self
    }

    fn array(&mut self, key: &str, kind: ValueKind, len: usize) {
        self.key(key, ValueKind::Array);
        self.entries.extend((kind as u32).to_le_bytes());
        self.entries.extend((len as u64).to_le_bytes());
    }
}

fn push_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// Counts what passes through.
struct Counted<'a> {
    out: &'a mut dyn Write,
    bytes: u64,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
