//! Whole requests against a scripted model: with guesses and without, over any pipeline, the same tokens.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use exo_types::{Attempt, PageKey, Principal, SequenceSpec, StepFrame, Time};
use proptest::prelude::*;

use super::*;
use crate::testing::{node, placement, seq, serving, submission, token, tokens};
use crate::wire::{EndReason, StepMessage, TokenResult};

const STOP: u32 = 99;
const PAGE_TOKENS: usize = 4;

/// The token after `text`: what its last one or two tokens say, so that texts repeat themselves, but for one
/// in `noise` tokens.
fn model(text: &[u32], noise: u64) -> u32 {
    let last = text
        .iter()
        .rev()
        .take(1 + noise as usize % 2)
        .fold(7, |h: u64, &t| (h ^ u64::from(t)).wrapping_mul(0x2545_F491_4F6C_DD1D));
    let place = (text.len() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let hash = if (place >> 32).is_multiple_of(noise.max(1)) { last ^ place } else { last };
    match (hash >> 40) % 61 {
        57.. => STOP,
        word => word as u32 % 12,
    }
}

/// A prompt of the model's own making, stop tokens included: what is looked up is there from the start.
fn prompt(n: u128, request: &Request) -> Vec<u32> {
    let mut text = vec![n as u32 % 12];
    while text.len() < request.prompt as usize {
        text.push(model(&text, request.noise));
    }
    text
}

/// What the model answers alone: up to a stop token, `max_tokens`, or the end of the context.
fn alone(prompt: &[u32], request: &Request) -> Vec<u32> {
    let mut text = prompt.to_vec();
    while text.len() < 64 && text.len() - prompt.len() < request.max_tokens as usize {
        text.push(model(&text, request.noise));
        if !request.ignore_eos && text.last() == Some(&STOP) {
            break;
        }
    }
    text.split_off(prompt.len())
}

#[derive(Clone, Debug)]
struct Request {
    prompt: u32,
    max_tokens: u32,
    noise: u64,
    ignore_eos: bool,
    /// Cancelled when this many steps came back.
    cancel_at: Option<u64>,
}

/// How the small model does.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Small {
    /// A guess takes so long.
    Prompt(Duration),
    /// Its answers come when nobody waits for them any more.
    Late,
    /// It fails after so many steps.
    Fails(u64),
    /// It has no room for a sequence of more than so many tokens.
    Holds(usize),
}

const QUICK: Small = Small::Prompt(Duration::from_millis(1));

/// Everything around the scheduler: stages that hold exactly what they were told, and drivers.
struct World {
    scheduler: Scheduler,
    now: Time,
    requests: Vec<Request>,
    in_flight: VecDeque<StepMessage>,
    small: Small,
    /// Tokens that the last stage calls forced, at most.
    forced_max: u32,
    /// What the small model was asked and has not answered.
    asked: VecDeque<(SequenceSpec, u32)>,
    /// What every stage has in its cache; all do the same.
    cached: BTreeMap<SequenceId, Vec<u32>>,
    kept: BTreeMap<PageKey, Vec<u32>>,
    answers: BTreeMap<SequenceId, Vec<u32>>,
    ended: BTreeMap<SequenceId, (EndReason, u32)>,
    drafts: u32,
    accepted: u32,
    steps: u64,
    /// Questions that the small model refused.
    refused: u32,
    /// How often it was told at once of a sequence that is over and asked about another.
    freed_first: u32,
}

impl World {
    fn new(stages: &[u8], speculation: Speculation, requests: Vec<Request>) -> Self {
        let config = SchedulerConfig { chunk_tokens_max: 8, speculation, ..SchedulerConfig::default() };
        let mut world = Self {
            scheduler: serving(config, placement(1, 1, stages), 40, PAGE_TOKENS as u32),
            now: Time::ZERO,
            requests: requests.clone(),
            in_flight: VecDeque::new(),
            small: QUICK,
            forced_max: 0,
            asked: VecDeque::new(),
            cached: BTreeMap::new(),
            kept: BTreeMap::new(),
            answers: BTreeMap::new(),
            ended: BTreeMap::new(),
            drafts: 0,
            accepted: 0,
            steps: 0,
            refused: 0,
            freed_first: 0,
        };
        for (n, request) in (1..).zip(requests) {
            let mut submission = submission(n, request.prompt, request.max_tokens);
            submission.spec.principal = Principal([n as u8 % 3; 16]);
            submission.spec.history = prompt(n, &request);
            submission.ignore_eos = request.ignore_eos;
            world.feed(SchedulerInput::Submit { from: node(9), submission });
        }
        world
    }

    fn feed(&mut self, input: SchedulerInput) {
        let outputs = self.scheduler.handle(self.now, input);
        self.carry_out(outputs);
    }

    fn carry_out(&mut self, outputs: Vec<SchedulerOutput>) {
        let asks = outputs.iter().position(|o| matches!(o, SchedulerOutput::Draft { .. }));
        let frees = outputs.iter().rposition(|o| matches!(o, SchedulerOutput::DraftOver(_)));
        if let (Some(asks), Some(frees)) = (asks, frees) {
            assert!(frees < asks, "a slot that is free again may be the one they need: {outputs:?}");
            self.freed_first += 1;
        }
        for output in outputs {
            match output {
                SchedulerOutput::Step(step) => self.in_flight.push_back(step),
                SchedulerOutput::Send { message, .. } => match message {
                    DataMessage::SequenceEnded { sequence, reason, generated, .. } => {
                        assert_eq!(self.ended.insert(sequence, (reason, generated)), None, "ended twice");
                    }
                    DataMessage::Accepted { .. } | DataMessage::Started { .. } => {}
                    other => panic!("{other:?}"),
                },
                SchedulerOutput::Draft { spec, count } => self.asked.push_back((spec, count)),
                SchedulerOutput::DraftOver(gone) => self.asked.retain(|(spec, _)| spec.sequence != gone),
                other => panic!("{other:?}"),
            }
        }
    }

    fn request(&self, sequence: SequenceId) -> &Request {
        &self.requests[sequence.request.0 as usize - 1]
    }

    /// The next step comes back from the pipeline. A row costs `row` of a step of one.
    fn step_back(&mut self, row: f64) {
        let step = self.in_flight.pop_front().expect("a step in flight");
        for command in &step.commands {
            match command {
                StageCommand::Open { spec, cached, .. } => {
                    let pages = cached.iter().flat_map(|key| self.kept[key].clone());
                    self.cached.insert(spec.sequence, pages.collect());
                }
                StageCommand::Keep { sequence, pages } => {
                    for &(index, key) in pages {
                        let page = self.cached[sequence].chunks_exact(PAGE_TOKENS).nth(index as usize);
                        self.kept.insert(key, page.expect("a full page").to_vec());
                    }
                }
                StageCommand::Forget(keys) => {
                    keys.iter().for_each(|key| assert!(self.kept.remove(key).is_some()));
                }
                StageCommand::Close(sequence) => assert!(self.cached.remove(sequence).is_some()),
            }
        }
        let rows = step.frame.token_count() as f64;
        self.now = self.now + Duration::from_millis(10).mul_f64(1.0 + (rows - 1.0).max(0.0) * row);
        let results: Vec<TokenResult> = step.frame.sequences.iter().filter_map(|p| self.compute(p)).collect();
        for result in &results {
            let answer = self.answers.entry(result.sequence).or_default();
            answer.extend(result.tokens.iter().map(|t| t.token));
        }
        self.steps += 1;
        let from = self.scheduler.placement.stages.last().unwrap().leader().node;
        let StepFrame { placement, term, step, .. } = step.frame;
        let tokens = tokens(placement, term, step, results);
        let outputs = self.scheduler.tokens(self.now, from, &tokens);
        self.carry_out(outputs);
    }

    /// What the stages do with a part.
    fn compute(&mut self, part: &StepSequence) -> Option<TokenResult> {
        let noise = self.request(part.sequence).noise;
        let cached = self.cached.get_mut(&part.sequence).expect("an open sequence");
        cached.truncate(part.truncate_to.map_or(cached.len(), |to| to as usize));
        assert_eq!(cached.len(), part.start as usize, "positions follow each other: {part:?}");
        let (own, drafts) = part.split_drafts();
        cached.extend(own);
        let answer = self.answers.get(&part.sequence).map_or(&[][..], Vec::as_slice);
        let before = &cached[..cached.len() - answer.len().min(cached.len())];
        // What made way is read again in chunks: only the last of them has all of it.
        let is_whole = part.sample || answer.is_empty();
        assert!(!is_whole || cached[before.len()..] == *answer, "the caches hold the answer so far");
        self.drafts += part.drafts;
        let (mut tokens, mut forced) = (Vec::new(), Vec::new());
        if part.sample {
            let mut text = cached.clone();
            loop {
                let next = model(&text, noise);
                tokens.push(token(next));
                text.push(next);
                if drafts.get(tokens.len() - 1) != Some(&next) {
                    break;
                }
                self.accepted += 1;
            }
            // Here and there one that is spelled otherwise.
            for i in 0..self.forced_max.saturating_sub(text.len() as u32 % 4) {
                let next = model(&text, noise);
                forced.push(if (text.len() as u32 + i) % 7 == 6 { next + 1 } else { next });
                text.push(next);
            }
        }
        cached.extend(drafts);
        assert!(cached.len() < 64, "no draft reaches the end of the context");
        let (position, drafts) = (part.sample_position(), part.drafts);
        part.sample.then_some(TokenResult {
            sequence: part.sequence,
            attempt: Attempt::FIRST,
            position,
            tokens,
            drafts,
            forced,
        })
    }

    /// The small model answers its first question: mostly what the large one will say.
    fn answer(&mut self) {
        let Some((spec, count)) = self.asked.pop_front() else { return };
        let (sequence, mut text) = (spec.sequence, spec.history);
        let (noise, text_len) = (self.request(sequence).noise, text.len());
        for _ in 0..count {
            let next = model(&text, noise);
            text.push(if text.len() % 7 == 0 { next + 1 } else { next });
        }
        let each = if let Small::Prompt(each) = self.small { each } else { Duration::from_millis(1) };
        self.now = self.now + each * count;
        let (tokens, each) = (text.split_off(text_len), Some(each));
        self.feed(SchedulerInput::Drafted { sequence, text_len, tokens, each });
    }

    /// Lets the small model answer, late or in time, or fail.
    fn small_works(&mut self) {
        match self.small {
            Small::Prompt(_) => (0..self.asked.len()).for_each(|_| self.answer()),
            Small::Fails(at) if self.steps >= at => {
                self.asked.clear();
                self.feed(SchedulerInput::DraftsOver);
            }
            Small::Fails(_) => self.answer(),
            Small::Late if self.in_flight.is_empty() && !self.asked.is_empty() => {
                self.now = self.now + Duration::from_millis(300);
                self.feed(SchedulerInput::Tick);
                assert!(!self.in_flight.is_empty(), "a step waits too long");
                self.answer();
            }
            Small::Late => {}
            Small::Holds(len_max) => match self.asked.front() {
                Some((spec, _)) if spec.history.len() > len_max => {
                    let sequence = spec.sequence;
                    self.asked.pop_front();
                    self.refused += 1;
                    self.feed(SchedulerInput::DraftRefused(sequence));
                }
                _ => self.answer(),
            },
        }
    }

    fn run(&mut self, row: f64) {
        for _ in 0..10_000 {
            while self.in_flight.is_empty() && !self.asked.is_empty() {
                self.small_works();
            }
            if self.in_flight.is_empty() {
                break;
            }
            self.step_back(row);
            self.small_works();
            for n in 1..=self.requests.len() as u128 {
                if self.requests[n as usize - 1].cancel_at == Some(self.steps) {
                    let (from, placement, sequence) = (node(9), self.scheduler.placement.id, seq(n));
                    let attempt = Attempt::FIRST;
                    self.feed(SchedulerInput::Cancel { from, placement, sequence, attempt });
                }
            }
        }
        assert_eq!(self.scheduler.load_report().running, 0, "everything ends");
    }
}

fn request() -> impl Strategy<Value = Request> {
    let cancel_at = prop_oneof![3 => Just(None), 1 => (1u64..40).prop_map(Some)];
    (1u32..30, 1u32..70, 1u64..12, any::<bool>(), cancel_at).prop_map(
        |(prompt, max_tokens, noise, ignore_eos, cancel_at)| Request {
            prompt,
            max_tokens,
            noise,
            ignore_eos,
            cancel_at,
        },
    )
}

proptest! {
    #[test]
    fn guesses_never_change_an_answer(
        requests in proptest::collection::vec(request(), 1..6),
        stages in prop_oneof![Just(&[1u8][..]), Just(&[1, 2][..]), Just(&[1, 2, 3][..])],
        row in 0.0f64..1.2,
        speculation in prop_oneof![
            Just(Speculation::Off), Just(Speculation::Lookup), Just(Speculation::Model),
        ],
        forced_max in 0u32..6,
        small in prop_oneof![Just(QUICK), Just(Small::Late), (0u64..30).prop_map(Small::Fails), (0usize..40).prop_map(Small::Holds)],
    ) {
        let mut world = World::new(stages, speculation, requests.clone());
        (world.small, world.forced_max) = (small, forced_max);
        world.run(row);
        for (n, request) in (1..).zip(&requests) {
            let want = alone(&prompt(n, request), request);
            let got = world.answers.get(&seq(n)).cloned().unwrap_or_default();
            let (reason, generated) = world.ended[&seq(n)];
            match reason {
                // What was in flight when it was cancelled is nobody's.
                EndReason::Cancelled => prop_assert!(want.starts_with(&got) && got.len() >= generated as usize),
                _ => prop_assert_eq!((&got, got.len()), (&want, generated as usize), "{:?}", request),
            }
        }
        prop_assert!(speculation != Speculation::Off || world.drafts == 0);
        prop_assert!(world.asked.is_empty(), "nobody asks about what is over");
        prop_assert!(world.cached.is_empty(), "every sequence is closed");
        prop_assert_eq!(world.scheduler.pages.claimed(), 0);
    }
}

/// One request that repeats itself every few tokens, and how many steps and drafts it takes.
fn repetitive(speculation: Speculation, row: f64) -> World {
    let request = Request { prompt: 3, max_tokens: 60, noise: 1 << 40, ignore_eos: true, cancel_at: None };
    let mut world = World::new(&[1], speculation, vec![request]);
    world.run(row);
    world
}

#[test]
fn a_text_that_repeats_itself_takes_fewer_steps() {
    let (with, without) = (repetitive(Speculation::Lookup, 0.1), repetitive(Speculation::Off, 0.1));
    assert_eq!(with.answers, without.answers);
    assert!(2 * with.steps < without.steps, "{} steps instead of {}", with.steps, without.steps);
    assert!(with.now < without.now);
}

#[test]
fn where_a_row_costs_a_step_drafts_stop() {
    let (with, without) = (repetitive(Speculation::Lookup, 1.0), repetitive(Speculation::Off, 1.0));
    assert_eq!(with.answers, without.answers);
    assert!(with.drafts < 12, "{} drafts, {} right", with.drafts, with.accepted);
}

/// One request that does not repeat itself, and a small model that takes `each` for a guess.
fn guessed(speculation: Speculation, each: Duration) -> World {
    let request = Request { prompt: 3, max_tokens: 60, noise: 1, ignore_eos: true, cancel_at: None };
    let mut world = World::new(&[1], speculation, vec![request]);
    world.small = Small::Prompt(each);
    world.run(0.1);
    world
}

#[test]
fn a_small_model_that_is_mostly_right_saves_steps_and_time() {
    let each = Duration::from_millis(1);
    let (with, without) = (guessed(Speculation::Model, each), guessed(Speculation::Off, each));
    assert_eq!(with.answers, without.answers);
    assert!(2 * with.steps < without.steps, "{} steps instead of {}", with.steps, without.steps);
    assert!(with.now < without.now, "{:?} against {:?}", with.now, without.now);
    let load = with.scheduler.load_report();
    assert_eq!((load.drafts, load.drafts_accepted), (with.drafts.into(), with.accepted.into()));
}

#[test]
fn tokens_that_the_grammar_forces_save_steps_whoever_else_guesses() {
    let run = |speculation, forced_max| {
        let request = Request { prompt: 3, max_tokens: 60, noise: 1, ignore_eos: true, cancel_at: None };
        let mut world = World::new(&[1], speculation, vec![request]);
        (world.small, world.forced_max) = (Small::Prompt(Duration::from_millis(9)), forced_max);
        world.run(0.1);
        world
    };
    let without = run(Speculation::Off, 5);
    assert_eq!(without.drafts, 0, "who wants no guesses gets none");
    for speculation in [Speculation::Lookup, Speculation::Model] {
        let (with, guessed) = (run(speculation, 5), run(speculation, 0));
        assert_eq!(with.answers, without.answers);
        assert!(with.steps * 10 < guessed.steps * 8, "{} steps instead of {}", with.steps, guessed.steps);
    }
}

#[test]
fn without_its_small_model_a_scheduler_goes_on_with_what_is_forced_and_with_the_text_itself() {
    let run = |noise, forced_max| {
        let mut world = World::new(&[1], Speculation::Model, vec![]);
        world.feed(SchedulerInput::DraftsOver);
        world.forced_max = forced_max;
        world.requests =
            vec![Request { prompt: 3, max_tokens: 60, noise, ignore_eos: true, cancel_at: None }];
        let mut submission = submission(1, 3, 60);
        submission.spec.history = prompt(1, &world.requests[0]);
        submission.ignore_eos = true;
        world.feed(SchedulerInput::Submit { from: node(9), submission });
        world.run(0.1);
        assert!(world.asked.is_empty(), "nobody is there to be asked");
        world
    };
    let (with, without) = (run(1, 5), run(1, 0));
    assert_eq!(with.answers, without.answers);
    assert_eq!(with.answers, guessed(Speculation::Off, Duration::ZERO).answers);
    assert!(with.steps * 10 < without.steps * 8, "{} steps instead of {}", with.steps, without.steps);
    let repeats = run(1 << 40, 0);
    assert!(repeats.steps < 40, "its own text guesses: {} steps", repeats.steps);
}

#[test]
fn a_small_model_as_slow_as_the_large_one_is_not_asked_for_long() {
    let each = Duration::from_millis(10);
    let (with, without) = (guessed(Speculation::Model, each), guessed(Speculation::Off, each));
    assert_eq!(with.answers, without.answers);
    assert!(with.drafts <= 16, "{} drafts", with.drafts);
}

#[test]
fn the_small_model_hears_who_is_over_before_it_is_asked_about_others() {
    let request = |max_tokens| Request { prompt: 3, max_tokens, noise: 1, ignore_eos: true, cancel_at: None };
    let mut world = World::new(&[1], Speculation::Model, [6, 40, 9, 40, 12, 40].map(request).to_vec());
    world.run(0.1);
    assert!(world.freed_first > 0 && world.ended.len() == 6, "{} times", world.freed_first);
}

#[test]
fn a_sequence_that_the_small_model_cannot_hold_is_asked_about_once() {
    for len_max in [0, 20] {
        let request = Request { prompt: 3, max_tokens: 60, noise: 1, ignore_eos: true, cancel_at: None };
        let mut world = World::new(&[1], Speculation::Model, vec![request]);
        world.small = Small::Holds(len_max);
        world.run(0.1);
        assert_eq!(world.refused, 1, "within {len_max} tokens");
        assert_eq!(world.answers, guessed(Speculation::Off, Duration::ZERO).answers);
    }
}

#[test]
fn a_submission_that_wants_no_guesses_gets_none() {
    let mut world = World::new(&[1], Speculation::Lookup, vec![]);
    let mut submission = submission(1, 3, 60);
    (submission.speculate, submission.ignore_eos) = (false, true);
    world.requests =
        vec![Request { prompt: 3, max_tokens: 60, noise: 1 << 40, ignore_eos: true, cancel_at: None }];
    world.feed(SchedulerInput::Submit { from: node(9), submission });
    world.run(0.1);
    assert_eq!((world.drafts, world.answers[&seq(1)].len()), (0, 60));
}
