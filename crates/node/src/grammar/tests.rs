//! How many steps the tokens save that a grammar forces: a scheduler, and a stage that samples from scripted
//! logits.

use std::time::Duration;

use exo_cluster::wire::{StagePages, StepMessage, Submission, TokenResult, TokensMessage};
use exo_cluster::{Scheduler, SchedulerConfig, SchedulerInput, SchedulerOutput, Speculation};
use exo_constraint::{Body, Layout, Schema, Strictness, Thought};
use exo_sampler::Sampler;
use exo_types::{
    Attempt, DeviceId, Epoch, InstanceId, KvDType, ModelId, NodeId, Placement, PlacementId, Principal,
    PromptQuery, RequestId, SamplingParams, SequenceId, SequenceSpec, Shard, Stage, StepSequence, Term, Time,
};
use serde_json::{Value, json};

use super::*;

const NODE: NodeId = NodeId([1; 32]);
const PROMPT: [u32; 4] = [5, 6, 7, 8];
const SEQUENCE: SequenceId = SequenceId { request: RequestId(1), index: 0 };

/// A way to spell, and the grammars over its tokens.
struct Words {
    compiler: Compiler,
    spell: Arc<exo_constraint::Spelling>,
    end: u32,
    vocab: usize,
}

/// The built-in model's: names take several of its tokens.
fn small() -> Words {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../demo-model/exo-demo-Q8_0.gguf");
    let mut model = exo_formats::open(std::path::Path::new(path)).unwrap();
    let tokenizer = Tokenizer::from_source(&model.take_tokenizer()).unwrap();
    let ends = end_ids(&model.config, &tokenizer);
    let compiler = spelled_by(compiler(&tokenizer, &ends).unwrap(), tokenizer.clone());
    let vocab = tokenizer.vocab_len() as usize;
    let spell = move |text: &str| tokenizer.encode(text, EncodeOptions::default()).unwrap();
    Words { compiler, spell: Arc::new(spell), end: ends[0], vocab }
}

/// As large vocabularies spell: a name is one token, and so is a word of a value; digits are one each.
fn large() -> Words {
    let words: Vec<&str> = vec![
        "{\"", "\":", " \"", "\",", "\"}", "},", " {\"", "[{\"", "\"}]", "}]", " true", " false", " null",
        "id", "customer", "_name", "email", "city", "paid", "note", "Ada", " Love", "lace", "Grace", " Hop",
        "per", "ada", "@", "example", ".com", "London", "New", " York", "grace", "ships", " late", "address",
    ];
    let end = 256 + words.len() as u32;
    let bytes = (0..=255u8).map(|byte| TokenKind::Bytes(vec![byte]));
    let named = words.clone().into_iter().map(|word| TokenKind::Bytes(word.as_bytes().to_vec()));
    let vocabulary = Vocabulary::new(bytes.chain(named).chain([TokenKind::Control]), &[end]).unwrap();
    let spell = move |text: &str| {
        let (mut tokens, mut rest) = (Vec::new(), text.as_bytes());
        while let [byte, ..] = rest {
            let found = words.iter().enumerate().filter(|(_, word)| rest.starts_with(word.as_bytes()));
            let longest = found.max_by_key(|(_, word)| word.len());
            let (token, len) = longest.map_or(((*byte).into(), 1), |(i, word)| (256 + i as u32, word.len()));
            tokens.push(token);
            rest = &rest[len..];
        }
        tokens
    };
    let compiler = Compiler::new(vocabulary).unwrap().with_spelling(Arc::new(spell.clone()));
    Words { compiler, spell: Arc::new(spell), end, vocab: end as usize + 1 }
}

fn record() -> Value {
    json!({
        "type": "object",
        "properties": {
            "id": {"type": "integer"}, "customer_name": {"type": "string"}, "email": {"type": "string"},
            "address": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
                "additionalProperties": false},
            "paid": {"type": "boolean"}, "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "required": ["id", "customer_name", "email", "address", "paid", "note"],
        "additionalProperties": false,
    })
}

const ADA: &str = r#"{"id": 4071, "customer_name": "Ada Lovelace", "email": "ada@example.com", "address": {"city": "London"}, "paid": true, "note": null}"#;
const GRACE: &str = r#"{"id": 38, "customer_name": "Grace Hopper", "email": "grace@example.com", "address": {"city": "New York"}, "paid": false, "note": "ships late"}"#;

fn spec(constraint: Constraint) -> SequenceSpec {
    let sampling = SamplingParams { constraint: Some(Arc::new(constraint)), ..SamplingParams::greedy() };
    SequenceSpec {
        sequence: SEQUENCE,
        principal: Principal::LOCAL,
        driver: NODE,
        sampling,
        history: PROMPT.to_vec(),
        prompt_tokens: PROMPT.len() as u32,
        query: PromptQuery::Nothing,
    }
}

/// The only stage: it samples from logits that are for the script, whatever comes before.
struct Stand {
    sampler: Sampler,
    script: Vec<u32>,
    vocab: usize,
    /// Whether it says what is forced.
    tells: bool,
    answer: Vec<u32>,
}

impl Stand {
    fn compute(&mut self, part: &StepSequence) -> TokenResult {
        let (_, drafts) = part.split_drafts();
        let (position, mut tokens) = (part.sample_position(), Vec::new());
        assert_eq!(position as usize, PROMPT.len() + self.answer.len(), "one token after the other");
        loop {
            let mut logits = vec![0.0; self.vocab];
            logits[self.script[self.answer.len()] as usize] = 1.0;
            let sampled = self.sampler.sample(&logits, (PROMPT.len() + self.answer.len()) as u64).unwrap();
            self.sampler.accept(sampled.token);
            self.answer.push(sampled.token);
            tokens.push(sampled.clone());
            if drafts.get(tokens.len() - 1) != Some(&sampled.token) {
                break;
            }
        }
        let forced = if self.tells { self.sampler.forced() } else { Vec::new() };
        let (sequence, attempt, drafts) = (part.sequence, Attempt::FIRST, part.drafts);
        TokenResult { sequence, attempt, position, tokens, drafts, forced }
    }
}

/// The answer, and the steps that it took.
fn steps(
    words: &Words,
    schema: &Value,
    text: &str,
    speculation: Speculation,
    tells: bool,
) -> (Vec<u32>, u64) {
    let read = Schema::read(schema, Strictness::Whole).unwrap().value;
    let layout =
        Layout { thought: Thought::No, answer_open: Vec::new(), spelled: Vec::new(), body: Body::Json(read) };
    let constraint = words.compiler.constrain(layout.grammar()).unwrap();
    let spec = spec(constraint.clone());
    let fold = Box::new(words.compiler.start(&constraint).unwrap());
    let mut stand = Stand {
        sampler: Sampler::constrained(spec.sampling.clone(), &PROMPT, PROMPT.len() as u32, Some(fold)),
        script: [(words.spell)(text), vec![words.end]].concat(),
        vocab: words.vocab,
        tells,
        answer: Vec::new(),
    };
    let placement = placement();
    let config = SchedulerConfig { speculation, ..SchedulerConfig::default() };
    let mut now = Time::ZERO;
    let mut scheduler = Scheduler::new(config, now, placement.clone());
    let tokens = |step, results, pages| TokensMessage {
        placement: placement.id,
        term: Term::FIRST,
        step,
        results,
        failures: vec![],
        pages,
        kept: vec![],
        rebuilds: None,
        computed_us: vec![],
    };
    scheduler.tokens(now, NODE, &tokens(0, vec![], vec![StagePages { pages: 64, page_tokens: 32 }]));
    let (attempt, max_tokens, stop_tokens) = (Attempt::FIRST, 1000, vec![words.end]);
    let placement_id = placement.id;
    let submission = Submission {
        placement: placement_id,
        attempt,
        spec,
        max_tokens,
        stop_tokens,
        ignore_eos: false,
        speculate: true,
    };
    let mut out = scheduler.handle(now, SchedulerInput::Submit { from: NODE, submission });
    for steps in 0..1000 {
        let step = out.iter().find_map(|output| match output {
            SchedulerOutput::Step(StepMessage { frame, .. }) if !frame.sequences.is_empty() => Some(frame),
            _ => None,
        });
        let Some(frame) = step else { return (stand.answer, steps) };
        now = now + Duration::from_millis(10).mul_f64(1.0 + 0.1 * (frame.token_count() as f64 - 1.0));
        let results = frame.sequences.iter().map(|part| stand.compute(part)).collect();
        out = scheduler.tokens(now, NODE, &tokens(frame.step, results, vec![]));
    }
    panic!("the answer does not end");
}

fn placement() -> Placement {
    Placement {
        id: PlacementId { epoch: Epoch { counter: 1, key: NODE }, number: 1 },
        instance: InstanceId(1),
        model: ModelId([9; 32]),
        stages: vec![Stage::solo(NODE, DeviceId::cpu(), Shard::whole(4))],
        context_tokens: 1024,
        slots: 1,
        cache_tokens: 2048,
        kv: KvDType::default(),
    }
}

#[test]
fn forced_tokens_save_a_fifth_of_the_steps_and_change_no_token() {
    let list = json!({"type": "array", "items": record()});
    let of_two = format!("[{ADA}, {GRACE}]");
    for (name, words) in [("small", small()), ("large", large())] {
        for (schema, text) in [(record(), ADA), (record(), GRACE), (list.clone(), of_two.as_str())] {
            let script = [(words.spell)(text), vec![words.end]].concat();
            let (answer, alone) = steps(&words, &schema, text, Speculation::Off, true);
            assert_eq!((&answer, alone), (&script, script.len() as u64), "every token a step");
            let (answer, guessed) = steps(&words, &schema, text, Speculation::Lookup, false);
            assert_eq!(answer, script);
            let (answer, forced) = steps(&words, &schema, text, Speculation::Lookup, true);
            assert_eq!(answer, script);
            println!("{name}: {alone} tokens, {guessed} steps by lookup, {forced} with what is forced");
            assert!(forced * 10 <= guessed * 8, "{name}: {forced} steps instead of {guessed}: {text}");
        }
    }
}
