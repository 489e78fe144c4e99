//! Each token of an answer against its grammar. The stage that samples was asked to keep to it; the driver
//! checks.

use exo_api::GenerateError;
use exo_constraint::Fold;
use exo_sampler::{ConstraintError, TokenConstraint};
use exo_types::{Constraint, FailureKind};

use crate::library::OpenModel;

/// Checks the tokens of one answer.
pub struct TokenCheck {
    fold: Fold,
    /// The stage that samples, for messages.
    stage: String,
}

impl TokenCheck {
    /// At the beginning of an answer.
    pub fn start(open: &OpenModel, constraint: &Constraint) -> Result<Self, GenerateError> {
        let started = open.compiler().and_then(|compiler| compiler.start(constraint));
        started.map(Self::new).map_err(|error| GenerateError::Internal {
            message: format!("the grammar that was compiled for the request does not compile again: {error}"),
        })
    }

    fn new(fold: Fold) -> Self {
        Self { fold, stage: "the last stage".to_owned() }
    }

    /// From now on the last of so many stages is on the node of this name.
    pub fn sampled_by(&mut self, node: &str, stages: u32) {
        if node.is_empty() {
            return; // the instance is gone again
        }
        self.stage = format!("the last stage ({stages} of {stages}, on node {node})");
    }

    /// Takes the answer's next token.
    pub fn push(&mut self, token: u32) -> Result<(), GenerateError> {
        let stage = &self.stage;
        let message = match self.fold.allows(token) {
            Ok(true) => {
                self.fold.accept(token);
                return Ok(());
            }
            Ok(false) if self.fold.is_end(token) => match self.fold.why_stuck() {
                Some(ConstraintError::NoToken) => {
                    "the answer cannot go on: its grammar wants text that no token of the model spells"
                        .to_owned()
                }
                Some(error) => simpler(&error),
                None => format!(
                    "{stage} ended the answer where its grammar does not: it may run another version, or have another vocabulary"
                ),
            },
            Ok(false) => format!("{stage} sampled token {token}, which the answer's grammar does not take"),
            Err(error) => simpler(&error),
        };
        Err(GenerateError::Failed { kind: FailureKind::Constraint, message })
    }
}

fn simpler(error: &ConstraintError) -> String {
    format!("the answer cannot go on: {error}; make the schema or grammar simpler")
}

#[cfg(test)]
mod tests {
    use super::*;
    use exo_constraint::{Body, Compiler, Layout, Thought, TokenKind, Vocabulary};

    /// The letters of the test's vocabulary, by their ids; behind them the token that ends answers.
    const LETTERS: &[u8] = b"ab";
    const END: u32 = LETTERS.len() as u32;

    /// What is said of an answer of these letters, `.` being its end; nothing where all are taken.
    fn check(body: Body, answer: &str) -> Option<String> {
        let letters = LETTERS.iter().map(|letter| TokenKind::Bytes(vec![*letter]));
        let vocabulary = Vocabulary::new(letters.chain([TokenKind::Control]), &[END]).unwrap();
        let compiler = Compiler::new(vocabulary).unwrap();
        let layout = Layout { thought: Thought::No, answer_open: Vec::new(), spelled: Vec::new(), body };
        let constraint = compiler.constrain(layout.grammar()).unwrap();
        let mut check = TokenCheck::new(compiler.start(&constraint).unwrap());
        check.sampled_by("three", 3);
        let token = |letter| LETTERS.iter().position(|l| *l == letter).map_or(END, |at| at as u32);
        let error = answer.bytes().find_map(|letter| check.push(token(letter)).err())?;
        let GenerateError::Failed { kind: FailureKind::Constraint, message } = error else {
            panic!("{error:?}")
        };
        Some(message)
    }

    fn regex(regex: &str) -> Body {
        Body::Regex(regex.to_owned())
    }

    #[test]
    fn what_the_grammar_takes_is_taken() {
        assert_eq!(check(regex("ab*"), "abb."), None);
    }

    #[test]
    fn a_token_that_the_grammar_does_not_take_is_laid_to_the_stage_that_samples() {
        let said = check(regex("ab"), "aa").unwrap();
        assert_eq!(
            said,
            "the last stage (3 of 3, on node three) sampled token 0, which the answer's grammar does not take"
        );
        let said = check(regex("ab"), "ab.a").unwrap();
        assert!(said.contains("sampled token 0"), "behind its end: {said}");
        let said = check(regex("ab"), "a.").unwrap();
        assert!(said.starts_with("the last stage (3 of 3, on node three) ended the answer where"), "{said}");
    }

    #[test]
    fn an_answer_that_no_token_can_go_on_with_is_laid_to_the_grammar() {
        let said = check(regex("aQ"), "a.").unwrap();
        assert_eq!(said, "the answer cannot go on: its grammar wants text that no token of the model spells");
    }

    #[test]
    fn an_answer_that_takes_too_much_work_is_laid_to_the_grammar() {
        // Behind the first letter any of thousands of rules may begin, and each is followed.
        let rules = 0..2_500;
        let any: Vec<String> = rules.clone().map(|rule| format!("r{rule}")).collect();
        let each: String = rules.map(|rule| format!("r{rule}: \"a\" r{rule} | \"b\"\n")).collect();
        let lark = Body::Lark(format!("start: \"a\" any\nany: {}\n{each}", any.join(" | ")));
        let said = check(lark, "aa").unwrap();
        assert!(said.starts_with("the answer cannot go on: the grammar's engine gave up"), "{said}");
        assert!(said.ends_with("make the schema or grammar simpler"), "{said}");
    }
}
