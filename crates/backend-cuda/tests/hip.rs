//! AMD's cards, on a driver of our own that plays one (`tests/emulated`): its kernels are the ones that
//! NVIDIA's cards get. What AMD's own compiler makes of them is a test beside `kernels.rs`.

#![cfg(all(unix, feature = "hip"))]
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test file, helpers included

mod emulated;

use std::sync::Arc;

use emulated::on_emulated_cards;
use exo_backend::{Device, Report, conformance, oracle};
use exo_backend_cuda::{Card, CudaDevice, CudaOptions, ListError, list_amd};
use exo_types::DeviceId;

const TWO: [(&str, &str); 1] = [("HIP_EMULATED_CARDS", "2")];

fn card(index: usize) -> Card {
    list_amd().unwrap().swap_remove(index)
}

fn open(card: &Card, without_graphs: bool) -> Arc<CudaDevice> {
    let options =
        CudaOptions { memory_limit_bytes: Some(16 << 20), without_graphs, ..CudaOptions::default() };
    CudaDevice::open(card, DeviceId("test".to_owned()), &options).unwrap()
}

fn passes(report: &Report) {
    report.failures().chain(report.skipped()).for_each(|case| println!("{case}"));
    report.assert_passed();
}

#[test]
fn a_card_tells_what_it_is() {
    on_emulated_cards("a_card_tells_what_it_is", &TWO, || {
        let card = card(1);
        assert_eq!((card.index, card.capability, card.trouble()), (1, (10, 3), None));
        assert_eq!(card.driver_text(), "HIP 5.2, architecture 10.3");
        let device = open(&card, false);
        assert_eq!(device.facts().backend, "hip");
        assert!(!device.has_tensor_cores());
    });
}

#[test]
fn kernels_agree_with_their_formulas_and_with_themselves() {
    let test = "kernels_agree_with_their_formulas_and_with_themselves";
    on_emulated_cards(test, &TWO, || passes(&oracle::run(&*open(&card(0), false))));
}

#[test]
fn the_contract_is_kept() {
    on_emulated_cards("the_contract_is_kept", &TWO, || {
        for without_graphs in [false, true] {
            let [here, there] = [0, 1].map(|index| open(&card(index), without_graphs));
            passes(&conformance::run(&*here, &*there));
        }
    });
}

#[test]
fn a_driver_without_cards_says_so() {
    on_emulated_cards("a_driver_without_cards_says_so", &[], || {
        let error = list_amd().unwrap_err();
        assert!(matches!(error, ListError::NoCard { vendor: "AMD", .. }), "{error}");
        assert!(error.to_string().contains("HIP_VISIBLE_DEVICES"), "{error}");
    });
}
