//! Tokens that a grammar forces are named, are what comes, and asking for them changes nothing.

#![allow(clippy::unwrap_used)] // the exemption for tests does not reach helpers of integration tests

mod common;

use std::sync::Arc;

use common::{layout, start};
use exo_constraint::{
    Arguments, Body, CallShape, Calls, Compiler, Layout, Part, Schema, Strictness, TemplatePiece, TokenKind,
};
use exo_sampler::{Sampler, TokenConstraint};
use exo_types::SamplingParams;
use serde_json::json;

/// Ids: 0..256 the bytes, then these, a control token, an end.
const WORDS: [&str; 9] = ["{\"", "name", "\":", " \"", "\",", "ok", " true", " false", "é"];
const CONTROL: u32 = 265;
const END: u32 = 266;

fn bytes_of(token: u32) -> Vec<u8> {
    match token {
        0..=255 => vec![token as u8],
        _ => WORDS.get(token as usize - 256).map_or_else(Vec::new, |word| word.as_bytes().to_vec()),
    }
}

/// Longest words first.
fn spell(text: &str) -> Vec<u32> {
    let (mut tokens, mut rest) = (Vec::new(), text);
    while let Some(byte) = rest.bytes().next() {
        let found = WORDS.iter().enumerate().filter(|(_, word)| rest.starts_with(**word));
        let longest = found.max_by_key(|(_, word)| word.len()).map(|(i, word)| (256 + i as u32, word.len()));
        let Some((token, len)) = longest else {
            assert!(byte.is_ascii(), "{rest}");
            tokens.push(byte.into());
            rest = &rest[1..];
            continue;
        };
        tokens.push(token);
        rest = &rest[len..];
    }
    tokens
}

fn compiler() -> Compiler {
    common::compiler(&WORDS, vec![TokenKind::Control, TokenKind::Control], END)
}

fn record() -> Layout {
    let schema = json!({
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "ok": {"type": "boolean"}, "é": {"const": "né"}},
        "required": ["name", "ok", "é"],
        "additionalProperties": false,
    });
    layout(Body::Json(Schema::read(&schema, Strictness::Whole).unwrap().value))
}

/// A call in control tokens.
fn calls() -> Layout {
    let sign = |text: &str| vec![TemplatePiece::Control(CONTROL), TemplatePiece::Text(text.to_owned())];
    let arguments = Schema::read(&json!({"type": "object", "maxProperties": 0}), Strictness::Whole).unwrap();
    let tool = CallShape {
        head: vec![Part::Text("{\"name\": \"f\", \"arguments\": ".to_owned())],
        other_head: Vec::new(),
        arguments: Arguments::Json(arguments.value),
        tail: vec![Part::Text("}".to_owned())],
    };
    layout(Body::Calls(Calls {
        begin: sign("\n"),
        other_begin: None,
        between: sign("\n"),
        end: sign(""),
        tools: vec![tool],
        is_parallel: false,
        is_required: true,
        answer: None,
    }))
}

fn text(tokens: &[u32]) -> String {
    String::from_utf8(tokens.iter().flat_map(|token| bytes_of(*token)).collect()).unwrap()
}

#[test]
fn what_has_to_follow_is_named_as_the_tokenizer_spells_it() {
    let compiler = compiler().with_spelling(Arc::new(spell));
    let mut fold = start(&compiler, &record());
    assert_eq!(fold.forced(), spell("{\"name\": \""));
    fold.accept(256);
    assert_eq!(fold.forced(), spell("name\": \""));
    for token in spell("name\": \"A") {
        fold.accept(token);
    }
    assert_eq!(fold.forced(), [0; 0], "a string may go on or end");
    fold.accept(260);
    assert_eq!(text(&fold.forced()), " \"ok\": ");
    for token in spell(" \"ok\": t") {
        fold.accept(token);
    }
    assert_eq!(text(&fold.forced()), "rue, \"é\": \"né\"}");
    for token in spell("rue, \"é\": \"né\"}") {
        fold.accept(token);
    }
    assert_eq!((fold.forced(), fold.may_end()), (vec![], Ok(true)));
    fold.accept(END);
    assert_eq!(fold.forced(), [0; 0]);
    // Nobody knows how the text is spelled.
    assert_eq!(start(&self::compiler(), &record()).forced(), [0; 0]);
}

#[test]
fn forced_control_tokens_are_named_by_their_numbers() {
    let compiler = compiler().with_spelling(Arc::new(spell));
    let mut fold = start(&compiler, &calls());
    let first = fold.forced();
    assert_eq!((first[0], first[1], first.len()), (CONTROL, u32::from(b'\n'), 16), "at most so many");
    let mut answer = Vec::new();
    for _ in 0..9 {
        let forced = fold.forced();
        let Some(&token) = forced.first() else { break };
        forced.iter().for_each(|token| fold.accept(*token));
        answer.extend(forced);
        assert!(token < END && fold.why_stuck().is_none(), "{fold:?}");
    }
    let end = answer.iter().rposition(|token| *token == CONTROL);
    assert_eq!(text(&answer), "\n{\"name\": \"f\", \"arguments\": {}}");
    assert_eq!((end, fold.may_end()), (Some(answer.len() - 1), Ok(true)));
}

#[test]
fn asking_changes_no_mask_and_what_is_forced_comes() {
    // A tokenizer that answers with what was not asked, with what there is not, and as it should.
    let spellings: [fn(&str) -> Vec<u32>; 3] =
        [|text| spell(&format!(" {text}")), |_| vec![9_999_999], spell];
    let plain = compiler();
    for (spelling, layout) in spellings.into_iter().zip([record(), calls(), record()]) {
        let asking = compiler().with_spelling(Arc::new(spelling));
        for seed in 0..20 {
            let constraint = plain.constrain(layout.grammar()).unwrap();
            let mut asked = asking.start(&constraint).unwrap();
            let mut left_alone = plain.start(&constraint).unwrap();
            let params = SamplingParams { temperature: 1.0, seed, ..SamplingParams::greedy() };
            let mut sampler =
                Sampler::constrained(params, &[], 0, Some(Box::new(plain.start(&constraint).unwrap())));
            let logits: Vec<f32> =
                (0..=u64::from(END)).map(|t| ((t * 7919 + seed * 31) % 101) as f32 / 20.0).collect();
            let (mut answer, mut forced) = (Vec::new(), Vec::new());
            for position in 0..400 {
                // From the middle on: a fold that is asked late knows what came before.
                if seed % 2 == 0 || position > 6 {
                    let tokens = asked.forced();
                    assert!(tokens.len() <= 16, "{tokens:?}");
                    forced.push((answer.len(), tokens));
                }
                assert_eq!(asked.mask().unwrap(), left_alone.mask().unwrap(), "seed {seed} at {position}");
                let token = sampler.sample(&logits, position).unwrap().token;
                if token == END {
                    break;
                }
                for fold in [&mut asked, &mut left_alone] {
                    fold.accept(token);
                }
                sampler.accept(token);
                answer.push(token);
            }
            let named = forced.iter().filter(|(_, tokens)| !tokens.is_empty()).count();
            assert!(named > 0, "none in {answer:?}");
            // Control tokens in the place of their bytes.
            let shown = |tokens: &[u32]| -> Vec<u8> {
                tokens.iter().flat_map(|t| if *t == CONTROL { vec![0xff] } else { bytes_of(*t) }).collect()
            };
            for (at, tokens) in forced {
                let (comes, said) = (shown(&answer[at..]), shown(&tokens));
                let both = comes.len().min(said.len());
                assert_eq!(comes[..both], said[..both], "seed {seed} at {at}");
            }
        }
    }
}
