//! What masks and compiling cost: `cargo run --release -p exo-constraint --example masks`. The figures of
//! decision 0033. With `--bounds` its exit status is 1 if one of issue 19's is missed.

#![allow(clippy::print_stdout)]

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use exo_constraint::{
    Arguments, Body, CallShape, Calls, Compiler, Layout, Part, Schema, Strictness, TemplatePiece, Thought,
    TokenKind, Vocabulary,
};
use exo_sampler::{Sampler, TokenConstraint};
use exo_types::{Constraint, SamplingParams};
use serde_json::{Value, json};

const TOKENS: u32 = 150_000;

/// Bytes, then words of letters, digits and the signs of JSON, some with a space in front: as a large
/// vocabulary has them.
fn vocabulary() -> Vocabulary {
    let mut state = 1u64;
    let mut next = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let (letters, signs) = (
        b"etaoinshrdlucmfwypvbgkjqxz",
        [&b"\""[..], b"\": ", b"\", \"", b"{\"", b"}", b"]", b", ", b"0", b"12"],
    );
    let mut seen = BTreeSet::new();
    let words = (256..TOKENS - 1).map(|id| {
        let mut word = Vec::new();
        // No two tokens of a vocabulary are the same text.
        while !seen.insert(word.clone()) || word.len() < 2 {
            word.clear();
            if next(2) == 0 {
                word.push(b' ');
            }
            (0..=1 + next(9)).for_each(|_| {
                let at = next(26).min(next(26));
                word.push(letters[at]);
            });
            if id % 40 == 0 {
                word.extend_from_slice(signs[next(signs.len())]);
            }
        }
        TokenKind::Bytes(word)
    });
    let bytes = (0..=255u8).map(|byte| TokenKind::Bytes(vec![byte]));
    let tokens: Vec<TokenKind> = bytes.chain(words).chain([TokenKind::Control]).collect();
    Vocabulary::new(tokens.into_iter(), &[TOKENS - 1]).expect("it has an end")
}

/// A schema like those of records and of agents' tools.
fn schema(i: usize) -> Value {
    let field = |n: usize| match (n + i) % 6 {
        0 => json!({"type": "string", "maxLength": 40, "description": "Some words about the field."}),
        1 => json!({"type": "integer", "minimum": 0, "maximum": 10_000}),
        2 => json!({"enum": ["low", "medium", "high"]}),
        3 => json!({"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 5}),
        4 => {
            json!({"type": "object", "properties": {"path": {"type": "string", "maxLength": 30}, "line": {"type": "integer"}},
            "required": ["path"], "additionalProperties": false})
        }
        _ => json!({"anyOf": [{"type": "boolean"}, {"type": "null"}]}),
    };
    let names: Vec<String> = (0..2 + i % 9).map(|n| format!("field_{n}")).collect();
    let properties: serde_json::Map<String, Value> =
        names.iter().enumerate().map(|(n, name)| (name.clone(), field(n))).collect();
    json!({"type": "object", "properties": properties, "required": names, "additionalProperties": false})
}

fn layout(i: usize) -> Layout {
    let read = |i| Schema::read(&schema(i), Strictness::Whole).expect("enforceable").value;
    let thought = Thought::No;
    if i.is_multiple_of(2) {
        return Layout { thought, answer_open: Vec::new(), spelled: Vec::new(), body: Body::Json(read(i)) };
    }
    let text = |text: &str| vec![TemplatePiece::Text(text.to_owned())];
    let tool = |n: usize| CallShape {
        head: vec![Part::Text(format!("{{\"name\": \"tool_{n}\", \"arguments\": "))],
        other_head: Vec::new(),
        arguments: Arguments::Json(read(n)),
        tail: vec![Part::Text("}".to_owned())],
    };
    let body = Body::Calls(Calls {
        begin: text("<tool_call>\n"),
        other_begin: None,
        between: text("\n</tool_call>\n<tool_call>\n"),
        end: text("\n</tool_call>"),
        tools: (0..1 + i % 50).map(tool).collect(),
        is_parallel: true,
        is_required: i % 4 == 1,
        answer: None,
    });
    Layout { thought, answer_open: Vec::new(), spelled: Vec::new(), body }
}

/// Prints them; whether half take less than `median` and 99 of 100 less than `p99` microseconds.
fn line(what: &str, mut times: Vec<Duration>, [median, p99]: [f64; 2]) -> bool {
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
    println!(
        "{what}: {} of them, mean {:.0} us, median {:.0} us, p99 {:.0} us, longest {:.0} us",
        times.len(),
        times.iter().sum::<Duration>().as_secs_f64() / times.len() as f64 * 1e6,
        at(0.5),
        at(0.99),
        at(1.0)
    );
    at(0.5) < median && at(0.99) < p99
}

fn main() -> ExitCode {
    let began = Instant::now();
    let vocabulary = vocabulary();
    println!("a vocabulary of {TOKENS}: {:.0} ms", began.elapsed().as_secs_f64() * 1e3);
    let began = Instant::now();
    // No one knows the spelling of these words: the longest that fit are taken, which costs about the same.
    let compiler = Compiler::new(vocabulary).expect("a compiler").with_spelling(Arc::new(|_| Vec::new()));
    println!("its slices: {:.0} ms", began.elapsed().as_secs_f64() * 1e3);
    let (mut compiles, mut costs) = (Vec::new(), Costs::default());
    for i in 0..200 {
        let grammar = layout(i).grammar();
        let began = Instant::now();
        let constraint = compiler.constrain(grammar).expect("it compiles");
        compiles.push(began.elapsed());
        draw(&compiler, &constraint, i as u64, &mut costs);
    }
    let no_bound = [f64::INFINITY; 2];
    let are_kept = [
        line("compile", compiles, [10_000.0, f64::INFINITY]),
        line("mask", costs.masks, [100.0, 5_000.0]),
        line("check of a token", costs.checks, no_bound),
        line("what is forced", costs.forced, no_bound),
        line("a token with a mask", costs.samples, no_bound),
        line("a token without", costs.plain, no_bound),
    ];
    ExitCode::from(u8::from(std::env::args().any(|arg| arg == "--bounds") && are_kept.contains(&false)))
}

/// What each took.
#[derive(Default)]
struct Costs {
    masks: Vec<Duration>,
    checks: Vec<Duration>,
    forced: Vec<Duration>,
    samples: Vec<Duration>,
    plain: Vec<Duration>,
}

/// Random tokens that may come, up to 60.
fn draw(compiler: &Compiler, constraint: &Constraint, seed: u64, costs: &mut Costs) {
    let mut fold = compiler.start(constraint).expect("compiled before");
    let params = SamplingParams { temperature: 1.0, seed, ..SamplingParams::greedy() };
    let other = compiler.start(constraint).expect("compiled before");
    let mut plain = Sampler::new(params.clone(), &[], 0);
    let mut sampler = Sampler::constrained(params, &[], 0, Some(Box::new(other)));
    let logits: Vec<f32> =
        (0..u64::from(TOKENS)).map(|t| ((t * 7919 + seed * 31) % 101) as f32 / 20.0).collect();
    for position in 0..60 {
        let began = Instant::now();
        fold.mask().expect("it goes on");
        costs.masks.push(began.elapsed());
        let began = Instant::now();
        fold.forced();
        costs.forced.push(began.elapsed());
        let began = Instant::now();
        let token = sampler.sample(&logits, position).expect("finite").token;
        costs.samples.push(began.elapsed());
        let began = Instant::now();
        plain.sample(&logits, position).expect("finite");
        costs.plain.push(began.elapsed());
        if token == TOKENS - 1 {
            return;
        }
        sampler.accept(token);
        let began = Instant::now();
        assert!(fold.allows(token).expect("it goes on"), "drawn, and not allowed");
        fold.accept(token);
        costs.checks.push(began.elapsed());
    }
}
