//! Rules of the log, one test each, and random histories of admins who know different things.

use ed25519_dalek::{Signer, SigningKey};
use exo_types::NodeId;
use proptest::prelude::*;

use super::*;

/// Who signs: 1 is the founder.
fn key(seed: u8) -> SigningKey {
    SigningKey::from_bytes(&[seed; 32])
}

fn node(seed: u8) -> NodeId {
    NodeId(key(seed).verifying_key().to_bytes())
}

fn sign(seed: u8, statement: Statement) -> Entry {
    let signature = key(seed).sign(&statement.to_sign()).to_bytes();
    statement.signed(signature)
}

fn founded() -> TrustLog {
    let statement = Statement::founding(node(1), 1_700_000_000, "home".into(), "attic".into(), [9; 16]);
    TrustLog::new(sign(1, statement)).unwrap()
}

fn admit(seed: u8) -> Act {
    Act::Admit { node: node(seed), name: format!("node {seed}") }
}

fn appoint(seed: u8) -> Act {
    Act::Appoint { node: node(seed), name: format!("node {seed}") }
}

fn dismiss(seed: u8) -> Act {
    Act::Dismiss { node: node(seed) }
}

fn remove(seed: u8) -> Act {
    Act::Remove { node: node(seed), reason: "sold".into() }
}

/// What `by` signs on this log; it is taken in.
fn act(log: &mut TrustLog, by: u8, act: Act) -> Entry {
    let entry = sign(by, log.statement(node(by), 5, act).unwrap());
    assert_eq!(log.insert(entry.clone()), Ok(Inserted::New));
    entry
}

/// An entry that no honest node would make: it follows what it wants.
fn forge(by: u8, log: &TrustLog, after: &[EntryId], act: Act) -> Entry {
    let mut after = after.to_vec();
    after.sort();
    sign(by, Statement::new(Some(log.cluster()), after, node(by), 5, act))
}

/// Brings both logs what they lack.
fn meet(a: &mut TrustLog, b: &mut TrustLog) {
    for _ in 0..2 {
        let known: Vec<_> = b.heads().iter().copied().collect();
        for entry in a.missing(&known).cloned().collect::<Vec<_>>() {
            b.insert(entry).unwrap();
        }
        std::mem::swap(a, b);
    }
    assert_eq!((a.view(), a.heads()), (b.view(), b.heads()));
}

fn members(log: &TrustLog) -> Vec<u8> {
    (1..=20).filter(|seed| log.view().members().contains_key(&node(*seed))).collect()
}

fn admins(log: &TrustLog) -> Vec<u8> {
    (1..=20).filter(|seed| log.view().admins().any(|admin| admin == node(*seed))).collect()
}

/// A cluster of three with these admins beside the founder.
fn cluster(more_admins: &[u8]) -> TrustLog {
    let mut log = founded();
    for seed in [2, 3] {
        act(&mut log, 1, admit(seed));
    }
    for &seed in more_admins {
        act(&mut log, 1, appoint(seed));
    }
    log
}

#[test]
fn the_founder_admits_appoints_dismisses_and_removes() {
    let mut log = cluster(&[2]);
    assert_eq!((members(&log), admins(&log)), (vec![1, 2, 3], vec![1, 2]));
    act(&mut log, 2, dismiss(1));
    act(&mut log, 2, remove(3));
    assert_eq!((members(&log), admins(&log)), (vec![1, 2], vec![2]));
    assert_eq!(log.view().removed()[&node(3)], Removal { by: node(2), reason: "sold".into() });
    assert_eq!(log.view().name(), "home");
    assert_eq!(log.view().members()[&node(1)].name, "attic");
}

#[test]
fn who_was_removed_hears_of_that_and_of_nothing_behind_it() {
    let mut log = cluster(&[2]);
    let before: Vec<_> = log.heads().iter().copied().collect();
    act(&mut log, 2, remove(3));
    act(&mut log, 1, admit(4));
    act(&mut log, 1, appoint(4));
    let heard: Vec<_> =
        log.missing_up_to_removal(node(3), &before).map(|e| e.statement().act.clone()).collect();
    assert_eq!(heard, [remove(3)]);
    let all = TrustLog::from_entries(log.missing_up_to_removal(node(3), &[]).cloned()).unwrap().unwrap();
    assert!(all.view().removed().contains_key(&node(3)), "it can check what it is told");
    assert_eq!(log.missing_up_to_removal(node(2), &[]).count(), 0, "it is a member");
}

#[test]
fn an_entry_survives_its_encoding_and_a_log_its_disk() {
    let mut log = cluster(&[2]);
    act(&mut log, 2, remove(3));
    let bytes: Vec<Vec<u8>> = log.entries().map(Entry::encode).collect();
    let read = TrustLog::from_entries(bytes.iter().map(|b| Entry::decode(b).unwrap())).unwrap().unwrap();
    assert_eq!((read.view(), read.heads(), read.cluster()), (log.view(), log.heads(), log.cluster()));
    assert!(bytes.iter().all(|b| b.len() < 300), "an entry is small");
}

#[test]
fn a_worker_changes_nothing() {
    let mut log = cluster(&[2]);
    let heads: Vec<_> = log.heads().iter().copied().collect();
    let before = log.view().clone();
    for wanted in [appoint(3), dismiss(1), remove(1), remove(2), admit(9), Act::Window { until_unix_s: 9 }] {
        assert_eq!(log.statement(node(3), 5, wanted.clone()), Err(ActError::NotAnAdmin { author: node(3) }));
        let forged = log.insert(forge(3, &log, &heads, wanted.clone()));
        assert!(
            matches!(forged, Err(InsertError::Act { source: ActError::NotAnAdmin { .. }, .. })),
            "{forged:?}"
        );
        // In an admin's name, with the worker's signature.
        let statement = Statement::new(Some(log.cluster()), heads.clone(), node(1), 5, wanted);
        let signature = key(3).sign(&statement.to_sign()).to_bytes();
        let refused = log.insert(statement.signed(signature));
        assert!(
            matches!(refused, Err(InsertError::BadSignature { .. } | InsertError::Act { .. })),
            "{refused:?}"
        );
    }
    assert_eq!(log.view(), &before);
}

#[test]
fn a_gap_another_cluster_and_an_entry_twice_are_known_for_what_they_are() {
    let (mut log, mut ahead) = (cluster(&[]), cluster(&[]));
    assert_eq!(log.cluster(), ahead.cluster());
    let (first, second) = (act(&mut ahead, 1, admit(4)), act(&mut ahead, 1, admit(5)));
    assert_eq!(log.insert(second.clone()), Err(InsertError::Gap { id: second.id(), missing: first.id() }));
    assert_eq!(log.insert(first.clone()), Ok(Inserted::New));
    assert_eq!(log.insert(first.clone()), Ok(Inserted::Known));
    assert_eq!(log.insert(second), Ok(Inserted::New));
    let founding = Statement::founding(node(1), 0, "other".into(), "attic".into(), [0; 16]);
    let mut other = TrustLog::new(sign(1, founding)).unwrap();
    let foreign = act(&mut other, 1, admit(6));
    assert_eq!(log.insert(foreign.clone()), Err(InsertError::OtherCluster { id: foreign.id() }));
    let both: Vec<_> = [log.cluster(), first.id()].to_vec();
    let shortcut = forge(1, &log, &both, admit(7));
    assert_eq!(log.insert(shortcut.clone()), Err(InsertError::NotLast { id: shortcut.id() }));
    assert_eq!(members(&log), [1, 2, 3, 4, 5]);
}

#[test]
fn halves_of_a_split_cluster_put_together_what_they_did() {
    let (mut a, mut b) = (cluster(&[2]), cluster(&[2]));
    act(&mut a, 1, admit(4));
    act(&mut b, 2, admit(5));
    meet(&mut a, &mut b);
    assert_eq!(members(&a), [1, 2, 3, 4, 5]);
    assert_eq!(a.heads().len(), 2);
    act(&mut a, 1, admit(6));
    assert_eq!(a.heads().len(), 1, "the next entry follows both sides");
    assert!(a.forked().is_empty());
}

#[test]
fn a_removal_wins_over_whatever_was_signed_for_that_node_at_the_same_time() {
    let (mut a, mut b) = (cluster(&[2]), cluster(&[2]));
    act(&mut a, 1, remove(3));
    act(&mut b, 2, appoint(3));
    act(&mut b, 3, admit(4)); // rests on the appointment
    meet(&mut a, &mut b);
    assert_eq!((members(&a), admins(&a)), (vec![1, 2], vec![1, 2]));
    assert!(matches!(a.statement(node(1), 5, admit(3)), Err(ActError::Removed { .. })));
}

#[test]
fn what_an_admin_signs_concurrently_with_its_own_removal_is_void() {
    let (mut a, mut b) = (cluster(&[2]), cluster(&[2]));
    act(&mut a, 1, remove(2));
    act(&mut b, 2, admit(4));
    act(&mut b, 2, appoint(3));
    act(&mut b, 3, admit(5));
    act(&mut b, 2, remove(3));
    meet(&mut a, &mut b);
    assert_eq!((members(&a), admins(&a)), (vec![1, 3], vec![1]));
}

#[test]
fn a_removed_admin_cannot_date_an_entry_back() {
    let mut log = cluster(&[2]);
    let heads: Vec<_> = log.heads().iter().copied().collect();
    act(&mut log, 1, remove(2));
    let backdated = forge(2, &log, &heads, admit(4));
    assert_eq!(log.insert(backdated), Ok(Inserted::New), "it was possible then");
    assert_eq!(members(&log), [1, 3], "and is void now");
    let late: Vec<_> = log.heads().iter().copied().collect();
    let refused = log.insert(forge(2, &log, &late, admit(5)));
    assert!(
        matches!(refused, Err(InsertError::Act { source: ActError::NotAnAdmin { .. }, .. })),
        "{refused:?}"
    );
}

#[test]
fn of_two_admins_who_remove_each_other_the_older_stays() {
    for order in [[1, 2], [2, 1]] {
        let (mut a, mut b) = (cluster(&[2]), cluster(&[2]));
        act(&mut a, order[0], remove(order[1]));
        act(&mut b, order[1], remove(order[0]));
        meet(&mut a, &mut b);
        assert_eq!((members(&a), admins(&a)), (vec![1, 3], vec![1]));
    }
}

#[test]
fn a_removal_in_a_ring_of_three_has_one_outcome_everywhere() {
    let logs = [(1, 2), (2, 3), (3, 1)].map(|(by, whom)| {
        let mut log = cluster(&[2, 3]);
        let entry = act(&mut log, by, remove(whom));
        (log, entry)
    });
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut log = cluster(&[2, 3]);
        for at in order {
            log.insert(logs[at].1.clone()).unwrap();
        }
        // The founder's removal of 2 stands, so that of 3 by 2 is void, so that of the founder by 3 stands.
        assert_eq!((members(&log), admins(&log)), (vec![3], vec![3]));
    }
}

#[test]
fn a_dismissed_admin_may_be_appointed_again() {
    let mut log = cluster(&[2]);
    act(&mut log, 1, dismiss(2));
    assert_eq!(admins(&log), [1]);
    act(&mut log, 1, appoint(2));
    act(&mut log, 2, admit(4));
    assert_eq!((members(&log), admins(&log)), (vec![1, 2, 3, 4], vec![1, 2]));
}

#[test]
fn what_stands_below_a_void_entry_is_followed() {
    let (mut a, mut b) = (cluster(&[2, 3]), cluster(&[2, 3]));
    act(&mut a, 1, remove(2));
    act(&mut b, 3, admit(4));
    let appointment = act(&mut b, 3, appoint(4));
    let void = act(&mut b, 2, admit(9));
    meet(&mut a, &mut b);
    assert_eq!((members(&a), admins(&a)), (vec![1, 3, 4], vec![1, 3, 4]));
    let entry = act(&mut a, 4, admit(5));
    let after = &entry.statement().after;
    assert!(after.contains(&appointment.id()) && !after.contains(&void.id()), "{after:?}");
    assert_eq!(members(&a), [1, 3, 4, 5]);
}

#[test]
fn the_only_admin_stays_one() {
    let mut log = cluster(&[]);
    let last = ActError::LastAdmin { node: node(1) };
    assert_eq!(log.statement(node(1), 5, remove(1)), Err(last.clone()));
    assert_eq!(log.statement(node(1), 5, dismiss(1)), Err(last));
    act(&mut log, 1, appoint(2));
    act(&mut log, 1, remove(1));
    assert_eq!((members(&log), admins(&log)), (vec![2, 3], vec![2]));
}

#[test]
fn the_join_window_shuts_for_good() {
    let window = |until_unix_s| Act::Window { until_unix_s };
    let mut log = founded();
    assert_eq!(log.view().window_until_unix_s(), None);
    act(&mut log, 1, window(600));
    act(&mut log, 1, window(900));
    assert_eq!(log.view().window_until_unix_s(), Some(600), "it is not made longer");
    let mut by_removal = log.clone();
    act(&mut by_removal, 1, remove(9));
    assert_eq!(by_removal.view().window_until_unix_s(), Some(0));
    let mut by_number = log.clone();
    for seed in 2..2 + ON_SIGHT_MAX as u8 {
        assert_eq!(by_number.view().window_until_unix_s(), Some(600));
        act(&mut by_number, 1, admit(seed));
    }
    assert_eq!(by_number.view().window_until_unix_s(), Some(0));
    act(&mut log, 1, window(0));
    act(&mut log, 1, window(900));
    assert_eq!(log.view().window_until_unix_s(), Some(0));
}

#[test]
fn a_key_in_two_places_is_noticed() {
    let (mut a, mut b) = (cluster(&[]), cluster(&[]));
    act(&mut a, 1, admit(4));
    act(&mut b, 1, admit(5));
    assert!(a.forked().is_empty() && b.forked().is_empty());
    meet(&mut a, &mut b);
    assert_eq!(members(&a), [1, 2, 3, 4, 5]);
    assert!(a.forked().contains(&node(1)) && b.forked().contains(&node(1)));
}

#[test]
fn names_and_reasons_are_cut_and_have_no_controls() {
    let mut log = founded();
    let name = "\u{1b}[31m\u{202e}".to_owned() + &"ä".repeat(10_000);
    let entry = act(&mut log, 1, Act::Admit { node: node(2), name });
    let name = &log.view().members()[&node(2)].name;
    assert!(name.chars().count() <= 64 && !name.contains(['\u{1b}', '\u{202e}']), "{name:?}");
    assert_eq!(Entry::decode(&entry.encode()), Ok(entry));
    let raw = Act::Admit { node: node(3), name: "\u{1b}[31m".into() };
    let statement = Statement { act: raw, ..log.statement(node(1), 5, admit(3)).unwrap() };
    assert!(Entry::decode(&sign(1, statement).encode()).is_err());
}

#[test]
fn a_log_begins_with_a_signed_founding() {
    let log = cluster(&[]);
    let entries: Vec<Entry> = log.entries().cloned().collect();
    let headless = TrustLog::from_entries(entries[1..].to_vec());
    assert!(matches!(headless, Err(InsertError::NoFounding { .. })), "{headless:?}");
    let statement = entries[0].statement().clone();
    let unsigned = TrustLog::new(statement.signed([7; 64]));
    assert!(matches!(unsigned, Err(InsertError::BadSignature { .. })), "{unsigned:?}");
    assert!(TrustLog::from_entries([]).unwrap().is_none());
}

/// A step of a random history of four admins, each with its own copy of the log.
#[derive(Clone, Debug)]
enum Step {
    /// This one signs.
    Act { by: u8, what: u8, whom: u8 },
    /// These two meet.
    Meet { a: u8, b: u8 },
    /// This one signs after some entry that it knows, as if it knew nothing else.
    Forge { by: u8, after: usize, what: u8, whom: u8 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (node, what) = (1u8..=6, 0u8..5);
    let step = prop_oneof![
        4 => (node.clone(), what.clone(), 1u8..=8).prop_map(|(by, what, whom)| Step::Act { by, what, whom }),
        2 => (node.clone(), node.clone()).prop_map(|(a, b)| Step::Meet { a, b }),
        2 => (node, 0usize..40, what, 1u8..=8).prop_map(|(by, after, what, whom)| Step::Forge { by, after, what, whom }),
    ];
    proptest::collection::vec(step, 1..50)
}

fn any_act(what: u8, whom: u8) -> Act {
    match what {
        0 => admit(whom),
        1 => appoint(whom),
        2 => dismiss(whom),
        3 => remove(whom),
        _ => Act::Window { until_unix_s: u64::from(whom) },
    }
}

/// Plays the history; the copies of the log of all six.
fn play(steps: &[Step]) -> Vec<TrustLog> {
    let mut logs = vec![cluster(&[2, 3]); 6];
    for step in steps {
        match *step {
            Step::Act { by, what, whom } => {
                let log = &mut logs[usize::from(by) - 1];
                if let Ok(statement) = log.statement(node(by), 5, any_act(what, whom)) {
                    log.insert(sign(by, statement)).unwrap();
                }
            }
            Step::Meet { a, b } if a == b => {}
            Step::Meet { a, b } => {
                let [a, b] = [a, b].map(|n| usize::from(n) - 1);
                let mut other = logs[b].clone();
                meet(&mut logs[a], &mut other);
                logs[b] = other;
            }
            Step::Forge { by, after, what, whom } => {
                let log = &mut logs[usize::from(by) - 1];
                let ids: Vec<EntryId> = log.entries().map(Entry::id).collect();
                let forged = forge(by, log, &[ids[after % ids.len()]], any_act(what, whom));
                let _ = log.insert(forged);
            }
        }
    }
    logs
}

proptest! {
    /// Whatever admins and liars sign, and whoever meets whom: in the end all come to the same view, and a
    /// log read from entries in another order as well.
    #[test]
    fn all_come_to_the_same_view(steps in steps(), seed in any::<u64>()) {
        let mut logs = play(&steps);
        let (first, rest) = logs.split_first_mut().unwrap();
        rest.iter_mut().for_each(|other| meet(first, other));
        // In another order: whatever can be taken next, by a number drawn from the seed.
        let mut left: Vec<Entry> = first.entries().skip(1).cloned().collect();
        let mut shuffled = TrustLog::new(first.entries().next().unwrap().clone()).unwrap();
        let mut draw = seed;
        while !left.is_empty() {
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let ready: Vec<usize> = (0..left.len())
                .filter(|&n| left[n].statement().after.iter().all(|id| shuffled.contains(*id)))
                .collect();
            let next = left.swap_remove(ready[(draw >> 33) as usize % ready.len()]);
            prop_assert_eq!(shuffled.insert(next), Ok(Inserted::New));
        }
        prop_assert_eq!(shuffled.view(), first.view());
        prop_assert_eq!(shuffled.heads(), first.heads());
        prop_assert_eq!(shuffled.forked(), first.forked());
    }

    /// Nodes that no admin ever appointed, in any copy of the log, have changed nothing; those whose removal
    /// stands are no members.
    #[test]
    fn only_admins_change_anything(steps in steps()) {
        for log in play(&steps) {
            let mut may_sign = vec![node(1)];
            for entry in log.entries() {
                prop_assert!(may_sign.contains(&entry.statement().author));
                if let Act::Appoint { node, .. } = entry.statement().act {
                    may_sign.push(node);
                }
            }
            let view = log.view();
            prop_assert!(view.removed().keys().all(|node| !view.members().contains_key(node)));
        }
    }

    /// No change of any byte goes unnoticed, and no bytes at all make the decoder panic.
    #[test]
    fn a_changed_byte_never_gets_in(at in 0usize..1000, flip in 1u8..) {
        let mut log = cluster(&[]);
        let statement = log.statement(node(1), 5, admit(4)).unwrap();
        let mut bytes = sign(1, statement).encode();
        let at = at % bytes.len();
        bytes[at] ^= flip;
        if let Ok(read) = Entry::decode(&bytes) {
            prop_assert!(log.insert(read).is_err());
        }
    }

    #[test]
    fn decoding_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let _ = Entry::decode(&bytes);
    }
}

#[test]
fn what_is_known_finds_what_is_missing_also_where_the_last_entries_are_unknown() {
    let mut log = cluster(&[2]);
    for seed in 10..40 {
        act(&mut log, 1, admit(seed));
    }
    let mut away = log.clone();
    act(&mut away, 2, Act::Window { until_unix_s: 0 });
    for seed in 40..45 {
        act(&mut log, 1, admit(seed));
    }
    let missing = log.missing(&away.known()).count();
    assert!((5..=10).contains(&missing), "{missing} are sent for 5");
    assert!(away.known().len() <= 64);
}

#[test]
fn who_is_no_admin_any_more_does_not_fill_the_log() {
    let mut log = cluster(&[2]);
    let former: Vec<EntryId> = log.heads().iter().copied().collect();
    act(&mut log, 1, remove(2));
    let mut after = former;
    let mut taken = 0;
    for number in 0..100 {
        let late = forge(2, &log, &after, Act::Window { until_unix_s: number });
        after = vec![late.id()];
        match log.insert(late) {
            Ok(_) => taken += 1,
            Err(InsertError::Late { .. } | InsertError::Gap { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(taken, 32);
    let entry = act(&mut log, 1, admit(50));
    assert_eq!(entry.statement().after.len(), 1, "what is void is not followed");
}

#[test]
fn a_full_log_still_takes_rights_away() {
    let mut log = cluster(&[2]);
    let full = loop {
        match log.statement(node(2), 5, Act::Window { until_unix_s: 9 }) {
            Ok(statement) => drop(log.insert(sign(2, statement)).unwrap()),
            Err(error) => break error,
        }
    };
    assert!(matches!(full, ActError::TooMany { .. }), "{full}");
    act(&mut log, 1, remove(2));
    assert_eq!(admins(&log), [1]);
}

/// Fills what there is: at first with something else, then with removals of keys of its own making.
fn fill(log: &mut TrustLog, by: u8, first: u16) {
    let removal = |number: u16| {
        let [high, low] = number.to_be_bytes();
        let mut key = [high; 32];
        key[0] = low;
        Act::Remove { node: NodeId(key), reason: "mine".into() }
    };
    let windows = (0..).map(|number| Act::Window { until_unix_s: number });
    for acts in [&mut windows.into_iter() as &mut dyn Iterator<Item = Act>, &mut (first..).map(removal)] {
        while let Ok(statement) = log.statement(node(by), 5, acts.next().unwrap()) {
            log.insert(sign(by, statement)).unwrap();
        }
    }
}

#[test]
fn a_log_that_an_admin_has_filled_with_removals_still_takes_its_rights_away() {
    let mut log = cluster(&[2]);
    fill(&mut log, 2, 1000);
    let shared = ENTRIES_MAX - 128;
    // Elsewhere that admin has shown other entries.
    let mut other = TrustLog::from_entries(log.entries().take(shared).cloned()).unwrap().unwrap();
    fill(&mut other, 2, 2000);
    assert_eq!((log.entries().count(), other.entries().count()), (ENTRIES_MAX, ENTRIES_MAX));
    let more = log.statement(node(2), 5, remove(90));
    assert!(matches!(more, Err(ActError::TooMany { .. })), "{more:?}");

    let removal = act(&mut log, 1, remove(2));
    assert_eq!(other.insert(removal), Ok(Inserted::New), "it follows nothing that is not everywhere");
    assert_eq!((admins(&log), admins(&other)), (vec![1], vec![1]));
    assert_eq!(
        log.view().removed().keys().collect::<Vec<_>>(),
        [&node(2)],
        "what it signed beside that is void"
    );
    let again = TrustLog::from_entries(log.entries().cloned()).unwrap().unwrap();
    assert_eq!(again.view(), log.view());
    let heads: Vec<EntryId> = again.heads().iter().copied().collect();
    let unneeded = forge(1, &log, &heads[..1], remove(91));
    assert!(matches!(log.insert(unneeded), Err(InsertError::Full { .. })), "nobody is an admin less by it");
}
