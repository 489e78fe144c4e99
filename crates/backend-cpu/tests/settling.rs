//! Weights that are packed while they are used: the same bits at every moment, and nothing left when they are
//! dropped.

#![allow(clippy::unwrap_used)] // a test file, helpers included

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use exo_backend::{
    Alone, Buffer, CancelToken, Device, Element, Op, Program, Recording, Rows, RunError, RunShape, Stream,
    Weight,
};
use exo_backend_cpu::{CpuDevice, CpuOptions, Packing, quant};
use exo_types::{ByteSource, DType, SourceLost, TensorView};

/// More than anything here takes.
const LONG: Duration = Duration::from_secs(60);
/// Bytes that are moved at a time.
const PART: usize = 1 << 20;
const COLS: usize = 1024;

/// A file whose pages are given back when the test says so: whoever moves a weight waits there after each
/// part.
#[derive(Default)]
struct File {
    bytes: Vec<u8>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Parts that may be given back; as many as there are if `None`.
    allowed: Option<usize>,
    released: usize,
    /// Calls that have come so far.
    asked: usize,
    lost: bool,
    panics: bool,
}

impl File {
    fn new(bytes: Vec<u8>, allowed: Option<usize>) -> Arc<Self> {
        Arc::new(Self { bytes, state: Mutex::new(State { allowed, ..State::default() }), ..Self::default() })
    }

    fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
        self.changed.notify_all();
    }

    /// Waits until somebody has moved `parts` and stands before giving the last of them back.
    fn wait_asked(&self, parts: usize) {
        let state = self.changed.wait_timeout_while(self.state.lock().unwrap(), LONG, |s| s.asked < parts);
        assert!(!state.unwrap().1.timed_out(), "nobody moved {parts} parts");
    }
}

impl ByteSource for File {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn check(&self) -> Result<(), SourceLost> {
        if self.state.lock().unwrap().lost { Err(SourceLost { name: "a.gguf".to_owned() }) } else { Ok(()) }
    }

    fn release(&self, _range: Range<usize>) {
        let mut state = self.state.lock().unwrap();
        state.asked += 1;
        self.changed.notify_all();
        let blocked = |s: &mut State| s.allowed.is_some_and(|allowed| s.released >= allowed);
        let (mut state, waited) = self.changed.wait_timeout_while(state, LONG, blocked).unwrap();
        assert!(!waited.timed_out(), "the test never let it go on");
        state.released += 1;
        let panics = state.panics;
        drop(state);
        assert!(!panics, "as the test wants it");
    }
}

fn values(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Bytes of a row of `cols` columns, and rows of a matrix of two parts and a bit, the last group not full.
fn row_bytes_and_rows(dtype: DType, cols: usize) -> (usize, usize) {
    let row_bytes = dtype.bytes_of(cols as u64).unwrap() as usize;
    (row_bytes, 2 * (5 * PART / 4 / row_bytes) + 1)
}

/// Rows that repeat after 61.
fn stored_in(dtype: DType, cols: usize) -> Vec<u8> {
    let (row_bytes, rows) = row_bytes_and_rows(dtype, cols);
    let numbers = values(61 * cols, dtype as u32);
    // Of types that have no quantiser here, any bytes will do whose scales are finite.
    let any = || (0..61 * row_bytes).map(|i| numbers[i].to_bits() as u8 & 0x3b).collect();
    let bytes = quant::quantise_row(dtype, &numbers).unwrap_or_else(any);
    bytes.into_iter().cycle().take(rows * row_bytes).collect()
}

fn stored(dtype: DType) -> Vec<u8> {
    stored_in(dtype, COLS)
}

fn tensor_in(dtype: DType, cols: usize, source: &Arc<File>) -> TensorView {
    let (name, range) = (format!("w of {dtype}"), 0..source.bytes.len());
    let rows = row_bytes_and_rows(dtype, cols).1 as u64;
    TensorView { name, dtype, rows, cols: cols as u64, range, source: Arc::clone(source) as _ }
}

fn tensor(dtype: DType, source: &Arc<File>) -> TensorView {
    tensor_in(dtype, COLS, source)
}

fn open(packing: Packing) -> Arc<CpuDevice> {
    CpuDevice::open(CpuOptions { threads: Some(2), packing, ..CpuOptions::default() }).unwrap()
}

/// A product and a table, both of the weight, for so many rows of `x`.
struct Rig {
    tokens: usize,
    device: Arc<CpuDevice>,
    program: Box<dyn Program>,
    stream: Box<dyn Stream>,
    product: Buffer,
    looked_up: Buffer,
}

impl Rig {
    fn new(device: Arc<CpuDevice>, weight: &Weight) -> Self {
        Self::of(3, device, weight)
    }

    fn of(tokens: usize, device: Arc<CpuDevice>, weight: &Weight) -> Self {
        let floats = |len| device.buffer(Element::F32, len).unwrap();
        let cols = weight.cols;
        let (x, product, looked_up) =
            (floats(tokens * cols), floats(tokens * weight.rows), floats(tokens * cols));
        let ids = device.buffer(Element::U32, tokens).unwrap();
        let matmul = Op::MatMul {
            weight: weight.clone(),
            bias: None,
            x: x.clone(),
            out: product.clone(),
            rows: Rows::Tokens,
        };
        let embed = Op::Embed { table: weight.clone(), ids: ids.clone(), out: looked_up.clone() };
        let program = device.compile(Recording { ops: vec![embed, matmul] }).unwrap();
        let mut stream = device.stream().unwrap();
        stream.upload_f32(&x, 0, &values(tokens * cols, 1)).unwrap();
        // In the first part, in the last, and in between.
        let last = weight.rows as u32 - 1;
        let rows: Vec<u32> = [2, last / 2, last].into_iter().cycle().take(tokens).collect();
        stream.upload_u32(&ids, 0, &rows).unwrap();
        Self { tokens, device, program, stream, product, looked_up }
    }

    fn run(&mut self) -> Result<Vec<u32>, RunError> {
        let shape = RunShape { tokens: self.tokens, selected: 0 };
        self.stream.run(&*self.program, shape, &Alone, &CancelToken::default())?;
        let mut bits = Vec::new();
        for buffer in [&self.product, &self.looked_up] {
            let mut got = vec![0.0; buffer.len];
            self.stream.download_f32(buffer, 0, &mut got, LONG)?;
            bits.extend(got.into_iter().map(f32::to_bits));
        }
        Ok(bits)
    }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < LONG, "not after {LONG:?}: {what}");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

/// Types and columns of weights, and rows of `x`. Of BF16 the last block is a part of one, too, and the rows
/// of a prompt are more than are multiplied at once.
const CASES: [(DType, usize, usize); 8] = [
    (DType::F16, COLS, 3),
    (DType::F32, COLS, 3),
    (DType::BF16, COLS, 3),
    (DType::BF16, 1000, 3),
    (DType::BF16, 1000, 700),
    (DType::Q8_0, COLS, 3),
    (DType::Q4_K, COLS, 3),
    (DType::Q3_K, COLS, 3),
];

#[test]
fn a_weight_gives_the_same_bits_whatever_part_of_it_is_packed() {
    for (dtype, cols, tokens) in CASES {
        let (bytes, tensor) = (stored_in(dtype, cols), |file: &Arc<File>| tensor_in(dtype, cols, file));
        let eager = open(Packing::AtOnce);
        let weight = eager.weight(&tensor(&File::new(bytes.clone(), None))).unwrap();
        let want = Rig::of(tokens, eager, &weight).run().unwrap();
        let whole = weight.footprint_bytes;
        let mmap = CpuOptions { threads: Some(2), mmap: true, ..CpuOptions::default() };
        let mapped = CpuDevice::open(mmap).unwrap();
        let weight = mapped.weight(&tensor(&File::new(bytes.clone(), None))).unwrap();
        assert!(Rig::of(tokens, mapped, &weight).run().unwrap() == want, "{dtype}: other bits from the file");

        let (device, file) = (open(Packing::BEHIND), File::new(bytes, Some(0)));
        let weight = device.weight(&tensor(&file)).unwrap();
        assert_eq!(weight.footprint_bytes, whole);
        let mut rig = Rig::of(tokens, device, &weight);
        let mut waiting = whole;
        for part in 1..=3 {
            file.wait_asked(part);
            // This many parts are in memory, and nothing moves until the last is given back.
            assert!(weight.unpacked_bytes() < waiting, "{dtype}: part {part} did not come");
            waiting = weight.unpacked_bytes();
            assert!(rig.run().unwrap() == want, "{dtype}: other bits with {part} parts in memory");
            let held = rig.device.residence();
            assert_eq!((held.copied_bytes, held.mapped_bytes, held.repacking_bytes), (0, 0, whole));
            file.set(|s| s.allowed = Some(part));
        }
        assert_eq!(waiting, 0, "{dtype}");
        file.set(|s| s.allowed = None);
        wait_until("the file is let go", || Arc::strong_count(&file) == 1);
        let held = rig.device.residence();
        assert_eq!((held.copied_bytes, held.mapped_bytes, held.repacking_bytes), (whole, 0, 0));
        assert!(rig.run().unwrap() == want, "{dtype}: other bits from memory");
        // It is not asked any more.
        file.set(|s| s.lost = true);
        assert!(rig.run().unwrap() == want, "{dtype}: other bits without the file");
    }
}

#[test]
fn steps_that_run_all_the_while_give_the_same_bits() {
    let dtype = DType::Q4_0;
    let (device, file) = (open(Packing::Behind { rest: Duration::from_micros(300) }), stored(dtype));
    let weights: Vec<_> =
        (0..8).map(|_| device.weight(&tensor(dtype, &File::new(file.clone(), None))).unwrap()).collect();
    let mut rigs: Vec<_> = weights.iter().map(|weight| Rig::new(device.clone(), weight)).collect();
    let want = rigs[0].run().unwrap();
    let mut runs = 0;
    wait_until("all are packed", || {
        runs += rigs.len();
        assert!(rigs.iter_mut().all(|rig| rig.run().unwrap() == want), "other bits within {runs} runs");
        weights.iter().all(|weight| weight.unpacked_bytes() == 0)
    });
    assert!(rigs.iter_mut().all(|rig| rig.run().unwrap() == want));
}

#[test]
fn a_weight_that_is_dropped_is_packed_no_further() {
    let (device, dtype) = (open(Packing::BEHIND), DType::F16);
    let files: Vec<_> = (0..4).map(|_| File::new(stored(dtype), Some(0))).collect();
    let weights: Vec<_> = files.iter().map(|file| device.weight(&tensor(dtype, file)).unwrap()).collect();
    // Two threads: the first two are being moved, the others wait.
    files[..2].iter().for_each(|file| file.wait_asked(1));
    let mut weights = weights.into_iter();
    let moving = [weights.next().unwrap(), weights.next().unwrap()];
    drop(weights);
    let dropping = moving.map(|weight| std::thread::spawn(move || drop(weight)));
    std::thread::park_timeout(Duration::from_millis(100));
    let given_back = dropping.iter().any(std::thread::JoinHandle::is_finished);
    assert!(!given_back, "memory that is being written was given back");
    files.iter().for_each(|file| file.set(|s| s.allowed = None));
    dropping.into_iter().for_each(|dropping| dropping.join().unwrap());
    assert_eq!(device.memory().live_allocations, 0);
    let held = device.residence();
    assert_eq!((held.copied_bytes, held.mapped_bytes, held.repacking_bytes), (0, 0, 0));
    wait_until("the files are let go", || files.iter().all(|file| Arc::strong_count(file) == 1));
    let asked: Vec<_> = files.iter().map(|file| file.state.lock().unwrap().asked).collect();
    assert_eq!(asked, [1, 1, 0, 0], "parts were moved for nobody");
}

#[test]
fn a_device_that_is_dropped_ends_its_threads() {
    let (device, file) = (open(Packing::BEHIND), File::new(stored(DType::F16), Some(1)));
    let weight = device.weight(&tensor(DType::F16, &file)).unwrap();
    file.wait_asked(2);
    let dropping = std::thread::spawn(move || drop(device));
    std::thread::park_timeout(Duration::from_millis(200));
    assert!(!dropping.is_finished(), "a thread outlives its device");
    file.set(|s| s.allowed = None);
    dropping.join().unwrap();
    assert_eq!(file.state.lock().unwrap().asked, 2, "it went on without a device");
    drop(weight);
    assert_eq!(Arc::strong_count(&file), 1);
}

#[test]
fn a_file_that_is_lost_on_the_way_fails_the_runs_and_hangs_nobody() {
    let (device, file) = (open(Packing::BEHIND), File::new(stored(DType::Q8_0), Some(1)));
    let weight = device.weight(&tensor(DType::Q8_0, &file)).unwrap();
    let mut rig = Rig::new(device, &weight);
    file.wait_asked(2);
    rig.run().unwrap();
    file.set(|s| (s.lost, s.allowed) = (true, None));
    assert!(matches!(rig.run(), Err(RunError::SourceLost(_))));
    wait_until("it was given up", || rig.device.residence().repacking_bytes == 0);
    let held = rig.device.residence();
    let because = held.mapped_because.unwrap();
    assert!(held.mapped_bytes > 0 && because.contains("a.gguf became shorter"), "{because}");
    assert_eq!(weight.unpacked_bytes(), 0);
    // Whatever came to memory is not believed, however often it is asked.
    assert!((0..3).all(|_| matches!(rig.run(), Err(RunError::SourceLost(_)))));
}

#[test]
fn what_panics_on_the_way_leaves_the_weight_in_its_file() {
    let (device, file) = (open(Packing::BEHIND), File::new(stored(DType::Q8_0), Some(0)));
    let weight = device.weight(&tensor(DType::Q8_0, &file)).unwrap();
    let mut rig = Rig::new(device, &weight);
    file.wait_asked(1);
    let want = rig.run().unwrap();
    file.set(|s| (s.panics, s.allowed) = (true, None));
    wait_until("it was given up", || weight.unpacked_bytes() == 0);
    assert!(rig.run().unwrap() == want);
    wait_until("the books say so", || rig.device.residence().repacking_bytes == 0);
    let held = rig.device.residence();
    assert!(held.mapped_bytes > 0 && held.mapped_because.unwrap().contains("panicked"));
    // The thread goes on with what comes next.
    file.set(|s| s.panics = false);
    let next = rig.device.weight(&tensor(DType::Q8_0, &file)).unwrap();
    wait_until("the next one is packed", || next.unpacked_bytes() == 0);
}
