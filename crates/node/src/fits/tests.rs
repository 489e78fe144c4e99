//! The catalogue on described clusters, and a model of the mock hub by its head.

use std::collections::BTreeMap;
use std::sync::Arc;

use exo_api::fits::{FitVerdict, FitsView};
use exo_cluster::wire::{ControlAsk, ControlReply};
use exo_machine::{Answer, Question};
use exo_planner::{DeviceRates, Figure, PlanDevice};
use exo_types::{DType, DeviceFacts, DeviceId, DeviceKind, DiskRoom, KvDType, ModelId, NodeId};

use exo_hub::{Cancel, Client, HubError, PullOptions, Reference, Settings};
use exo_mock_hub::{Faults, MockHub, Repository};
use exo_store::{HubFile, HubSource, Manifest, Store};

use crate::cache::CacheRequest;
use crate::events::{Event, EventSender};
use crate::heads::HeadReader;

use super::{
    DISKS_MAX, FetchesHere, FitsCluster, KnownInLayers, ReferenceError, check_fits, choose_fitting,
    find_known, fit_catalogue, fit_known, fit_one, fit_reference, known_in_layers, within_context,
};

/// `name=GIB@GB_PER_S`, one device each.
fn cluster(text: &str, context_tokens: u32) -> FitsCluster {
    let devices = text.split_whitespace().enumerate().map(|(index, device)| {
        let (name, rest) = device.split_once('=').unwrap();
        let (gib, rate) = rest.split_once('@').unwrap();
        let bytes = gib.parse::<u64>().unwrap() << 30;
        let facts = DeviceFacts {
            compute_units: 8,
            read_bytes_per_s: Some(rate.parse::<f64>().unwrap() * 1e9),
            flops_per_s: Some(1e12),
            ..DeviceFacts::unmeasured(DeviceId::cpu(), DeviceKind::Cpu, name, "described", bytes)
        };
        PlanDevice::reported(NodeId([index as u8 + 1; 32]), name.to_owned(), facts, None)
    });
    FitsCluster {
        devices: devices.collect(),
        links: Vec::new(),
        hop_s: None,
        disks: Vec::new(),
        known: Arc::default(),
        fetches: None,
        context_tokens,
        slots: 1,
        cache_tokens: None,
        kv: KvDType::default(),
    }
}

fn verdicts(view: &FitsView) -> BTreeMap<&str, FitVerdict> {
    view.models.iter().map(|m| (m.name.as_str(), m.verdict)).collect()
}

#[test]
fn a_laptop_runs_small_models_well_large_ones_slowly_and_is_told_what_the_largest_need() {
    let view = fit_catalogue(&cluster("laptop=16@40", 4096));
    let verdicts = verdicts(&view);
    assert_eq!(verdicts["qwen3-0.6b"], FitVerdict::Comfortable);
    assert_eq!(verdicts["qwen3-14b"], FitVerdict::Slow);
    assert_eq!(verdicts["llama-3.3-70b"], FitVerdict::TooLarge);
    assert_eq!(verdicts["mixtral-8x7b"], FitVerdict::NotSupported);
    let of = |name: &str| view.models.iter().find(|m| m.name == name).unwrap();
    let large = of("llama-3.3-70b");
    assert!(large.summary.contains("memory are missing"), "{}", large.summary);
    assert!(large.changes.iter().any(|c| c.contains("one more machine with 32 GiB")), "{:?}", large.changes);
    let small = of("llama-3.1-8b").best.as_ref().unwrap();
    assert!(small.context_tokens_max >= 32_768, "{small:?}");
    assert!(of("mixtral-8x7b").sizes.iter().all(|s| s.bytes > 20 << 30 && s.tokens_per_s.is_none()));
    // What is comfortable stands before what is not, the most capable first.
    let order: Vec<FitVerdict> = view.models.iter().map(|m| m.verdict).collect();
    assert!(order.is_sorted(), "{order:?}");
}

#[test]
fn the_best_type_is_the_largest_that_is_fast_enough_and_else_the_fastest() {
    let best = |text: &str| {
        let view = fit_known(&cluster(text, 4096), find_known("Qwen3-8B").unwrap());
        (view.verdict, view.best.map(|b| b.quantisation).unwrap_or_default())
    };
    assert_eq!(best("fast=64@800"), (FitVerdict::Comfortable, "Q8_0".to_owned()));
    assert_eq!(best("slow=64@10"), (FitVerdict::Slow, "Q4_K_M".to_owned()));
    // Too little memory for the larger types, though they would be fast enough.
    let (verdict, small) = best("small=7@800");
    assert!(verdict == FitVerdict::Comfortable && small != "Q8_0", "{small}");
    assert_eq!(best("tiny=3@800").0, FitVerdict::TooLarge);
    let two = fit_known(&cluster("a=4@200 b=4@200", 4096), find_known("qwen3-8b").unwrap());
    assert_eq!(two.best.unwrap().stages.len(), 2, "together they hold what neither does alone");
}

#[test]
fn one_page_is_no_pages() {
    assert_eq!([1, 600, 4096].map(super::pages), ["1 page", "1 page", "6 pages"]);
}

#[test]
fn a_context_that_is_too_long_is_the_smallest_change() {
    let view = fit_known(&cluster("laptop=7@100", 40_960), find_known("qwen3-8b").unwrap());
    assert_eq!(view.verdict, FitVerdict::TooLarge);
    assert!(view.changes[0].starts_with("shorter texts: "), "{:?}", view.changes);
}

/// As `exo place` refuses it. A context that nobody named is the longest that is wished for.
#[test]
fn a_model_made_for_less_than_the_context_that_is_named_is_not_in_the_list_of_what_runs() {
    let all = |named: Option<u32>| {
        within_context(fit_catalogue(&cluster("desk=64@100", named.unwrap_or(4096))), named)
    };
    let view = all(Some(99_999_999));
    assert!(view.models.iter().all(|m| m.best.is_none() && m.verdict > FitVerdict::TooLarge), "{view:?}");
    let view = all(Some(4096));
    assert!(view.models.is_sorted_by_key(|m| m.verdict), "in the order of all lists");
    let of = |name: &str| view.models.iter().find(|m| m.name == name).unwrap();
    let short = view.models.iter().find(|m| m.context_tokens_max == 2048).unwrap();
    assert_eq!(short.verdict, FitVerdict::ContextTooLong);
    assert_eq!(short.summary, "made for at most 2048 tokens (about 3 pages) at once, not 4096 (6)");
    assert!(short.changes[0].starts_with("shorter texts: 2048 tokens"), "{:?}", short.changes);
    assert_eq!(of("qwen3-0.6b").verdict, FitVerdict::Comfortable);
    let name = short.name.clone();
    assert!(all(None).models.iter().any(|m| m.name == name && m.best.is_some()), "{name} runs with its own");
}

/// What is recommended is then placed with the node's slots and cache.
#[test]
fn every_slot_has_its_cache() {
    let mut laptop = cluster("laptop=6@100", 8192);
    let known = find_known("llama-3.1-8b").unwrap();
    assert!(fit_known(&laptop, known).best.is_some());
    laptop.slots = 4;
    assert_eq!(fit_known(&laptop, known).verdict, FitVerdict::TooLarge, "3 GiB of cache more");
    laptop.cache_tokens = Some(8192);
    assert!(fit_known(&laptop, known).best.is_some(), "the cache is bounded");
}

/// Rates by type are what a node may report; the catalogue is planned with those too.
#[test]
fn rates_by_type_count() {
    let mut slow = cluster("a=64@100", 4096);
    let known = find_known("qwen3-8b").unwrap();
    let before = fit_known(&slow, known).best.unwrap().predicted.tokens_per_s.expected;
    let by_type = exo_types::DType::Q8_0;
    let rates = DeviceRates {
        read_by_type: BTreeMap::from([(by_type, Figure::stated(5e9))]),
        ..slow.devices[0].rates.clone()
    };
    slow.devices[0].rates = rates;
    let sizes = fit_known(&slow, known).sizes;
    assert!(sizes[0].tokens_per_s.unwrap() < before / 2.0, "{sizes:?}");
}

#[test]
fn types_that_no_device_has_kernels_for_are_not_recommended() {
    let known = find_known("qwen3-8b").unwrap();
    let without = |types: &[DType]| {
        let mut card = cluster("card=64@800", 4096);
        card.devices[0].device.unsupported_types = types.to_vec();
        fit_known(&card, known)
    };
    assert_eq!(without(&[]).best.unwrap().quantisation, "Q8_0");
    let best = without(&[DType::Q8_0]).best.unwrap().quantisation;
    assert!(best.starts_with("Q6_K") || best.starts_with("Q5"), "{best}");
    let none = without(&DType::ALL);
    assert!(
        none.best.is_none() && none.summary.contains("no device can run the types of weights"),
        "{}",
        none.summary
    );
}

/// A hub with one repository.
fn hub_with(files: &[(&str, Vec<u8>)]) -> MockHub {
    let hub = MockHub::start().unwrap();
    hub.put("org/repo", Repository::new(files));
    hub
}

fn fit_of(hub: &MockHub, text: &str) -> Result<FitsView, ReferenceError> {
    let folder = tempfile::tempdir().unwrap();
    let laptop = cluster("laptop=16@40", 4096);
    fit_one(&laptop, text, Settings::of(&hub.endpoint()), folder.path(), &Cancel::default())
}

/// The built-in model in this length.
fn demo(len: usize) -> Vec<u8> {
    let mut bytes = exo_accelerators::DEMO_MODEL.to_vec();
    bytes.resize(bytes.len().max(len), 0);
    bytes
}

#[test]
fn one_word_that_names_nothing_is_taken_for_a_name_and_not_for_a_broken_reference() {
    let hub = hub_with(&[]);
    let refused = |text: &str| fit_of(&hub, text).err();
    assert!(matches!(refused("nosuch"), Some(ReferenceError::Unknown(name)) if name == "nosuch"));
    assert!(matches!(refused("hf.co/nosuch"), Some(ReferenceError::Hub(_))));
}

#[test]
fn a_vocabulary_that_is_a_file_of_its_own_is_not_read_to_say_whether_a_model_fits() {
    let fixture = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden/fixtures/llama-bf16-tied");
    let read = |name: &str| std::fs::read(fixture.join(name)).unwrap();
    let hub = hub_with(&[
        ("config.json", read("config.json")),
        ("model.safetensors", read("model.safetensors")),
        ("tokenizer.json", vec![b' '; 30 << 20]),
    ]);
    let view = fit_of(&hub, "hf.co/org/repo").unwrap();
    assert_eq!(view.models[0].best.as_ref().unwrap().quantisation, "safetensors");
    assert!(hub.sent_bytes() < 1 << 20, "{}", hub.sent_bytes());
}

#[test]
fn two_files_of_one_type_are_two_models_and_a_part_of_a_name_means_one() {
    let hub = hub_with(&[("m-Q4_K_XL.gguf", demo(0)), ("m-UD-Q4_K_XL.gguf", demo(6 << 20))]);
    let best = |text: &str| fit_of(&hub, text).unwrap().models.remove(0).best.unwrap().download_bytes;
    assert_eq!(best("hf.co/org/repo:UD-Q4_K_XL"), 6 << 20);
    assert_eq!(best("hf.co/org/repo"), 6 << 20, "the larger one, and no question which");
    let text = fit_of(&hub, "hf.co/org/repo:Q8_0").unwrap_err().to_string();
    assert!(text.contains("nothing in it is `Q8_0`"), "{text}");
}

#[test]
fn what_is_to_run_is_chosen_by_the_memory_that_is_free_and_refused_where_nothing_ever_fits() {
    let hub = hub_with(&[
        ("m-BF16.gguf", demo(9 << 20)),
        ("m-Q8_0.gguf", demo(6 << 20)),
        ("m-Q4_0.gguf", demo(5 << 20)),
    ]);
    let client = Client::new(Settings::of(&hub.endpoint()).unwrap());
    let Reference::Hub(repo) = "hf.co/org/repo".parse().unwrap() else { panic!("a repository") };
    let folder = tempfile::tempdir().unwrap();
    let choose = |free_bytes: u64, total_bytes: u64| {
        let mut laptop = cluster("laptop=16@40", 256);
        laptop.devices[0].device.memory_free_bytes = free_bytes;
        laptop.devices[0].device.memory_total_bytes = total_bytes;
        let cancel = Cancel::default();
        let mut heads = HeadReader::new(&client, &cancel, folder.path());
        choose_fitting(&laptop, &mut heads, &repo)
    };
    let large = choose(8 << 30, 16 << 30).unwrap();
    assert_eq!(large.files[0].name, "m-Q8_0.gguf", "{}", large.choice.reason);
    let full = choose(64 << 10, 16 << 30).unwrap();
    assert_eq!(full.files[0].name, "m-Q4_0.gguf");
    assert!(full.choice.reason.contains("once other programs"), "{}", full.choice.reason);
    let none = choose(64 << 10, 128 << 10).unwrap_err();
    assert!(matches!(none, ReferenceError::DoesNotFit { .. }), "{none}");
    assert!(none.to_string().contains("nothing of it was fetched"), "{none}");
    assert!(hub.sent_bytes() < 1 << 20, "{} bytes for looking at it four times", hub.sent_bytes());
}

/// A disk that is too full stays so when other programs give memory back.
#[test]
fn what_a_disk_has_no_room_for_is_refused_with_what_would_give_it_room() {
    let hub = hub_with(&[("m-Q4_0.gguf", demo(0))]);
    let client = Client::new(Settings::of(&hub.endpoint()).unwrap());
    let (folder, cancel) = (tempfile::tempdir().unwrap(), Cancel::default());
    let on = |room: DiskRoom, free_bytes: u64| {
        let mut laptop = cluster("laptop=16@40", 256);
        laptop.disks = vec![(laptop.devices[0].node, room)];
        laptop.devices[0].device.memory_free_bytes = free_bytes;
        laptop
    };
    let choose = |laptop: &FitsCluster| {
        let mut heads = HeadReader::new(&client, &cancel, folder.path());
        let Reference::Hub(repo) = "hf.co/org/repo:Q4_0".parse().unwrap() else { panic!("a repository") };
        let chosen = choose_fitting(laptop, &mut heads, &repo);
        // An address is looked at in the same way.
        let address = format!("{}/org/repo/resolve/main/m-Q4_0.gguf?x=1", hub.endpoint());
        let plan = exo_hub::resolve(&client, &Reference::Url(address), None, &cancel).unwrap();
        assert_eq!(check_fits(laptop, &mut heads, &plan).is_ok(), chosen.is_ok());
        chosen
    };
    const FREE: u64 = 8 << 30;
    const SOME: u64 = 64 << 10;
    let reserve = DiskRoom { reserve_bytes: 1 << 30, ..DiskRoom::of((1 << 30) + SOME) };
    let quota = DiskRoom { within_quota_bytes: Some(SOME as i64), ..DiskRoom::of(FREE) };
    for (room, lacks, change) in [
        (reserve, "beside 1.0 GiB that `disk_reserve_mib` keeps free", ": lower `disk_reserve_mib` there"),
        (quota, "`disk_quota_mib` of laptop leaves room for 64.0 KiB", ": raise `disk_quota_mib` there"),
        (DiskRoom::of(SOME), "the disk of laptop has room for 64.0 KiB", ", whose disk is too full: delete"),
    ] {
        // With or without memory that is free now.
        for free_bytes in [FREE, SOME] {
            let refused = choose(&on(room, free_bytes)).expect_err("no room").to_string();
            assert!(refused.contains(lacks) && !refused.contains("give memory back"), "{refused}");
            assert!(refused.contains(&format!("more room for models on laptop{change}")), "{refused}");
        }
        let Reference::Hub(hub_reference) = "hf.co/org/repo".parse().unwrap() else { panic!("one") };
        let mut heads = HeadReader::new(&client, &cancel, folder.path());
        let view = fit_reference(&on(room, FREE), &mut heads, &hub_reference).unwrap();
        assert!(view.summary.starts_with("too large for the disks: even as Q4_0"), "{}", view.summary);
        assert!(view.summary.contains(lacks), "{}", view.summary);
        assert!(view.changes[0].contains(change), "{:?}", view.changes);
    }
    // Memory alone is waited for.
    let later = choose(&on(DiskRoom::of(FREE), SOME)).unwrap().choice.reason;
    assert!(later.contains("once other programs and models give memory back"), "{later}");
}

/// The model of one GGUF file of the mock hub, as it is known in layers.
fn source(repo: &str, commit: &str, path: &str, sha256: Option<[u8; 32]>) -> HubSource {
    let files = vec![HubFile { path: path.to_owned(), sha256 }];
    let (label, licence) = ("Q4_0".to_owned(), String::new());
    HubSource { repo: repo.to_owned(), commit: commit.to_owned(), label, licence, files }
}

/// Files of other repositories and of other commits may have the same name.
#[test]
fn layers_that_nodes_have_count_for_the_files_of_their_commit_alone() {
    let hub = hub_with(&[("m-Q4_0.gguf", demo(0))]);
    hub.put("org/other", Repository::new(&[("m-Q4_0.gguf", demo(6 << 20))]));
    let client = Client::new(Settings::of(&hub.endpoint()).unwrap());
    let (folder, cancel) = (tempfile::tempdir().unwrap(), Cancel::default());
    let plan = exo_hub::resolve(&client, &"hf.co/org/repo:Q4_0".parse().unwrap(), None, &cancel).unwrap();
    let (commit, digest) = (plan.commit.clone().unwrap(), plan.files[0].digest());
    assert!(digest.is_some());
    let fits = |reference: &str, source: HubSource| {
        let mut laptop = cluster("laptop=16@40", 256);
        let node = laptop.devices[0].node;
        laptop.disks = vec![(node, DiskRoom::of(0))];
        // With what it has of the layers there is room for the others.
        laptop.known = Arc::new(vec![KnownInLayers { source, disks: vec![(node, DiskRoom::of(8 << 20))] }]);
        let mut heads = HeadReader::new(&client, &cancel, folder.path());
        let Reference::Hub(repo) = reference.parse().unwrap() else { panic!("a repository") };
        let chosen = choose_fitting(&laptop, &mut heads, &repo).is_ok();
        // `exo fits` says what `exo run` does.
        let verdict = fit_reference(&laptop, &mut heads, &repo).unwrap().verdict;
        assert_eq!(verdict != FitVerdict::TooLarge, chosen, "{reference}");
        chosen
    };
    let known = || source("org/repo", &commit, "m-Q4_0.gguf", digest);
    assert!(fits("hf.co/org/repo:Q4_0", known()));
    assert!(!fits("hf.co/org/other:Q4_0", known()), "of another repository");
    let other_commit = "f".repeat(40);
    assert!(!fits("hf.co/org/repo:Q4_0", source("org/repo", &other_commit, "m-Q4_0.gguf", digest)));
    assert!(!fits("hf.co/org/repo:Q4_0", source("org/repo", &commit, "parts/m-Q4_0.gguf", digest)));
    assert!(!fits("hf.co/org/repo:Q4_0", source("org/repo", &commit, "m-Q4_0.gguf", Some([7; 32]))));
}

/// A node that answers what is asked of the room for a model, and whether it was about this one.
fn answering(room: impl Fn(ModelId) -> Vec<(NodeId, DiskRoom)> + Send + 'static) -> EventSender {
    let (node, mut inbox) = crate::events::channel();
    tokio::spawn(async move {
        while let Some(Event::Asked { question, answer }) = inbox.next().await {
            let Question::PlanFacts { model } = question else { panic!("another question") };
            let _ = answer.send(Answer::PlanFacts { links: Vec::new(), hop_s: None, disks: room(model) });
        }
    });
    node
}

#[tokio::test]
async fn what_nodes_have_of_a_model_in_layers_is_asked_by_its_identity() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(&folder.path().join("data")).unwrap().0);
    let path = folder.path().join("m-Q4_0.gguf");
    std::fs::write(&path, demo(0)).unwrap();
    let model = exo_formats::open(&path).unwrap();
    let whole = Manifest::of(&model, &mut |_, _| {}).unwrap();
    let heads = whole.files[0].head_bytes.div_ceil(whole.chunk_bytes.into()) as usize;
    let known_as = |repo: &str, commit: char| {
        let source = source(repo, &commit.to_string().repeat(40), "m-Q4_0.gguf", Some([1; 32]));
        let manifest =
            Manifest::of_hub(&model, source.clone(), vec![whole.files[0].chunks[..heads].to_vec()]);
        (store.prepare(&manifest.unwrap()).unwrap().id(), source)
    };
    let (first, older) = (known_as("org/repo", 'a'), known_as("org/repo", 'b'));
    known_as("org/other", 'a');
    let room = |id: ModelId| vec![(NodeId([1; 32]), DiskRoom::of(u64::from(id.0[0])))];
    let node = answering(room);
    let known = known_in_layers(&node, store, "Org/repo").await.unwrap();
    let found: Vec<_> = known.into_iter().map(|known| (known.source, known.disks)).collect();
    assert_eq!(found.len(), 2, "{found:?}");
    for (id, source) in [first, older] {
        assert!(found.contains(&(source, room(id))), "{found:?}");
    }
}

/// What came before an end of the program is on the disk: the rest alone needs room.
#[test]
fn a_download_that_is_nearly_done_is_not_refused_by_its_disk() {
    const CHUNK: usize = 4 << 20;
    let hub = hub_with(&[("m-Q4_0.gguf", demo(6 * CHUNK))]);
    let client = Client::new(Settings::of(&hub.endpoint()).unwrap());
    let (folder, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut laptop = cluster("laptop=16@40", 256);
    let node = laptop.devices[0].node;
    laptop.disks = vec![(node, DiskRoom::of(64 << 10))];
    let on = |fetches: Option<FetchesHere>| FitsCluster { fetches, ..laptop.clone() };
    let here = |node| on(Some(FetchesHere { node, root: root.path().to_owned() }));
    let reference: Reference = "hf.co/org/repo:Q4_0".parse().unwrap();
    let Reference::Hub(repo) = &reference else { panic!("a repository") };
    let cancel = Cancel::default();
    let heads = || HeadReader::new(&client, &cancel, folder.path());
    let choose = |laptop: &FitsCluster| choose_fitting(laptop, &mut heads(), repo);
    choose(&here(node)).unwrap_err();

    hub.set_faults(Faults { bytes_per_s: Some(16 << 20), ..Faults::default() });
    let mut options = PullOptions::new(root.path().to_owned());
    options.ranges_max = 1;
    let (plan, ending) = (exo_hub::resolve(&client, &reference, None, &cancel).unwrap(), Cancel::default());
    let ended = exo_hub::fetch(&client, &plan, &options, &ending, &mut |progress| {
        if progress.done_bytes >= 2 * CHUNK as u64 {
            ending.cancel();
        }
    });
    assert!(matches!(ended, Err(HubError::Cancelled)), "{ended:?}");
    hub.set_faults(Faults::default());

    choose(&here(node)).unwrap();
    // And `exo fits` says so.
    let verdict = |laptop: &FitsCluster| fit_reference(laptop, &mut heads(), repo).unwrap().verdict;
    assert_eq!(verdict(&here(node)), FitVerdict::Comfortable);
    assert_eq!(verdict(&on(None)), FitVerdict::TooLarge);
    // It is on no other node's disk, and nothing goes on from it where layers are fetched.
    choose(&here(NodeId([9; 32]))).unwrap_err();
    choose(&on(None)).unwrap_err();
}

/// What would do if its disk had room does not do.
#[test]
fn where_memory_and_disk_lack_nothing_is_offered_that_mends_one_of_them() {
    let mut laptop = cluster("laptop=16@40", 4096);
    laptop.devices[0].device.memory_free_bytes = 4 << 30;
    let known = find_known("qwen3-14b").unwrap();
    let is_offered =
        |laptop: &FitsCluster, what: &str| fit_known(laptop, known).changes.iter().any(|c| c.contains(what));
    assert!(is_offered(&laptop, "free on laptop"), "the disk has room");
    laptop.disks = vec![(laptop.devices[0].node, DiskRoom::of(0))];
    let view = fit_known(&laptop, known);
    assert!(view.summary.contains("of memory are missing"), "{}", view.summary);
    assert!(!is_offered(&laptop, "on laptop"), "{:?}", view.changes);
    assert!(is_offered(&laptop, "one more machine with"), "{:?}", view.changes);
}

#[test]
fn of_many_full_disks_some_are_named_and_the_others_counted() {
    let machines: Vec<String> = (0..DISKS_MAX + 3).map(|n| format!("m{n}=16@40")).collect();
    let mut many = cluster(&machines.join(" "), 4096);
    many.disks = many.devices.iter().map(|device| (device.node, DiskRoom::of(0))).collect();
    let summary = fit_known(&many, find_known("qwen3-0.6b").unwrap()).summary;
    assert_eq!(summary.matches("the disk of m").count(), DISKS_MAX, "{summary}");
    assert!(summary.ends_with("; 3 more with too little room"), "{summary}");
}

/// The room that disks have for a model counts what they hold of it.
#[tokio::test]
async fn a_model_that_is_known_is_asked_about_as_that() {
    let (node, mut inbox) = crate::events::channel();
    let (_shown, view) = tokio::sync::watch::channel(exo_machine::empty_view(NodeId([1; 32])));
    let (known, hop_s) = (ModelId([7; 32]), Some(Figure::measured(2e-4)));
    let asked = tokio::spawn(async move {
        let mut asked = Vec::new();
        while let Some(Event::Asked { question, answer }) = inbox.next().await {
            let said = match question {
                Question::Coordinator(ask) => {
                    let ControlAsk::PlannerInputs { model, .. } = *ask else { panic!("{ask:?}") };
                    asked.push(model);
                    let inputs = ControlReply::PlannerInputs(Box::default());
                    Answer::Coordinator(Some(Box::new(inputs)))
                }
                Question::PlanFacts { model } => {
                    asked.push(model);
                    Answer::PlanFacts { links: Vec::new(), hop_s, disks: Vec::new() }
                }
                _ => panic!("another question"),
            };
            let _ = answer.send(said);
        }
        asked
    });
    let usual = CacheRequest {
        context_tokens: 64,
        context_named: false,
        slots: 1,
        cache_tokens: None,
        kv: KvDType::default(),
    };
    let now = FitsCluster::now(&node, &view, usual, Some(known)).await.unwrap();
    assert_eq!(now.hop_s, hop_s, "a hop takes what it takes in a plan");
    drop(node);
    assert_eq!(asked.await.unwrap(), [known, known]);
}

#[test]
fn a_type_that_is_named_and_fits_nowhere_is_refused_with_the_largest_that_does() {
    let hub = hub_with(&[
        ("m-Q8_0.gguf", demo(60 << 20)),
        ("m-Q5_0.gguf", demo(9 << 20)),
        ("m-Q4_0.gguf", demo(0)),
    ]);
    let client = Client::new(Settings::of(&hub.endpoint()).unwrap());
    let (folder, cancel) = (tempfile::tempdir().unwrap(), Cancel::default());
    let mut heads = HeadReader::new(&client, &cancel, folder.path());
    let mut choose = |text: &str, (free_bytes, total_bytes): (u64, u64)| {
        let Reference::Hub(repo) = text.parse().unwrap() else { panic!("a repository") };
        let mut laptop = cluster("laptop=16@40", 256);
        laptop.devices[0].device.memory_free_bytes = free_bytes;
        laptop.devices[0].device.memory_total_bytes = total_bytes;
        choose_fitting(&laptop, &mut heads, &repo)
    };
    // In MiB: of as much as Q8_0 just does not fit in, a smaller type leaves some.
    let (mut below, mut enough) = (0u64, 16 << 10);
    while enough - below > 1 {
        let middle = (below + enough) / 2;
        let is_enough = choose("hf.co/org/repo:Q8_0", (middle << 20, middle << 20)).is_ok();
        *(if is_enough { &mut enough } else { &mut below }) = middle;
    }
    let some_bytes = below << 20;
    assert!(some_bytes > 0);
    let mut refused = |free_bytes, total_bytes| {
        let error = choose("hf.co/org/repo:Q8_0", (free_bytes, total_bytes)).unwrap_err().to_string();
        assert!(error.contains("as Q8_0 it has"), "{error}");
        error
    };
    let error = refused(128 << 10, 128 << 10);
    assert!(error.contains("; no other type of it fits;"), "{error}");
    let error = refused(some_bytes, some_bytes);
    assert!(error.contains("the largest that fits is Q5_0"), "{error}");
    let error = refused(128 << 10, some_bytes);
    assert!(error.contains("fits now, and once") && error.contains("Q5_0"), "{error}");
}

#[test]
fn a_model_at_an_address_is_looked_at_before_it_is_fetched() {
    let hub = hub_with(&[("m-Q8_0.gguf", demo(6 << 20))]);
    let client = Client::new(Settings::of(&hub.endpoint()).unwrap());
    let (folder, cancel) = (tempfile::tempdir().unwrap(), Cancel::default());
    let address = format!("{}/org/repo/resolve/main/m-Q8_0.gguf?x=1", hub.endpoint());
    let plan = exo_hub::resolve(&client, &Reference::Url(address), None, &cancel).unwrap();
    let mut laptop = cluster("laptop=16@40", 256);
    let mut heads = HeadReader::new(&client, &cancel, folder.path());
    check_fits(&laptop, &mut heads, &plan).unwrap();
    laptop.devices[0].device.memory_total_bytes = 128 << 10;
    let error = check_fits(&laptop, &mut heads, &plan).unwrap_err();
    assert!(matches!(error, ReferenceError::DoesNotFit { .. }), "{error}");
}
