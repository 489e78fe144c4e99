//! What is asked of a prompt itself: vectors and scores against transformers, and the same however the work
//! is cut up.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::path::Path;

use crate::common::{Pipeline, id, options, part, solo, spec, split};
use exo_engine::SequenceError;
use exo_formats::TensorName;
use exo_golden::Fixture;
use exo_types::{
    DType, PageKey, Pooling, PromptQuery, PromptReport, SamplingParams, SequenceSpec, StepSequence,
};

const POOLINGS: [Pooling; 3] = [Pooling::First, Pooling::Mean, Pooling::Last];

fn asking(n: u16, tokens: &[u32], query: PromptQuery) -> SequenceSpec {
    let sampling = SamplingParams { logprobs: Some(3), ..SamplingParams::greedy() };
    SequenceSpec { query, ..spec(n, tokens, sampling) }
}

/// What is reported of `tokens`, read in chunks, with what `beside` gives in each step.
fn report(
    pipeline: &mut Pipeline,
    tokens: &[u32],
    query: PromptQuery,
    chunk: usize,
    mut beside: impl FnMut(usize) -> Option<StepSequence>,
) -> PromptReport {
    pipeline.open(&asking(7, tokens, query));
    let (mut found, chunks) = (None, tokens.chunks(chunk).count());
    for (i, piece) in tokens.chunks(chunk).enumerate() {
        let own = part(7, i * chunk, piece, i + 1 == chunks);
        let parts = beside(i).into_iter().chain([own]).collect();
        for (sequence, sampled) in pipeline.step(parts).unwrap() {
            if sequence == id(7) {
                assert!(found.is_none(), "one token, one report");
                found = sampled.prompt;
            }
        }
    }
    pipeline.close(id(7));
    (*found.unwrap()).clone()
}

fn embedding(pipeline: &mut Pipeline, tokens: &[u32], pooling: Pooling, chunk: usize) -> Vec<f32> {
    match report(pipeline, tokens, PromptQuery::Embedding(pooling), chunk, |_| None) {
        PromptReport::Embedding(vector) => vector,
        PromptReport::Scores(_) => panic!("a vector was asked for"),
    }
}

/// `[V, C]` of the head; `None` where it is stored in another type than those that are read here.
fn head(path: &Path) -> Option<Vec<f64>> {
    let model = exo_formats::open(path).unwrap();
    let name = if model.config.tied { TensorName::Embedding } else { TensorName::Head };
    let view = model.tensor(name).unwrap();
    let bytes = view.bytes();
    match view.dtype {
        DType::F32 => Some(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b).into()).collect()),
        DType::BF16 => {
            let value = |b: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16).into();
            Some(bytes.as_chunks::<2>().0.iter().map(value).collect())
        }
        _ => None,
    }
}

fn cosine(a: &[f64], b: &[f64]) -> f64 {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// The head is linear: its product with a vector is the pooled row of transformers' logits, and only with
/// that vector, as there are more logits than elements.
#[test]
fn vectors_are_those_that_the_logits_of_transformers_come_from() {
    let mut compared = 0;
    for fixture in Fixture::all().into_iter().filter(|fixture| fixture.hugging_face) {
        let Some(head) = head(&fixture.gguf()) else { continue };
        let rows: Vec<Vec<f64>> = fixture
            .logits()
            .chunks_exact(fixture.vocab)
            .map(|row| row.iter().map(|value| f64::from(*value)).collect())
            .collect();
        assert_eq!(rows.len(), fixture.prompt.len());
        let mut pipeline = solo(&fixture.gguf(), options(), 1);
        for pooling in POOLINGS {
            let vector = embedding(&mut pipeline, &fixture.prompt, pooling, 64);
            assert!(vector.len() < fixture.vocab, "else the head would not tell vectors apart");
            let logits: Vec<f64> = head
                .chunks_exact(vector.len())
                .map(|row| row.iter().zip(&vector).map(|(w, x)| w * f64::from(*x)).sum())
                .collect();
            let mean = |v: usize| rows.iter().map(|row| row[v]).sum::<f64>() / rows.len() as f64;
            let want: Vec<f64> = match pooling {
                Pooling::First => rows[0].clone(),
                Pooling::Last => rows[rows.len() - 1].clone(),
                Pooling::Mean => (0..fixture.vocab).map(mean).collect(),
            };
            let cosine = cosine(&logits, &want);
            println!("{:20} {pooling:?} {cosine}", fixture.name);
            assert!(cosine >= 0.9999, "{} {pooling:?}: {cosine}", fixture.name);
        }
        compared += 1;
    }
    assert!(compared >= 2, "{compared} fixtures have a head that can be read here");
}

#[test]
fn scores_are_the_log_probabilities_of_transformers_logits() {
    let fixture = Fixture::load("llama-f32");
    let logits = fixture.logits();
    let mut pipeline = solo(&fixture.gguf(), options(), 1);
    let PromptReport::Scores(scores) =
        report(&mut pipeline, &fixture.prompt, PromptQuery::Scores, 64, |_| None)
    else {
        panic!("scores were asked for")
    };
    assert_eq!(scores.len(), fixture.prompt.len() - 1);
    for ((row, next), score) in logits.chunks_exact(fixture.vocab).zip(&fixture.prompt[1..]).zip(&scores) {
        let sum: f64 = row.iter().map(|value| f64::from(*value).exp()).sum();
        let of = |token: u32| f64::from(row[token as usize]) - sum.ln();
        assert!((f64::from(score.logprob) - of(*next)).abs() < 1e-3, "{score:?}, {}", of(*next));
        let best = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
        assert_eq!((score.top.len(), score.top[0].0), (3, best as u32));
    }
}

#[test]
fn cut_split_and_batched_the_report_has_the_same_bits() {
    for name in ["qwen3-f16", "llama-q4_0"] {
        let fixture = Fixture::load(name);
        let tokens = &fixture.prompt;
        let queries = POOLINGS.map(PromptQuery::Embedding).into_iter().chain([PromptQuery::Scores]);
        for query in queries {
            let want = report(&mut solo(&fixture.gguf(), options(), 1), tokens, query, 64, |_| None);
            for chunk in [1, 7] {
                let got = report(&mut solo(&fixture.gguf(), options(), 1), tokens, query, chunk, |_| None);
                assert_eq!(got, want, "{name} {query:?} in chunks of {chunk}");
            }
            let mut stages = split(&fixture.gguf(), &[1], options(), 1);
            assert_eq!(report(&mut stages, tokens, query, 5, |_| None), want, "{name} {query:?} split");
            let other: Vec<u32> = tokens.iter().rev().copied().collect();
            let mut both = solo(&fixture.gguf(), options(), 1);
            both.open(&asking(8, &other, PromptQuery::Embedding(Pooling::Mean)));
            let beside = |i: usize| Some(part(8, i, &other[i..=i], false));
            assert_eq!(report(&mut both, tokens, query, 9, beside), want, "{name} {query:?} in company");
        }
    }
}

#[test]
fn the_report_comes_once_and_not_behind_what_was_generated() {
    let fixture = Fixture::load("qwen3-f16");
    let mut pipeline = solo(&fixture.gguf(), options(), 1);
    let query = PromptQuery::Embedding(Pooling::Mean);
    // A replay: one token of the answer is there, and with it the report was.
    let replay =
        SequenceSpec { prompt_tokens: fixture.prompt.len() as u32 - 1, ..asking(1, &fixture.prompt, query) };
    pipeline.open(&replay);
    let tokens = pipeline.step(vec![part(1, 0, &fixture.prompt, true)]).unwrap();
    assert!(tokens[0].1.prompt.is_none());
    pipeline.close(id(1));
    pipeline.open(&asking(2, &fixture.prompt, query));
    let first = pipeline.step(vec![part(2, 0, &fixture.prompt, true)]).unwrap().remove(0).1;
    assert!(first.prompt.is_some());
    let second = pipeline.step(vec![part(2, fixture.prompt.len(), &[first.token], true)]).unwrap();
    assert!(second[0].1.prompt.is_none());
}

#[test]
fn a_query_of_all_rows_does_not_begin_with_kept_pages_and_one_of_the_last_may() {
    let fixture = Fixture::load("qwen3-f16");
    let page = options().page_tokens as usize;
    let tokens: Vec<u32> = fixture.prompt.iter().chain(&fixture.greedy).copied().take(page + 3).collect();
    let mut pipeline = solo(&fixture.gguf(), options(), 1);
    let last = PromptQuery::Embedding(Pooling::Last);
    let want = report(&mut pipeline, &tokens, last, 64, |_| None);
    let engine = &mut pipeline.stages[0];
    engine.open(spec(1, &tokens, SamplingParams::greedy())).unwrap();
    pipeline.step(vec![part(1, 0, &tokens, false)]).unwrap();
    let engine = &mut pipeline.stages[0];
    engine.keep(id(1), &[(0, PageKey(5))]).unwrap();
    engine.close(id(1)).unwrap();
    let refused = engine.open_cached(asking(2, &tokens, PromptQuery::Scores), &[PageKey(5)]).unwrap_err();
    assert!(matches!(refused, SequenceError::CachedQuery { cached_tokens, .. } if cached_tokens == page));
    engine.open_cached(asking(3, &tokens, last), &[PageKey(5)]).unwrap();
    let sampled = pipeline.step(vec![part(3, page, &tokens[page..], true)]).unwrap().remove(0).1;
    assert_eq!(sampled.prompt.as_deref(), Some(&want));
}
