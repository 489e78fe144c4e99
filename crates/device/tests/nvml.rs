//! A card of NVIDIA's that no driver of its vendor for programs shows, as its management library tells of it.
//! That library is played by one of ours, built here.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::path::Path;
use std::process::Command;

use exo_device::{CardSensors, GraphicsCard};

const NVIDIA: u32 = 0x10de;
/// A slot that no real machine has.
const SLOT: &str = "fffe:17:00.0";
/// Set for the process in which the library is found.
const INSIDE: &str = "EXO_TEST_NVML";

const LIBRARY: &str = r#"
#include <stdio.h>
#include <string.h>
struct memory { unsigned version; unsigned long long total, reserved, free, used; };
static int text(char *out, unsigned len, const char *what) { return snprintf(out, len, "%s", what) < 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *address, void **card) {
    *card = card;
    return strcmp(address, "fffe:17:00.0") ? 6 : 0; /* not found */
}
int nvmlDeviceGetName(void *card, char *out, unsigned len) { return text(out, len, "NVIDIA L40S"); }
int nvmlDeviceGetUUID(void *card, char *out, unsigned len) { return text(out, len, "GPU-5f1c"); }
int nvmlSystemGetDriverVersion(char *out, unsigned len) { return text(out, len, "550.54.14"); }
int nvmlDeviceGetCudaComputeCapability(void *card, int *major, int *minor) { *major = 8; *minor = 9; return 0; }
int nvmlDeviceGetNumGpuCores(void *card, unsigned *out) { *out = 18176; return 0; }
int nvmlDeviceGetMemoryInfo_v2(void *card, struct memory *out) {
    if (out->version != (sizeof *out | 2 << 24)) return 25; /* another version of the structure */
    out->total = 48ull << 30; out->reserved = 1ull << 30; out->free = 40ull << 30; out->used = 7ull << 30;
    return 0;
}
"#;

/// In a process that finds the library: where it is, is read when a process starts.
fn with_library(test: &str) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let (source, library) = (folder.path().join("nvml.c"), folder.path().join("libnvidia-ml.so.1"));
    std::fs::write(&source, LIBRARY).unwrap();
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    assert!(built.unwrap().success(), "cc: install Debian's gcc");
    run(test, folder.path())
}

fn run(test: &str, libraries: &Path) -> bool {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test]).env("LD_LIBRARY_PATH", libraries).env(INSIDE, "1");
    command.status().unwrap().success()
}

#[test]
fn a_card_is_told_by_its_makers_library() {
    if std::env::var_os(INSIDE).is_none() {
        return assert!(with_library("a_card_is_told_by_its_makers_library"));
    }
    let sensors = CardSensors::new(NVIDIA, Some(SLOT));
    let card = GraphicsCard {
        pci_address: SLOT.to_owned(),
        vendor: NVIDIA,
        name: Some("NVIDIA L40S".to_owned()),
        driver_version: Some("550.54.14".to_owned()),
        architecture: Some("Ada Lovelace".to_owned()),
        compute_units: Some(142),
        memory_bytes: Some(48 << 30),
        memory_free_bytes: Some(40 << 30),
        uuid: Some("GPU-5f1c".to_owned()),
        ..GraphicsCard::default()
    };
    assert_eq!(sensors.card(), Some(card));
    assert_eq!(sensors.memory_free_bytes(), Some(40 << 30));
    // Of another card it knows nothing, and one of another vendor is not asked of it.
    let elsewhere = CardSensors::new(NVIDIA, Some("fffe:18:00.0"));
    assert_eq!((elsewhere.card().unwrap().name, elsewhere.memory_free_bytes()), (None, None));
    let other = CardSensors::new(0x1002, Some(SLOT));
    assert_eq!((other.card().unwrap().name, other.memory_free_bytes()), (None, None));
    assert_eq!(CardSensors::new(NVIDIA, None).card(), None);
}
