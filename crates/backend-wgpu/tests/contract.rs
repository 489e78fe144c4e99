//! The oracle and the conformance suite on every adapter of this machine; in CI that is lavapipe.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test file, helpers included

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{adapters, skip};
use exo_backend::{
    AllocError, Alone, CancelToken, Device, Element, KvDType, KvShape, Op, Recording, Report, RunShape,
    conformance, oracle,
};
use exo_backend_wgpu::{Adapter, Api, WgpuDevice, WgpuOptions};
use exo_types::DeviceId;

fn open(adapter: &Adapter, options: &WgpuOptions) -> Arc<WgpuDevice> {
    WgpuDevice::open(adapter, DeviceId("test".to_owned()), options).unwrap()
}

fn small() -> WgpuOptions {
    WgpuOptions { memory_limit_bytes: Some(16 << 20), ..WgpuOptions::default() }
}

fn show(adapter: &Adapter, report: &Report) {
    for case in report.failures().chain(report.skipped()) {
        println!("{} through {}: {case}", adapter.name, adapter.api);
    }
}

fn skip_subgroups(test: &str, adapter: &Adapter) {
    skip(&format!("{test}: {} through {} has no subgroups of eight threads", adapter.name, adapter.api));
}

#[test]
fn every_op_agrees_with_its_formula_and_with_itself() {
    for adapter in adapters("every_op_agrees_with_its_formula_and_with_itself") {
        for without_subgroups in [false, true] {
            let device = open(&adapter, &WgpuOptions { without_subgroups, ..small() });
            assert!(!(without_subgroups && device.has_subgroups()));
            if !(without_subgroups || device.has_subgroups()) {
                skip_subgroups("every_op_agrees_with_its_formula_and_with_itself", &adapter);
                continue;
            }
            let report = oracle::run(&*device);
            show(&adapter, &report);
            report.assert_passed();
        }
    }
}

#[test]
fn subgroups_and_bindings_of_any_size_give_the_same_bits() {
    for adapter in adapters("subgroups_and_bindings_of_any_size_give_the_same_bits") {
        let whole = open(&adapter, &small());
        if !whole.has_subgroups() {
            skip_subgroups("subgroups_and_bindings_of_any_size_give_the_same_bits", &adapter);
        }
        // A few rows, or a head, to a binding: weights, tables and caches come in many pieces.
        let options = WgpuOptions { split_bytes_max: Some(8 << 10), without_subgroups: true, ..small() };
        let report = oracle::same_bits(&*whole, &*open(&adapter, &options));
        show(&adapter, &report);
        report.assert_passed();
    }
}

/// A device that keeps its kernels in `folder`.
fn kept_in(adapter: &Adapter, folder: &std::path::Path) -> Arc<WgpuDevice> {
    open(adapter, &WgpuOptions { cache_dir: Some(folder.to_owned()), ..small() })
}

#[test]
fn kernels_kept_on_disk_give_the_same_bits_and_damaged_ones_are_left() {
    for adapter in adapters("kernels_kept_on_disk_give_the_same_bits_and_damaged_ones_are_left")
        .into_iter()
        .filter(|adapter| adapter.api == Api::Vulkan)
    {
        let folder = tempfile::tempdir().unwrap();
        let (plain, first) = (open(&adapter, &small()), kept_in(&adapter, folder.path()));
        oracle::same_bits(&*plain, &*first).assert_passed();
        let files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|f| f.unwrap().path()).collect();
        let [file] = &files[..] else { panic!("{files:?}") };
        // How much a driver keeps is its own affair: lavapipe writes the heading of a cache and nothing
        // behind it.
        assert!(std::fs::metadata(file).unwrap().len() > 24);
        oracle::same_bits(&*plain, &*kept_in(&adapter, folder.path())).assert_passed();
        std::fs::write(file, b"damaged").unwrap();
        conformance::run(&*kept_in(&adapter, folder.path()), &*plain).assert_passed();
        assert!(std::fs::metadata(file).unwrap().len() > 24, "it was written anew");
    }
}

#[test]
fn the_contract_is_kept() {
    for adapter in adapters("the_contract_is_kept") {
        // In pieces as well: pages that are cleared, read and written from the host.
        for split_bytes_max in [None, Some(1 << 10)] {
            let options = WgpuOptions { split_bytes_max, ..small() };
            let report = conformance::run(&*open(&adapter, &options), &*open(&adapter, &small()));
            show(&adapter, &report);
            report.assert_passed();
        }
    }
}

#[test]
fn more_than_a_kernel_can_see_is_refused_with_the_bound() {
    for adapter in adapters("more_than_a_kernel_can_see_is_refused_with_the_bound") {
        let device = open(&adapter, &WgpuOptions { memory_limit_bytes: Some(1 << 50), ..small() });
        let refused = |error| match error {
            AllocError::TooLarge { needed_bytes, limit_bytes, .. } => {
                assert_eq!((needed_bytes, limit_bytes < 1 << 42), (1 << 42, true), "{limit_bytes}");
            }
            other => panic!("{other}"),
        };
        refused(device.buffer(Element::F32, 1 << 40).unwrap_err());
        // 4 KiB of keys to a page and head; a cache is split by heads, not further.
        let shape = KvShape {
            layers: 2,
            kv_heads: 8,
            head_dim: 128,
            page_tokens: 16,
            pages: 1 << 30,
            dtype: KvDType::F16,
        };
        refused(device.kv_cache(shape).unwrap_err());
        assert_eq!(device.memory().live_allocations, 0);
        device.buffer(Element::F32, 1).unwrap();
    }
}

/// As the layers and the head of a decode step.
#[test]
fn programs_and_the_download_behind_them_are_one_submission() {
    for adapter in adapters("programs_and_the_download_behind_them_are_one_submission") {
        let device = open(&adapter, &small());
        let [x, y] = [0, 1].map(|_| device.buffer(Element::F32, 1).unwrap());
        let add = |x, y| device.compile(Recording { ops: vec![Op::Add { x, y, width: 1 }] }).unwrap();
        let programs = [add(x.clone(), y.clone()), add(y.clone(), x.clone())];
        let mut stream = device.stream().unwrap();
        let shape = RunShape { tokens: 1, selected: 0 };
        let run = |i: usize, stream: &mut dyn exo_backend::Stream| {
            stream.run(&*programs[i], shape, &Alone, &CancelToken::default()).unwrap();
        };
        let before = device.work();
        stream.upload_f32(&x, 0, &[1.0]).unwrap();
        stream.upload_f32(&y, 0, &[2.0]).unwrap();
        run(0, &mut *stream); // x = 3
        run(1, &mut *stream); // y = 5
        let mut got = [0.0];
        stream.download_f32(&y, 0, &mut got, Duration::from_secs(10)).unwrap();
        let step = device.work();
        assert_eq!((got, step.submissions - before.submissions), ([5.0], 1));
        assert_eq!(step.dispatches - before.dispatches, 2);
        // The device begins with a run before the program's next; an upload keeps its place behind both.
        run(0, &mut *stream); // x = 8
        run(0, &mut *stream); // x = 13
        stream.upload_f32(&y, 0, &[100.0]).unwrap();
        stream.download_f32(&x, 0, &mut got, Duration::from_secs(10)).unwrap();
        assert_eq!((got, device.work().submissions - step.submissions), ([13.0], 2));
        stream.download_f32(&y, 0, &mut got, Duration::from_secs(10)).unwrap();
        assert_eq!(got, [100.0]);
    }
}

#[test]
fn an_adapter_tells_what_it_is() {
    for adapter in adapters("an_adapter_tells_what_it_is") {
        assert!(!adapter.name.is_empty());
        assert!(adapter.api != Api::Vulkan || adapter.memory_bytes.is_some_and(|bytes| bytes > 64 << 20));
        let device = open(&adapter, &small());
        println!("{} through {}, subgroups: {}", adapter.name, adapter.api, device.has_subgroups());
        assert_eq!(device.memory().total_bytes, 16 << 20);
    }
}
