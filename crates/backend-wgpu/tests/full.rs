//! A device whose driver has no memory left: every call is refused as a value, and the device goes on.
//!
//! In a child process that allows itself little more address space than it has: to lavapipe, that is the
//! device's memory.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test file, helpers included

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{adapters, skip};
use exo_backend::{
    AllocError, Alone, Buffer, CancelToken, Device, Element, Op, Recording, RunError, RunShape, Weight,
    WeightError,
};
use exo_backend_wgpu::{Api, WgpuDevice, WgpuOptions};
use exo_types::{DType, DeviceId, TensorView};

const TEST: &str = "a_driver_without_memory_refuses_and_the_device_goes_on";
const CHILD: &str = "EXO_TEST_FILL_ADAPTER";
const DEADLINE: Duration = Duration::from_secs(60);
/// Address space beyond what the process has when it starts to fill memory.
const ROOM_BYTES: u64 = 1 << 30;
/// A block of the driver's memory as `wgpu` asks for it: nothing else fits beside it.
const BLOCK: usize = 128 << 20;
/// Columns of weights.
const COLS: usize = 1 << 10;
/// Elements of what is computed on: uploaded in more pieces than one.
const WIDTH: usize = 3 << 19;

#[test]
fn a_driver_without_memory_refuses_and_the_device_goes_on() {
    let mut found = adapters(TEST);
    found.retain(|adapter| adapter.is_software && adapter.api == Api::Vulkan);
    if found.is_empty() {
        skip(&format!("{TEST}: no Vulkan adapter whose memory is the process's own"));
    }
    if let Some(index) = std::env::var_os(CHILD) {
        let index: usize = index.to_str().unwrap().parse().unwrap();
        let adapter = found.into_iter().find(|adapter| adapter.index == index).unwrap();
        let options = WgpuOptions { memory_limit_bytes: Some(1 << 40), ..WgpuOptions::default() };
        return fill(&*WgpuDevice::open(&adapter, DeviceId("test".to_owned()), &options).unwrap());
    }
    for adapter in found {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", TEST, "--nocapture"]).env(CHILD, adapter.index.to_string());
        let output = child.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.contains("filled and emptied"),
            "{}:\n{text}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

/// Lets the process grow by [`ROOM_BYTES`] and no further.
fn bound_address_space() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    let kib: u64 = size.trim().strip_suffix(" kB").unwrap().parse().unwrap();
    let bound = Some((kib << 10) + ROOM_BYTES);
    let limit = rustix::process::Rlimit { current: bound, maximum: bound };
    rustix::process::setrlimit(rustix::process::Resource::As, limit).unwrap();
}

/// Whole blocks until the driver gives no more, then what is left in those it has given.
fn fill_up(device: &dyn Device) -> Vec<Buffer> {
    let mut taken = Vec::new();
    for bytes in [BLOCK, 1 << 20, 1 << 14] {
        let refused = loop {
            match device.buffer(Element::F32, bytes / 4) {
                Ok(buffer) => taken.push(buffer),
                Err(error) => break error,
            }
            assert!(device.memory().allocated_bytes < 2 * ROOM_BYTES, "the bound does not hold");
        };
        assert!(matches!(refused, AllocError::OutOfMemory { .. }), "{refused}");
        assert!(refused.to_string().contains("which its driver refused"), "{refused}");
    }
    taken
}

/// A weight whose elements are their own numbers.
fn weight(device: &dyn Device, source: &Arc<Vec<u8>>) -> Result<Weight, WeightError> {
    let (name, cols, source) = ("w".to_owned(), COLS as u64, Arc::clone(source));
    let (rows, range) = (source.len() as u64 / 4 / cols, 0..source.len());
    device.weight(&TensorView { name, dtype: DType::F32, rows, cols, range, source })
}

fn numbered(bytes: usize) -> Arc<Vec<u8>> {
    Arc::new((0..bytes / 4).flat_map(|i| (i as f32).to_le_bytes()).collect())
}

/// Reads some rows of a weight back.
fn assert_numbered(device: &dyn Device, table: Weight) {
    let rows = [0, 1, 1023, 1024, 1025, 16_383, table.rows - 1];
    let ids = device.buffer(Element::U32, rows.len()).unwrap();
    let out = device.buffer(Element::F32, rows.len() * COLS).unwrap();
    let mut stream = device.stream().unwrap();
    stream.upload_u32(&ids, 0, &rows.map(|row| row as u32)).unwrap();
    let embed = Op::Embed { table, ids, out: out.clone() };
    let program = device.compile(Recording { ops: vec![embed] }).unwrap();
    let shape = RunShape { tokens: rows.len(), selected: 0 };
    stream.run(&*program, shape, &Alone, &CancelToken::default()).unwrap();
    let mut got = vec![0.0; rows.len() * COLS];
    stream.download_f32(&out, 0, &mut got, DEADLINE).unwrap();
    for (row, got) in rows.into_iter().zip(got.chunks(COLS)) {
        assert!((0..COLS).all(|col| got[col] == (row * COLS + col) as f32), "row {row}");
    }
}

fn fill(device: &dyn Device) {
    let [x, y] = [0, 1].map(|_| device.buffer(Element::F32, WIDTH).unwrap());
    let add = Op::Add { x: x.clone(), y: y.clone(), width: WIDTH };
    let add = device.compile(Recording { ops: vec![add] }).unwrap();
    let mut stream = device.stream().unwrap();
    let shape = RunShape { tokens: 1, selected: 0 };
    let small = numbered(BLOCK / 16);
    let large = numbered(BLOCK);
    let mut got = vec![0.0; WIDTH];
    bound_address_space();
    for round in 1..=3 {
        let mut taken = fill_up(device);
        let held = device.memory().allocated_bytes;
        assert!(held > ROOM_BYTES / 2, "{held}");
        for source in [&small, &large] {
            match weight(device, source) {
                Ok(_) => panic!("there was room for a weight"),
                Err(WeightError::Alloc(AllocError::OutOfMemory { .. })) => {}
                Err(other) => panic!("{other}"),
            }
        }
        assert_eq!(device.memory().allocated_bytes, held, "what was refused holds nothing");
        // What goes on while it is full: uploads and runs. There may be no room for what comes back.
        stream.upload_f32(&x, 0, &vec![round as f32; WIDTH]).unwrap();
        stream.upload_f32(&y, 0, &vec![10.0; WIDTH]).unwrap();
        stream.run(&*add, shape, &Alone, &CancelToken::default()).unwrap();
        match stream.download_f32(&x, 0, &mut got, DEADLINE) {
            Ok(()) | Err(RunError::Alloc(AllocError::OutOfMemory { .. })) => {}
            Err(other) => panic!("{other}"),
        }
        taken.truncate(2);
        assert_numbered(device, weight(device, &large).unwrap());
        stream.download_f32(&x, 0, &mut got, DEADLINE).unwrap();
        assert_eq!(got, vec![round as f32 + 10.0; WIDTH]);
    }
    println!("filled and emptied");
}
