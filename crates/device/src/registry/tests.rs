use std::fs;

use exo_types::{KvRates, Provenance};

use super::*;
use crate::calibrate::fake::FakeDevice;

fn card(address: Option<&str>, uuid: Option<&str>) -> Identity {
    Identity {
        name: "Card".to_owned(),
        vendor: 0x10de,
        device: 0x2684,
        pci_address: address.map(str::to_owned),
        uuid: uuid.map(str::to_owned),
    }
}

const LAYER: LayerRates = LayerRates {
    prefill_read_bytes_per_s: 1e11,
    attention_flops_per_s: 5e12,
    activations_per_s: 1e11,
    layer_s: 1e-5,
    kv_read_bytes_per_s: Some(KvRates { f32: 3e11, f16: 2e11, q8: 1e11 }),
    read_16_rows_bytes_per_s: Some(2e11),
};

const TYPE: KnownType = KnownType {
    read_bytes_per_s: 8e9,
    flops_per_s: 1e11,
    read_16_rows_bytes_per_s: Some(6e9),
    measured_unix_s: 5,
    passes: 9,
};

const MEASURED: MeasuredAt = MeasuredAt { unix_s: 6, passes: 12 };

fn measured(driver: &str) -> BackendRecord {
    BackendRecord {
        driver: driver.to_owned(),
        calibration_version: CALIBRATION_VERSION,
        memory_bytes: Some(1 << 30),
        read_bytes_per_s: Some(3e11),
        flops_per_s: Some(2e13),
        verified_unix_s: Some(7),
        trouble: None,
        quarantine: None,
        trial: None,
        layer: Some(LAYER),
        is_of_cache: true,
        measured: Some(MEASURED),
        by_type: BTreeMap::new(),
    }
}

/// Changes the registry, about which there is nothing to say, and reads it anew.
fn changed(folder: &Path, change: impl FnOnce(&mut Registry)) -> Registry {
    let ((), warning) = Registry::change(folder, change).unwrap();
    assert_eq!(warning, None);
    Registry::look(folder)
}

#[test]
fn a_measurement_counts_for_its_card_backend_and_driver_only() {
    let folder = tempfile::tempdir().unwrap();
    let here = card(Some("0000:01:00.0"), Some("GPU-1"));
    let registry = changed(folder.path(), |registry| registry.note(&here, "cuda", measured("570"), 7));
    let expected = Calibration {
        layer: Some(LAYER),
        is_of_cache: true,
        measured: Some(MEASURED),
        ..Calibration::of(3e11, 2e13)
    };
    assert_eq!(registry.calibration(&here, "cuda", "570"), Some(expected));
    assert_eq!(registry.calibration(&here, "cuda", "575"), None);
    assert_eq!(registry.calibration(&here, "vulkan", "570"), None);
    for other in [
        card(Some("0000:02:00.0"), Some("GPU-1")),
        card(Some("0000:01:00.0"), Some("GPU-2")),
        card(None, None),
    ] {
        assert_eq!(registry.calibration(&other, "cuda", "570"), None);
    }
    assert_eq!(registry.known(&here, "cuda").unwrap().verified_unix_s, Some(7));
}

#[test]
fn a_failure_keeps_what_was_measured_with_the_same_driver() {
    let (mut registry, here) = (Registry::default(), card(Some("0000:01:00.0"), None));
    registry.note(&here, "vulkan", measured("1"), 7);
    let failed = |driver: &str| BackendRecord {
        read_bytes_per_s: None,
        flops_per_s: None,
        layer: None,
        verified_unix_s: None,
        trouble: Some("it computed a wrong sum".to_owned()),
        ..measured(driver)
    };
    registry.note(&here, "vulkan", failed("1"), 8);
    assert!(registry.calibration(&here, "vulkan", "1").is_some_and(|known| known.layer == Some(LAYER)));
    assert_eq!(registry.known(&here, "vulkan").unwrap().verified_unix_s, Some(7));
    registry.note(&here, "vulkan", failed("2"), 9);
    assert!(registry.calibration(&here, "vulkan", "2").is_none());
}

#[test]
fn rates_keep_their_date_until_they_are_measured_again() {
    let (mut registry, here) = (Registry::default(), card(Some("0000:01:00.0"), None));
    let date = |registry: &Registry| registry.calibration(&here, "vulkan", "1").unwrap().measured;
    registry.note(&here, "vulkan", measured("1"), 7);
    // Opened and listed again, with the rates that were known.
    registry.verified(&here, "vulkan", "1", 100_000);
    registry.note(&here, "vulkan", BackendRecord { measured: None, ..measured("1") }, 200_000);
    assert_eq!(date(&registry), Some(MEASURED));
    let again = MeasuredAt { unix_s: 300_000, passes: 3 };
    registry.note(&here, "vulkan", BackendRecord { measured: Some(again), ..measured("1") }, 300_000);
    assert_eq!(date(&registry), Some(again));
}

#[test]
fn what_was_measured_more_than_a_day_ago_is_measured_again_and_stays_where_that_fails() {
    let (folder, here) = (tempfile::tempdir().unwrap(), card(None, None));
    let opened = |device: &FakeDevice, age_s: u64| {
        let before = MeasuredAt { unix_s: exo_stdx::unix_s() - age_s, passes: 12 };
        let record = BackendRecord { measured: Some(before), ..measured("1") };
        changed(folder.path(), |registry| registry.note(&here, "cuda", record, 7));
        let CalibrationResult { calibration, known, .. } =
            calibrated(folder.path(), &here, "cuda", "1", device).unwrap();
        let kept = Registry::look(folder.path()).calibration(&here, "cuda", "1").unwrap();
        assert_eq!(kept.measured, calibration.measured, "what is told is what the next start finds");
        (known, calibration.read_bytes_per_s == 3e11, calibration.measured == Some(before))
    };
    let day_s = u64::from(Provenance::FRESH_S);
    // It would fail if it were measured.
    assert_eq!(opened(&FakeDevice::broken(), day_s - 60), (true, true, true));
    assert_eq!(opened(&FakeDevice::broken(), day_s + 60), (true, true, true), "the date stays, too");
    assert_eq!(opened(&FakeDevice::new(Duration::ZERO), day_s + 60), (false, false, false));
    assert!(
        calibrated(folder.path(), &here, "cuda", "2", &FakeDevice::broken()).is_err(),
        "nothing is known"
    );
}

#[test]
fn a_date_becomes_an_age_and_one_in_the_future_is_as_old_as_can_be() {
    let told = |unix_s, passes| {
        let Provenance { count, age_s } = MeasuredAt { unix_s, passes }.told(1_000);
        (count, age_s)
    };
    assert_eq!(told(1_000, 12), (12, 0));
    assert_eq!(told(400, 1), (1, 600));
    assert_eq!(told(1_001, 12), (12, Provenance::AGE_S_MAX), "the clock was set back");
    assert_eq!(told(400, 0), (1, 600), "a number that is there was measured once at least");
}

#[test]
fn rates_of_types_are_kept_beside_the_others_for_their_driver_and_no_absurd_ones() {
    let folder = tempfile::tempdir().unwrap();
    let here = card(None, None);
    let rates = |read_bytes_per_s| KnownType { read_bytes_per_s, ..TYPE };
    let note = |types: &[(DType, f64)]| {
        let types = types.iter().map(|(dtype, read)| (*dtype, rates(*read))).collect();
        changed(folder.path(), |registry| registry.note_types(&here, "cpu", "1", &types, 9))
    };
    changed(folder.path(), |registry| registry.note(&here, "cpu", measured("1"), 7));
    note(&[(DType::Q4_K, 8e9)]);
    let registry = note(&[(DType::F16, 2e10), (DType::Q4_K, f64::NAN), (DType::F32, 0.0)]);
    let known = BTreeMap::from([(DType::Q4_K, rates(8e9)), (DType::F16, rates(2e10))]);
    assert_eq!(registry.types(&here, "cpu", "1"), known);
    assert!(registry.calibration(&here, "cpu", "1").is_some(), "what Q8_0 reaches stays");
    let absurd = BTreeMap::from([(DType::F16, KnownType { read_16_rows_bytes_per_s: Some(-1.0), ..TYPE })]);
    let registry = changed(folder.path(), |registry| registry.note_types(&here, "cpu", "1", &absurd, 9));
    assert_eq!(registry.types(&here, "cpu", "1"), known, "nor one with an absurd rate of 16 rows");
    // Measuring Q8_0 anew, as every day, forgets none of them; another number of threads does.
    let registry = changed(folder.path(), |registry| registry.note(&here, "cpu", measured("1"), 10));
    assert_eq!(registry.types(&here, "cpu", "1"), known);
    assert!(registry.types(&here, "cpu", "2").is_empty());
    let registry = changed(folder.path(), |registry| registry.note(&here, "cpu", measured("2"), 11));
    assert!(registry.types(&here, "cpu", "2").is_empty());
}

/// Written by exo before it measured types.
#[test]
fn an_older_file_is_read_and_one_with_an_absurd_rate_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let here = card(None, None);
    changed(folder.path(), |registry| registry.note(&here, "cpu", measured("1"), 7));
    let path = folder.path().join("gpu_registry.json");
    let text = fs::read_to_string(&path).unwrap();
    assert!(!text.contains("by_type"), "nothing is written of what is not known: {text}");
    assert!(Registry::look(folder.path()).calibration(&here, "cpu", "1").is_some());
    let typed = r#""by_type": {"Q4_K": {"read_bytes_per_s": -1.0, "flops_per_s": 1.0, "measured_unix_s": 1}}, "driver""#;
    fs::write(&path, text.replace("\"driver\"", typed)).unwrap();
    let ((), warning) = Registry::change(folder.path(), |_| ()).unwrap();
    assert!(warning.as_deref().is_some_and(|text| text.contains("a rate of -1 per second")), "{warning:?}");
}

#[test]
fn what_was_measured_with_another_meaning_is_measured_again_and_the_rest_stays() {
    let folder = tempfile::tempdir().unwrap();
    let here = card(None, None);
    let types = BTreeMap::from([(DType::Q4_K, TYPE)]);
    changed(folder.path(), |registry| {
        registry.note(&here, "cuda", measured("1"), 7);
        registry.note_types(&here, "cuda", "1", &types, 7);
        registry.set_quarantine(&here, "cuda", "1", Quarantine::new("it crashed", 100_000));
    });
    // As exo wrote it before measurements had a version.
    let path = folder.path().join("gpu_registry.json");
    let text = fs::read_to_string(&path).unwrap();
    let (version, rest): (Vec<&str>, Vec<&str>) =
        text.lines().partition(|line| line.contains("calibration_version"));
    assert_eq!(version.len(), 1, "{text}");
    fs::write(&path, rest.join("\n")).unwrap();
    let ((), warning) = Registry::change(folder.path(), |_| ()).unwrap();
    assert_eq!(warning, None);
    let old = Registry::look(folder.path());
    assert_eq!(old.calibration(&here, "cuda", "1"), None);
    assert!(old.types(&here, "cuda", "1").is_empty());
    assert!(old.quarantine(&here, "cuda", "1", 100_001).is_some());
    // Whatever is noted first, no number of before becomes one of now.
    let notes: [fn(&mut Registry, &Identity); 2] = [
        |registry, here| registry.verified(here, "cuda", "1", 9),
        |registry, here| {
            let trouble = Some("it computed a wrong sum".to_owned());
            registry.note(
                here,
                "cuda",
                BackendRecord { driver: "1".to_owned(), trouble, ..BackendRecord::default() },
                9,
            );
        },
    ];
    for note in notes {
        let mut registry = old.clone();
        note(&mut registry, &here);
        assert_eq!(registry.calibration(&here, "cuda", "1"), None);
        assert!(registry.types(&here, "cuda", "1").is_empty());
    }
    let mut registry = old;
    registry.note(&here, "cuda", BackendRecord { layer: None, ..measured("1") }, 9);
    assert_eq!(registry.calibration(&here, "cuda", "1").unwrap().layer, None);
    assert!(registry.known(&here, "cuda").unwrap().quarantine.is_some());
}

/// Written by exo before it measured what a layer takes beside products.
#[test]
fn a_file_without_rates_of_a_layer_is_read_and_absurd_ones_are_damage() {
    let folder = tempfile::tempdir().unwrap();
    let here = card(None, None);
    changed(folder.path(), |registry| {
        registry.note(&here, "cpu", BackendRecord { layer: None, ..measured("1") }, 7);
    });
    let path = folder.path().join("gpu_registry.json");
    let text = fs::read_to_string(&path).unwrap();
    assert!(!text.contains("layer"), "nothing is written of what is not known: {text}");
    let known = Registry::look(folder.path()).calibration(&here, "cpu", "1").unwrap();
    assert_eq!((known.read_bytes_per_s, known.layer), (3e11, None));
    let with = |layer: LayerRates| {
        let layer = serde_json::to_string(&layer).unwrap();
        fs::write(&path, text.replace("\"driver\"", &format!("\"layer\": {layer}, \"driver\""))).unwrap();
        Registry::change(folder.path(), |registry| registry.calibration(&here, "cpu", "1")).unwrap()
    };
    let (known, warning) = with(LAYER);
    assert_eq!((known.unwrap().layer, warning), (Some(LAYER), None));
    let no_kv = Some(KvRates { f32: 3e11, f16: 0.0, q8: 1e11 });
    for absurd in [
        LayerRates { attention_flops_per_s: 0.0, ..LAYER },
        LayerRates { kv_read_bytes_per_s: no_kv, ..LAYER },
        LayerRates { read_16_rows_bytes_per_s: Some(-1.0), ..LAYER },
    ] {
        let (known, warning) = with(absurd);
        assert_eq!(known, None);
        assert!(warning.as_deref().is_some_and(|text| text.contains("rates of a layer")), "{warning:?}");
    }
    let noted = changed(folder.path(), |registry| {
        let absurd = Some(LayerRates { layer_s: f64::NAN, ..LAYER });
        registry.note(&here, "cpu", BackendRecord { layer: absurd, ..measured("1") }, 7);
    });
    assert_eq!(noted.calibration(&here, "cpu", "1").unwrap().layer, None);
}

#[test]
fn a_quarantine_lasts_until_it_is_over_the_driver_is_another_or_it_is_released() {
    let folder = tempfile::tempdir().unwrap();
    let here = card(Some("0000:01:00.0"), None);
    let mut registry = changed(folder.path(), |registry| {
        registry.note(&here, "cuda", measured("1"), 7);
        registry.set_quarantine(&here, "cuda", "1", Quarantine::new("it crashed", 100_000));
    });
    let reason = |registry: &Registry, backend: &str, driver: &str, now: u64| {
        registry.quarantine(&here, backend, driver, now).map(|quarantine| quarantine.reason.clone())
    };
    let last = 100_000 + QUARANTINE_S - 1;
    assert_eq!(reason(&registry, "cuda", "1", 100_000).as_deref(), Some("it crashed"));
    assert!(
        reason(&registry, "cuda", "1", last).is_some() && reason(&registry, "cuda", "1", last + 1).is_none()
    );
    assert!(
        reason(&registry, "cuda", "2", 100_000).is_none()
            && reason(&registry, "vulkan", "1", 100_000).is_none()
    );
    assert!(reason(&registry, "cuda", "1", 99_000).is_some(), "a clock that was set back a little");
    assert!(reason(&registry, "cuda", "1", 10).is_none(), "a clock that had been a day ahead");
    assert!(registry.calibration(&here, "cuda", "1").is_some(), "what was measured stays");
    // Looking at it does not end it; the next driver does, for good.
    registry.verified(&here, "cuda", "1", 100_001);
    assert!(reason(&registry, "cuda", "1", 100_001).is_some());
    assert_eq!(registry.release_all(100_001), [Released::Quarantine("Card (cuda)".to_owned())]);
    assert!(reason(&registry, "cuda", "1", 100_001).is_none() && registry.release_all(100_001).is_empty());
    registry.set_quarantine(&here, "cuda", "1", Quarantine::new("again", 100_002));
    assert!(registry.release(&here, "cuda") && !registry.release(&here, "cuda"));
    registry.set_quarantine(&here, "cuda", "1", Quarantine::new("again", 100_002));
    registry.verified(&here, "cuda", "2", 100_003);
    assert!(
        reason(&registry, "cuda", "2", 100_003).is_none()
            && reason(&registry, "cuda", "1", 100_003).is_none()
    );
}

#[test]
fn a_trial_counts_for_its_driver_and_version_and_a_failed_one_for_hours() {
    let folder = tempfile::tempdir().unwrap();
    let here = card(Some("0000:01:00.0"), None);
    let tried = |failed| BackendRecord { trial: Some(Trial::new("1.2.3", failed, 1000)), ..measured("1") };
    let mut registry = changed(folder.path(), |registry| {
        registry.note(&here, "cuda", tried(None), 1000);
        registry.note(&here, "vulkan", tried(Some("another text")), 1000);
        // Looking at the card again forgets nothing.
        registry.note(&here, "cuda", measured("1"), 1001);
    });
    let failed = |registry: &Registry, backend: &str, driver: &str, version: &str, now: u64| {
        registry.trial(&here, backend, driver, version, now).map(|trial| trial.failed.clone())
    };
    let late = 1000 + QUARANTINE_S;
    assert_eq!(failed(&registry, "cuda", "1", "1.2.3", late * 9), Some(None));
    assert_eq!(failed(&registry, "cuda", "2", "1.2.3", 1001), None, "another driver");
    assert_eq!(failed(&registry, "cuda", "1", "1.2.4", 1001), None, "another exo");
    assert_eq!(failed(&registry, "vulkan", "1", "1.2.3", late - 1), Some(Some("another text".to_owned())));
    assert_eq!(failed(&registry, "vulkan", "1", "1.2.3", late), None, "it may have been a passing thing");
    let mut over = registry.clone();
    assert_eq!(over.release_all(late), [], "what has ended by itself is not released");
    assert_eq!(registry.release_all(1001), [Released::Trial("Card (vulkan)".to_owned())]);
    assert_eq!(failed(&registry, "vulkan", "1", "1.2.3", 1001), None);
    assert_eq!(failed(&registry, "cuda", "1", "1.2.3", 1001), Some(None), "what it passed stays");
}

#[test]
fn a_driver_that_did_not_answer_is_kept_until_hours_have_passed_or_it_is_released() {
    let folder = tempfile::tempdir().unwrap();
    let here = card(Some("0000:01:00.0"), None);
    let mut registry = changed(folder.path(), |registry| {
        registry.note(&here, "cuda", measured("1"), 7);
        registry.set_driver_quarantine("cuda", Quarantine::new("it did not answer", 1000));
    });
    let is_quarantined = |backend: &str, now: u64| registry.driver_quarantine(backend, now).is_some();
    let late = 1000 + QUARANTINE_S;
    assert!(is_quarantined("cuda", 1000) && is_quarantined("cuda", late - 1));
    assert!(!is_quarantined("cuda", late), "it may have been a passing thing");
    assert!(!is_quarantined("vulkan", 1000), "another backend");
    assert!(registry.calibration(&here, "cuda", "1").is_some(), "what is known of cards stays");
    assert_eq!(registry.clone().release_all(1001), [Released::Driver("cuda".to_owned())]);
    assert!(registry.clone().release_all(late).is_empty());
    registry.driver_answered("cuda");
    assert!(registry.has_no_drivers());
}

#[test]
fn what_cannot_be_read_is_moved_aside_and_begun_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gpu_registry.json");
    changed(folder.path(), |registry| {
        registry.note(&card(Some("0000:01:00.0"), None), "cuda", measured("1"), 7);
    });
    let good = fs::read_to_string(&path).unwrap();
    let long = " ".repeat((1 << 20) + 1);
    let driver = format!(
        r#""drivers": {{"cuda": {{"quarantine": {{"since_unix_s": 1, "until_unix_s": 2, "reason": "{}"}}}}}}, "devices""#,
        "long ".repeat(101)
    );
    let damaged = [
        (good[..good.len() / 2].to_owned(), "EOF"),
        (good.replace("\"version\": 1", "\"version\": 2"), "of version 2"),
        (good.replace("300000000000.0", "-3.0"), "rate of -3"),
        (good.replace("\"name\": \"Card\"", "\"name\": 5"), "expected a string"),
        (good.replace("10de:2684\"", "10de:2685\""), "is `0000:01:00.0 10de:2684`"),
        (good.replace("\"devices\"", &driver), "did not answer of `cuda` has more letters"),
        (long, "more than 1048576 bytes"),
        (String::new(), "EOF"),
    ];
    for (n, (text, reason)) in damaged.into_iter().enumerate() {
        assert_ne!(text, good);
        fs::write(&path, &text).unwrap();
        assert!(Registry::look(folder.path()).devices.is_empty());
        let begin = |registry: &mut Registry| {
            assert!(registry.devices.is_empty());
            registry.note(&card(None, None), "cuda", measured("1"), 7);
        };
        let (warning, aside) = (
            Registry::change(folder.path(), begin).unwrap().1.unwrap(),
            format!("gpu_registry.json.bad-{}", (n + 1).min(5)),
        );
        assert!(warning.contains(reason) && warning.contains(&aside), "{warning}");
        assert_eq!(fs::read_to_string(folder.path().join(aside)).unwrap(), text);
        changed(folder.path(), |registry| assert_eq!(registry.devices.len(), 1));
    }
    // Three of eight gave way to later ones; beside the file is its lock, and no half-written neighbour.
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 7);
}

#[test]
fn only_so_many_cards_are_remembered_and_names_are_cut_short() {
    let folder = tempfile::tempdir().unwrap();
    let registry = changed(folder.path(), |registry| {
        for n in 0..(DEVICES_MAX as u64 + 6) {
            let mut known = measured(&"long ".repeat(100));
            known.flops_per_s = Some(f64::INFINITY);
            registry.note(&card(Some(&format!("0000:{n:02x}:00.0")), None), "cuda", known, n);
        }
    });
    assert_eq!(registry.devices.len(), DEVICES_MAX);
    assert!(registry.known(&card(Some("0000:05:00.0"), None), "cuda").is_none());
    let known = registry.known(&card(Some("0000:06:00.0"), None), "cuda").unwrap();
    assert_eq!((known.driver.chars().count(), known.flops_per_s), (TEXT_CHARS_MAX, None));
}

#[test]
#[cfg(unix)]
fn the_file_is_the_owners_and_a_folder_that_cannot_be_written_is_an_error() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let note = |registry: &mut Registry| registry.note(&card(None, None), "cuda", measured("1"), 7);
    changed(folder.path(), note);
    let mode = fs::metadata(folder.path().join("gpu_registry.json")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let error = Registry::change(&folder.path().join("none"), note).unwrap_err();
    assert!(error.to_string().starts_with("cannot lock what is known of graphics processors in"), "{error}");
}

/// A lack of file handles, say, is no damage: the next process may read it.
#[test]
fn a_file_that_the_system_does_not_let_us_read_stays_where_it_is() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("gpu_registry.json")).unwrap(); // cannot be read as a file, by root either
    let error = Registry::change(folder.path(), |_| panic!("there is nothing to change")).unwrap_err();
    assert!(error.to_string().starts_with("cannot read what is known"), "{error}");
    assert!(folder.path().join("gpu_registry.json").is_dir());
    assert!(Registry::try_look(folder.path()).is_none(), "a quarantine in there may still run");
}

#[test]
fn changes_of_several_at_once_take_turns_and_none_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for n in 0..16 {
            let folder = folder.path();
            scope.spawn(move || {
                let card = card(Some(&format!("0000:{n:02x}:00.0")), None);
                changed(folder, |registry| registry.note(&card, "cuda", measured("1"), 7));
            });
        }
    });
    assert_eq!(Registry::look(folder.path()).devices.len(), 16);
}

#[test]
fn who_holds_the_lock_for_too_long_is_told_of_and_the_file_stays() {
    let folder = tempfile::tempdir().unwrap();
    let turn = file::lock(folder.path(), file::LOCK_NAME, file::LOCK_WAIT_MAX).unwrap();
    let error = Registry::change(folder.path(), |_| panic!("it is not our turn")).unwrap_err();
    assert!(error.source.to_string().contains("has held gpu_registry.lock for 2 s"), "{error:?}");
    assert!(error.is_late());
    drop(turn);
    changed(folder.path(), |registry| assert!(registry.devices.is_empty()));
    // Turns at trying are others: they take longer, and whoever has one changes the registry.
    let trying = Registry::trial_turn(folder.path(), Duration::ZERO).unwrap();
    changed(folder.path(), |registry| registry.note(&card(None, None), "cuda", measured("1"), 7));
    assert!(Registry::trial_turn(folder.path(), Duration::from_millis(20)).unwrap_err().is_late());
    drop(trying);
    assert!(Registry::trial_turn(folder.path(), Duration::ZERO).is_ok());
    assert!(!Registry::trial_turn(&folder.path().join("none"), Duration::ZERO).unwrap_err().is_late());
}

#[cfg(unix)]
#[test]
fn who_measures_has_a_turn_and_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let turn = || file::lock_folder(folder.path(), Duration::from_millis(10));
    let first = turn().unwrap();
    assert!(turn().is_err_and(|error| error.is_late()));
    drop(first);
    assert!(turn().is_ok());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}
