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
    Alone, CancelToken, Device, Element, Op, OpKind, Recording, Report, RunShape, conformance, oracle,
};
use exo_backend_cuda::{Card, CudaDevice, CudaOptions, ListError, OpenError, list};
use exo_types::{DType, DeviceId};

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
        assert!(matches!(list().unwrap_err(), ListError::NoCard { maker: "NVIDIA", .. }));
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
