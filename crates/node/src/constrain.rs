//! What a request asks of its answers, as a grammar; and each token of an answer against it.

use exo_api::{AnswerFormat, GenerateError, GenerateRequest};
use exo_constraint::{Body, CompileError, Fold, Layout, Schema, Strictness, Thought};
use exo_sampler::{ConstraintError, TokenConstraint};
use exo_types::{Constraint, FailureKind};

use crate::library::OpenModel;

/// The constraint of a request's answers, if it asks for one. Compiled here, so that what cannot be kept to is refused before the
/// first token.
pub fn constraint(open: &OpenModel, request: &GenerateRequest) -> Result<Option<Constraint>, GenerateError> {
    let (param, body) = match &request.format {
        AnswerFormat::Text => return Ok(None),
        AnswerFormat::JsonObject => ("response_format", Body::Json(Schema::object().value)),
        AnswerFormat::JsonSchema(schema) => {
            let param = "response_format.json_schema.schema";
            let read = Schema::read(schema, Strictness::Whole).map_err(|e| invalid(param, e.to_string()))?;
            (param, Body::Json(read.value))
        }
        AnswerFormat::Regex(regex) => ("grammar.regex", Body::Regex(regex.clone())),
        AnswerFormat::Lark(lark) if lark.contains("x-guidance") => {
            let message = "`x-guidance` would switch options of the grammar's engine; leave it out";
            return Err(invalid("grammar.lark", message.to_owned()));
        }
        AnswerFormat::Lark(lark) => ("grammar.lark", Body::Lark(lark.clone())),
    };
    let layout = Layout { thought: Thought::No, body };
    let compiler = open.compiler().map_err(|reason| invalid(param, cannot(&reason)))?;
    compiler.constrain(layout.grammar()).map(Some).map_err(|error| match error {
        CompileError::Refused { reason } => {
            invalid(param, format!("`{param}` cannot be kept to while the answer is made: {reason}"))
        }
        error => invalid(param, cannot(&error.to_string())),
    })
}

fn cannot(reason: &str) -> String {
    format!("this model's answers cannot be kept to a format: {reason}")
}

fn invalid(param: &str, message: String) -> GenerateError {
    GenerateError::Invalid { param: param.to_owned(), message }
}

/// The tokens of one answer against its grammar. The stage that samples was asked to keep to it; this is who looks.
pub struct Checked {
    fold: Fold,
}

impl Checked {
    /// At the beginning of an answer.
    pub fn start(open: &OpenModel, constraint: &Constraint) -> Result<Self, GenerateError> {
        let started =
            open.compiler().and_then(|compiler| compiler.start(constraint).map_err(|e| e.to_string()));
        started.map(|fold| Self { fold }).map_err(|reason| GenerateError::Internal {
            message: format!(
                "the grammar that was compiled for the request does not compile again: {reason}"
            ),
        })
    }

    /// Takes the answer's next token.
    pub fn push(&mut self, token: u32) -> Result<(), GenerateError> {
        let message = match self.fold.allows(token) {
            Ok(true) => {
                self.fold.accept(token);
                return Ok(());
            }
            Ok(false) if self.fold.is_end(token) => match self.fold.why_stuck() {
                Some(ConstraintError::NoToken) => {
                    "the answer cannot go on: its grammar wants text that no token of the model spells".to_owned()
                }
                Some(error) => format!("the answer cannot go on: {error}; make the schema or grammar simpler"),
                None => "the last stage ended the answer where its grammar does not: it may run another version, or have \
                         another vocabulary"
                    .to_owned(),
            },
            Ok(false) => format!("the last stage sampled token {token}, which the answer's grammar does not take"),
            Err(error) => format!("the answer's tokens cannot be checked any further: {error}"),
        };
        Err(GenerateError::Failed { kind: FailureKind::Constraint, message })
    }
}
