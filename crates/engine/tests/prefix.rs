//! Sequences that begin with pages kept of others: the same bits as computing them, for their own principal
//! only.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use crate::common::{self, assert_same_bits, id, one_of_each, options, part, solo, spec, split};
use exo_engine::{Engine, SequenceError, StepError};
use exo_golden::Fixture;
use exo_types::{PageKey, Principal, SamplingParams, SequenceSpec};

const PAGE: usize = 16;

/// Three pages and a bit.
fn text(fixture: &Fixture) -> Vec<u32> {
    fixture.prompt.iter().chain(&fixture.greedy).copied().cycle().take(3 * PAGE + 7).collect()
}

fn greedy(n: u16, history: &[u32]) -> SequenceSpec {
    spec(n, history, SamplingParams::greedy())
}

fn keys(keys: &[u64]) -> Vec<PageKey> {
    keys.iter().map(|&key| PageKey(key)).collect()
}

/// An engine whose sequence 1 holds the text; its first three pages are kept as 10, 11 and 12.
fn filled(fixture: &Fixture) -> Engine {
    let (mut engine, text) = (solo(&fixture.gguf(), options(), 1), text(fixture));
    engine.open(&greedy(1, &text));
    engine.logits(vec![part(1, 0, &text, false)]).unwrap();
    let mut engine = engine.stages.remove(0);
    engine.keep(id(1), &[(0, PageKey(10)), (1, PageKey(11)), (2, PageKey(12))]).unwrap();
    engine
}

#[test]
fn what_follows_kept_pages_has_the_bits_of_what_was_computed_alone() {
    for fixture in one_of_each() {
        let text = text(&fixture);
        let want = solo(&fixture.gguf(), options(), 1).logits_in_chunks(&text, 64);
        for cuts in [&[][..], &[1]] {
            let mut engines = split(&fixture.gguf(), cuts, options(), 1);
            engines.open(&greedy(1, &text));
            engines.logits(vec![part(1, 0, &text, false)]).unwrap();
            for stage in &mut engines.stages {
                stage.keep(id(1), &[(0, PageKey(10)), (1, PageKey(11))]).unwrap();
                stage.close(id(1)).unwrap();
                stage.open_cached(greedy(2, &text), &keys(&[10, 11])).unwrap();
            }
            let got = engines.logits(vec![part(2, 2 * PAGE, &text[2 * PAGE..], false)]).unwrap();
            let rest = &want[2 * PAGE * fixture.vocab..];
            assert_same_bits(&got, rest, &format!("{} cut at {cuts:?}", fixture.name));
        }
    }
}

#[test]
fn a_page_read_by_a_running_sequence_may_be_shared_and_diverges_behind_it() {
    let fixture = Fixture::load("qwen3-f16");
    let (mut engine, text) = (filled(&fixture), text(&fixture));
    let pages_free = engine.report().pages_free;
    engine.open_cached(greedy(2, &text), &keys(&[10])).unwrap();
    assert_eq!(engine.report().pages_free, pages_free, "sharing takes no page");
    let mut pipeline = common::Pipeline { stages: vec![engine] };
    let other: Vec<u32> = text[PAGE..].iter().rev().copied().collect();
    let own: Vec<u32> = text[..PAGE].iter().chain(&other).copied().collect();
    let got =
        pipeline.logits(vec![part(1, text.len(), &text[..3], false), part(2, PAGE, &other, false)]).unwrap();
    let want = solo(&fixture.gguf(), options(), 1).logits_in_chunks(&own, 64);
    assert_same_bits(&got[3 * fixture.vocab..], &want[PAGE * fixture.vocab..], "the other continuation");
    let first: Vec<u32> = text.iter().chain(&text[..3]).copied().collect();
    let want = solo(&fixture.gguf(), options(), 1).logits_in_chunks(&first, 64);
    assert_same_bits(&got[..3 * fixture.vocab], &want[text.len() * fixture.vocab..], "the first goes on");
}

#[test]
fn a_kept_page_is_free_when_it_is_forgotten_and_nobody_reads_it() {
    let fixture = Fixture::load("qwen3-f16");
    let mut engine = filled(&fixture);
    let all = engine.report().pages_total;
    engine.close(id(1)).unwrap();
    assert_eq!((engine.report().pages_free, engine.report().pages_kept), (all - 3, 3));
    engine.open_cached(greedy(2, &text(&fixture)), &keys(&[10])).unwrap();
    engine.forget(&keys(&[10, 11, 12])).unwrap();
    assert_eq!((engine.report().pages_free, engine.report().pages_kept), (all - 1, 0));
    engine.close(id(2)).unwrap();
    assert_eq!(engine.report().pages_free, all);
}

#[test]
fn what_cannot_be_kept_or_shared_is_refused_by_name_and_changes_nothing() {
    let fixture = Fixture::load("qwen3-f16");
    let (mut engine, text) = (filled(&fixture), text(&fixture));
    let before = engine.report();
    let sequence = id(1);
    let not_full = engine.keep(sequence, &[(0, PageKey(20)), (3, PageKey(21))]);
    assert_eq!(not_full, Err(SequenceError::PageNotFull { sequence, index: 3, has: text.len() as u32 }));
    for twice in [&[(0, PageKey(10))][..], &[(0, PageKey(20)), (1, PageKey(20))]] {
        let key = twice[0].1;
        assert_eq!(engine.keep(sequence, twice), Err(SequenceError::PageTaken { key }));
    }
    let unknown = Err(SequenceError::PageUnknown { key: PageKey(99) });
    assert_eq!(engine.open_cached(greedy(2, &text), &keys(&[10, 99])), unknown);
    assert_eq!(engine.forget(&keys(&[10, 99])), unknown);
    let mut foreign = greedy(2, &text);
    foreign.principal = Principal([3; 16]);
    let refused = engine.open_cached(foreign, &keys(&[10]));
    assert_eq!(refused, Err(SequenceError::PageForeign { key: PageKey(10) }));
    let short = engine.open_cached(greedy(2, &text[..PAGE]), &keys(&[10, 11]));
    assert_eq!(short, Err(SequenceError::CachedBeyondHistory { cached_tokens: 2 * PAGE, tokens: PAGE }));
    assert_eq!(engine.report(), before);
}

#[test]
fn a_shared_page_is_never_written() {
    let fixture = Fixture::load("qwen3-f16");
    let mut engine = common::Pipeline { stages: vec![filled(&fixture)] };
    let position = PAGE as u32 + 3;
    let mut again = part(1, PAGE + 3, &[5], false);
    again.truncate_to = Some(position);
    let refused = engine.logits(vec![again.clone()]);
    assert_eq!(refused, Err(StepError::SharedPage { sequence: id(1), position }));
    engine.stages[0].forget(&keys(&[11])).unwrap();
    assert!(engine.logits(vec![again]).is_ok(), "its own again");
}

#[test]
fn after_a_reset_nothing_is_open_or_kept_and_the_answers_are_those_of_a_new_engine() {
    for fixture in one_of_each() {
        let text = text(&fixture);
        let new = || solo(&fixture.gguf(), options(), 1);
        let want =
            (new().logits_in_chunks(&text, 64), new().generate(&text[..9], 4, 6, SamplingParams::greedy()));
        let mut engine = filled(&fixture);
        engine.open_cached(greedy(2, &text), &keys(&[10])).unwrap();
        let before = engine.report();
        assert!(before.pages_kept == 3 && before.sequences == 2, "{before:?}");
        let memory = engine.device().memory().allocated_bytes;
        engine.reset(&[]);
        let after = engine.report();
        assert_eq!((after.pages_free, after.pages_kept, after.sequences), (before.pages_total, 0, 0));
        let held = |r: &exo_engine::EngineReport| (r.weight_bytes, r.kv_bytes, r.workspace_bytes, r.steps);
        assert_eq!(held(&after), held(&before));
        assert_eq!(engine.device().memory().allocated_bytes, memory, "it holds what it held, once");
        // The same ids and names are free again, for whoever comes.
        let unknown = SequenceError::PageUnknown { key: PageKey(10) };
        assert_eq!(engine.open_cached(greedy(1, &text), &keys(&[10])), Err(unknown));
        let mut pipeline = common::Pipeline { stages: vec![engine] };
        assert_same_bits(&pipeline.logits_in_chunks(&text, 64), &want.0, &fixture.name);
        assert_eq!(pipeline.generate(&text[..9], 4, 6, SamplingParams::greedy()), want.1, "{}", fixture.name);
    }
}

#[test]
fn pages_that_a_reset_leaves_are_begun_with() {
    for fixture in one_of_each() {
        let text = text(&fixture);
        let want = solo(&fixture.gguf(), options(), 1).logits_in_chunks(&text, 64);
        let mut engine = filled(&fixture);
        engine.reset(&keys(&[10, 11, 99]));
        let after = engine.report();
        assert_eq!((after.pages_free, after.pages_kept, after.sequences), (after.pages_total - 2, 2, 0));
        engine.open_cached(greedy(1, &text), &keys(&[10, 11])).unwrap();
        let mut pipeline = common::Pipeline { stages: vec![engine] };
        let got = pipeline.logits(vec![part(1, 2 * PAGE, &text[2 * PAGE..], false)]).unwrap();
        assert_same_bits(&got, &want[2 * PAGE * fixture.vocab..], &fixture.name);
    }
}

#[test]
fn what_another_principal_left_is_cleared_after_a_reset_too() {
    let fixture = Fixture::load("qwen3-f16");
    let text = text(&fixture);
    let mut engine = filled(&fixture);
    engine.reset(&[]);
    let mut other = greedy(5, &text);
    other.principal = Principal([3; 16]);
    engine.open(other).unwrap();
    let mut pipeline = common::Pipeline { stages: vec![engine] };
    let mut own = part(5, 0, &text, false);
    own.principal = Principal([3; 16]);
    let want = solo(&fixture.gguf(), options(), 1).logits_in_chunks(&text, 64);
    assert_same_bits(&pipeline.logits(vec![own]).unwrap(), &want, "in pages of another");
}
