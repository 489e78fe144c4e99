//! What a request asks of its answers, as a grammar and as a way to read them.

use exo_api::{AnswerFormat, GenerateError, GenerateRequest, Reasoning, RequestPart, Tools};
use exo_constraint::{Body, CompileError, Compiler, Layout, Schema, Strictness, Thought, check_lark};
use exo_tokenizer::calls::{self, CallFormat, ThoughtFormat};
use exo_types::Constraint;
use serde_json::{Map, Value};

use crate::library::OpenModel;
use crate::refusals::{invalid, refused, refused_schema};
use crate::signs::{pieces, signs};
use crate::tool_calls::ToolShapes;
use exo_accelerators::chain;

/// What a request's answers are held to, and how they are read.
pub struct AnswerPlan {
    /// What their tokens must spell, if anything.
    pub constraint: Option<Constraint>,
    /// How their text falls into parts.
    pub reading: calls::AnswerFormat,
    /// Whether calls are named by nine letters and digits, as the model's template wants it.
    pub short_ids: bool,
    /// Places of tools' schemas that are not enforced.
    pub unenforced: Vec<String>,
}

/// Plans a request. Grammars are compiled here, so that what cannot be kept to is refused before the first
/// token.
pub fn plan(open: &OpenModel, request: &GenerateRequest) -> Result<AnswerPlan, GenerateError> {
    let thought = open.thought().filter(|thought| request.is_chat() && !is_off(&request.reasoning, thought));
    let mut plan = AnswerPlan {
        constraint: None,
        reading: calls::AnswerFormat {
            thought: thought.map(|thought| (thought.open.clone(), thought.close.clone())),
            is_opened: thought.is_some_and(|thought| thought.is_opened),
            answer_open: answer_open(open, thought, request.is_chat()),
            ..calls::AnswerFormat::default()
        },
        short_ids: false,
        unenforced: Vec::new(),
    };
    let has_channels = !plan.reading.answer_open.is_empty();
    let (mut shapes, mut no_call) = (None, None);
    let (part, body) = match &request.tools {
        Some(tools) if !tools.are_callable() => {
            no_call = call_sign(open, has_channels);
            let (part, body) = format_body(&request.format)?;
            let must_be_text = no_call.is_some() && !request.ignore_eos;
            (part, body.or_else(|| must_be_text.then_some(Body::Text)))
        }
        Some(tools) => {
            let mut format = open.calls().cloned().map_err(|error| {
                let reason = chain(&error);
                invalid(
                    RequestPart::Tools,
                    format!("`{}` cannot be given tools: {reason}; leave them out", request.model),
                )
            })?;
            // Only where text has a sign of its own can calls begin in two ways.
            format.other = format.other.filter(|_| has_channels);
            let format = &format;
            plan.reading.calls = Some(format.clone());
            check_names(format, &plan.reading, tools)?;
            plan.short_ids = format.has_ids();
            let answer = answer_beside_calls(format, has_channels, tools, &request.format)?;
            plan.reading.calls_come_first = answer.is_some();
            let tools = ToolShapes::read(open, format, tools, &mut plan.unenforced)?;
            let calls = tools.calls(open, format, answer)?;
            shapes = Some(tools);
            (RequestPart::Tools, Some(Body::Calls(calls)))
        }
        None => format_body(&request.format)?,
    };
    let thought_tokens_max = thought.and_then(|thought| tokens_max(&request.reasoning, thought));
    // A thought that has to end needs a grammar, whatever the answer is, and so do the signs of channels.
    let (part, body) = match (body, thought_tokens_max) {
        (None, budget) if budget.is_some() || has_channels && !request.ignore_eos => {
            (RequestPart::Thinking, Some(Body::Text))
        }
        (body, _) => (part, body),
    };
    if let Some(body) = body {
        let thought = thought_layout(open, thought, thought_tokens_max)?;
        let compiler = open.compiler().map_err(|error| invalid(part, cannot(&error)))?;
        let spelled = signs(&open.tokenizer, &plan.reading).into_values().chain(no_call).collect();
        let layout = Layout { thought, answer_open: pieces(open, &plan.reading.answer_open)?, spelled, body };
        let tools = shapes.as_mut();
        plan.constraint = Some(compile(compiler, part, layout, tools, &mut plan.unenforced)?);
    }
    plan.reading.parameters = shapes.map(|tools| tools.parameters()).unwrap_or_default();
    bound(&mut plan.unenforced);
    Ok(plan)
}

/// What stands in front of an answer: behind thoughts, or where calls begin with nothing but a name.
fn answer_open(open: &OpenModel, thought: Option<&ThoughtFormat>, is_chat: bool) -> String {
    let of_calls = || open.calls().ok().filter(|_| is_chat).map(|calls| calls.answer_open.clone());
    thought.map(|thought| thought.answer_open.clone()).or_else(of_calls).unwrap_or_default()
}

/// Most lines about places that are not enforced: there may be many tools.
const UNENFORCED_MAX: usize = 200;

fn bound(unenforced: &mut Vec<String>) {
    if let Some(more) = unenforced.len().checked_sub(UNENFORCED_MAX).filter(|more| *more > 0) {
        unenforced.truncate(UNENFORCED_MAX);
        unenforced.push(format!("and {more} more"));
    }
}

/// Whether a model with such thoughts has none in this answer.
fn is_off(reasoning: &Reasoning, thought: &ThoughtFormat) -> bool {
    match reasoning {
        Reasoning::Off => true,
        Reasoning::Unasked | Reasoning::Effort { is_asked: false, .. } => thought.can_be_off,
        Reasoning::Default | Reasoning::Budget(_) => thought.must_be_asked,
        Reasoning::On { .. } | Reasoning::Required | Reasoning::Effort { .. } => false,
    }
}

/// Efforts that templates know.
const EFFORTS: [&str; 3] = ["low", "medium", "high"];
/// What the lower efforts are of a model that knows none: tokens of a thought at most, as LiteLLM has it. The
/// higher ones are a bound that holds anyway.
const EFFORT_TOKENS_MAX: [(&str, u32); 2] = [("minimal", 128), ("low", 1024)];

/// Most tokens of a thought of such a model.
fn tokens_max(reasoning: &Reasoning, thought: &ThoughtFormat) -> Option<u32> {
    let by_effort = match reasoning {
        Reasoning::Effort { word, .. } if !thought.has_efforts => {
            EFFORT_TOKENS_MAX.iter().find(|(effort, _)| effort == word).map(|(_, tokens)| *tokens)
        }
        _ => None,
    };
    reasoning.tokens_max().into_iter().chain(by_effort).min()
}

/// The variables that the template is told of the thinking that was asked for.
pub fn thinking_vars(open: &OpenModel, reasoning: &Reasoning) -> Result<Map<String, Value>, GenerateError> {
    let refused = |part, message: &str| Err(invalid(part, message.to_owned()));
    let Some(thought) = open.thought() else {
        return match reasoning {
            Reasoning::Required => {
                refused(RequestPart::Thinking, "this model does not support thinking: leave it out")
            }
            _ => Ok(Map::new()),
        };
    };
    match reasoning {
        Reasoning::Off if !thought.can_be_off => refused(
            RequestPart::Thinking,
            "this model's template has no way to tell it not to think: leave it out",
        ),
        reasoning if is_off(reasoning, thought) => Ok(thought.told(false)),
        Reasoning::Effort { word, .. } if thought.has_efforts && EFFORTS.contains(&word.as_str()) => {
            Ok(calls::effort_var(word))
        }
        Reasoning::Effort { .. } if thought.has_efforts => refused(
            RequestPart::Effort,
            "this model's template knows the efforts low, medium and high: ask for one of these",
        ),
        _ if thought.must_be_asked => Ok(thought.told(true)),
        _ => Ok(Map::new()),
    }
}

fn format_body(format: &AnswerFormat) -> Result<(RequestPart, Option<Body>), GenerateError> {
    Ok(match format {
        AnswerFormat::Text => (RequestPart::Format, None),
        AnswerFormat::JsonObject => (RequestPart::Format, Some(Body::Json(Schema::object().value))),
        AnswerFormat::JsonSchema(schema) => {
            let part = RequestPart::Schema;
            let read = Schema::read(schema, Strictness::Whole).map_err(|e| invalid(part, e.to_string()))?;
            (part, Some(Body::Json(read.closed().value)))
        }
        AnswerFormat::Regex(regex) => (RequestPart::Regex, Some(Body::Regex(regex.clone()))),
        AnswerFormat::Lark(lark) => {
            check_lark(lark).map_err(|e| invalid(RequestPart::Lark, e.to_string()))?;
            (RequestPart::Lark, Some(Body::Lark(lark.clone())))
        }
    })
}

/// Refuses tools whose calls would begin as a thought or an answer does: where each stands behind the name of
/// who it goes to, no tool can be called `user`.
fn check_names(
    calls: &CallFormat,
    reading: &calls::AnswerFormat,
    tools: &Tools,
) -> Result<(), GenerateError> {
    if reading.answer_open.is_empty() {
        return Ok(());
    }
    let is_taken = |name: &&String| {
        let opening = calls.opening(name);
        let mut signs = reading.thought.iter().map(|(open, _)| open).chain([&reading.answer_open]);
        signs.any(|sign| opening.starts_with(sign.as_str()))
    };
    match tools.allowed.iter().find(is_taken) {
        None => Ok(()),
        Some(name) => {
            let message = format!(
                "a call of `{name}` would begin as this model's answers or thoughts do: name it otherwise"
            );
            Err(invalid(RequestPart::Tools, message))
        }
    }
}

/// The schema of an answer that calls nothing, where a format was asked for beside the tools and calls are
/// not required.
fn answer_beside_calls(
    calls: &CallFormat,
    has_channels: bool,
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
    if calls.begin.trim().is_empty() && !has_channels {
        let message = "this model's calls are JSON objects without a sign in front, which an answer of the format could not be told \
                       from: send tools or a format, or require a call";
        return Err(invalid(RequestPart::Format, message.to_owned()));
    }
    Ok(Some(schema))
}

/// What a call begins with, which an answer that may call nothing does not have in it. Behind a channel's
/// sign there is no call, and a call without a sign in front is an object like others.
fn call_sign(open: &OpenModel, has_channels: bool) -> Option<String> {
    let sign = open.calls().ok().filter(|_| !has_channels)?.begin.trim();
    (!sign.is_empty()).then(|| sign.to_owned())
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

fn compile(
    compiler: &Compiler,
    part: RequestPart,
    layout: Layout,
    tools: Option<&mut ToolShapes<'_>>,
    unenforced: &mut Vec<String>,
) -> Result<Constraint, GenerateError> {
    let reason = match compiler.constrain(layout.grammar()) {
        Ok(constraint) => return Ok(constraint),
        Err(CompileError::Refused { reason }) => reason,
        Err(error) => return Err(invalid(part, cannot(&error))),
    };
    let calls = match (&layout.body, tools) {
        (Body::Calls(calls), Some(tools)) => {
            if let Some(schema) = &calls.answer
                && let Err(error) = compiler.constrain(alone(schema))
            {
                return Err(refused_schema(compiler, RequestPart::Schema, schema, &error.to_string()));
            }
            tools.reduce(compiler, calls.clone(), unenforced)?
        }
        (Body::Json(schema), _) => return Err(refused_schema(compiler, part, schema, &reason)),
        _ => return Err(refused(part, &reason)),
    };
    let layout = Layout { body: Body::Calls(calls), ..layout };
    compiler.constrain(layout.grammar()).map_err(|error| refused(part, &error.to_string()))
}

/// The grammar of a value of this schema and nothing else.
fn alone(schema: &Value) -> String {
    Layout {
        thought: Thought::No,
        answer_open: Vec::new(),
        spelled: Vec::new(),
        body: Body::Json(schema.clone()),
    }
    .grammar()
}

fn cannot(error: &CompileError) -> String {
    format!("this model's answers cannot be kept to a format: {error}")
}
