//! Answers to 300 bounded schemas, 5 seeds and 3 vocabularies each, from logits that know nothing, at
//! temperature 1: a line of JSON each, with the schema. What is not over after some tokens is cut, and goes
//! on with tokens that close. Whether they are of their schema says another validator:
//! `cargo xtask prove constrained`.

#![allow(clippy::print_stdout)]

use std::collections::BTreeSet;

use exo_constraint::{Body, Compiler, Layout, Schema, Strictness, Thought, TokenKind, Vocabulary};
use exo_sampler::Sampler;
use exo_types::{Constraint, SamplingParams};
use serde_json::{Map, Value, json};

const SCHEMAS: u64 = 300;
const SEEDS: u64 = 5;
const VOCABULARIES: [u32; 3] = [512, 32_000, 150_000];
/// An answer that is longer is cut.
const TOKENS_MAX: u64 = 400;
/// What is cut is over after so many more.
const CLOSING_MAX: u64 = 2_000;

/// xorshift64.
struct Random(u64);

impl Random {
    fn below(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) % below
    }
}

/// Bytes, words of letters and digits, and what JSON is written with; the last ends an answer.
fn words(count: u32) -> Vec<Vec<u8>> {
    let signs = ["\"", "\": ", "\", \"", "{\"", "}", "]", ", ", "é", "null", "true", "\\n", "-", "0.5"];
    let mut random = Random(7);
    let mut words: Vec<Vec<u8>> = (0..=255u8).map(|byte| vec![byte]).collect();
    let mut seen: BTreeSet<Vec<u8>> = words.iter().cloned().collect();
    while words.len() < count as usize - 1 {
        let space = if random.below(2) == 0 { " " } else { "" };
        let letters = (0..=random.below(8)).map(|_| (b'a' + random.below(26) as u8) as char);
        let mut word: String = space.chars().chain(letters).collect();
        match random.below(12) {
            0 => word.push_str(signs[random.below(signs.len() as u64) as usize]),
            1 => word = random.below(1000).to_string(),
            _ => {}
        }
        if seen.insert(word.clone().into_bytes()) {
            words.push(word.into_bytes());
        }
    }
    words
}

/// A schema whose values are bounded, so that answers end by themselves.
fn schema(random: &mut Random, depth: u64) -> Value {
    let kinds = if depth == 0 { 9 } else { 13 };
    match random.below(kinds) {
        0 => json!({"type": "string", "maxLength": 1 + random.below(20)}),
        1 => json!({"type": "string", "minLength": 2, "maxLength": 2 + random.below(9)}),
        2 => json!({"type": "integer", "minimum": -(random.below(50) as i64), "maximum": random.below(5000)}),
        3 => json!({"enum": ["low", "medium", "high", 3, null]}),
        4 => json!({"type": ["boolean", "null"]}),
        5 => json!({"type": "string", "pattern": "^[a-f0-9]{4}(-[A-Z]{2,3})?$"}),
        6 => json!({"const": {"kind": "fixed", "at": [1, "two"]}}),
        7 => {
            json!({"type": "string", "format": (["date", "time", "uuid", "ipv4", "date-time"])[random.below(5) as usize]})
        }
        8 => json!({"type": "number", "exclusiveMinimum": 0, "maximum": 10}),
        9 => {
            json!({"type": "array", "items": schema(random, depth - 1), "minItems": random.below(2), "maxItems": 3})
        }
        10 => json!({"anyOf": [schema(random, depth - 1), schema(random, depth - 1)]}),
        _ => object(random, depth - 1),
    }
}

fn object(random: &mut Random, depth: u64) -> Value {
    let names = ["name", "id", "size-2", "naïve", "with \"quotes\"", "tags"];
    let count = 1 + random.below(names.len() as u64) as usize;
    let properties: Map<String, Value> =
        names[..count].iter().map(|name| ((*name).to_owned(), schema(random, depth))).collect();
    let required: Vec<&str> = names[..count].iter().copied().filter(|_| random.below(3) > 0).collect();
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

fn main() {
    std::thread::scope(|scope| {
        for count in VOCABULARIES {
            scope.spawn(move || answer_all(count));
        }
    });
}

fn answer_all(count: u32) {
    let words = words(count);
    let kinds = words.iter().cloned().map(TokenKind::Bytes).chain([TokenKind::Control]);
    let compiler =
        Compiler::new(Vocabulary::new(kinds, &[count - 1]).expect("it has an end")).expect("a compiler");
    let closing: Vec<f32> = words.iter().map(|word| closes(word)).chain([9.0]).collect();
    for number in 0..SCHEMAS {
        let asked = object(&mut Random(number * 2 + 1), 2);
        let read = Schema::read(&asked, Strictness::Whole).expect("bounded, and known").value;
        let layout =
            Layout { thought: Thought::No, answer_open: vec![], spelled: vec![], body: Body::Json(read) };
        let constraint = compiler.constrain(layout.grammar()).expect("it compiles");
        for seed in 0..SEEDS {
            let mut tokens = Vec::new();
            let logits = |position| logits(count, number * SEEDS + seed, position);
            let is_cut = !draw(&compiler, &constraint, seed, (&mut tokens, TOKENS_MAX), logits);
            if is_cut {
                let end = TOKENS_MAX + CLOSING_MAX;
                draw(&compiler, &constraint, seed, (&mut tokens, end), |_| closing.clone());
            }
            let bytes: Vec<u8> = tokens.iter().flat_map(|token| words[*token as usize].clone()).collect();
            let answer = String::from_utf8(bytes).expect("what a grammar takes is UTF-8");
            println!("{}", json!({"vocabulary": count, "schema": asked, "answer": answer, "is_cut": is_cut}));
        }
    }
}

/// Goes on with an answer. Whether it ended by itself.
fn draw(
    compiler: &Compiler,
    constraint: &Constraint,
    seed: u64,
    (tokens, tokens_max): (&mut Vec<u32>, u64),
    logits: impl Fn(u64) -> Vec<f32>,
) -> bool {
    let params = SamplingParams { temperature: 1.0, seed, ..SamplingParams::greedy() };
    let fold = Box::new(compiler.start(constraint).expect("it compiled"));
    let mut sampler = Sampler::constrained(params, tokens, 0, Some(fold));
    for position in tokens.len() as u64..tokens_max {
        let token = sampler.sample(&logits(position), position).expect("finite").token;
        if compiler.vocabulary().end_ids().contains(&token) {
            return true;
        }
        sampler.accept(token);
        tokens.push(token);
    }
    false
}

/// As random weights give them: no token is the likelier one for long.
fn logits(count: u32, seed: u64, position: u64) -> Vec<f32> {
    let salt = (seed << 20 ^ position).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let hash = |token: u32| (u64::from(token) ^ salt).wrapping_mul(0x2545_F491_4F6C_DD1D) >> 40;
    (0..count).map(|token| hash(token) as f32 / (1 << 23) as f32 * 3.0).collect()
}

/// What ends values and texts comes first.
fn closes(word: &[u8]) -> f32 {
    match word {
        b"\"" | b"}" | b"]" => 8.0,
        b", " | b"," => 6.0,
        [b'0'..=b'9'] => 2.0,
        _ => 0.0,
    }
}
