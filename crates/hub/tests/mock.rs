//! The client against the mock hub: what comes, what it costs, and each fault of a hub, a mirror or a line.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::cell::Cell;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use exo_hub::{
    BLOCK_BYTES, Cancel, Client, CommitFile, Comparison, FetchPlan, Fetched, GivenRange, HubError,
    KeptDownloads, LeaveRange, Nearby, OtherFetch, PartialFiles, PlannedFile, Progress, PullOptions,
    Reference, Settings, Sharing, TakeRange, Token, WantedFile, fetch, fetch_near, resolve,
};
use exo_mock_hub::{Faults, Host, MockHub, Repository};

const CHUNK: usize = 4 << 20;
const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Bytes that repeat nowhere: a chunk in the wrong place is noticed.
fn bytes(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..len.div_ceil(8)).flat_map(|_| next().to_le_bytes()).take(len).collect()
}

struct Bench {
    hub: MockHub,
    folder: tempfile::TempDir,
}

impl Bench {
    fn new(files: &[(&str, Vec<u8>)]) -> Self {
        let hub = MockHub::start().unwrap();
        hub.put("org/repo", Repository::new(files));
        Self { hub, folder: tempfile::tempdir().unwrap() }
    }

    fn settings(&self) -> Settings {
        let mut settings = Settings::of(&self.hub.endpoint()).unwrap();
        settings.stall = Duration::from_millis(500);
        settings
    }

    fn options(&self) -> PullOptions {
        PullOptions::new(self.folder.path().to_owned())
    }

    fn plan(&self, client: &Client, text: &str) -> Result<FetchPlan, HubError> {
        resolve(client, &text.parse().unwrap(), None, &Cancel::default())
    }

    fn planned(&self) -> (Client, FetchPlan) {
        let client = Client::new(self.settings());
        let plan = self.plan(&client, "hf.co/org/repo").unwrap();
        (client, plan)
    }

    fn fetch_near(&self, client: &Client, near: &dyn Nearby, plan: &FetchPlan) -> Result<Fetched, HubError> {
        fetch_near(client, near, plan, &self.options(), &Cancel::default(), &mut |_| {})
    }

    fn pull(&self, text: &str) -> Result<Fetched, HubError> {
        self.pull_with(&Client::new(self.settings()), text)
    }

    fn pull_with(&self, client: &Client, text: &str) -> Result<Fetched, HubError> {
        let plan = self.plan(client, text)?;
        fetch(client, &plan, &self.options(), &Cancel::default(), &mut |_| {})
    }

    /// The error of a pull, with its causes.
    fn refused(&self, faults: Faults) -> String {
        self.hub.set_faults(faults);
        let error = self.pull("hf.co/org/repo:Q8_0").expect_err("the fault is noticed");
        assert!(!self.has_model(), "a refused file has no name");
        chain(&error)
    }

    fn has_model(&self) -> bool {
        files_below(self.folder.path()).iter().any(|f| f.ends_with(".gguf"))
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |e| e.source()).map(|e| format!(": {e}"));
    std::iter::once(error.to_string()).chain(causes).collect()
}

fn files_below(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.path().is_dir() {
            true => found.extend(files_below(&entry.path())),
            false => found.push(entry.path().display().to_string()),
        }
    }
    found
}

fn one_file(len: usize) -> Bench {
    Bench::new(&[("m-Q8_0.gguf", bytes(len)), ("LICENSE", b"do as you like".to_vec())])
}

/// Fetches until so many bytes are here, and is ended then.
fn ended_at(client: &Client, plan: &FetchPlan, options: &PullOptions, bytes: usize) {
    let cancel = Cancel::default();
    let ended = fetch(client, plan, options, &cancel, &mut |p| {
        if p.done_bytes >= bytes as u64 {
            cancel.cancel();
        }
    });
    assert!(matches!(ended, Err(HubError::Cancelled)), "{ended:?}");
}

#[test]
fn a_model_comes_whole_with_its_licence_and_where_it_is_from_and_is_not_fetched_twice() {
    let bench = one_file(5 * CHUNK + 17);
    let fetched = bench.pull("hf.co/org/repo").unwrap();
    assert_eq!(std::fs::read(&fetched.path).unwrap(), bytes(5 * CHUNK + 17));
    assert_eq!(std::fs::read(fetched.path.with_file_name("LICENSE")).unwrap(), b"do as you like");
    let origin = exo_hub::Origin::beside(&fetched.path).unwrap();
    assert_eq!((origin.label(), origin.is_verified()), ("hf.co/org/repo:Q8_0@01234567".to_owned(), true));
    assert_eq!(origin.licence.label(), "apache-2.0");
    // As `exo models check` reads it again.
    let (_, folder) = exo_hub::Origin::with_folder(&fetched.path).unwrap();
    let size = (5 * CHUNK + 17) as u64;
    assert_eq!(origin.compare(&folder).unwrap(), Comparison::Matches { bytes: size });
    let damaged = tempfile::tempdir().unwrap();
    std::fs::write(damaged.path().join("m-Q8_0.gguf"), bytes(5 * CHUNK + 16)).unwrap();
    let differs = Comparison::Differs { file: "m-Q8_0.gguf".to_owned() };
    assert_eq!(origin.compare(damaged.path()).unwrap(), differs);
    let sent = bench.hub.sent_bytes();
    assert_eq!(sent, 5 * CHUNK as u64 + 17 + 14, "nothing is fetched twice");
    assert!(bench.pull("hf.co/org/repo").unwrap().was_here);
    assert_eq!(bench.hub.sent_bytes(), sent);
    assert!(!files_below(bench.folder.path()).iter().any(|f| f.contains(".part")));
}

#[test]
fn what_a_fetch_has_hashed_is_what_the_file_has_as_long_as_nobody_changes_it() {
    let bench = one_file(12 * CHUNK + 17);
    bench.hub.set_faults(Faults { bytes_per_s: Some(20 << 20), ..Faults::default() });
    let (client, plan) = bench.planned();
    ended_at(&client, &plan, &bench.options(), CHUNK);
    // Some of it came before, and is hashed as it is read again.
    let fetched = fetch(&client, &plan, &bench.options(), &Cancel::default(), &mut |_| {}).unwrap();
    let expected: Vec<[u8; 32]> =
        bytes(12 * CHUNK + 17).chunks(1 << 20).map(|block| *blake3::hash(block).as_bytes()).collect();
    assert_eq!(fetched.hashes_of(&fetched.path, 1 << 20), Some(expected));
    assert_eq!(fetched.hashes_of(&fetched.path, 64 << 10), None, "blocks of another size");
    std::fs::write(&fetched.path, bytes(12 * CHUNK + 17)).unwrap();
    assert_eq!(fetched.hashes_of(&fetched.path, 1 << 20), None, "somebody has written to it");
}

/// Has some bytes of a file, right or wrong.
struct Neighbour {
    has: Vec<u8>,
    until: u64,
    /// What it lacks of the first range.
    holes: Vec<(u64, u64)>,
    /// How often it was told that what it gave was wrong.
    distrusted: AtomicUsize,
}

impl Nearby for Neighbour {
    fn give(
        &self,
        file: &WantedFile<'_>,
        _: &Cancel,
        _: &LeaveRange<'_>,
        take: &mut TakeRange<'_>,
    ) -> Result<(), HubError> {
        let there = file.ranges.iter().filter(|(_, end)| *end <= self.until);
        there.copied().try_for_each(|(start, end)| {
            let mut bytes = self.has[start as usize..end as usize].to_vec();
            let holes = if start == 0 { self.holes.as_slice() } else { &[] };
            for (from, to) in holes.iter().filter(|(_, to)| *to <= end) {
                bytes[*from as usize..*to as usize].fill(0);
            }
            take(GivenRange { range: (start, end), bytes: &mut bytes, holes })
        })
    }

    fn givers(&self) -> String {
        "neighbour".to_owned()
    }

    fn distrust_givers(&self) {
        self.distrusted.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn what_a_neighbour_has_is_not_asked_of_the_hub_and_what_it_has_wrong_is() {
    let (size, until) = (5 * CHUNK + 17, 3 * CHUNK as u64);
    for (wrong_at, from_hub) in
        [(None::<usize>, size - 3 * CHUNK), (Some(CHUNK + 5), size - 3 * CHUNK + size)]
    {
        let bench = Bench::new(&[("m-Q8_0.gguf", bytes(size))]);
        let (client, plan) = bench.planned();
        let mut has = bytes(size);
        if let Some(at) = wrong_at {
            has[at] ^= 1;
        }
        let distrusted = AtomicUsize::new(0);
        let (neighbour, mut seen) = (Neighbour { has, until, holes: Vec::new(), distrusted }, Vec::new());
        let report = &mut |p: &Progress| seen.push(p.done_bytes);
        let fetched =
            fetch_near(&client, &neighbour, &plan, &bench.options(), &Cancel::default(), report).unwrap();
        assert_eq!(std::fs::read(&fetched.path).unwrap(), bytes(size));
        assert_eq!(bench.hub.sent_bytes(), from_hub as u64);
        assert!(seen.is_sorted(), "{seen:?}");
        assert_eq!(neighbour.distrusted.into_inner(), usize::from(wrong_at.is_some()));
        assert!(fetched.hashes_of(&fetched.path, 1 << 20).is_some());
    }
}

/// The file of a plan, whose chunks are fetched one by one.
fn in_layers(client: &Client, plan: &FetchPlan, size: usize) -> CommitFile {
    let commit = plan.commit.as_deref().unwrap();
    CommitFile::new(client, "org/repo", commit, "m-Q8_0.gguf", size as u64, None).unwrap()
}

#[test]
fn a_disk_that_takes_no_more_in_the_middle_of_a_file_ends_the_fetch_and_is_not_tried_again() {
    let bench = one_file(12 * CHUNK);
    let (client, plan) = bench.planned();
    let file = in_layers(&client, &plan, 12 * CHUNK);
    let full = || std::io::Error::from(std::io::ErrorKind::StorageFull);
    let over_quota = || std::io::Error::from(std::io::ErrorKind::QuotaExceeded);
    let broken = || std::io::Error::from_raw_os_error(5);
    for fails in [full as fn() -> std::io::Error, over_quota, broken] {
        let (began, stored) = (Instant::now(), AtomicUsize::new(0));
        let store = |_: u32, _: u64, _: &[u8]| match stored.fetch_add(1, Ordering::Relaxed) {
            0..3 => Ok(()),
            _ => Err(HubError::Disk { attempt: "write", path: "/d/m".into(), source: fails() }),
        };
        let wanted: Vec<u32> = (0..12).collect();
        let cancel = Cancel::default();
        let fetched =
            file.fetch_chunks(&client, CHUNK as u32, &wanted, &cancel, (&store, &|_| false), &mut |_| {});
        let error = fetched.unwrap_err();
        assert!(
            matches!(&error, HubError::Disk { source, .. } if source.kind() == fails().kind()),
            "{error}"
        );
        assert_eq!((error.to_string().as_str(), error.hint().is_some()), ("cannot write /d/m", true));
        assert!(stored.into_inner() <= 3 + 8, "each fetcher ends at its next chunk");
        assert!(began.elapsed() < Duration::from_secs(10));
    }
}

#[test]
fn of_what_a_neighbour_lacks_in_a_range_the_hub_sends_that_alone() {
    let size = 2 * CHUNK;
    let bench = Bench::new(&[("m-Q8_0.gguf", bytes(size))]);
    let (client, plan) = bench.planned();
    let pull = |holes: Vec<(u64, u64)>| {
        let distrusted = AtomicUsize::new(0);
        let neighbour = Neighbour { has: bytes(size), until: size as u64, holes, distrusted };
        bench.fetch_near(&client, &neighbour, &plan)
    };
    let fetched = pull(vec![(0, 1000), (70_000, 80_000)]).unwrap();
    assert_eq!(std::fs::read(&fetched.path).unwrap(), bytes(size));
    assert_eq!(bench.hub.sent_bytes(), 11_000);
    // Where the hub does not send them, and of holes that are none, the range is like any other.
    std::fs::remove_file(&fetched.path).unwrap();
    let fetched = pull(vec![(0, 3 * CHUNK as u64)]).unwrap();
    assert_eq!(std::fs::read(&fetched.path).unwrap(), bytes(size));
    assert_eq!(bench.hub.sent_bytes(), 11_000 + CHUNK as u64);
}

#[test]
fn a_hub_that_asks_to_wait_for_what_a_neighbour_lacks_holds_up_nothing_that_it_has() {
    let size = 2 * CHUNK;
    let bench = Bench::new(&[("m-Q8_0.gguf", bytes(size))]);
    let (client, plan) = bench.planned();
    bench.hub.set_faults(Faults { limited: Some((1, "30".to_owned())), ..Faults::default() });
    let (holes, distrusted) = (vec![(0, 1000)], AtomicUsize::new(0));
    let neighbour = Neighbour { has: bytes(size), until: size as u64, holes, distrusted };
    let begun = Instant::now();
    let fetched = bench.fetch_near(&client, &neighbour, &plan).unwrap();
    assert_eq!(std::fs::read(&fetched.path).unwrap(), bytes(size));
    assert_eq!(bench.hub.sent_bytes(), CHUNK as u64, "the range with the hole comes whole");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

/// Gives these ranges of a file without holes.
fn give_whole<'a>(
    has: &[u8],
    mut ranges: impl Iterator<Item = &'a (u64, u64)>,
    take: &mut TakeRange<'_>,
) -> Result<(), HubError> {
    ranges.try_for_each(|&(start, end)| {
        let mut bytes = has[start as usize..end as usize].to_vec();
        take(GivenRange { range: (start, end), bytes: &mut bytes, holes: &[] })
    })
}

/// Has the end of a file from `from` on, and gives it once `is_time` says so.
struct LateNeighbour<'a> {
    has: Vec<u8>,
    from: u64,
    is_time: &'a (dyn Fn() -> bool + Sync),
}

impl Nearby for LateNeighbour<'_> {
    fn give(
        &self,
        file: &WantedFile<'_>,
        cancel: &Cancel,
        leave: &LeaveRange<'_>,
        take: &mut TakeRange<'_>,
    ) -> Result<(), HubError> {
        file.ranges.iter().filter(|(start, _)| *start < self.from).for_each(|range| leave(*range));
        let until = Instant::now() + Duration::from_secs(60);
        while !(self.is_time)() && Instant::now() < until && !cancel.is_cancelled() {
            std::thread::park_timeout(Duration::from_millis(5));
        }
        let there = file.ranges.iter().filter(|(start, _)| *start >= self.from);
        give_whole(&self.has, there, take)
    }

    fn givers(&self) -> String {
        "neighbour".to_owned()
    }
}

#[test]
fn while_a_neighbour_gives_what_it_has_the_hub_sends_the_rest_and_that_alone() {
    let (size, from) = (6 * CHUNK, 2 * CHUNK as u64);
    let bench = Bench::new(&[("m-Q8_0.gguf", bytes(size))]);
    let (client, plan) = bench.planned();
    // It gives nothing before the hub has sent all of the rest.
    let is_time = || bench.hub.sent_bytes() >= from;
    let neighbour = LateNeighbour { has: bytes(size), from, is_time: &is_time };
    let (options, cancel, mut seen) = (bench.options(), Cancel::default(), Vec::new());
    let report = &mut |p: &Progress| seen.push(p.done_bytes);
    let fetched = fetch_near(&client, &neighbour, &plan, &options, &cancel, report).unwrap();
    assert_eq!(std::fs::read(&fetched.path).unwrap(), bytes(size));
    assert_eq!(bench.hub.sent_bytes(), from);
    assert!(seen.is_sorted() && seen.last() == Some(&(size as u64)), "{seen:?}");
}

#[test]
fn what_a_neighbour_gives_too_slowly_the_hub_sends_as_well() {
    let size = 6 * CHUNK;
    let bench = Bench::new(&[("m-Q8_0.gguf", bytes(size))]);
    let (client, plan) = bench.planned();
    let neighbour = LateNeighbour { has: bytes(size), from: 2 * CHUNK as u64, is_time: &|| false };
    let begun = Instant::now();
    let fetched = bench.fetch_near(&client, &neighbour, &plan).unwrap();
    assert_eq!(std::fs::read(&fetched.path).unwrap(), bytes(size));
    assert_eq!(bench.hub.sent_bytes(), size as u64);
    assert!(begun.elapsed() < Duration::from_secs(30), "the neighbour would take a minute");
}

#[test]
fn what_a_slow_neighbour_brings_whole_is_no_failure_where_the_hub_refuses_it() {
    let size = 6 * CHUNK;
    let bench = Bench::new(&[("m-Q8_0.gguf", bytes(size))]);
    let (client, plan) = bench.planned();
    bench.hub.remove("org/repo");
    let asked = bench.hub.seen().len();
    // The hub is asked as soon as the neighbour is slow.
    let is_time = || bench.hub.seen().len() > asked;
    let neighbour = LateNeighbour { has: bytes(size), from: 0, is_time: &is_time };
    let fetched = bench.fetch_near(&client, &neighbour, &plan).unwrap();
    assert_eq!(std::fs::read(&fetched.path).unwrap(), bytes(size));
    assert_eq!(bench.hub.sent_bytes(), 0);
}

/// Has nothing when it is asked first, and everything a moment later.
struct FillingNeighbour {
    has: Vec<u8>,
    asked: AtomicUsize,
}

impl Nearby for FillingNeighbour {
    fn give(
        &self,
        file: &WantedFile<'_>,
        _: &Cancel,
        _: &LeaveRange<'_>,
        take: &mut TakeRange<'_>,
    ) -> Result<(), HubError> {
        if self.asked.fetch_add(1, Ordering::Relaxed) == 0 {
            return Ok(());
        }
        give_whole(&self.has, file.ranges.iter(), take)
    }

    fn asked_again_after(&self) -> Option<Duration> {
        Some(Duration::from_millis(20))
    }

    fn givers(&self) -> String {
        "neighbour".to_owned()
    }
}

#[test]
fn what_a_neighbour_has_meanwhile_is_taken_from_it_while_the_hub_sends() {
    let size = 16 * CHUNK;
    let bench = Bench::new(&[("m-Q8_0.gguf", bytes(size))]);
    let (client, plan) = bench.planned();
    bench.hub.set_faults(Faults { bytes_per_s: Some(8 << 20), ..Faults::default() });
    let neighbour = FillingNeighbour { has: bytes(size), asked: AtomicUsize::new(0) };
    let (options, cancel, mut seen) = (bench.options(), Cancel::default(), Vec::new());
    let report = &mut |p: &Progress| seen.push(p.done_bytes);
    let fetched = fetch_near(&client, &neighbour, &plan, &options, &cancel, report).unwrap();
    assert_eq!(std::fs::read(&fetched.path).unwrap(), bytes(size));
    let sent = bench.hub.sent_bytes();
    assert!(sent <= (size - CHUNK) as u64, "{sent} bytes left the hub of {size}");
    assert!(seen.is_sorted(), "{seen:?}");
}

/// One of two nodes that fetch at the same time, and takes from the other what that has.
struct FetchingNeighbour<'a> {
    own: &'a PartialFiles,
    other: &'a PartialFiles,
    other_id: [u8; 32],
    /// Whether what the other gives is something else.
    is_lied_to: bool,
    sharing: Mutex<Sharing>,
    awaited: Mutex<Vec<(u64, u64)>>,
}

impl<'a> FetchingNeighbour<'a> {
    fn new((own_id, own): (u8, &'a PartialFiles), (other_id, other): (u8, &'a PartialFiles)) -> Self {
        let sharing = Mutex::new(Sharing::new([own_id; 32]));
        let other_id = [other_id; 32];
        Self { own, other, other_id, is_lied_to: false, sharing, awaited: Mutex::default() }
    }

    /// All blocks of a range, as the other has them.
    fn blocks(&self, sha256: &[u8; 32], (start, end): (u64, u64)) -> Option<Vec<u8>> {
        let blocks = (start..end).step_by(BLOCK_BYTES).map(|at| (at / BLOCK_BYTES as u64) as u32);
        let came: Result<Vec<Vec<u8>>, _> = blocks.map(|block| self.other.block(sha256, block)).collect();
        let mut bytes = came.ok()?.concat();
        bytes[0] ^= u8::from(self.is_lied_to);
        Some(bytes)
    }
}

impl Nearby for FetchingNeighbour<'_> {
    fn give(
        &self,
        file: &WantedFile<'_>,
        _: &Cancel,
        leave: &LeaveRange<'_>,
        take: &mut TakeRange<'_>,
    ) -> Result<(), HubError> {
        let state = self.other.state(&file.sha256, file.size);
        let others: Vec<OtherFetch> = state
            .into_iter()
            .map(|state| OtherFetch { node: self.other_id, state, is_whole: true })
            .collect();
        let awaited = self.sharing.lock().unwrap().awaited(Instant::now(), file, &others);
        let has = |start: u64| others.iter().any(|other| other.state.held.has((start / CHUNK as u64) as u32));
        for range in file.ranges.iter().filter(|range| !has(range.0) && !awaited.contains(range)) {
            leave(*range);
        }
        *self.awaited.lock().unwrap() = awaited;
        for range in file.ranges.iter().copied().filter(|range| has(range.0)) {
            if let Some(mut bytes) = self.blocks(&file.sha256, range) {
                take(GivenRange { range, bytes: &mut bytes, holes: &[] })?;
            }
        }
        Ok(())
    }

    fn asked_again_after(&self) -> Option<Duration> {
        Some(Duration::from_millis(50))
    }

    fn awaited(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut *self.awaited.lock().unwrap())
    }

    fn partial_files(&self) -> Option<&PartialFiles> {
        Some(self.own)
    }

    fn givers(&self) -> String {
        "neighbour".to_owned()
    }
}

/// Two fetches of one file at the same time, to the bench's folder and another; `report` hears how far the
/// first one is. What came of the first and of the second.
fn fetched_by_two(
    bench: &Bench,
    is_second_lied_to: bool,
    report: &(dyn Fn(u64, &Cancel) + Sync),
) -> [Result<Vec<u8>, HubError>; 2] {
    let (client, plan) = bench.planned();
    let (files, folder) = ([PartialFiles::default(), PartialFiles::default()], tempfile::tempdir().unwrap());
    let first = FetchingNeighbour::new((1, &files[0]), (2, &files[1]));
    let mut second = FetchingNeighbour::new((2, &files[1]), (1, &files[0]));
    second.is_lied_to = is_second_lied_to;
    let pull = |nearby: &dyn Nearby, options: &PullOptions, report: &(dyn Fn(u64, &Cancel) + Sync)| {
        let (cancel, mut most) = (Cancel::default(), 0);
        let fetched = fetch_near(&client, nearby, &plan, options, &cancel, &mut |p| {
            assert!(p.done_bytes >= most, "progress ran backwards from {most}: {p:?}");
            most = p.done_bytes;
            report(p.done_bytes, &cancel);
        });
        fetched.map(|fetched| std::fs::read(&fetched.path).unwrap())
    };
    let [to_bench, to_other] = [bench.options(), PullOptions::new(folder.path().to_owned())];
    std::thread::scope(|scope| {
        let of_first = scope.spawn(|| pull(&first, &to_bench, report));
        let nothing: &(dyn Fn(u64, &Cancel) + Sync) = &|_, _| {};
        let of_second = pull(&second, &to_other, nothing);
        [of_first.join().unwrap(), of_second]
    })
}

#[test]
fn two_that_fetch_one_file_at_once_have_it_and_most_of_it_leaves_the_hub_once() {
    let size = 24 * CHUNK + 17;
    let bench = Bench::new(&[("m-Q8_0.gguf", bytes(size))]);
    bench.hub.set_faults(Faults { bytes_per_s: Some(4 << 20), ..Faults::default() });
    for came in fetched_by_two(&bench, false, &|_, _| {}) {
        assert!(came.unwrap() == bytes(size));
    }
    let sent = bench.hub.sent_bytes();
    assert!(sent as usize <= size * 13 / 10, "{sent} bytes left the hub for two of {size}");
}

#[test]
fn what_one_that_has_to_wait_for_the_hub_has_claimed_the_other_fetches_meanwhile_and_both_have_it() {
    let size = 24 * CHUNK;
    let bench = Bench::new(&[("m-Q8_0.gguf", bytes(size))]);
    let (client, plan) = bench.planned();
    bench.hub.set_faults(Faults { limited: Some((1, "60".to_owned())), ..Faults::default() });
    let (files, folder) = ([PartialFiles::default(), PartialFiles::default()], tempfile::tempdir().unwrap());
    let waits = FetchingNeighbour::new((1, &files[0]), (2, &files[1]));
    let fetches = FetchingNeighbour::new((2, &files[1]), (1, &files[0]));
    // One range alone: it is told to wait, and half of the file is what it has claimed.
    let one_range = PullOptions { ranges_max: 1, ..bench.options() };
    let (cancel, other, begun) = (Cancel::default(), Cancel::default(), Instant::now());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| fetch_near(&client, &waits, &plan, &one_range, &cancel, &mut |_| {}));
        while cancel.hold_up().is_none() && begun.elapsed() < Duration::from_secs(10) {
            std::thread::park_timeout(Duration::from_millis(5));
        }
        let options = PullOptions::new(folder.path().to_owned());
        let fetched = fetch_near(&client, &fetches, &plan, &options, &other, &mut |_| {});
        for fetched in [fetched, waiting.join().unwrap()] {
            assert!(std::fs::read(&fetched.unwrap().path).unwrap() == bytes(size));
        }
    });
    // Half a minute is how long promises of others are waited for.
    assert!(begun.elapsed() < Duration::from_secs(28), "{:?}", begun.elapsed());
    let sent = bench.hub.sent_bytes() as usize;
    assert!(sent <= size + 2 * CHUNK, "{sent} bytes left the hub for two of {size}");
}

#[test]
fn of_two_that_fetch_one_file_one_ends_in_the_middle_and_the_other_fetches_what_is_missing_alone() {
    let size = 24 * CHUNK;
    let bench = Bench::new(&[("m-Q8_0.gguf", bytes(size))]);
    bench.hub.set_faults(Faults { bytes_per_s: Some(4 << 20), ..Faults::default() });
    let ends = |done: u64, cancel: &Cancel| {
        if done >= 12 * CHUNK as u64 {
            cancel.cancel();
        }
    };
    let [first, second] = fetched_by_two(&bench, false, &ends);
    assert!(matches!(first, Err(HubError::Cancelled)));
    assert!(second.unwrap() == bytes(size));
    let sent = bench.hub.sent_bytes() as usize;
    // What it was fetching, and what both began before they knew of each other: less than what it has.
    assert!(sent <= size + 12 * CHUNK, "{sent} bytes left the hub of {size}");
    // It goes on from what it has.
    bench.hub.set_faults(Faults::default());
    let fetched = bench.pull("hf.co/org/repo").unwrap();
    assert!(std::fs::read(&fetched.path).unwrap() == bytes(size));
    let again = bench.hub.sent_bytes() as usize - sent;
    // The hub may have written to closed connections for a moment.
    assert!(again <= 14 * CHUNK, "{again} bytes came again");
}

#[test]
fn of_two_that_fetch_one_file_the_one_that_is_lied_to_fetches_all_of_it_from_the_hub() {
    let size = 16 * CHUNK;
    let bench = Bench::new(&[("m-Q8_0.gguf", bytes(size))]);
    bench.hub.set_faults(Faults { bytes_per_s: Some(8 << 20), ..Faults::default() });
    for came in fetched_by_two(&bench, true, &|_, _| {}) {
        assert!(came.unwrap() == bytes(size));
    }
    let sent = bench.hub.sent_bytes() as usize;
    assert!(sent >= 2 * size, "{sent} bytes left the hub: what was given wrong was believed");
}

#[test]
fn what_a_neighbour_has_comes_also_where_the_hub_gives_nothing() {
    let (size, from) = (6 * CHUNK, 2 * CHUNK as u64);
    let bench = Bench::new(&[("m-Q8_0.gguf", bytes(size))]);
    let (client, plan) = bench.planned();
    // Of the file alone: what it is was said before.
    bench.hub.remove("org/repo");
    let asked = bench.hub.seen().len();
    let is_time = || bench.hub.seen().len() > asked;
    let neighbour = LateNeighbour { has: bytes(size), from, is_time: &is_time };
    let (options, cancel) = (bench.options(), Cancel::default());
    let fetched = fetch_near(&client, &neighbour, &plan, &options, &cancel, &mut |_| {});
    assert!(fetched.is_err(), "{fetched:?}");
    assert_eq!(plan.verified_bytes(&options.root), size as u64 - from);
}

/// Gives the first chunk wrong and then ends the fetch, or has nothing and hangs until it is told to end.
struct BadNeighbour {
    wrong: Option<Vec<u8>>,
}

impl Nearby for BadNeighbour {
    fn give(
        &self,
        file: &WantedFile<'_>,
        cancel: &Cancel,
        leave: &LeaveRange<'_>,
        take: &mut TakeRange<'_>,
    ) -> Result<(), HubError> {
        if let Some(wrong) = &self.wrong {
            let mut bytes = wrong.clone();
            take(GivenRange { range: (0, CHUNK as u64), bytes: &mut bytes, holes: &[] })?;
            return Err(HubError::Cancelled);
        }
        file.ranges.iter().for_each(|range| leave(*range));
        let until = Instant::now() + Duration::from_secs(60);
        while Instant::now() < until && !cancel.is_cancelled() {
            std::thread::park_timeout(Duration::from_millis(5));
        }
        Ok(())
    }

    fn givers(&self) -> String {
        "neighbour".to_owned()
    }
}

#[test]
fn what_came_wrong_of_a_neighbour_before_a_fetch_was_ended_comes_from_the_hub_as_well() {
    let size = 3 * CHUNK;
    let bench = Bench::new(&[("m-Q8_0.gguf", bytes(size))]);
    let (client, plan) = bench.planned();
    let (neighbour, options) = (BadNeighbour { wrong: Some(vec![7; CHUNK]) }, bench.options());
    let ended = fetch_near(&client, &neighbour, &plan, &options, &Cancel::default(), &mut |_| {});
    assert!(matches!(ended, Err(HubError::Cancelled)), "{ended:?}");
    assert_eq!(plan.verified_bytes(&options.root), CHUNK as u64);
    let fetched = fetch(&client, &plan, &options, &Cancel::default(), &mut |_| {}).unwrap();
    assert_eq!(std::fs::read(&fetched.path).unwrap(), bytes(size));
}

#[test]
fn a_file_that_is_whole_waits_for_no_neighbour() {
    let bench = Bench::new(&[("m-Q8_0.gguf", bytes(2 * CHUNK))]);
    let (client, plan) = bench.planned();
    let (neighbour, began) = (BadNeighbour { wrong: None }, Instant::now());
    bench.fetch_near(&client, &neighbour, &plan).unwrap();
    assert!(began.elapsed() < Duration::from_secs(30));
}

#[test]
fn bytes_behind_the_end_of_an_answer_are_no_bytes_of_the_file() {
    let bench = one_file(9 * CHUNK + 5);
    bench.hub.set_faults(Faults { surplus: 100, ..Faults::default() });
    let fetched = bench.pull("hf.co/org/repo").unwrap();
    assert_eq!(std::fs::read(&fetched.path).unwrap(), bytes(9 * CHUNK + 5));
}

#[test]
fn safetensors_come_as_a_folder_with_the_shards_of_their_index() {
    let index =
        br#"{"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}"#;
    let bench = Bench::new(&[
        ("config.json", b"{}".to_vec()),
        ("model.safetensors.index.json", index.to_vec()),
        ("model-00001-of-00002.safetensors", bytes(100)),
        ("model-00002-of-00002.safetensors", bytes(200)),
        ("tokenizer.json", b"{}".to_vec()),
        ("pytorch_model.bin", bytes(300)),
        ("modeling.py", b"import os".to_vec()),
    ]);
    let fetched = bench.pull("hf.co/org/repo").unwrap();
    let names: BTreeSet<String> = std::fs::read_dir(&fetched.path)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    let expected = [
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
    ];
    assert_eq!(names, expected.map(str::to_owned).into());
    assert!(fetched.path.ends_with("repo"));
    let asked: Vec<String> = bench.hub.seen().into_iter().map(|s| s.target).collect();
    assert!(!asked.iter().any(|t| t.contains(".bin") || t.contains(".py")), "{asked:?}");
}

#[test]
fn a_pull_that_was_ended_goes_on_and_progress_never_runs_backwards() {
    let bench = one_file(12 * CHUNK);
    bench.hub.set_faults(Faults { bytes_per_s: Some(40 << 20), ..Faults::default() });
    let (client, plan) = bench.planned();
    let mut seen: Vec<u64> = Vec::new();
    for round in 1..=3u64 {
        let (cancel, until) = (Cancel::default(), round * 3 * CHUNK as u64);
        let result = fetch(&client, &plan, &bench.options(), &cancel, &mut |p: &Progress| {
            seen.push(p.done_bytes);
            if p.done_bytes >= until {
                cancel.cancel();
            }
        });
        assert!(matches!(result, Err(HubError::Cancelled)), "{result:?}");
        assert!(seen.last().is_some_and(|done| *done >= until));
    }
    let fetched =
        fetch(&client, &plan, &bench.options(), &Cancel::default(), &mut |p| seen.push(p.done_bytes))
            .unwrap();
    assert_eq!(std::fs::read(&fetched.path).unwrap(), bytes(12 * CHUNK));
    assert!(seen.is_sorted(), "{seen:?}");
}

#[test]
fn what_has_come_shows_before_a_chunk_is_whole_and_never_runs_backwards_either() {
    let bench = one_file(2 * CHUNK);
    let (client, plan) = bench.planned();
    bench.hub.set_faults(Faults { bytes_per_s: Some(4 << 20), break_every: 3, ..Faults::default() });
    let (options, mut seen) = (bench.options(), Vec::new());
    let report = &mut |p: &Progress| seen.push((p.done_bytes, p.received_bytes));
    fetch(&client, &plan, &options, &Cancel::default(), report).unwrap();
    let is_part = |(done, received): &(u64, u64)| (1..CHUNK as u64).contains(&(received - done));
    assert!(seen.iter().any(is_part), "{seen:?}");
    assert!(seen.is_sorted() && seen.iter().map(|(_, received)| received).is_sorted(), "{seen:?}");
    assert_eq!(seen.last(), Some(&(plan.bytes(), plan.bytes())));
}

#[test]
fn a_chunk_that_changed_on_disk_is_fetched_again_alone() {
    let bench = one_file(6 * CHUNK);
    bench.hub.set_faults(Faults { bytes_per_s: Some(20 << 20), ..Faults::default() });
    let (client, plan) = bench.planned();
    ended_at(&client, &plan, &bench.options(), 2 * CHUNK);
    let part = files_below(bench.folder.path()).into_iter().find(|f| f.ends_with(".part")).unwrap();
    let mut content = std::fs::read(&part).unwrap();
    content.iter_mut().for_each(|b| *b ^= 1);
    std::fs::write(&part, content).unwrap();
    let fetched = fetch(&client, &plan, &bench.options(), &Cancel::default(), &mut |_| {}).unwrap();
    assert_eq!(std::fs::read(&fetched.path).unwrap(), bytes(6 * CHUNK));
}

#[test]
fn broken_stalled_and_unavailable_answers_cost_their_range_only() {
    let bench = one_file(9 * CHUNK + 5);
    let faults = [
        Faults { break_every: 2, ..Faults::default() },
        Faults { stall_every: 4, ..Faults::default() },
        Faults { crawl_every: 4, ..Faults::default() },
        Faults { unavailable: 6, ..Faults::default() },
    ];
    for faults in faults {
        let name = format!("{faults:?}");
        bench.hub.set_faults(faults);
        let (before, begun) = (bench.hub.sent_bytes(), Instant::now());
        let fetched = bench.pull("hf.co/org/repo").unwrap_or_else(|e| panic!("{name}: {}", chain(&e)));
        assert_eq!(std::fs::read(&fetched.path).unwrap(), bytes(9 * CHUNK + 5), "{name}");
        let sent = bench.hub.sent_bytes() - before;
        assert!(sent < 13 * CHUNK as u64, "{name}: {sent} bytes");
        assert!(begun.elapsed() < Duration::from_secs(20), "{name}: {:?}", begun.elapsed());
        std::fs::remove_dir_all(bench.folder.path().join("org")).unwrap();
    }
}

#[test]
fn what_a_crawling_range_holds_at_the_end_of_a_file_another_range_brings() {
    let bench = one_file(9 * CHUNK + 5);
    bench.hub.set_faults(Faults { crawl_every: 4, ..Faults::default() });
    let mut settings = bench.settings();
    // Only after three of these the crawling range itself would be asked for again.
    settings.stall = Duration::from_secs(5);
    let begun = Instant::now();
    let fetched = bench.pull_with(&Client::new(settings), "hf.co/org/repo").unwrap();
    assert_eq!(std::fs::read(&fetched.path).unwrap(), bytes(9 * CHUNK + 5));
    assert!(begun.elapsed() < Duration::from_secs(12), "{:?}", begun.elapsed());
    assert!(bench.hub.sent_bytes() < 14 * CHUNK as u64, "{} bytes", bench.hub.sent_bytes());
}

#[test]
fn a_range_that_trickles_when_another_has_brought_its_chunk_does_not_fail_the_fetch() {
    let bench = one_file(CHUNK);
    let (client, plan) = bench.planned();
    let file = in_layers(&client, &plan, CHUNK);
    bench.hub.set_faults(Faults { bytes_per_s: Some(512 << 10), ..Faults::default() });
    let (is_here, stored, cancel) = (Cell::new(false), AtomicUsize::new(0), Cancel::default());
    let store = |_: u32, _: u64, _: &[u8]| {
        stored.fetch_add(1, Ordering::Relaxed);
        Ok(())
    };
    let mut in_flight = |bytes: u64| is_here.set(is_here.get() || bytes > 0);
    file.fetch_chunks(&client, CHUNK as u32, &[0], &cancel, (&store, &|_| is_here.get()), &mut in_flight)
        .unwrap();
    assert_eq!(stored.into_inner(), 0, "the other was sooner");
}

#[test]
fn waits_that_a_hub_asks_for_are_no_failed_attempts() {
    let bench = one_file(CHUNK);
    let (client, plan) = bench.planned();
    let file = in_layers(&client, &plan, CHUNK);
    // Of a file in layers the third failure is the end.
    let limited = Some((3, "0".to_owned()));
    bench.hub.set_faults(Faults { limited, unavailable: 1, ..Faults::default() });
    let (store, cancel) = (|_: u32, _: u64, _: &[u8]| Ok(()), Cancel::default());
    file.fetch_chunks(&client, CHUNK as u32, &[0], &cancel, (&store, &|_| false), &mut |_| {}).unwrap();
}

#[test]
fn a_host_that_sends_a_few_bytes_each_time_is_given_up() {
    // The whole of one is less than an attempt is to bring of the other.
    for size in [CHUNK, 1000] {
        let bench = one_file(size);
        let (client, plan) = bench.planned();
        let file = in_layers(&client, &plan, size);
        bench.hub.set_faults(Faults { drip_every: Some(Duration::from_millis(100)), ..Faults::default() });
        let (store, in_time) = (|_: u32, _: u64, _: &[u8]| Ok(()), Cancel::within(Duration::from_secs(30)));
        let (chunks, is_here) = ([0], |_: u32| false);
        let fetched =
            file.fetch_chunks(&client, CHUNK as u32, &chunks, &in_time, (&store, &is_here), &mut |_| {});
        let text = chain(&fetched.unwrap_err());
        assert!(text.contains("m-Q8_0.gguf") && text.contains("bytes a second"), "{size}: {text}");
    }
}

#[test]
fn signed_addresses_that_expire_are_renewed() {
    let bench = one_file(24 * CHUNK);
    bench.hub.set_faults(Faults { signature_uses: Some(2), break_every: 3, ..Faults::default() });
    let fetched = bench.pull("hf.co/org/repo").unwrap();
    assert_eq!(std::fs::metadata(&fetched.path).unwrap().len(), 24 * CHUNK as u64);
    let renewed =
        bench.hub.seen().iter().filter(|s| s.host == Host::Hub && s.target.contains("/resolve/")).count();
    assert!(renewed > 2, "{renewed}");
}

#[test]
fn a_hub_that_asks_to_wait_is_waited_for_and_one_that_asks_too_long_is_said() {
    let bench = one_file(2 * CHUNK);
    bench.hub.set_faults(Faults { limited: Some((1, "1".to_owned())), ..Faults::default() });
    let begun = Instant::now();
    bench.pull("hf.co/org/repo").unwrap();
    assert!(begun.elapsed() >= Duration::from_secs(1));
    std::fs::remove_dir_all(bench.folder.path().join("org")).unwrap();
    let text = bench.refused(Faults { limited: Some((99, "86400".to_owned())), ..Faults::default() });
    assert!(text.contains("asks to wait 86400 s") && text.contains("600 s are waited at most"), "{text}");
}

#[test]
fn an_overloaded_hub_that_says_when_to_come_again_is_waited_for_as_well() {
    let bench = one_file(2 * CHUNK);
    let busy = |count, after: &str| Faults {
        unavailable: count,
        unavailable_after: Some(after.to_owned()),
        ..Faults::default()
    };
    bench.hub.set_faults(busy(1, "2"));
    let begun = Instant::now();
    bench.pull("hf.co/org/repo").unwrap();
    assert!(begun.elapsed() >= Duration::from_secs(2), "{:?}", begun.elapsed());
    std::fs::remove_dir_all(bench.folder.path().join("org")).unwrap();
    // One that says "at once" again and again is asked more and more rarely.
    let too_many = Faults { limited: Some((4, "0".to_owned())), ..Faults::default() };
    for faults in [busy(4, "0"), too_many] {
        bench.hub.set_faults(faults);
        let begun = Instant::now();
        bench.pull("hf.co/org/repo").unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(1200), "{:?}", begun.elapsed());
        std::fs::remove_dir_all(bench.folder.path().join("org")).unwrap();
    }
    let text = bench.refused(busy(99, "86400"));
    assert!(text.contains("asks to wait 86400 s") && text.contains("600 s are waited at most"), "{text}");
}

#[test]
fn a_wait_that_a_hub_asks_for_between_two_ranges_is_in_sight_as_well() {
    let bench = one_file(2 * CHUNK);
    let (client, plan) = bench.planned();
    bench.hub.set_faults(Faults { limited: Some((1, "2".to_owned())), ..Faults::default() });
    let (cancel, options) = (Cancel::default(), bench.options());
    std::thread::scope(|scope| {
        let fetched = scope.spawn(|| fetch(&client, &plan, &options, &cancel, &mut |_| {}).map(drop));
        let begun = Instant::now();
        while cancel.hold_up().as_deref() != Some("it asks to wait 2 s") {
            assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", cancel.hold_up());
            std::thread::park_timeout(Duration::from_millis(5));
        }
        fetched.join().unwrap().unwrap();
    });
    assert_eq!(cancel.hold_up(), None);
}

#[test]
fn a_wait_that_a_hub_asks_for_is_in_sight_while_it_lasts() {
    let bench = one_file(64 << 10);
    let (client, plan) = bench.planned();
    bench.hub.set_faults(Faults { limited: Some((1, "1".to_owned())), ..Faults::default() });
    let cancel = Cancel::default();
    std::thread::scope(|scope| {
        let head = scope.spawn(|| client.part(first(&plan), plan.repo_commit(), (0, 8), &cancel).unwrap());
        let begun = Instant::now();
        while cancel.hold_up().as_deref() != Some("it asks to wait 1 s") {
            assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", cancel.hold_up());
            std::thread::park_timeout(Duration::from_millis(5));
        }
        assert_eq!(head.join().unwrap().len(), 8);
    });
    assert_eq!(cancel.hold_up(), None);
}

#[test]
fn an_answer_that_is_not_the_range_is_caught() {
    let bench = one_file(3 * CHUNK);
    let other = "f".repeat(64);
    for (faults, part) in [
        (Faults { whole_for_range: true, ..Faults::default() }, "knows no ranges"),
        (Faults { shifted_range: 7, ..Faults::default() }, "answer that cannot be used"),
        (Faults { range_length: Some(10), ..Faults::default() }, "it has 10 bytes"),
        (Faults { range_length: Some(4 * CHUNK), ..Faults::default() }, "it has 16777216 bytes"),
        (Faults { larger_total: 1, ..Faults::default() }, "of 12582913"),
        (Faults { html_for_file: true, ..Faults::default() }, "knows no ranges"),
        (Faults { changing_etag: true, ..Faults::default() }, "its ETag is"),
        (Faults { other_commit: Some("f".repeat(40)), ..Faults::default() }, "it is of commit ffff"),
        (Faults { other_digest: Some(other), ..Faults::default() }, "it is the file ffff"),
    ] {
        let text = bench.refused(faults);
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn wrong_bytes_are_deleted_and_both_digests_named() {
    let bench = one_file(3 * CHUNK);
    let text = bench.refused(Faults { wrong_byte_at: Some(CHUNK as u64 + 3), ..Faults::default() });
    assert!(
        text.contains("its SHA-256 is") && text.contains(&exo_mock_hub::sha256(&bytes(3 * CHUNK))),
        "{text}"
    );
    assert!(!files_below(bench.folder.path()).iter().any(|f| f.contains(".part")));
    bench.hub.set_faults(Faults::default());
    bench.pull("hf.co/org/repo").unwrap();
}

#[test]
fn wrong_bytes_in_a_small_file_are_found_by_what_git_calls_it() {
    let config = format!("{{\"pad\":\"{}\"}}", "x".repeat(400)).into_bytes();
    let bench = Bench::new(&[("config.json", config.clone()), ("model.safetensors", bytes(100))]);
    bench.hub.set_faults(Faults { wrong_byte_at: Some(300), ..Faults::default() });
    let text = chain(&bench.pull("hf.co/org/repo").unwrap_err());
    assert!(text.contains("its git id is") && text.contains(&exo_mock_hub::git_id(&config)), "{text}");
    assert!(!files_below(bench.folder.path()).iter().any(|f| f.ends_with("config.json")), "it has no name");
    bench.hub.set_faults(Faults::default());
    bench.pull("hf.co/org/repo").unwrap();
}

#[test]
fn redirects_in_a_loop_end_and_the_api_cannot_lie_about_its_kind() {
    let bench = one_file(100);
    for (faults, part) in [
        (Faults { redirect_loop: true, ..Faults::default() }, "more than 5 redirects"),
        (Faults { redirect_to: Some("ftp://x/y".to_owned()), ..Faults::default() }, "only http and https"),
        (Faults { html_for_json: true, ..Faults::default() }, "it is not JSON"),
        (Faults { gzip: true, ..Faults::default() }, "it is compressed"),
        (Faults { endless_tree: true, ..Faults::default() }, "at most 20000 is accepted"),
        (Faults { long_document: 20 << 20, ..Faults::default() }, "at most 16777216 is accepted"),
    ] {
        let text = bench.refused(faults);
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn files_with_names_that_lead_elsewhere_are_never_asked_for_and_cost_nothing_else() {
    for path in
        ["../../x.gguf", "a/..\\x.gguf", "C:x.gguf", ".ipynb_checkpoints/README-checkpoint.md", "license"]
    {
        let licence = ("LICENSE", b"do as you like".to_vec());
        let bench = Bench::new(&[licence, ("m-Q8_0.gguf", bytes(10)), (path, bytes(10))]);
        let fetched = bench.pull("hf.co/org/repo:Q8_0").unwrap();
        assert_eq!(std::fs::read(&fetched.path).unwrap(), bytes(10), "{path}");
        let asked = |s: &&exo_mock_hub::ReceivedRequest| s.target.contains("/resolve/");
        assert_eq!(bench.hub.seen().iter().filter(asked).count(), 2, "{path}: the model and a licence");
    }
    let bench = Bench::new(&[("a:m-Q8_0.gguf", bytes(10))]);
    let text = chain(&bench.pull("hf.co/org/repo:Q8_0").unwrap_err());
    assert!(text.contains("`org/repo` has no model to take"), "{text}");
}

/// A commit in which another file changed.
fn other_commit(bench: &Bench, files: &[(&str, Vec<u8>)]) {
    let mut repository = Repository::new(files);
    repository.commit = "f".repeat(40);
    bench.hub.put("org/repo", repository);
}

#[test]
fn what_another_commit_on_this_disk_has_is_not_fetched_again() {
    let bench = one_file(3 * CHUNK);
    bench.pull("hf.co/org/repo").unwrap();
    let sent = bench.hub.sent_bytes();
    other_commit(&bench, &[("m-Q8_0.gguf", bytes(3 * CHUNK)), ("README.md", b"new".to_vec())]);
    let (client, plan) = bench.planned();
    let (root, copies) = (bench.folder.path(), plan.copies(bench.folder.path()));
    assert_eq!(plan.have(root, &copies).missing_bytes, 0);
    assert_eq!(plan.link_unchanged(root, &copies, &Cancel::default()).unwrap().len(), 1);
    // An attempt that is interrupted leaves it to the next one, which does not read it again.
    assert!(plan.link_unchanged(root, &copies, &Cancel::default()).unwrap().is_empty());
    assert_eq!(plan.missing_bytes(root), 0);
    let fetched = fetch(&client, &plan, &bench.options(), &Cancel::default(), &mut |_| {}).unwrap();
    assert_eq!(std::fs::read(&fetched.path).unwrap(), bytes(3 * CHUNK));
    assert_eq!(bench.hub.sent_bytes(), sent, "the weights are those of the commit before");
    // Another file of that name and size is another.
    let mut other = bytes(3 * CHUNK);
    other[7] ^= 1;
    let mut repository = Repository::new(&[("m-Q8_0.gguf", other)]);
    repository.commit = "e".repeat(40);
    bench.hub.put("org/repo", repository);
    let plan = bench.plan(&client, "hf.co/org/repo").unwrap();
    assert_eq!(plan.have(root, &plan.copies(root)).missing_bytes, 3 * CHUNK as u64);
}

#[test]
fn what_another_commit_has_is_read_before_it_is_taken_and_fetched_where_it_is_damaged() {
    let bench = one_file(3 * CHUNK);
    let old = bench.pull("hf.co/org/repo").unwrap().path;
    other_commit(&bench, &[("m-Q8_0.gguf", bytes(3 * CHUNK)), ("README.md", b"new".to_vec())]);
    let (client, plan) = bench.planned();
    let (root, copies) = (bench.folder.path(), plan.copies(bench.folder.path()));
    let ended = Cancel::default();
    ended.cancel();
    assert!(matches!(plan.link_unchanged(root, &copies, &ended), Err(HubError::Cancelled)));
    let mut damaged = bytes(3 * CHUNK);
    damaged[CHUNK + 7] ^= 1;
    std::fs::write(&old, &damaged).unwrap();
    assert!(plan.link_unchanged(root, &copies, &Cancel::default()).unwrap().is_empty());
    assert_eq!(plan.missing_bytes(root), 3 * CHUNK as u64);
    let fetched = fetch(&client, &plan, &bench.options(), &Cancel::default(), &mut |_| {}).unwrap();
    assert_eq!(std::fs::read(&fetched.path).unwrap(), bytes(3 * CHUNK));
    assert_eq!(std::fs::read(&old).unwrap(), damaged, "it has not become one file with the damaged one");
}

#[test]
fn the_token_goes_to_the_hub_and_to_nobody_else() {
    let bench = one_file(3 * CHUNK);
    let mut gated = Repository::new(&[("m-Q8_0.gguf", bytes(3 * CHUNK))]);
    gated.is_gated = true;
    bench.hub.put("org/gated", gated);
    let text = chain(&bench.pull("hf.co/org/gated").unwrap_err());
    assert!(
        text.contains("`org/gated` is gated: accept its page at")
            && text.contains("/org/gated; then set HF_TOKEN"),
        "{text}"
    );
    let mut settings = bench.settings();
    settings.token = Token::new(bench.hub.token());
    bench.pull_with(&Client::new(settings), "hf.co/org/gated").unwrap();
    let seen = bench.hub.seen();
    let with_token = |host: Host| seen.iter().filter(|s| s.host == host && s.authorization.is_some()).count();
    assert!(with_token(Host::Hub) > 0 && seen.iter().any(|s| s.host == Host::Cdn));
    assert_eq!(with_token(Host::Cdn), 0);
}

/// Of the plan of a reference the first file.
fn first(plan: &FetchPlan) -> &PlannedFile {
    plan.files.first().unwrap()
}

#[test]
fn the_page_to_accept_is_that_of_the_repository_whatever_was_attempted_and_an_address_has_none() {
    let bench = one_file(100);
    let (client, plan) = bench.planned();
    let mut gated = Repository::new(&[("m-Q8_0.gguf", bytes(100))]);
    gated.is_gated = true;
    bench.hub.put("org/repo", gated);
    let page = format!("`org/repo` is gated: accept its page at {}/org/repo;", bench.hub.endpoint());
    let of_head = client.part(first(&plan), plan.repo_commit(), (0, 8), &Cancel::default()).unwrap_err();
    let of_fetch = fetch(&client, &plan, &bench.options(), &Cancel::default(), &mut |_| {}).unwrap_err();
    for error in [of_head, of_fetch] {
        assert!(error.to_string().starts_with(&page), "{error}");
    }
    let url = format!("{}/org/repo/resolve/main/m-Q8_0.gguf", bench.hub.endpoint());
    let error = bench.plan(&client, &url).unwrap_err();
    assert!(matches!(error, HubError::Status { status: 401, .. }), "{error}");
    assert!(!error.to_string().contains("accept") && error.hint().unwrap().contains("open to anybody"));
}

#[test]
fn a_body_that_drips_is_given_up_and_a_wish_to_end_is_heard_between_two_bytes() {
    let bench = one_file(64 << 10);
    let (client, plan) = bench.planned();
    bench.hub.set_faults(Faults { drip_every: Some(Duration::from_millis(100)), ..Faults::default() });
    let begun = Instant::now();
    let text = chain(&bench.plan(&client, "hf.co/org/repo").unwrap_err());
    assert!(text.contains("bytes a second and was given up after"), "{text}");
    let of_head = || client.part(first(&plan), plan.repo_commit(), (0, 32 << 10), &Cancel::default());
    let text = chain(&of_head().unwrap_err());
    assert!(text.contains("bytes a second and was given up after"), "{text}");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    let (begun, cancel) = (Instant::now(), Cancel::within(Duration::from_millis(300)));
    let result = client.part(first(&plan), plan.repo_commit(), (0, 32 << 10), &cancel);
    assert!(matches!(result, Err(HubError::Cancelled)), "{result:?}");
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    // A document that comes faster than that, and slower than one that may take its time.
    bench.hub.set_faults(Faults {
        drip_every: Some(Duration::from_micros(100)),
        long_document: 10 << 20,
        ..Faults::default()
    });
    let text = chain(&bench.plan(&client, "hf.co/org/repo").unwrap_err());
    assert!(text.contains("it was not whole within "), "{text}");
}

#[test]
fn parts_of_a_file_are_asked_for_where_it_was_the_last_time_until_that_expires() {
    let bench = one_file(64 << 10);
    let (client, plan) = bench.planned();
    let read = |at: u64| {
        let part = client.part(first(&plan), plan.repo_commit(), (at, at + 9), &Cancel::default()).unwrap();
        assert_eq!(part, bytes(64 << 10)[at as usize..at as usize + 9]);
    };
    let asked =
        || bench.hub.seen().iter().filter(|s| s.host == Host::Hub && s.target.contains("/resolve/")).count();
    (0..50).for_each(read);
    assert_eq!(asked(), 1);
    bench.hub.set_faults(Faults { signature_uses: Some(55), ..Faults::default() });
    (0..50).for_each(read);
    assert_eq!(asked(), 2);
}

#[test]
fn a_wait_that_there_is_no_time_for_is_said_at_once() {
    let bench = one_file(100);
    let (client, plan) = bench.planned();
    bench.hub.set_faults(Faults { limited: Some((1, "300".to_owned())), ..Faults::default() });
    let begun = Instant::now();
    let soon = Cancel::within(Duration::from_secs(20));
    let error = client.part(first(&plan), plan.repo_commit(), (0, 8), &soon).unwrap_err();
    assert!(matches!(error, HubError::Limited { asked_s: 300, .. }), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_token_that_is_refused_in_the_middle_is_said() {
    let bench = one_file(40 * CHUNK);
    bench.hub.set_faults(Faults {
        signature_uses: Some(1),
        token_refused_after: Some(6),
        break_every: 1,
        ..Faults::default()
    });
    let mut settings = bench.settings();
    settings.token = Token::new(bench.hub.token());
    let text = chain(&bench.pull_with(&Client::new(settings), "hf.co/org/repo").unwrap_err());
    assert!(text.contains("answered 401") && text.contains(": Invalid credentials"), "{text}");
    assert!(!text.contains("is not there"), "nothing is said of the repository: {text}");
    assert!(!text.contains(bench.hub.token()));
}

#[test]
fn what_is_not_there_is_named() {
    let bench = one_file(100);
    for (reference, part) in [
        ("hf.co/org/none", "`org/none` is not there, or is private or gated"),
        ("hf.co/org/repo@v9", "no such revision of org/repo"),
        ("hf.co/org/repo:Q2_K", "nothing in it is `Q2_K`; it has Q8_0"),
    ] {
        let text = chain(&bench.pull(reference).unwrap_err());
        assert!(text.contains(part), "{reference}: {text}");
    }
}

#[test]
fn offline_nothing_is_asked_and_what_is_here_is_found() {
    let bench = one_file(100);
    let here = bench.pull("hf.co/org/repo").unwrap();
    let requests = bench.hub.seen().len();
    let mut settings = bench.settings();
    settings.offline = Some("EXO_OFFLINE is set");
    let text = chain(&bench.pull_with(&Client::new(settings), "hf.co/org/repo").unwrap_err());
    assert_eq!(text, "`hf.co/org/repo` is not on this machine, and exo is offline (EXO_OFFLINE is set)");
    assert_eq!(bench.hub.seen().len(), requests);
    let find = |text: &str| bench.options().on_disk(&text.parse::<Reference>().unwrap()).map(|f| f.path);
    assert_eq!(find("tiny:1b"), None);
    assert_eq!(find("hf.co/org/repo"), Some(here.path.clone()));
    assert_eq!(find(&format!("hf.co/org/repo:q8_0@{COMMIT}")), Some(here.path));
    assert_eq!(find("hf.co/org/repo:Q4_0"), None);
}

#[test]
fn two_pulls_of_one_model_do_not_write_the_same_file() {
    let bench = one_file(3 * CHUNK);
    let (client, plan) = bench.planned();
    let mut second = None;
    fetch(&client, &plan, &bench.options(), &Cancel::default(), &mut |_| {
        if second.is_none() {
            second = Some(fetch(&client, &plan, &bench.options(), &Cancel::default(), &mut |_| {}));
        }
    })
    .unwrap();
    assert!(matches!(second, Some(Err(HubError::Busy { .. }))), "{second:?}");
}

#[test]
fn a_rate_limit_holds_over_all_ranges_and_partial_downloads_are_forgotten_on_request() {
    let bench = one_file(8 * CHUNK);
    let (client, plan) = bench.planned();
    let options = PullOptions { rate_max: Some(16 << 20), ..bench.options() };
    let begun = Instant::now();
    ended_at(&client, &plan, &options, 4 * CHUNK);
    assert!(begun.elapsed() > Duration::from_millis(900), "{:?}", begun.elapsed());
    let kept = KeptDownloads { waiting: vec![plan.folder(bench.folder.path())], ..KeptDownloads::default() };
    assert_eq!(
        exo_hub::forget_partial(bench.folder.path(), &kept).unwrap(),
        (0, 0),
        "one that waits is kept"
    );
    let (files, freed) = exo_hub::forget_partial(bench.folder.path(), &KeptDownloads::default()).unwrap();
    assert!(files == 1 && freed >= 4 * CHUNK as u64, "{files} {freed}");
    assert!(!files_below(bench.folder.path()).iter().any(|f| f.contains(".part")));
}

/// Parts of a split model; the last one never comes whole.
fn two_of_three_parts(bench: &Bench) {
    let (client, plan) = bench.planned();
    let options = PullOptions { rate_max: Some(16 << 20), ranges_max: 1, ..bench.options() };
    let cancel = Cancel::default();
    let result = fetch(&client, &plan, &options, &cancel, &mut |p| {
        if p.file.contains("00003") && p.done_bytes > 4 * CHUNK as u64 {
            cancel.cancel();
        }
    });
    assert!(matches!(result, Err(HubError::Cancelled)), "{result:?}");
}

#[test]
fn parts_that_came_whole_of_a_model_that_never_did_are_forgotten_with_it() {
    let part = |n: u32, len: usize| (format!("m-Q8_0-{n:05}-of-00003.gguf"), bytes(len));
    let parts = [part(1, 2 * CHUNK), part(2, 2 * CHUNK), part(3, 8 * CHUNK)];
    let files: Vec<(&str, Vec<u8>)> =
        parts.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
    let bench = Bench::new(&files);
    let root = bench.folder.path();
    two_of_three_parts(&bench);
    let (files, freed) = exo_hub::forget_partial(root, &KeptDownloads::default()).unwrap();
    assert_eq!(files, 3);
    assert!(freed > 4 * CHUNK as u64, "{freed}");
    assert_eq!(files_below(root), Vec::<String>::new());
    // One that is known is not touched, and neither is one that is whole and about to be known.
    two_of_three_parts(&bench);
    let known = files_below(root).into_iter().find(|f| f.ends_with("00001-of-00003.gguf")).unwrap();
    let kept = KeptDownloads { known: vec![known.clone().into()], ..KeptDownloads::default() };
    assert_eq!(exo_hub::forget_partial(root, &kept).unwrap().0, 1, "the part");
    assert!(Path::new(&known).is_file());
    let whole = bench.pull("hf.co/org/repo").unwrap().path;
    assert_eq!(exo_hub::forget_partial(root, &KeptDownloads::default()).unwrap(), (0, 0));
    assert!(whole.is_file());
    // What came whole and is in no list after an hour could not be opened.
    let origin = files_below(root).into_iter().find(|f| f.ends_with(".origin.json")).unwrap();
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(7200);
    std::fs::File::options().append(true).open(origin).unwrap().set_modified(long_ago).unwrap();
    assert_eq!(exo_hub::forget_partial(root, &KeptDownloads::default()).unwrap(), (3, 12 * CHUNK as u64));
    assert_eq!(files_below(root), Vec::<String>::new());
}

#[test]
fn a_file_at_an_address_comes_without_a_digest_and_that_is_known() {
    let bench = one_file(CHUNK + 3);
    let url = format!("{}/org/repo/resolve/main/m-Q8_0.gguf", bench.hub.endpoint());
    let fetched = bench.pull(&url).unwrap();
    assert_eq!(std::fs::read(&fetched.path).unwrap(), bytes(CHUNK + 3));
    assert!(!exo_hub::Origin::beside(&fetched.path).unwrap().is_verified());
    assert_eq!(bench.options().on_disk(&url.parse().unwrap()).unwrap().path, fetched.path);
}

#[test]
fn a_host_of_an_address_that_asks_to_wait_or_is_overloaded_for_a_moment_is_asked_again() {
    let bench = one_file(CHUNK);
    let url = format!("{}/org/repo/resolve/main/m-Q8_0.gguf", bench.hub.endpoint());
    let client = Client::new(bench.settings());
    let limited = Faults { limited: Some((1, "1".to_owned())), ..Faults::default() };
    for faults in [limited, Faults { unavailable: 2, ..Faults::default() }] {
        let name = format!("{faults:?}");
        bench.hub.set_faults(faults);
        let plan = bench.plan(&client, &url).unwrap_or_else(|error| panic!("{name}: {}", chain(&error)));
        assert_eq!(plan.bytes(), CHUNK as u64);
    }
}

#[test]
fn a_file_that_changed_at_its_address_is_another_and_nothing_of_both_is_put_together() {
    let bench = one_file(3 * CHUNK);
    let url = |query: &str| format!("{}/org/repo/resolve/main/m-Q8_0.gguf{query}", bench.hub.endpoint());
    let client = Client::new(bench.settings());
    let plan = bench.plan(&client, &url("")).unwrap();
    let options = PullOptions { rate_max: Some(8 << 20), ranges_max: 1, ..bench.options() };
    ended_at(&client, &plan, &options, CHUNK);
    let other: Vec<u8> = bytes(3 * CHUNK).into_iter().map(|b| b ^ 1).collect();
    bench.hub.put("org/repo", Repository::new(&[("m-Q8_0.gguf", other.clone())]));
    let fetched = bench.pull(&url("?signature=2")).unwrap();
    assert!(std::fs::read(&fetched.path).unwrap() == other);
    assert!(bench.pull(&url("?signature=3")).unwrap().was_here, "the same file under another signature");
}

#[test]
fn what_came_for_a_reference_is_found_and_not_what_came_for_another() {
    let bench = Bench::new(&[("m-Q8_0.gguf", bytes(100)), ("m-UD-Q4_K_XL.gguf", bytes(90))]);
    let find =
        |text: &str| bench.options().fetched_for(&text.parse::<Reference>().unwrap()).map(|f| f.origin.label);
    let fetched = bench.pull("hf.co/org/repo:UD-Q4_K_XL").unwrap();
    let offline = bench.options().on_disk(&"hf.co/org/repo:UD-Q4_K_XL".parse().unwrap());
    assert_eq!(offline.map(|found| found.path), Some(fetched.path), "without a line by the same text");
    assert_eq!(find("hf.co/org/repo"), None, "a type that was named is not the one that would be chosen");
    assert_eq!(find("hf.co/org/repo:ud-q4_k_xl").as_deref(), Some("Q4_K_XL"));
    assert_eq!(find("hf.co/org/repo:Q8_0"), None);
    bench.pull("hf.co/org/repo:Q8_0").unwrap();
    assert_eq!(find("hf.co/org/repo:Q8_0").as_deref(), Some("Q8_0"));
    assert_eq!(find("hf.co/org/repo:Q8_0@v2"), None, "another branch");
    assert_eq!(find(&format!("hf.co/org/repo:q8_0@{}", &COMMIT[..7])).as_deref(), Some("Q8_0"));
}

#[test]
fn a_file_whose_name_cannot_be_a_repository_s_comes_all_the_same() {
    let long = format!("{}.gguf", "n".repeat(120));
    for name in ["My Model (1).gguf", "a--b.gguf", &long] {
        let bench = Bench::new(&[(name, bytes(10))]);
        let fetched = bench.pull("hf.co/org/repo").unwrap();
        assert!(fetched.path.ends_with(name) && bench.pull("hf.co/org/repo").unwrap().was_here, "{name}");
    }
}

#[test]
fn a_search_lists_what_a_reference_can_name() {
    let bench = one_file(10);
    bench.hub.put("a/Qwen-GGUF", Repository::new(&[]));
    let found = Client::new(bench.settings()).search("qwen", &Cancel::default()).unwrap();
    assert_eq!(found.iter().map(|f| f.repo.as_str()).collect::<Vec<_>>(), ["a/Qwen-GGUF"]);
}
