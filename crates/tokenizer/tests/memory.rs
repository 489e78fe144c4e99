//! What a tokenizer holds. Beside four-bit weights of a small model a large vocabulary is no small matter.

#![cfg(target_os = "linux")] // the only system that tells what is resident

use exo_formats::{GgufTokenizer, Texts, TokenizerSource};
use exo_tokenizer::{EncodeOptions, Tokenizer};

const TOKENS: usize = 150_000;
/// Texts end to end, twice (as written and as bytes), and tables of numbers. With maps of `String`s it was 45
/// MB.
const BYTES_MAX: u64 = 16 << 20;

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a process is resident");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// Letters, and words that are made of two earlier ones each.
fn vocabulary() -> GgufTokenizer {
    let letters = ('a'..='z').map(String::from);
    let (mut tokens, mut merges) = (letters.collect::<Vec<_>>(), Texts::default());
    let mut known: std::collections::HashSet<_> = tokens.iter().cloned().collect();
    let mut state = 1_u64;
    while tokens.len() < TOKENS {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let pick = |bits: u32| (state >> bits) as usize & 0xffff;
        let (left, right) = (&tokens[pick(16) % tokens.len()], &tokens[pick(40) % tokens.len().min(700)]);
        let (word, merge) = (format!("{left}{right}"), format!("{left} {right}"));
        if word.len() < 14 && known.insert(word.clone()) {
            merges.push(&merge);
            tokens.push(word);
        }
    }
    let (model, pre, tokens) = ("gpt2".to_owned(), Some("qwen2".to_owned()), tokens.iter().collect());
    GgufTokenizer { model, pre, tokens, merges, ..GgufTokenizer::default() }
}

#[test]
fn a_vocabulary_of_a_hundred_and_fifty_thousand_tokens_takes_a_few_megabytes() {
    let source = TokenizerSource::Gguf(vocabulary());
    let before = resident_bytes();
    let tokenizer = Tokenizer::from_source(&source).expect("sound");
    let taken = resident_bytes().saturating_sub(before);
    assert!(taken < BYTES_MAX, "{taken} bytes for {TOKENS} tokens");
    // The first merge is the best one there is.
    let TokenizerSource::Gguf(keys) = &source else { unreachable!("it was made above") };
    let ids = tokenizer.encode(&keys.tokens[26], EncodeOptions::default()).expect("letters");
    assert_eq!(ids, [26], "{} is a word", &keys.tokens[26]);
}
