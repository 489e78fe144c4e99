//! The header as a whole: version, metadata, tensor table, start of the data.

use std::collections::BTreeSet;
use std::ops::Range;

use exo_types::DType;

use super::metadata::short;
use super::reader::Reader;
use super::{GgufError, MAGIC, Metadata};

/// Real files have a few thousand tensors.
const TENSORS_MAX: u64 = 100_000;
/// A name's length, number of dimensions, one dimension, type and offset.
const TENSOR_BYTES_MIN: u64 = 32;
const NAME_BYTES_MAX: u64 = 256;
const DIMENSIONS_MAX: u32 = 4;
const ALIGNMENT_DEFAULT: u32 = 32;
const ALIGNMENT_MAX: u32 = 1 << 20;

/// A parsed header. Tensor ranges are checked against the length of the file.
#[derive(Clone, PartialEq, Debug)]
pub struct Gguf {
    /// Version of the container: 2 or 3.
    pub version: u32,
    /// The keys.
    pub metadata: Metadata,
    /// The tensors in the order of the table.
    pub tensors: Vec<GgufTensor>,
    /// Where tensor bytes begin: everything before is header.
    pub data_start: u64,
}

/// One line of the tensor table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GgufTensor {
    /// Its name in the file.
    pub name: String,
    /// How elements are stored.
    pub dtype: DType,
    /// Dimensions as the file has them: the contiguous one first.
    pub dims: Vec<u64>,
    /// Its bytes, from the start of the file.
    pub range: Range<u64>,
    /// Where its line in the table starts.
    pub table_offset: u64,
}

impl Gguf {
    /// Parses the header at the start of `bytes`, which is the whole file (its data may be holes).
    pub fn parse(bytes: &[u8]) -> Result<Self, GgufError> {
        let mut r = Reader::new(bytes, 0);
        let version = read_version(&mut r)?;
        let (tensors_at, tensor_count) = (r.offset(), r.u64(format_args!("number of tensors"))?);
        let (entries_at, entry_count) = (r.offset(), r.u64(format_args!("number of metadata entries"))?);
        if tensor_count > TENSORS_MAX || tensor_count > r.remaining() / TENSOR_BYTES_MIN {
            let problem =
                format!("is {tensor_count}; {} bytes are left, {TENSORS_MAX} are allowed", r.remaining());
            return Err(GgufError { field: "number of tensors".to_owned(), offset: tensors_at, problem });
        }
        let metadata = Metadata::read(&mut r, entry_count, entries_at)?;
        let alignment = read_alignment(&metadata)?;
        let lines = (0..tensor_count).map(|i| Line::read(&mut r, i)).collect::<Result<Vec<_>, _>>()?;
        let data_start = r.offset().next_multiple_of(alignment);
        let place = |line: Line| line.place(data_start, alignment, bytes.len() as u64);
        let tensors = lines.into_iter().map(place).collect::<Result<Vec<_>, _>>()?;
        check_names(&tensors)?;
        check_overlaps(&tensors)?;
        Ok(Self { version, metadata, tensors, data_start })
    }

    /// The tensor called `name` in the file.
    pub fn tensor(&self, name: &str) -> Option<&GgufTensor> {
        self.tensors.iter().find(|t| t.name == name)
    }
}

fn read_version(r: &mut Reader<'_>) -> Result<u32, GgufError> {
    let magic: [u8; 4] = r.array(format_args!("magic"))?;
    let at_start = |field: &str, offset, problem| GgufError { field: field.to_owned(), offset, problem };
    if magic != MAGIC {
        return Err(at_start("magic", 0, format!("is {magic:02x?}, expected the letters GGUF")));
    }
    let version = r.u32(format_args!("version"))?;
    match version {
        2 | 3 => Ok(version),
        0x0200_0000 | 0x0300_0000 => Err(at_start("version", 4, "is that of a big-endian file".to_owned())),
        other => Err(at_start("version", 4, format!("is {other}, supported are 2 and 3"))),
    }
}

fn read_alignment(metadata: &Metadata) -> Result<u64, GgufError> {
    let key = "general.alignment";
    let alignment = metadata.u32(key)?.unwrap_or(ALIGNMENT_DEFAULT);
    if alignment.is_power_of_two() && (8..=ALIGNMENT_MAX).contains(&alignment) {
        return Ok(alignment.into());
    }
    Err(metadata.error(key, format!("is {alignment}, expected a power of two from 8 to {ALIGNMENT_MAX}")))
}

/// One line of the table, before the start of the data is known.
struct Line {
    name: String,
    dtype: DType,
    dims: Vec<u64>,
    bytes: u64,
    offset: u64,
    at: u64,
}

impl Line {
    fn read(r: &mut Reader<'_>, index: u64) -> Result<Self, GgufError> {
        let at = r.offset();
        let name = r.string(NAME_BYTES_MAX, format_args!("name of tensor {index}"))?;
        let dims = read_dims(r, &name)?;
        let type_at = r.offset();
        let number = r.u32(format_args!("type of tensor `{name}`"))?;
        let dtype = dtype_from_number(number).ok_or_else(|| GgufError {
            field: format!("type of tensor `{name}`"),
            offset: type_at,
            problem: format!("is {}, supported are {}", type_name(number), supported_types()),
        })?;
        let bytes = tensor_bytes(dtype, &dims).ok_or_else(|| {
            let problem = format!("{dims:?} of {dtype}: rows must fill blocks of {}", dtype.block_elements());
            GgufError { field: format!("dimensions of tensor `{name}`"), offset: at, problem }
        })?;
        let offset = r.u64(format_args!("offset of tensor `{name}`"))?;
        Ok(Self { name, dtype, dims, bytes, offset, at })
    }

    fn place(self, data_start: u64, alignment: u64, file_bytes: u64) -> Result<GgufTensor, GgufError> {
        let error = |problem| GgufError {
            field: format!("offset of tensor `{}`", self.name),
            offset: self.at,
            problem,
        };
        if !self.offset.is_multiple_of(alignment) {
            return Err(error(format!("is {}, not a multiple of {alignment}", self.offset)));
        }
        let start = data_start.checked_add(self.offset);
        let end = start.and_then(|s| s.checked_add(self.bytes)).filter(|end| *end <= file_bytes);
        let (Some(start), Some(end)) = (start, end) else {
            let (offset, bytes) = (self.offset, self.bytes);
            return Err(error(format!(
                "is {offset} for {bytes} bytes after the header of {data_start}, but the file has {file_bytes} bytes: \
                 it is truncated or damaged"
            )));
        };
        let Self { name, dtype, dims, at, .. } = self;
        Ok(GgufTensor { name, dtype, dims, range: start..end, table_offset: at })
    }
}

fn read_dims(r: &mut Reader<'_>, name: &str) -> Result<Vec<u64>, GgufError> {
    let at = r.offset();
    let count = r.u32(format_args!("number of dimensions of tensor `{name}`"))?;
    let error = |what: &str, offset, problem| GgufError {
        field: format!("{what} of tensor `{name}`"),
        offset,
        problem,
    };
    if !(1..=DIMENSIONS_MAX).contains(&count) {
        let problem = format!("is {count}, expected 1 to {DIMENSIONS_MAX}");
        return Err(error("number of dimensions", at, problem));
    }
    (0..count)
        .map(|i| {
            let at = r.offset();
            match r.u64(format_args!("dimension {i} of tensor `{name}`"))? {
                0 => Err(error("dimension", at, "is 0".to_owned())),
                dim => Ok(dim),
            }
        })
        .collect()
}

/// Bytes of a tensor whose rows fill whole blocks; `None` if they do not or the product overflows.
fn tensor_bytes(dtype: DType, dims: &[u64]) -> Option<u64> {
    let (cols, rest) = dims.split_first()?;
    rest.iter().try_fold(dtype.bytes_of(*cols)?, |bytes, dim| bytes.checked_mul(*dim))
}

fn check_names(tensors: &[GgufTensor]) -> Result<(), GgufError> {
    let mut seen = BTreeSet::new();
    match tensors.iter().find(|t| !seen.insert(t.name.as_str())) {
        None => Ok(()),
        Some(again) => {
            let field = format!("name of tensor `{}`", short(&again.name));
            Err(GgufError { field, offset: again.table_offset, problem: "appears twice".to_owned() })
        }
    }
}

fn check_overlaps(tensors: &[GgufTensor]) -> Result<(), GgufError> {
    let mut by_start: Vec<&GgufTensor> = tensors.iter().collect();
    by_start.sort_by_key(|t| t.range.start);
    for pair in by_start.windows(2) {
        if pair[1].range.start < pair[0].range.end {
            let field = format!("offset of tensor `{}`", pair[1].name);
            let problem = format!("lies within tensor `{}`", pair[0].name);
            return Err(GgufError { field, offset: pair[1].table_offset, problem });
        }
    }
    Ok(())
}

/// ggml's number for a type.
pub(crate) const fn number_of(dtype: DType) -> u32 {
    match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::Q4_0 => 2,
        DType::Q4_1 => 3,
        DType::Q5_0 => 6,
        DType::Q5_1 => 7,
        DType::Q8_0 => 8,
        DType::Q2_K => 10,
        DType::Q3_K => 11,
        DType::Q4_K => 12,
        DType::Q5_K => 13,
        DType::Q6_K => 14,
        DType::Q8_K => 15,
        DType::BF16 => 30,
    }
}

fn dtype_from_number(number: u32) -> Option<DType> {
    DType::ALL.into_iter().find(|d| number_of(*d) == number)
}

/// Names of the types we do not read, so that the message can say more than a number.
const OTHER_TYPES: [(u32, &str); 21] = [
    (9, "Q8_1"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (39, "MXFP4"),
    (40, "NVFP4"),
    (4, "Q4_2, which was withdrawn"),
    (5, "Q4_3, which was withdrawn"),
];

fn type_name(number: u32) -> String {
    let known = OTHER_TYPES.iter().find(|(n, _)| *n == number);
    known.map_or_else(|| format!("number {number}, unknown"), |(_, name)| format!("{name}, number {number}"))
}

fn supported_types() -> String {
    DType::ALL.map(|d| d.to_string()).join(", ")
}
