//! Graphics processors from the outside: shown, used when asked, and a bad driver that costs nothing but a
//! row.

#![cfg(unix)]
#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use crate::emulated;
use crate::support::{
    self, CRASHES, NO_DRIVER, SOON, bus, exo, finish, flat, good, icd, json_of, nvml, on_bus, plug,
    shared_library, skip, stderr, stdout,
};
use serde_json::Value;

const DEMO_MAX: Duration = Duration::from_secs(90);

/// What `exo devices --json` says, with the Vulkan drivers that `driver` names; `None` for the system's.
fn devices(driver: Option<&Path>) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let mut command = in_folder(folder.path(), &["--json"]);
    if let Some(path) = driver {
        command.env("VK_DRIVER_FILES", path).env("VK_ICD_FILENAMES", path);
    }
    rows_of(&mut command)
}

/// `exo devices` with a data folder of its own.
fn in_folder(folder: &Path, args: &[&str]) -> Command {
    let mut command = exo(&["devices", "--data-dir"]);
    command.arg(folder).args(args);
    command
}

fn rows_of(command: &mut Command) -> Vec<Value> {
    json_of(finish(command, Duration::from_secs(60))).as_array().unwrap().clone()
}

fn has_vulkan(test: &str) -> bool {
    let backends = |device: &Value| device["backends"].to_string().contains("vulkan");
    let found = devices(None).iter().any(|device| backends(device) && device["support"] != "unsupported");
    if !found {
        skip(test, "no usable Vulkan device (Debian: mesa-vulkan-drivers)");
    }
    found
}

fn reasons(devices: &[Value]) -> String {
    devices.iter().map(|device| format!("{}\n", device["reason"])).collect()
}

#[test]
fn the_processor_is_always_shown_and_comes_first() {
    let all = devices(None);
    assert_eq!(all[0]["backends"][0], "cpu");
    assert!(all[0]["memory_bytes"].as_u64().unwrap() > 64 << 20);
    for rate in ["read_bytes_per_s", "flops_per_s"] {
        assert!(all[0][rate].as_f64() > Some(1e8), "{}", all[0]);
    }
    assert!(all[0]["architecture"].as_str().unwrap().starts_with(std::env::consts::ARCH), "{}", all[0]);
    assert!(
        all[0]["compute_units"].as_u64().unwrap() > 0 && all[0]["element_types"].is_array(),
        "{}",
        all[0]
    );
}

#[test]
fn drivers_that_cannot_be_loaded_leave_the_processor() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("library.so");
    std::fs::write(&text, "this is no library").unwrap();
    let has_loader = has_vulkan("drivers_that_cannot_be_loaded");
    let gone = "VK_DRIVER_FILES names /nonexistent.json, which is not there";
    for (driver, why) in [
        (PathBuf::from("/nonexistent.json"), gone),
        (icd(folder.path(), &text), "library.so, which is no library"),
    ] {
        let all = devices(Some(&driver));
        assert_eq!(all[0]["backends"][0], "cpu", "{all:?}");
        assert!(!has_loader || reasons(&all).contains(why), "{all:?}");
    }
}

#[test]
fn a_driver_that_crashes_costs_its_row_and_no_process_of_ours() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("driver.so");
    if !shared_library(&library, CRASHES) {
        return skip("a_driver_that_crashes", "no C compiler");
    }
    let driver = icd(folder.path(), &library);
    let reasons = reasons(&devices(Some(&driver)));
    if !has_vulkan("a_driver_that_crashes") {
        return;
    }
    assert!(reasons.contains("ended the process that asked it"), "{reasons}");
    // Asked to compute with it, a node says so and goes away instead of crashing.
    let mut command = start_with_vulkan(folder.path());
    let output = finish(command.env("VK_DRIVER_FILES", &driver).env("VK_ICD_FILENAMES", &driver), SOON);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("ended the process that asked it"), "{}", stderr(&output));
}

#[test]
fn a_machine_without_any_card_gets_no_data_folder_from_being_looked_at() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let mut command = in_folder(&data, &["--json"]);
    for variable in ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"] {
        command.env(variable, "/nonexistent.json");
    }
    let all = rows_of(command.env("CUDA_VISIBLE_DEVICES", "").env("HIP_VISIBLE_DEVICES", ""));
    assert!(
        all[0]["backends"][0] == "cpu" && all[1..].iter().all(|row| row["support"] == "unsupported"),
        "{all:?}"
    );
    assert!(!data.exists());
    // What shows a card, emulated here, is kept, and turns are taken there.
    command = in_folder(&data, &["--json"]);
    assert_eq!(cuda_rows(&rows_of(command.env("LD_LIBRARY_PATH", emulated::library()))).len(), 2);
    assert!(data.join("gpu_registry.json").is_file() && data.join("gpu_trial.lock").is_file());
}

/// Of a driver that notes who loads it, and never comes back.
const NOTES_AND_HANGS: &str = "#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\n\
    __attribute__((constructor)) void f(void) {\n\
    FILE *notes = fopen(getenv(\"EXO_TEST_NOTES\"), \"a\"); fputs(\"asked\\n\", notes); fclose(notes); sleep(600); }\n";

#[test]
fn a_driver_that_hangs_is_waited_for_once_where_that_cannot_be_noted() {
    let folder = tempfile::tempdir().unwrap();
    if !shared_library(&folder.path().join("libcuda.so.1"), NOTES_AND_HANGS) {
        return skip("a_driver_that_hangs", "no C compiler");
    }
    let (notes, file) = (folder.path().join("notes"), folder.path().join("file"));
    std::fs::write(&file, "no folder").unwrap();
    let mut command = in_folder(&file.join("data"), &["--json"]);
    command.env("LD_LIBRARY_PATH", folder.path()).env("EXO_TEST_NOTES", &notes);
    for variable in ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"] {
        command.env(variable, "/nonexistent.json");
    }
    let output = finish(&mut command, Duration::from_secs(90));
    let all: Vec<Value> = serde_json::from_str(&stdout(&output)).unwrap();
    assert!(reasons(&all).contains("the cuda driver did not answer within 20 s"), "{all:?}");
    assert_eq!(std::fs::read_to_string(&notes).unwrap(), "asked\n");
    assert_eq!(stderr(&output).matches("that a driver did not answer is not kept in").count(), 1);
}

#[test]
fn what_a_step_costs_is_measured_when_asked() {
    if !has_vulkan("what_a_step_costs") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let output = finish(&mut in_folder(folder.path(), &["--steps", "--json"]), Duration::from_secs(90));
    let all: Vec<Value> = serde_json::from_str(&stdout(&output)).unwrap();
    let step = all.iter().map(|device| &device["step"]).find(|step| step.is_object());
    let step = step.unwrap_or_else(|| panic!("{all:?}"));
    let number = |name: &str| step[name].as_f64().unwrap();
    // Beside the layers there are the embedding, and the choice of rows, norm, product and greatest of the
    // head.
    let dispatches_max = 12.0 * number("layers") + 5.0;
    assert!(number("layers") >= 1.0 && number("dispatches") <= dispatches_max, "{step}");
    assert!(number("encode_us") > 0.0 && number("submissions") == 1.0, "{step}");
    // A token and the faults of two programs, not the logits of a vocabulary.
    assert_eq!(number("read_bytes"), 36.0, "{step}");
}

#[test]
fn a_device_in_quarantine_is_shown_with_its_reason_until_somebody_ends_that() {
    let folder = tempfile::tempdir().unwrap();
    let ask = |flags: &[&str]| {
        let mut command = in_folder(folder.path(), flags);
        command.env("LD_LIBRARY_PATH", emulated::library());
        finish(&mut command, Duration::from_secs(60))
    };
    assert!(ask(&[]).status.success());
    let path = folder.path().join("gpu_registry.json");
    let mut registry = registry(folder.path());
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let quarantine = serde_json::json!({
        "since_unix_s": now, "until_unix_s": now + 3600, "reason": "it was lost 4 times within 10 minutes"
    });
    let is_first = |device: &&mut Value| device["pci_address"] == "0000:e0:00.0";
    let first = registry["devices"].as_object_mut().unwrap().values_mut().find(is_first).unwrap();
    first["backends"]["cuda"]["quarantine"] = quarantine.clone();
    std::fs::write(&path, registry.to_string()).unwrap();
    let all: Vec<Value> = serde_json::from_str(&stdout(&ask(&["--json"]))).unwrap();
    let row = all.iter().find(|row| row["pci_address"] == "0000:e0:00.0").unwrap();
    assert_eq!((&row["support"], &row["quarantine"]), (&"unsupported".into(), &quarantine), "{row}");
    let reason = row["reason"].as_str().unwrap();
    assert!(
        reason.contains("lost 4 times") && reason.contains("`exo devices --retry` ends that"),
        "{reason}"
    );
    let again = ask(&["--json", "--retry"]);
    assert!(
        stderr(&again).contains("the quarantine of Emulated CUDA card (cuda) has ended"),
        "{}",
        stderr(&again)
    );
    let all: Vec<Value> = serde_json::from_str(&stdout(&again)).unwrap();
    let row = all.iter().find(|row| row["pci_address"] == "0000:e0:00.0").unwrap();
    assert_eq!((&row["support"], &row["quarantine"]), (&"experimental".into(), &Value::Null), "{row}");
    let none = stderr(&ask(&["--json", "--retry"]));
    assert!(
        none.contains("nothing to retry: no device is in quarantine") && !none.contains("ended"),
        "{none}"
    );
}

fn start_with_vulkan(folder: &Path) -> Command {
    let mut command = exo(&["start", "--backend", "vulkan", "--api-listen", "127.0.0.1:0", "--no-discovery"]);
    command.args(["--listen", "127.0.0.1:0", "--data-dir"]).arg(folder.join("data"));
    command
}

fn refused(command: &mut Command) -> Output {
    let output = finish(command, SOON);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    output
}

#[test]
fn a_device_that_is_not_there_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let none = refused(start_with_vulkan(folder.path()).env("VK_DRIVER_FILES", "/nonexistent.json"));
    assert!(stderr(&none).contains("shows no graphics processor"), "{}", stderr(&none));
    let unknown = refused(&mut exo(&["start", "--backend", "opencl"]));
    assert!(
        stderr(&unknown).contains("unknown backend `opencl`: use auto, cpu, cuda, vulkan"),
        "{}",
        stderr(&unknown)
    );
    if has_vulkan("a_device_that_is_not_there") {
        let other = refused(start_with_vulkan(folder.path()).args(["--device", "Voodoo"]));
        assert!(stderr(&other).contains("no graphics processor `Voodoo`, only:"), "{}", stderr(&other));
    }
}

fn start_with_cuda(folder: &Path) -> Command {
    let mut command = exo(&["start", "--backend", "cuda", "--api-listen", "127.0.0.1:0", "--no-discovery"]);
    command.args(["--listen", "127.0.0.1:0", "--data-dir"]).arg(folder.join("data"));
    command
}

/// What `exo devices` says of NVIDIA's driver.
fn cuda_rows(devices: &[Value]) -> Vec<&Value> {
    devices.iter().filter(|device| device["backends"].to_string().contains("cuda")).collect()
}

fn registry(folder: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(folder.join("gpu_registry.json")).unwrap()).unwrap()
}

#[test]
fn what_was_learnt_is_kept_and_a_damaged_file_moved_aside() {
    if !has_vulkan("what_was_learnt") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let output = finish(&mut in_folder(folder.path(), &[]), Duration::from_secs(60));
    let text = flat(&stdout(&output));
    assert!(
        text.contains("drivers listed in") && text.contains("graphics processors: asked, checked"),
        "{text}"
    );
    let devices = registry(folder.path())["devices"].as_object().unwrap().clone();
    let vulkan: Vec<_> = devices.values().map(|device| &device["backends"]["vulkan"]).collect();
    assert!(
        vulkan.iter().any(|known| known["verified_unix_s"].as_u64() > Some(1_700_000_000)),
        "{devices:?}"
    );
    std::fs::write(folder.path().join("gpu_registry.json"), "{\"version\": 1, \"devi").unwrap();
    let output = finish(&mut in_folder(folder.path(), &["--json"]), Duration::from_secs(60));
    assert!(output.status.success());
    assert!(stderr(&output).contains("gpu_registry.json.bad-1 and measured again"), "{}", stderr(&output));
    assert_eq!(registry(folder.path())["devices"].as_object().unwrap().len(), devices.len());
    assert!(folder.path().join("gpu_registry.json.bad-1").exists());
}

#[test]
fn without_nvidias_driver_it_is_said_what_to_install_where_there_is_a_card() {
    let all = devices(None);
    let rows = cuda_rows(&all);
    if rows.iter().any(|row| row["pci_address"].is_string()) {
        return skip("without_nvidias_driver", "this machine has an NVIDIA card and its driver");
    }
    assert!(rows.is_empty(), "no card, no news: {rows:?}");
    let folder = tempfile::tempdir().unwrap();
    let refused = stderr(&refused(&mut start_with_cuda(folder.path())));
    assert!(!refused.contains("panicked") && refused.contains("\nhint: install it"), "{refused}");
    let bus = bus(folder.path());
    plug(&bus, "0000:01:00.0");
    let mut told = vec![refused];
    match on_bus(&bus, &["devices", "--json", "--data-dir", folder.path().to_str().unwrap()]) {
        Some(mut command) => {
            let all = rows_of(&mut command);
            let rows = cuda_rows(&all);
            assert_eq!((rows.len(), &rows[0]["support"]), (1, &"unsupported".into()), "{all:?}");
            let card = all.iter().find(|row| row["pci_address"] == "0000:01:00.0").unwrap();
            assert!(card["reason"].as_str().unwrap().contains("install NVIDIA's driver"), "{card}");
            told.push(rows[0]["reason"].as_str().unwrap().to_owned());
        }
        None => skip("without_nvidias_driver", "no mount namespace to show a card in"),
    }
    for told in told {
        assert!(told.contains("libcuda.so.1") && told.contains("install its driver, 525 or newer"), "{told}");
    }
}

#[test]
fn what_kernel_drivers_tell_is_shown_with_and_without_a_driver_of_the_interfaces() {
    let folder = tempfile::tempdir().unwrap();
    let bus = bus(folder.path());
    let shown = "0000:e0:00.0";
    plug(&bus, shown);
    std::os::unix::fs::symlink("../drivers/nvidia", bus.join(shown).join("driver")).unwrap();
    let idle = "0000:41:00.0";
    plug(&bus, idle);
    let core = "ip_discovery/die/0/GC/0";
    std::fs::create_dir_all(bus.join(idle).join(core)).unwrap();
    for (file, text) in [
        ("vendor", "0x1002"),
        ("product_name", "Radeon PRO W7900"),
        ("mem_info_vram_total", "48301604864"),
        ("mem_info_vram_used", "301604864"),
        (&format!("{core}/major"), "11"),
        (&format!("{core}/minor"), "0"),
        (&format!("{core}/revision"), "0"),
    ] {
        std::fs::write(bus.join(idle).join(file), text).unwrap();
    }
    // One that the system knows by the list of numbers only.
    let listed = "0000:42:00.0";
    plug(&bus, listed);
    std::fs::create_dir(folder.path().join("misc")).unwrap();
    let list = "10de  NVIDIA Corporation\n\t2684  AD102 [GeForce RTX 4090]\n";
    std::fs::write(folder.path().join("misc/pci.ids"), list).unwrap();
    let Some(mut command) =
        on_bus(&bus, &["devices", "--json", "--data-dir", folder.path().to_str().unwrap()])
    else {
        return skip("what_kernel_drivers_tell", "no mount namespace to show a card in");
    };
    let all = rows_of(command.env("LD_LIBRARY_PATH", emulated::library()));
    let row = |address: &str| all.iter().find(|row| row["pci_address"] == address).unwrap();
    assert_eq!(
        (&row(shown)["kernel_driver"], &row(shown)["architecture"]),
        (&"nvidia".into(), &"Ampere".into())
    );
    let idle = row(idle);
    assert_eq!((&idle["name"], &idle["vendor"]), (&"Radeon PRO W7900".into(), &"AMD".into()), "{idle}");
    assert_eq!(
        (&idle["architecture"], &idle["support"]),
        (&"RDNA 3".into(), &"unsupported".into()),
        "{idle}"
    );
    let memory = (&idle["memory_bytes"], &idle["memory_free_bytes"]);
    assert_eq!(memory, (&48_301_604_864_u64.into(), &48_000_000_000_u64.into()), "{idle}");
    let listed = row(listed);
    assert_eq!(
        (&listed["name"], &listed["architecture"]),
        (&"NVIDIA GeForce RTX 4090".into(), &"AD102".into())
    );
}

#[test]
fn a_file_that_is_no_driver_is_told_from_one_that_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    if !shared_library(&folder.path().join("libcuda.so"), NO_DRIVER) {
        return skip("a_file_that_is_no_driver", "no C compiler");
    }
    let mut command = start_with_cuda(folder.path());
    let refused = stderr(&refused(command.env("LD_LIBRARY_PATH", folder.path())));
    assert!(refused.contains("answered with nonsense"), "{refused}");
}

#[test]
fn emulated_cards_are_shown_with_what_they_can_do() {
    let data = tempfile::tempdir().unwrap();
    let libraries = format!("{}:{}", emulated::library().display(), nvml(data.path()).display());
    let show = || rows_of(in_folder(data.path(), &["--json"]).env("LD_LIBRARY_PATH", &libraries));
    let all = show();
    let rows = cuda_rows(&all);
    assert_eq!(rows.len(), 2, "{all:?}");
    assert_eq!((&rows[1]["name"], &rows[1]["backends"][0]), (&"Emulated CUDA card".into(), &"cuda:1".into()));
    assert_eq!((&rows[0]["vendor"], &rows[0]["support"]), (&"NVIDIA".into(), &"experimental".into()));
    assert_eq!(rows[0]["driver"], "CUDA 12.0, compute capability 8.0");
    assert_eq!(rows[0]["architecture"], "Ampere");
    assert!(rows[0]["compute_units"].as_u64().unwrap() > 0, "{}", rows[0]);
    let types = rows[0]["element_types"].as_array().unwrap();
    assert!(types.contains(&"Q4_K".into()) && !types.contains(&"Q2_K".into()), "{types:?}");
    assert!(rows[0]["ops"].as_array().unwrap().contains(&"Attention".into()), "{}", rows[0]);
    assert_eq!(rows[0]["uuid"], "GPU-7", "by the vendor's library: {}", rows[0]);
    let sensors = &rows[1]["sensors"];
    assert_eq!((&sensors["temperature_c"], &sensors["power_w"]), (&61.0.into(), &153.0.into()), "{sensors}");
    assert_eq!((&sensors["clock_mhz"], &sensors["utilisation"]), (&1980.0.into(), &0.5.into()), "{sensors}");
    assert!(rows[0]["times"]["measure_ms"].as_f64().unwrap() > 0.0, "{}", rows[0]);
    // The second time it is opened and checked, and what it can do is known.
    let again = show();
    let row = cuda_rows(&again)[0];
    assert!(
        row["times"]["measure_ms"].is_null() && row["times"]["check_ms"].as_f64().unwrap() > 0.0,
        "{row}"
    );
    assert_eq!(row["read_bytes_per_s"], rows[0]["read_bytes_per_s"]);
    // Somebody else holds three quarters of it.
    let taken = data.path().join("taken");
    std::fs::write(&taken, (768 << 20).to_string()).unwrap();
    let with = |args: &[&str]| {
        let mut command = in_folder(data.path(), args);
        command.env("LD_LIBRARY_PATH", &libraries).env("EXO_EMULATED_TAKEN", &taken);
        command
    };
    let all_now = rows_of(&mut with(&["--json"]));
    let free = |row: &Value| row["memory_free_bytes"].as_u64().unwrap();
    let (before, now) = (free(rows[0]), free(cuda_rows(&all_now)[0]));
    assert!(before > 900 << 20 && (1..=256 << 20).contains(&now), "{before}, {now}");
    let text = stdout(&finish(&mut with(&[]), SOON));
    for shown in ["0000:e0:00.0", "free: ", "FLOP/s"] {
        assert!(text.contains(shown), "no `{shown}` in {text}");
    }
    let folder = tempfile::tempdir().unwrap();
    let mut command = start_with_cuda(folder.path());
    command.args(["--device", "Voodoo"]).env("LD_LIBRARY_PATH", emulated::library());
    let refused = stderr(&refused(&mut command));
    assert!(refused.contains("no graphics processor `Voodoo`, only: Emulated CUDA card"), "{refused}");
}

#[test]
fn a_stage_on_an_emulated_card_and_two_on_the_processor_give_the_text_of_one() {
    let mut command = exo(&["demo", "--mixed", "cuda"]);
    let text = stdout(&good(finish(command.env("LD_LIBRARY_PATH", emulated::library()), DEMO_MAX)));
    assert!(text.contains("cuda-0") && text.contains("checked: split and solo gave the same"), "{text}");
}

#[test]
fn a_stage_on_vulkan_and_two_on_the_processor_give_the_text_of_one() {
    if !has_vulkan("a_stage_on_vulkan") {
        return;
    }
    let began = Instant::now();
    let output = finish(&mut exo(&["demo", "--mixed"]), DEMO_MAX);
    let text = stdout(&output);
    assert!(output.status.success(), "after {:?}: {text}\n{}", began.elapsed(), stderr(&output));
    assert!(text.contains("vulkan-") && text.contains("checked: split and solo gave the same"), "{text}");
}

/// What `exo` says that ends with an error and a hint.
fn told(args: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut command = exo(args);
    command.arg("--data-dir").arg(folder.path().join("data"));
    let told = stderr(&refused(command.env("LD_LIBRARY_PATH", emulated::library())));
    assert!(told.contains("\nhint: "), "{args:?}: {told}");
    told
}

#[test]
fn exo_devices_shows_what_backend_and_device_name_and_says_if_that_is_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let show = |args: &[&str]| {
        let mut command = in_folder(folder.path(), args);
        let all = rows_of(command.arg("--json").env("LD_LIBRARY_PATH", emulated::library()));
        all.iter().map(|row| row["backends"][0].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(show(&["--backend", "cuda"]), ["cuda:0", "cuda:1"]);
    assert_eq!(show(&["--backend", "cuda", "--device", "1"]), ["cuda:1"]);
    assert_eq!(show(&["--backend", "auto", "--device", "cuda:0"]), ["cuda:0"]);
    assert_eq!(show(&["--backend", "auto", "--device", "emulated"]), ["cuda:0", "cuda:1"]);
    assert_eq!(show(&["--backend", "cpu"]), ["cpu"]);
    let nosuch = told(&["devices", "--backend", "auto", "--device", "nosuch"]);
    assert!(nosuch.contains("called `nosuch`") && nosuch.contains("Emulated CUDA card (cuda:1)"), "{nosuch}");
    assert!(told(&["devices", "--backend", "cuda", "--device", "7"]).contains("called `7`"));
}

#[test]
fn settings_that_cannot_be_meant_are_refused_with_a_hint() {
    let device = told(&["start", "--backend", "cpu", "--device", "0"]);
    assert!(device.contains("setting `device` is `0` (from flag), but the backend is cpu"), "{device}");
    let memory = told(&["start", "--memory-mib", "0"]);
    assert!(memory.contains("setting `memory_mib` is `0` (from flag): it must be from 1"), "{memory}");
    assert!(told(&["start", "--backend", "nonsense"]).contains("unknown backend `nonsense`"));
    assert!(told(&["demo", "--mixed", "nonsense"]).contains("unknown backend `nonsense`"));
}

#[test]
#[cfg(target_os = "linux")]
fn a_backend_of_other_systems_is_refused_with_their_names() {
    for args in [["start", "--backend"], ["demo", "--mixed"], ["devices", "--backend"]] {
        let metal = told(&[&args[..], &["metal"]].concat());
        assert!(metal.contains("`metal` is a backend of macOS and iOS; this is Linux"), "{metal}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_narrow_terminal_gets_a_list_with_whole_words() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().display();
    let shell = format!("stty cols 40 rows 50; {} devices --backend cuda --data-dir {data}", support::EXO);
    let mut script = Command::new("script");
    script
        .args(["-qec", &shell, "/dev/null"])
        .env("EXO_CONFIG", "/dev/null")
        .stdin(std::process::Stdio::null());
    let Ok(output) = script.env("LD_LIBRARY_PATH", emulated::library()).output() else {
        return skip("a_narrow_terminal", "no program `script` (Debian: bsdutils)");
    };
    let text = stdout(&output).replace('\r', "");
    for whole in ["Emulated CUDA card 0000:e0:00.0\n", "\n  backend: cuda:0\n", "\n  support: experimental\n"]
    {
        assert!(text.contains(whole), "no `{whole}` in {text}");
    }
    let long = text.lines().find(|line| line.chars().count() > 40 && line.trim().contains(' '));
    assert_eq!(long, None, "{text}");
}
