//! What a request asks of its answers, as a grammar and as a way to read them; and each token of an answer against the grammar.

use exo_api::{AnswerFormat, GenerateError, GenerateRequest, Reasoning, RequestPart, ToolDefinition, Tools};
use exo_constraint::{
    Body, CallShape, Calls, CompileError, Compiler, Fold, Layout, Part, Piece, Schema, SchemaError,
    Strictness, Thought, check_lark,
};
use exo_sampler::{ConstraintError, TokenConstraint};
use exo_tokenizer::TextPart;
use exo_tokenizer::calls::{self, CallFormat, CallPart, ThoughtFormat};
use exo_types::{Constraint, FailureKind};
use serde_json::{Map, Value, json};

use crate::library::OpenModel;

/// What a request's answers are held to, and how they are read.
pub struct Plan {
    /// What their tokens must spell, if anything.
    pub constraint: Option<Constraint>,
    /// How their text falls into parts.
    pub reading: calls::AnswerFormat,
    /// Whether calls are named by nine letters and digits, as the model's template wants it.
    pub short_ids: bool,
    /// Places of tools' schemas that are not enforced.
    pub unenforced: Vec<String>,
}

/// Plans a request. Grammars are compiled here, so that what cannot be kept to is refused before the first token.
pub fn plan(open: &OpenModel, request: &GenerateRequest) -> Result<Plan, GenerateError> {
    let may_think = request.is_chat() && request.reasoning != Reasoning::Off;
    let thought = if may_think { open.thought() } else { None };
    let mut plan = Plan {
        constraint: None,
        reading: calls::AnswerFormat {
            thought: thought.map(|thought| (thought.open.clone(), thought.close.clone())),
            is_opened: thought.is_some_and(|thought| thought.is_opened),
            calls: None,
            calls_come_first: false,
        },
        short_ids: false,
        unenforced: Vec::new(),
    };
    let (part, body) = match &request.tools {
        Some(tools) => {
            let format = open.calls().map_err(|reason| {
                invalid(
                    RequestPart::Tools,
                    format!("`{}` cannot be given tools: {reason}; leave them out", request.model),
                )
            })?;
            plan.reading.calls = Some(format.clone());
            plan.short_ids = format.has_ids();
            let answer = answer_beside_calls(format, tools, &request.format)?;
            plan.reading.calls_come_first = answer.is_some();
            let body = calls_body(open, format, tools, answer, &mut plan.unenforced)?;
            (RequestPart::Tools, Some(body))
        }
        None => format_body(&request.format)?,
    };
    let thought_tokens_max = match request.reasoning {
        Reasoning::Budget(tokens) if thought.is_some() => Some(tokens),
        _ => None,
    };
    // A thought that has to end needs a grammar, whatever the answer is.
    let (part, body) = match (body, thought_tokens_max) {
        (None, Some(_)) => (RequestPart::Thinking, Some(Body::Text)),
        (body, _) => (part, body),
    };
    if let Some(body) = body {
        let thought = thought_layout(open, thought, thought_tokens_max)?;
        let compiler = open.compiler().map_err(|reason| invalid(part, cannot(&reason)))?;
        plan.constraint =
            Some(compile(compiler, part, Layout { thought, body }, &request.tools, &mut plan.unenforced)?);
    }
    bound(&mut plan.unenforced);
    Ok(plan)
}

/// Most lines about places that are not enforced: there may be many tools.
const UNENFORCED_MAX: usize = 200;

fn bound(unenforced: &mut Vec<String>) {
    if let Some(more) = unenforced.len().checked_sub(UNENFORCED_MAX).filter(|more| *more > 0) {
        unenforced.truncate(UNENFORCED_MAX);
        unenforced.push(format!("and {more} more"));
    }
}

/// The variables that the template is told of the thinking that was asked for.
pub fn thinking_vars(open: &OpenModel, reasoning: &Reasoning) -> Result<Map<String, Value>, GenerateError> {
    let Some(thought) = open.thought() else { return Ok(Map::new()) };
    let refused = |part, message: &str| Err(invalid(part, message.to_owned()));
    match reasoning {
        Reasoning::Default | Reasoning::Budget(_) => Ok(Map::new()),
        Reasoning::Off if thought.can_be_off => {
            Ok(Map::from_iter([("enable_thinking".to_owned(), Value::Bool(false))]))
        }
        Reasoning::Off => refused(
            RequestPart::Thinking,
            "this model's template has no way to tell it not to think: leave it out",
        ),
        Reasoning::Effort(_) => refused(
            RequestPart::Effort,
            "this model thinks and knows no efforts: leave it out, or ask for no thinking",
        ),
    }
}

fn format_body(format: &AnswerFormat) -> Result<(RequestPart, Option<Body>), GenerateError> {
    Ok(match format {
        AnswerFormat::Text => (RequestPart::Format, None),
        AnswerFormat::JsonObject => (RequestPart::Format, Some(Body::Json(Schema::object().value))),
        AnswerFormat::JsonSchema(schema) => {
            let part = RequestPart::Schema;
            let read = Schema::read(schema, Strictness::Whole).map_err(|e| invalid(part, e.to_string()))?;
            (part, Some(Body::Json(read.value)))
        }
        AnswerFormat::Regex(regex) => (RequestPart::Regex, Some(Body::Regex(regex.clone()))),
        AnswerFormat::Lark(lark) => {
            check_lark(lark).map_err(|e| invalid(RequestPart::Lark, e.to_string()))?;
            (RequestPart::Lark, Some(Body::Lark(lark.clone())))
        }
    })
}

/// The schema of an answer that calls nothing, where a format was asked for beside the tools and calls are not required.
fn answer_beside_calls(
    calls: &CallFormat,
    tools: &Tools,
    format: &AnswerFormat,
) -> Result<Option<Value>, GenerateError> {
    // A schema that cannot be enforced is refused, also where calls are required and nothing will be of it.
    let schema = match format_body(format)? {
        (_, None) => return Ok(None),
        (_, Some(Body::Json(schema))) => schema,
        (part, Some(_)) => return Err(invalid(part, "only JSON goes together with tools".to_owned())),
    };
    if tools.is_required {
        return Ok(None);
    }
    if calls.begin.trim().is_empty() {
        let message = "this model's calls are JSON objects without a sign in front, which an answer of the format could not be told \
                       from: send tools or a format, or require a call";
        return Err(invalid(RequestPart::Format, message.to_owned()));
    }
    Ok(Some(schema))
}

fn thought_layout(
    open: &OpenModel,
    thought: Option<&ThoughtFormat>,
    tokens_max: Option<u32>,
) -> Result<Thought, GenerateError> {
    let Some(thought) = thought else { return Ok(Thought::No) };
    let close = pieces(open, &thought.close)?;
    Ok(match thought.is_opened {
        true => Thought::Opened { close, tokens_max },
        false => Thought::Possible { open: pieces(open, &thought.open)?, close, tokens_max },
    })
}

fn calls_body(
    open: &OpenModel,
    format: &CallFormat,
    tools: &Tools,
    answer: Option<Value>,
    unenforced: &mut Vec<String>,
) -> Result<Body, GenerateError> {
    let mut shapes = Vec::new();
    for (i, tool) in
        tools.definitions.iter().enumerate().filter(|(_, tool)| tools.allowed.contains(&tool.name))
    {
        let schema = arguments(i, tool, unenforced)?;
        let part = |part: &CallPart| match part {
            CallPart::Text(text) => Part::Text(text.clone()),
            CallPart::Name => Part::Text(tool.name.clone()),
            CallPart::Id(len) => Part::Id { len: *len },
        };
        let (head, tail) = (format.head.iter().map(part).collect(), format.tail.iter().map(part).collect());
        shapes.push(CallShape { head, schema, tail });
    }
    Ok(Body::Calls(Calls {
        begin: pieces(open, &format.begin)?,
        between: pieces(open, format.between.as_deref().unwrap_or_default())?,
        end: pieces(open, &format.end)?,
        tools: shapes,
        // With nothing between them, a second call cannot be told from what follows the first.
        is_parallel: tools.is_parallel && format.between.as_ref().is_some_and(|between| !between.is_empty()),
        is_required: tools.is_required,
        answer,
    }))
}

/// The schema of a tool's arguments: wholly where it is strict, else as much of it as can be enforced.
fn arguments(i: usize, tool: &ToolDefinition, unenforced: &mut Vec<String>) -> Result<Value, GenerateError> {
    let strictness = if tool.is_strict { Strictness::Whole } else { Strictness::Possible };
    let part = RequestPart::ToolSchema(i);
    let read = Schema::read(&tool.parameters, strictness).map_err(|e| invalid(part, e.to_string()))?;
    unenforced.extend(read.left_out.iter().map(|error| format!("tool `{}` {error}", tool.name)));
    let mut schema = read.value;
    match schema.get("type") {
        None => schema["type"] = Value::String("object".to_owned()),
        Some(kind) if kind == "object" => {}
        Some(_) => {
            let message = "it must be a schema of an object: arguments have names";
            return Err(invalid(part, message.to_owned()));
        }
    }
    Ok(schema)
}

/// Compiles a layout. Where the engine does not take it for a tool that is not strict, the patterns that it does not take are left
/// out; where that is not enough, that tool's arguments are any object.
fn compile(
    compiler: &Compiler,
    part: RequestPart,
    mut layout: Layout,
    tools: &Option<Tools>,
    unenforced: &mut Vec<String>,
) -> Result<Constraint, GenerateError> {
    let reason = match compiler.constrain(layout.grammar()) {
        Ok(constraint) => return Ok(constraint),
        Err(CompileError::Refused { reason }) => reason,
        Err(error) => return Err(invalid(part, cannot(&error.to_string()))),
    };
    let (tools, calls) = match (tools, &mut layout.body) {
        (Some(tools), Body::Calls(calls)) => (tools, calls),
        (_, Body::Json(schema)) => return Err(refused_schema(compiler, part, schema, &reason)),
        _ => return Err(refused(part, &reason)),
    };
    if let Some(schema) = &calls.answer
        && let Err(error) = compiler.constrain(alone(schema))
    {
        return Err(refused_schema(compiler, RequestPart::Schema, schema, &error.to_string()));
    }
    let allowed = tools.definitions.iter().enumerate().filter(|(_, tool)| tools.allowed.contains(&tool.name));
    for ((i, tool), shape) in allowed.zip(&mut calls.tools) {
        let Err(error) = compiler.constrain(alone(&shape.schema)) else { continue };
        if tool.is_strict {
            let part = RequestPart::ToolSchema(i);
            return Err(refused_schema(compiler, part, &shape.schema, &error.to_string()));
        }
        let left_out = drop_patterns(compiler, &mut shape.schema);
        unenforced.extend(left_out.into_iter().map(|error| format!("tool `{}` {error}", tool.name)));
        if let Err(error) = compiler.constrain(alone(&shape.schema)) {
            unenforced.push(format!("tool `{}` at `#`: any object is taken, for: {error}", tool.name));
            shape.schema = Schema::object().value;
        }
    }
    compiler.constrain(layout.grammar()).map_err(|error| refused(part, &error.to_string()))
}

/// The grammar of a value of this schema and nothing else.
fn alone(schema: &Value) -> String {
    Layout { thought: Thought::No, body: Body::Json(schema.clone()) }.grammar()
}

/// Leaves out what the engine does not take as a regular expression.
fn drop_patterns(compiler: &Compiler, schema: &mut Value) -> Vec<SchemaError> {
    Schema::drop_patterns(schema, &mut |pattern| {
        compiler
            .constrain(alone(&json!({"type": "string", "pattern": pattern})))
            .map(drop)
            .map_err(|e| e.to_string())
    })
}

fn refused(part: RequestPart, reason: &str) -> GenerateError {
    invalid(part, format!("it cannot be kept to while the answer is made: {reason}"))
}

/// The same with the place, where it is a pattern that the engine does not take.
fn refused_schema(compiler: &Compiler, part: RequestPart, schema: &Value, reason: &str) -> GenerateError {
    match drop_patterns(compiler, &mut schema.clone()).into_iter().next() {
        Some(error) => refused(part, &error.to_string()),
        None => refused(part, reason),
    }
}

fn pieces(open: &OpenModel, text: &str) -> Result<Vec<Piece>, GenerateError> {
    let parts = open.tokenizer.split_control(text);
    let parts = parts
        .map_err(|e| GenerateError::Internal { message: format!("a sign of calls was not found: {e}") })?;
    let piece = |part| match part {
        TextPart::Text(text) => Piece::Text(text),
        TextPart::Control(id) => Piece::Control(id),
    };
    Ok(parts.into_iter().map(piece).collect())
}

fn cannot(reason: &str) -> String {
    format!("this model's answers cannot be kept to a format: {reason}")
}

fn invalid(part: RequestPart, message: String) -> GenerateError {
    GenerateError::Invalid { part, message }
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
