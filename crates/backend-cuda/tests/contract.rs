//! The oracle and the conformance suite: on every NVIDIA card of this machine, and on a card that a driver of
//! our own plays, which runs the kernels' sources on the processor (`tests/emulated`).

#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test file, helpers included

mod emulated;

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use emulated::on_emulated_cards;
use exo_backend::{
    Alone, Buffer, CancelToken, Device, Element, Op, OpKind, Recording, Report, RopeStyle, Rows, RunShape,
    Weight, conformance, oracle,
};
use exo_backend_cuda::{Card, CudaDevice, CudaOptions, ListError, OpenError, list};
use exo_types::{DType, DeviceId, TensorView};

const MEMORY: u64 = 16 << 20;
const SOON: Duration = Duration::from_secs(10);

fn options() -> CudaOptions {
    CudaOptions { memory_limit_bytes: Some(MEMORY), ..CudaOptions::default() }
}

fn open(card: &Card, options: &CudaOptions) -> Arc<CudaDevice> {
    CudaDevice::open(card, DeviceId("test".to_owned()), options).unwrap()
}

fn passes(card: &Card, report: &Report) {
    for case in report.failures().chain(report.skipped()) {
        println!("{}: {case}", card.name);
    }
    report.assert_passed();
}

/// Both kernel families, and the tiles of large matrices.
fn families() -> [CudaOptions; 3] {
    let without_tensor_cores = CudaOptions { without_tensor_cores: true, ..options() };
    [options(), without_tensor_cores, CudaOptions { large_tiles: true, ..options() }]
}

fn agrees_with_formulas(card: &Card) {
    for options in families() {
        passes(card, &oracle::run(&*open(card, &options)));
    }
}

fn keeps_the_contract(card: &Card) {
    for options in [options(), CudaOptions { without_graphs: true, ..options() }] {
        passes(card, &conformance::run(&*open(card, &options), &*open(card, &options)));
    }
}

/// Numbers that are always the same ones.
fn drawn(count: usize, seed: u32) -> Vec<u32> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    };
    (0..count).map(next).collect()
}

fn floats(count: usize, seed: u32) -> Vec<f32> {
    drawn(count, seed).into_iter().map(|n| n as f32 / 8_388_608.0 - 1.0).collect()
}

/// Blocks with small scales and any quants.
fn matrix(device: &CudaDevice, dtype: DType, rows: usize, cols: usize, seed: u32) -> Weight {
    let halves = |count| floats(count, seed).into_iter().flat_map(|x| f16_bits(x * 0.05).to_le_bytes());
    let blocks = |bytes: usize, scales: usize| {
        let mut all: Vec<u8> = drawn(rows * cols / dtype.block_elements() as usize * bytes, seed)
            .iter()
            .map(|n| *n as u8)
            .collect();
        for block in all.chunks_mut(bytes) {
            (0..scales).for_each(|i| block[2 * i..2 * i + 2].copy_from_slice(&0x1400u16.to_le_bytes()));
        }
        all
    };
    let bytes: Vec<u8> = match dtype {
        DType::F32 => floats(rows * cols, seed).iter().flat_map(|x| x.to_le_bytes()).collect(),
        DType::F16 => halves(rows * cols).collect(),
        DType::BF16 => floats(rows * cols, seed).iter().flat_map(|x| x.to_le_bytes()[2..].to_vec()).collect(),
        DType::Q4_K => blocks(144, 2),
        _ => blocks(34, 1),
    };
    let range = 0..bytes.len();
    let (rows, cols, source) = (rows as u64, cols as u64, Arc::new(bytes));
    let view = TensorView { name: "drawn".to_owned(), dtype, rows, cols, source, range };
    device.weight(&view).unwrap()
}

/// To nearest, for numbers that a half has room for.
fn f16_bits(x: f32) -> u16 {
    half::f16::from_f32(x).to_bits()
}

/// The ops of a layer that share launches, and the buffers that they leave.
fn layer(device: &CudaDevice, dtype: DType, tokens: usize) -> (Vec<Op>, Vec<(Buffer, Vec<f32>)>) {
    const C: usize = 768;
    const F: usize = 256;
    const HEAD: usize = 64;
    let w = |rows, cols, seed| matrix(device, dtype, rows, cols, seed);
    let vector = |len, seed| matrix(device, DType::F32, 1, len, seed);
    let buffer = |width: usize| device.buffer(Element::F32, tokens * width).unwrap();
    let [hidden, normed, delta] = [C, C, C].map(buffer);
    let [q, k, v, gate, up, narrow] = [C, 2 * HEAD, 2 * HEAD, F, F, F].map(buffer);
    let positions = device.buffer(Element::U32, tokens).unwrap();
    let mut stream = device.stream().unwrap();
    let at: Vec<u32> = (0..tokens as u32).map(|row| 3 + 37 * row).collect();
    stream.upload_u32(&positions, 0, &at).unwrap();
    stream.synchronize(SOON).unwrap();
    let frequencies = vector(HEAD / 2, 90);
    let norm = |weight| Op::RmsNorm {
        x: hidden.clone(),
        weight,
        out: normed.clone(),
        eps: 1e-5,
        groups: 1,
        rows: Rows::Tokens,
    };
    let product = |weight, bias, x: &Buffer, out: &Buffer| Op::MatMul {
        weight,
        bias,
        x: x.clone(),
        out: out.clone(),
        rows: Rows::Tokens,
    };
    let rope = |x: &Buffer, heads| Op::Rope {
        x: x.clone(),
        positions: positions.clone(),
        frequencies: frequencies.clone(),
        heads,
        head_dim: HEAD,
        style: RopeStyle::Halves,
    };
    let add = Op::Add { x: hidden.clone(), y: delta.clone(), width: C };
    let swiglu = Op::SwiGlu { gate: gate.clone(), up: up.clone(), out: gate.clone(), width: F };
    let ops = vec![
        norm(vector(C, 1)),
        product(w(C, C, 2), Some(vector(C, 3)), &normed, &q),
        product(w(2 * HEAD, C, 4), None, &normed, &k),
        product(w(2 * HEAD, C, 5), Some(vector(2 * HEAD, 6)), &normed, &v),
        rope(&q, C / HEAD),
        rope(&k, 2),
        product(w(C, C, 7), Some(vector(C, 8)), &q, &delta),
        add.clone(),
        norm(vector(C, 9)),
        product(w(F, C, 10), None, &normed, &gate),
        product(w(F, C, 11), None, &normed, &up),
        // Of fewer inputs: it reads the beginning of the same buffer, and shares nothing.
        product(w(F, F, 13), None, &normed, &narrow),
        swiglu,
        product(w(C, F, 12), None, &gate, &delta),
        add,
    ];
    let begins = |buffer: &Buffer, seed| (buffer.clone(), floats(buffer.len, seed));
    let left = [&hidden, &normed, &delta, &q, &k, &v, &gate, &up, &narrow];
    (ops, left.into_iter().enumerate().map(|(i, buffer)| begins(buffer, 20 + i as u32)).collect())
}

/// What ops leave that share launches is what each leaves by itself.
fn shares_launches(card: &Card) {
    let types = [DType::Q8_0, DType::F16, DType::Q4_K, DType::BF16, DType::F32];
    for (options, types) in families().into_iter().zip([&types[..], &types[..2], &types[..1]]) {
        let device = open(card, &options);
        for dtype in types.iter().copied() {
            for tokens in [1, 3, 40] {
                let (ops, buffers) = layer(&device, dtype, tokens);
                let mut stream = device.stream().unwrap();
                let mut left_by = |recordings: Vec<Vec<Op>>| -> Vec<u32> {
                    for (buffer, begin) in &buffers {
                        stream.upload_f32(buffer, 0, begin).unwrap();
                    }
                    for ops in recordings {
                        let program = device.compile(Recording { ops }).unwrap();
                        let shape = RunShape { tokens, selected: 0 };
                        stream.run(&*program, shape, &Alone, &CancelToken::default()).unwrap();
                        stream.synchronize(SOON).unwrap();
                    }
                    let mut bits = Vec::new();
                    for (buffer, begin) in &buffers {
                        let mut got = vec![0.0; begin.len()];
                        stream.download_f32(buffer, 0, &mut got, SOON).unwrap();
                        bits.extend(got.into_iter().map(f32::to_bits));
                    }
                    bits
                };
                let together = left_by(vec![ops.clone()]);
                let alone = left_by(ops.into_iter().map(|op| vec![op]).collect());
                assert_eq!(together, alone, "{dtype}, {tokens} rows, {options:?}");
                assert!(alone.iter().all(|bits| f32::from_bits(*bits).is_finite()), "{dtype}");
            }
        }
    }
}

/// Every real card; a machine without one says so in the report of `cargo xtask test`.
#[test]
fn every_card_keeps_the_contract() {
    let cards = match list() {
        Ok(cards) => cards,
        Err(error) => {
            let line = format!("the CUDA backend on a card: {error}");
            println!("skipped: {line}");
            if let Some(path) = std::env::var_os("EXO_TEST_SKIPS") {
                let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
                // In one piece: other tests write their lines at the same time.
                file.write_all(format!("{line}\n").as_bytes()).unwrap();
            }
            return;
        }
    };
    for card in cards.iter().filter(|card| card.trouble().is_none()) {
        agrees_with_formulas(card);
        keeps_the_contract(card);
        shares_launches(card);
    }
}

#[test]
fn kernels_agree_with_their_formulas_and_with_themselves() {
    on_emulated_cards("kernels_agree_with_their_formulas_and_with_themselves", &[], || {
        let card = &list().unwrap()[0];
        assert!(open(card, &options()).has_tensor_cores());
        agrees_with_formulas(card);
        let device = open(card, &options());
        let is_native =
            |dtype: &DType| device.supports_op(OpKind::MatMul, Some(*dtype)) == exo_backend::Support::Native;
        assert_eq!(DType::ALL.iter().filter(|dtype| is_native(dtype)).count(), 11);
    });
}

#[test]
fn an_emulated_card_keeps_the_contract() {
    on_emulated_cards("an_emulated_card_keeps_the_contract", &[], || keeps_the_contract(&list().unwrap()[0]));
}

#[test]
fn ops_that_share_a_launch_leave_what_each_does_by_itself() {
    let test = "ops_that_share_a_launch_leave_what_each_does_by_itself";
    on_emulated_cards(test, &[], || shares_launches(&list().unwrap()[0]));
}

#[test]
fn a_card_before_ampere_has_no_tensor_cores_and_one_before_pascal_is_refused() {
    let test = "a_card_before_ampere_has_no_tensor_cores_and_one_before_pascal_is_refused";
    on_emulated_cards(test, &[("EXO_EMULATED_SM", "61")], || {
        let card = &list().unwrap()[0];
        assert!(!open(card, &options()).has_tensor_cores());
        let old = Card { capability: (5, 2), ..card.clone() };
        let refused = CudaDevice::open(&old, DeviceId("old".to_owned()), &options()).unwrap_err();
        assert!(
            matches!(refused, OpenError::Unfit { .. }) && refused.to_string().contains("5.2"),
            "{refused}"
        );
    });
}

#[test]
fn a_driver_that_is_too_old_says_which_is_needed() {
    let old = [("EXO_EMULATED_VERSION", "11080")];
    on_emulated_cards("a_driver_that_is_too_old_says_which_is_needed", &old, || {
        let error = list().unwrap_err();
        assert_eq!(error, ListError::TooOld { version: 11080 });
        assert!(
            error.to_string().contains("knows CUDA 11.8") && error.to_string().contains("525"),
            "{error}"
        );
    });
}

#[test]
fn a_driver_without_cards_says_so() {
    let none = [("EXO_EMULATED_CARDS", "0")];
    on_emulated_cards("a_driver_without_cards_says_so", &none, || {
        assert!(matches!(list().unwrap_err(), ListError::NoCard { vendor: "NVIDIA", .. }));
    });
}

/// As the steps of a decode: the first is started kernel by kernel, those after it as a graph, and each sees
/// its own inputs.
#[test]
fn a_step_that_comes_again_is_launched_as_a_graph() {
    on_emulated_cards("a_step_that_comes_again_is_launched_as_a_graph", &[], || {
        for without_graphs in [false, true] {
            let device = open(&list().unwrap()[0], &CudaOptions { without_graphs, ..options() });
            let [x, y] = [0, 1].map(|_| device.buffer(Element::F32, 2).unwrap());
            let add = Op::Add { x: x.clone(), y: y.clone(), width: 1 };
            let program = device.compile(Recording { ops: vec![add.clone(), add] }).unwrap();
            let mut stream = device.stream().unwrap();
            let mut run = |tokens: usize, step: f32| {
                stream.upload_f32(&y, 0, &[step; 2]).unwrap();
                let shape = RunShape { tokens, selected: 0 };
                stream.run(&*program, shape, &Alone, &CancelToken::default()).unwrap();
            };
            (1..=5).for_each(|step| run(1, step as f32));
            assert_eq!(device.replays(), if without_graphs { 0 } else { 4 });
            run(2, 100.0); // other rows, another step
            assert_eq!(device.replays(), if without_graphs { 0 } else { 4 });
            let mut got = [0.0; 2];
            stream.download_f32(&x, 0, &mut got, SOON).unwrap();
            assert_eq!(got, [230.0, 200.0]);
        }
    });
}

/// The card is full before our own books are: the driver's refusal is an error like theirs.
#[test]
fn memory_that_others_took_is_missed_without_harm() {
    let small = [("EXO_EMULATED_BYTES", "1000000")];
    on_emulated_cards("memory_that_others_took_is_missed_without_harm", &small, || {
        let device = open(&list().unwrap()[0], &options());
        let error = device.buffer(Element::F32, 500_000).unwrap_err();
        assert!(
            matches!(error, exo_backend::AllocError::OutOfMemory { needed_bytes: 2_000_000, .. }),
            "{error}"
        );
        assert_eq!(device.memory().live_allocations, 0);
        device.buffer(Element::F32, 100).unwrap();
    });
}
