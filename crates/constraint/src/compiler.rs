//! From the text of a grammar to a fold over tokens, once for all who ask.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use exo_types::{Constraint, GRAMMAR_BYTES_MAX};
use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{Matcher, ParserFactory, earley::SlicedBiasComputer};

use crate::errors::{says_no_token, shorten};
use crate::scout::Scout;
use crate::{CompileError, Fold, Spelling, Vocabulary};

/// The engine and its version: two nodes hold an answer to the same grammar only with the same one.
pub const ENGINE: &str = "llguidance 1.9.1";

/// Compiled grammars kept: those of the requests at work, and those that come again and again.
const KEPT_MAX: usize = 32;
/// Of all kept together, the text: what a grammar compiles to grows with it.
const KEPT_BYTES_MAX: usize = 4 << 20;

/// Bounds of the engine, all counted. A step's are what one token may cost: some ten milliseconds.
const LIMITS: ParserLimits = ParserLimits {
    max_items_in_row: 2_000,
    initial_lexer_fuel: 1_000_000,
    step_lexer_fuel: 200_000,
    step_max_items: 50_000,
    max_lexer_states: 50_000,
    max_grammar_size: 500_000,
    precompute_large_lexemes: true,
    verbose_errors: false,
};

/// The engine recurses with the grammar. What is taken stays far within this; a stack that runs over ends the
/// process.
const STACK_BYTES: usize = 64 << 20;

/// Makes folds over one vocabulary.
pub struct Compiler {
    vocabulary: Vocabulary,
    factory: ParserFactory,
    spelling: Option<Arc<Spelling>>,
    /// The last used last.
    kept: Mutex<VecDeque<(String, Matcher)>>,
}

impl Compiler {
    /// For one vocabulary. Takes a moment for a large one.
    pub fn new(vocabulary: Vocabulary) -> Result<Self, CompileError> {
        let made = guarded(|| {
            let slices = SlicedBiasComputer::general_slices();
            let factory = ParserFactory::new(vocabulary.env(), InferenceCapabilities::default(), &slices);
            factory.map_err(|e| e.to_string())
        });
        let mut factory = made.map_err(|reason| CompileError::Refused { reason })?;
        factory.quiet();
        *factory.limits_mut() = LIMITS;
        Ok(Self { vocabulary, factory, spelling: None, kept: Mutex::default() })
    }

    /// Lets its folds name tokens that have to come ([`exo_sampler::TokenConstraint::forced`]), spelled like
    /// this.
    pub fn with_spelling(self, spelling: Arc<Spelling>) -> Self {
        Self { spelling: Some(spelling), ..self }
    }

    /// Its vocabulary.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// Compiles a grammar, and words it for whoever samples.
    pub fn constrain(&self, grammar: String) -> Result<Constraint, CompileError> {
        self.compiled(&grammar)?;
        Ok(Constraint { grammar, engine: ENGINE.to_owned(), vocabulary: self.vocabulary.hash() })
    }

    /// A fold at the beginning of an answer.
    pub fn start(&self, constraint: &Constraint) -> Result<Fold, CompileError> {
        let (wanted, own) = (&constraint.engine, ENGINE);
        if wanted != own {
            return Err(CompileError::Differs {
                wanted: wanted.chars().take(60).collect(),
                own: own.to_owned(),
            });
        }
        if constraint.vocabulary != self.vocabulary.hash() {
            let (wanted, own) = ("another vocabulary".to_owned(), format!("{:?}", self.vocabulary));
            return Err(CompileError::Differs { wanted, own });
        }
        let matcher = self.compiled(&constraint.grammar)?;
        let scout = |spelling: &Arc<_>| Scout::new(Arc::clone(spelling), Arc::clone(self.vocabulary.env()));
        Ok(Fold::new(matcher, self.vocabulary.end_ids().into(), self.spelling.as_ref().map(scout)))
    }

    /// As [`Compiler::start`]; a constraint that cannot be followed here ends the answer at once.
    pub fn start_or_end(&self, constraint: &Constraint) -> Fold {
        self.start(constraint)
            .unwrap_or_else(|error| Fold::dead(error.to_string(), self.vocabulary.end_ids().into()))
    }

    fn compiled(&self, grammar: &str) -> Result<Matcher, CompileError> {
        if grammar.len() > GRAMMAR_BYTES_MAX {
            return Err(CompileError::TooLong { bytes: grammar.len(), max: GRAMMAR_BYTES_MAX });
        }
        // What is kept is never used itself: a fold's cost must not hang on who came before.
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = kept.iter().position(|(text, _)| text == grammar)
            && let Some(found) = kept.remove(at)
        {
            let fresh = found.1.deep_clone();
            kept.push_back(found);
            return Ok(fresh);
        }
        drop(kept);
        let matcher = self.compile(grammar)?;
        let fresh = matcher.deep_clone();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back((grammar.to_owned(), matcher));
        while kept.len() > KEPT_MAX || kept.iter().map(|(text, _)| text.len()).sum::<usize>() > KEPT_BYTES_MAX
        {
            kept.pop_front();
        }
        Ok(fresh)
    }

    fn compile(&self, grammar: &str) -> Result<Matcher, CompileError> {
        let made = aside(|| {
            let parser = self.factory.create_parser(TopLevelGrammar::from_lark(grammar.to_owned()));
            let mut matcher = Matcher::new(parser);
            if let Some(error) = matcher.get_error() {
                return Err(error);
            }
            if let Some(warning) = matcher.grammar_warnings().into_iter().next() {
                return Err(format!("the engine warns: {warning}"));
            }
            // A recursion without an end compiles, and has no first token.
            match matcher.deep_clone().compute_mask_or_eos().map_err(|e| e.to_string()) {
                Ok(first) if !first.is_zero() => Ok(matcher),
                Err(reason) if !says_no_token(&reason) => Err(reason),
                Ok(_) | Err(_) => Err("no answer is of this grammar".to_owned()),
            }
        });
        made.map_err(|reason| CompileError::Refused { reason: in_our_words(&reason) })
    }
}

/// What the engine says, without its own options for names.
fn in_our_words(reason: &str) -> String {
    let known = [
        (
            "coerce_one_of",
            "`oneOf` is enforced only where no value can be of two of its schemas: give each a required property \
             with a `const` of its own, or send `anyOf`",
        ),
        (
            "Regex is empty",
            "no text is of all its patterns, its format and its length; a time of `time` and `date-time` has seconds and a zone",
        ),
        (
            "Unable to determine if regex is empty",
            "whether any text is of all its patterns, its format and its length takes too long to find out; send fewer of them",
        ),
    ];
    match known.into_iter().find(|(sign, _)| reason.contains(sign)) {
        Some((_, ours)) => ours.to_owned(),
        None => shorten(reason),
    }
}

/// A panic of the engine as an error.
fn guarded<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err("the grammar's engine panicked".to_owned()))
}

/// The same on a stack that is large enough.
fn aside<T: Send>(work: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
    let thread = std::thread::Builder::new().name("grammar".to_owned()).stack_size(STACK_BYTES);
    std::thread::scope(|scope| match thread.spawn_scoped(scope, || guarded(work)) {
        Ok(running) => running.join().unwrap_or_else(|_| Err("the grammar's engine panicked".to_owned())),
        Err(e) => Err(format!("no thread could be started for the grammar's engine: {e}")),
    })
}

impl std::fmt::Debug for Compiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Compiler({ENGINE}, {:?})", self.vocabulary)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TokenKind;

    #[test]
    fn a_panic_is_an_error_on_the_callers_stack_and_on_the_large_one() {
        let panics = || -> Result<(), String> { panic!("the engine's own") };
        assert_eq!(guarded(panics), Err("the grammar's engine panicked".to_owned()));
        assert_eq!(aside(panics), Err("the grammar's engine panicked".to_owned()));
    }

    #[test]
    fn what_the_engine_warns_of_is_refused() {
        let bytes = (0..=255u8).map(|byte| TokenKind::Bytes(vec![byte]));
        let vocabulary = Vocabulary::new(bytes.chain([TokenKind::Control]), &[256]).unwrap();
        let compiler = Compiler::new(vocabulary).unwrap();
        // Schemas of requests never get here with a switch of the engine's in them.
        let schema = r#"{"x-guidance": {"coerce_one_of": true}, "oneOf": [{"type": "object"}, {"type": "object", "required": ["a"]}]}"#;
        let error = compiler.constrain(format!("start: %json {schema}")).unwrap_err();
        assert!(error.to_string().contains("the engine warns: "), "{error}");
    }
}
