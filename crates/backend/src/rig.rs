//! Puts values on a device, runs ops and reads results back: the only test code that handles buffers.

use std::sync::Arc;
use std::time::Duration;

use exo_types::{DType, TensorView};

use crate::report::CaseError;
use crate::{
    Alone, AttentionBatch, Buffer, CancelToken, Device, Element, KvCache, KvShape, Op, Recording, RunShape,
    Stream, Weight,
};

/// Long enough for any device, short enough for a test that hangs.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);
/// Rows by which buffers are longer than the step needs.
const SURPLUS_ROWS: usize = 2;
/// What the surplus of a result holds before the op runs.
const UNTOUCHED: f32 = -12345.0;

pub(crate) struct Rig<'a> {
    pub(crate) device: &'a dyn Device,
    pub(crate) stream: Box<dyn Stream>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SequencePosition {
    pub(crate) sequence: usize,
    pub(crate) position: usize,
}

impl<'a> Rig<'a> {
    pub(crate) fn new(device: &'a dyn Device) -> Result<Self, CaseError> {
        Ok(Self { device, stream: device.stream()? })
    }

    /// Rows of f32; what lies past them is NaN, so that whoever reads it shows.
    pub(crate) fn rows(&mut self, data: &[f32], width: usize) -> Result<Buffer, CaseError> {
        let padded: Vec<f32> = data.iter().copied().chain(vec![f32::NAN; SURPLUS_ROWS * width]).collect();
        let buffer = self.device.buffer(Element::F32, padded.len())?;
        self.stream.upload_f32(&buffer, 0, &padded)?;
        Ok(buffer)
    }

    /// Numbers; past them lies one that is out of every range.
    pub(crate) fn numbers(&mut self, data: impl IntoIterator<Item = usize>) -> Result<Buffer, CaseError> {
        let padded: Vec<u32> = data.into_iter().map(|n| n as u32).chain([u32::MAX]).collect();
        let buffer = self.device.buffer(Element::U32, padded.len())?;
        self.stream.upload_u32(&buffer, 0, &padded)?;
        Ok(buffer)
    }

    /// Room for a result.
    pub(crate) fn result(&mut self, rows: usize, width: usize) -> Result<Buffer, CaseError> {
        let fill = vec![UNTOUCHED; (rows + SURPLUS_ROWS) * width];
        let buffer = self.device.buffer(Element::F32, fill.len())?;
        self.stream.upload_f32(&buffer, 0, &fill)?;
        Ok(buffer)
    }

    /// A result, after a look at what lies past it.
    pub(crate) fn read(&mut self, buffer: &Buffer, rows: usize, width: usize) -> Result<Vec<f32>, CaseError> {
        let mut all = vec![0.0; buffer.len];
        self.stream.download_f32(buffer, 0, &mut all, DEADLINE)?;
        let beyond = all.split_off(rows * width);
        // In place, the surplus is the operand's.
        match beyond.iter().position(|value| *value != UNTOUCHED && !value.is_nan()) {
            Some(i) => Err(CaseError::WroteBeyond { at: i, value: beyond[i] }),
            None => Ok(all),
        }
    }

    pub(crate) fn vector(&mut self, values: &[f32]) -> Result<Weight, CaseError> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.matrix(DType::F32, 1, values.len(), bytes)
    }

    /// A weight whose bytes start at an odd address.
    pub(crate) fn matrix(
        &mut self,
        dtype: DType,
        rows: usize,
        cols: usize,
        bytes: Vec<u8>,
    ) -> Result<Weight, CaseError> {
        let source: Vec<u8> = std::iter::once(0).chain(bytes).collect();
        let tensor = TensorView {
            name: format!("{dtype}[{rows}, {cols}]"),
            dtype,
            rows: rows as u64,
            cols: cols as u64,
            range: 1..source.len(),
            source: Arc::new(source),
        };
        Ok(self.device.weight(&tensor)?)
    }

    /// A cache whose every element is NaN, so that a slot no one wrote shows where it is read.
    pub(crate) fn kv(&mut self, shape: KvShape) -> Result<KvCache, CaseError> {
        let kv = self.device.kv_cache(shape)?;
        let page = vec![f32::NAN; 2 * shape.kv_heads * shape.page_tokens * shape.head_dim];
        for layer in 0..shape.layers {
            for number in 0..shape.pages {
                self.stream.import_kv(&kv, layer, number, &page)?;
            }
        }
        Ok(kv)
    }

    /// Where rows stand. `table[s]` are the pages of sequence s; all are equally long.
    pub(crate) fn batch(
        &mut self,
        places: &[SequencePosition],
        table: &[Vec<usize>],
    ) -> Result<AttentionBatch, CaseError> {
        let flat: Vec<u32> = table.iter().flatten().map(|page| *page as u32).collect();
        let page_table = self.device.buffer(Element::U32, flat.len())?;
        self.stream.upload_u32(&page_table, 0, &flat)?;
        Ok(AttentionBatch {
            positions: self.numbers(places.iter().map(|place| place.position))?,
            sequences: self.numbers(places.iter().map(|place| place.sequence))?,
            page_table,
            pages_per_sequence: table[0].len(),
        })
    }

    /// Compiles and runs one op on `tokens` rows.
    pub(crate) fn run(&mut self, op: Op, tokens: usize) -> Result<(), CaseError> {
        self.run_shaped(vec![op], RunShape { tokens, selected: 0 })
    }

    pub(crate) fn run_shaped(&mut self, ops: Vec<Op>, shape: RunShape) -> Result<(), CaseError> {
        let program = self.device.compile(Recording { ops })?;
        self.stream.run(&*program, shape, &Alone, &CancelToken::default())?;
        // A range error may only show when the work is done.
        Ok(self.stream.synchronize(DEADLINE)?)
    }
}
