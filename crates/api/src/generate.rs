//! A request for text after its checking, and what comes back while it runs.

use std::sync::Arc;
use std::time::Duration;

use exo_types::{FailureKind, ModelId, Principal, RequestId, SampledToken, SamplingParams, size, size_up};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::labels::Endpoint;

/// What to continue.
#[derive(Clone, PartialEq, Debug)]
pub enum Prompt {
    /// A conversation, to be put through the model's chat template with the answer's opening appended.
    Chat {
        /// In order, at least one.
        messages: Vec<ChatMessage>,
    },
    /// Text, to be tokenised with the model's own start tokens.
    Text(String),
    /// Token ids, taken as they are. The node checks them against the vocabulary.
    Tokens(Vec<u32>),
    /// Text with a hole, for a model that has tokens for filling it (fill-in-the-middle). Control tokens in
    /// both are text.
    Infill {
        /// In front of the hole.
        prefix: String,
        /// Behind it. Several prompts share one.
        suffix: Arc<str>,
    },
}

/// One message of a conversation. Roles are `system`, `user`, `assistant` and `tool`; `developer` arrives as
/// `system`. Its JSON is what chat templates read.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct ChatMessage {
    /// Role of the speaker.
    pub role: String,
    /// What is said: text parts are joined already.
    pub content: String,
    /// The speaker's name, where given; of a tool's result, the tool's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What the assistant thought before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// What the assistant called.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// Of a tool's result: the call that it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
}

/// A call in a message that comes back.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ToolCall {
    /// As the answer named it.
    pub id: String,
    /// Always `function`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Name and arguments of the call.
    pub function: CalledFunction,
}

/// A tool's name and arguments.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct CalledFunction {
    /// Name of the tool.
    pub name: String,
    /// A JSON object as text, as it was written: in its order, its numbers as they are spelled.
    pub arguments: String,
}

/// A tool that the model may be told of.
#[derive(Clone, PartialEq, Debug)]
pub struct ToolDefinition {
    /// Its name: letters, digits and `_-.`.
    pub name: String,
    /// The whole of it as it was sent, for the template.
    pub definition: serde_json::Value,
    /// The schema of its arguments, an object.
    pub parameters: serde_json::Value,
    /// Whether the schema must be enforced whole.
    pub is_strict: bool,
}

/// What an answer may call.
#[derive(Clone, PartialEq, Debug)]
pub struct Tools {
    /// At least one; the template shows all of them.
    pub definitions: Vec<ToolDefinition>,
    /// Names of those that may be called; none where nothing may be.
    pub allowed: Vec<String>,
    /// Whether the answer must be a call.
    pub is_required: bool,
    /// Whether it may be several.
    pub is_parallel: bool,
}

impl Tools {
    /// Whether an answer may call anything.
    pub fn are_callable(&self) -> bool {
        !self.allowed.is_empty()
    }
}

/// What was asked for of the model's thinking.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Reasoning {
    /// What the model does by itself.
    #[default]
    Default,
    /// In a dialect whose clients ask for thoughts if they want any, nothing: none where the model can be
    /// told so, else what it does by itself.
    Unasked,
    /// No thinking at all.
    Off,
    /// Thoughts, also of a model that has none unless it is told to.
    On {
        /// Most tokens of a thought, at least 1, where they are bounded.
        tokens_max: Option<u32>,
    },
    /// The same, and a model that has none is refused.
    Required,
    /// So much, in the API's words.
    Effort {
        /// The effort: `low`, `medium`, …
        word: String,
        /// Most tokens of a thought, at least 1, where they are bounded, too.
        tokens_max: Option<u32>,
        /// Whether thoughts are asked for with it. Else it is a bound on what there is: in a dialect whose
        /// clients ask for thoughts if they want any.
        is_asked: bool,
    },
    /// What the model does by itself, and no more than so many tokens, at least 1.
    Budget(u32),
}

impl Reasoning {
    /// An effort.
    pub fn effort(word: impl Into<String>) -> Self {
        Self::Effort { word: word.into(), tokens_max: None, is_asked: true }
    }

    /// An effort beside which no thoughts are asked for.
    pub fn effort_unasked(word: impl Into<String>) -> Self {
        Self::Effort { word: word.into(), tokens_max: None, is_asked: false }
    }

    /// The same within so many tokens. Whoever wants no thoughts wants none of them.
    pub fn within(self, tokens: Option<u32>) -> Self {
        match (self, tokens) {
            (Self::Default, Some(tokens)) => Self::Budget(tokens),
            (Self::On { .. }, tokens) => Self::On { tokens_max: tokens },
            (Self::Effort { word, is_asked, .. }, tokens) => {
                Self::Effort { word, tokens_max: tokens, is_asked }
            }
            (asked, _) => asked,
        }
    }

    /// Most tokens of a thought, where they are bounded.
    pub fn tokens_max(&self) -> Option<u32> {
        match self {
            Self::Budget(tokens) => Some(*tokens),
            Self::On { tokens_max } | Self::Effort { tokens_max, .. } => *tokens_max,
            Self::Default | Self::Unasked | Self::Off | Self::Required => None,
        }
    }
}

/// What an answer must be. It is kept to token by token, so an answer that is complete is one of these.
#[derive(Clone, PartialEq, Debug, Default)]
pub enum AnswerFormat {
    /// Any text is allowed.
    #[default]
    Text,
    /// Any JSON object is allowed.
    JsonObject,
    /// A JSON value of this schema, which nobody has looked at yet.
    JsonSchema(serde_json::Value),
    /// A match of this regular expression.
    Regex(String),
    /// A text of this grammar, in the dialect of Lark that `docs/api.md` names.
    Lark(String),
}

/// What another node needs to go on with an answer when this one is lost.
#[derive(Clone, PartialEq, Debug)]
pub struct Resumable {
    /// Hash of the secret that the client was given.
    pub proof: [u8; 32],
    /// The request, in an encoding of the server's.
    pub record: Vec<u8>,
    /// Set where this node goes on with it.
    pub resumed: Option<Resumption>,
}

/// Where an answer goes on that another node began.
#[derive(Clone, PartialEq, Debug)]
pub struct Resumption {
    /// Under which it runs here: what ran under the request's own id may not have ended everywhere.
    pub run: RequestId,
    /// The model that answered there: its name may mean another one here.
    pub model: ModelId,
    /// The tokens of each choice so far.
    pub choices: Vec<Vec<SampledToken>>,
}

/// A checked request. Every number is in its range and every parameter is honoured.
#[derive(Clone, PartialEq, Debug)]
pub struct GenerateRequest {
    /// Drawn by the server; names the request in logs and spans.
    pub request: RequestId,
    /// Which way it came, to be counted.
    pub endpoint: Endpoint,
    /// The model's name, or the hexadecimal form of its id.
    pub model: String,
    /// What to continue: one conversation, or one or more of the others.
    pub prompts: Vec<Prompt>,
    /// How many answers to each, at least 1. Its choice `i` draws with `sampling.seed + i` (wrapping), so
    /// that they differ. All choices of the first prompt come before those of the second.
    pub choices: u16,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// What each answer must be. The node compiles it, or refuses the request.
    pub format: AnswerFormat,
    /// What each answer may call.
    pub tools: Option<Tools>,
    /// Tools that were asked for and left out, as a setting has it.
    pub left_out_tools: Vec<String>,
    /// What was asked for of the model's thinking.
    pub reasoning: Reasoning,
    /// Upper bound of tokens per choice; 0 where only the prompt is asked for. The node lowers it to what the
    /// context leaves free.
    pub max_tokens: Option<u32>,
    /// The context that the model must have. Where it is not placed it is placed with as much.
    pub context_tokens_min: Option<u32>,
    /// A choice ends before the first of these; none is empty. The node applies them to the decoded text and
    /// holds back text that could be the start of one.
    pub stop: Vec<String>,
    /// Go on past the end-of-text token (for benchmarks).
    pub ignore_eos: bool,
    /// Send the prompt's text as the first delta of each choice, with its tokens' probabilities where those
    /// are asked for (completions only).
    pub echo: bool,
    /// Whether whole turns of a conversation that is too long may go, the oldest first.
    pub truncates: bool,
    /// For a copy of it on another node.
    pub resumable: Option<Resumable>,
    /// User on whose behalf the request runs.
    pub principal: Principal,
    /// How long the request may wait for placing, loading and a free slot, before
    /// [`GenerateError::Unavailable`].
    pub queue_wait_max: Duration,
}

impl GenerateRequest {
    /// Answers in all.
    pub fn answers(&self) -> u16 {
        u16::try_from(self.prompts.len()).unwrap_or(u16::MAX).saturating_mul(self.choices)
    }

    /// Whether it is a conversation.
    pub fn is_chat(&self) -> bool {
        matches!(self.prompts.as_slice(), [Prompt::Chat { .. }])
    }
}

/// What happens to a running request, in order: any number of `Queued`, one `Started`, then per choice deltas
/// and one `Finished`, and after the last choice one `Done`, which ends the stream. `Queued` comes again
/// while an answer is interrupted, and `Watched` at any time.
#[derive(Clone, PartialEq, Debug)]
pub enum GenerateEvent {
    /// Waiting, and for what. Sent when the reason changes, at most a few times a second.
    Queued {
        /// For people: `placing`, `loading 37 %`, `waiting for a slot`.
        reason: String,
    },
    /// No news for a while: the node watches the request's deadlines.
    Watched,
    /// The prompt is being read.
    Started {
        /// Tokens of all prompts, after the template.
        prompt_tokens: u32,
    },
    /// Text of one choice.
    Delta(Delta),
    /// One choice is complete.
    Finished {
        /// Which choice, from 0.
        index: u16,
        /// Why the choice ended.
        reason: FinishReason,
        /// The stop string that ended it.
        stop: Option<String>,
        /// Tokens generated for it, including those of a stop string.
        completion_tokens: u32,
        /// The kernel families that computed so far.
        kernels: Vec<String>,
    },
    /// All choices are complete.
    Done(Summary),
}

/// A piece of one choice's text.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Delta {
    /// Which choice, from 0.
    pub index: u16,
    /// Tokens of the choice up to here.
    pub position: u32,
    /// Whole characters; may be empty while a character or a stop string is incomplete.
    pub text: String,
    /// Whole characters of the thought in front of the answer.
    pub reasoning: String,
    /// What is new of calls.
    pub calls: Vec<CallDelta>,
    /// The tokens that became final with this piece. Filled only when log-probabilities were asked for.
    pub tokens: Vec<TokenPiece>,
}

impl Delta {
    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty() && self.reasoning.is_empty() && self.calls.is_empty() && self.tokens.is_empty()
    }

    /// About what it takes of an answer that is collected.
    pub fn bytes(&self) -> usize {
        let calls = self.calls.iter().map(|call| {
            let begins =
                call.begins.as_ref().map_or(0, |(id, name)| size_of::<CallDelta>() + id.len() + name.len());
            begins + call.arguments.len()
        });
        let piece = |text: &str, bytes: &[u8]| size_of::<TokenPiece>() + text.len() + bytes.len();
        let tokens = self.tokens.iter().map(|token| {
            let top = token.top.iter().map(|top| piece(&top.text, &top.bytes));
            piece(&token.text, &token.bytes) + top.sum::<usize>()
        });
        self.text.len() + self.reasoning.len() + calls.sum::<usize>() + tokens.sum::<usize>()
    }
}

/// What is new of one call.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CallDelta {
    /// Which call of the choice, from 0.
    pub index: u32,
    /// Where it begins: its id and the tool's name.
    pub begins: Option<(String, String)>,
    /// JSON to append to its arguments.
    pub arguments: String,
}

/// One token with its probability.
#[derive(Clone, PartialEq, Debug)]
pub struct TokenPiece {
    /// Whether it is a part of the text: control tokens are not.
    pub is_text: bool,
    /// Id of the token.
    pub id: u32,
    /// Text of the token; incomplete characters appear as U+FFFD.
    pub text: String,
    /// Bytes of the token, exact.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability; `None` of a prompt's first token, in front of which nothing
    /// stands.
    pub logprob: Option<f32>,
    /// The likeliest tokens at its place, best first.
    pub top: Vec<TopToken>,
}

/// A token that could have been chosen.
#[derive(Clone, PartialEq, Debug)]
pub struct TopToken {
    /// Id of the token.
    pub id: u32,
    /// Text of the token; incomplete characters appear as U+FFFD.
    pub text: String,
    /// Bytes of the token, exact.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}

/// Why a choice ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model ended it, or a stop string appeared.
    Stop,
    /// `max_tokens` or the context was reached.
    Length,
    /// The answer calls tools.
    ToolCalls,
}

/// Tokens a request took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Tokens of all prompts, each counted once however many choices.
    pub prompt_tokens: u32,
    /// Tokens generated over all choices.
    pub completion_tokens: u32,
    /// Prompt tokens whose keys and values were already there.
    pub cached_tokens: u32,
    /// Generated tokens that had been guessed ahead.
    pub accepted_drafts: u32,
    /// Guesses that were computed and were wrong; not among the generated tokens.
    pub rejected_drafts: u32,
    /// Generated tokens that belong to thoughts.
    pub reasoning_tokens: u32,
}

impl Usage {
    /// Of the tokens guessed ahead, the share that was right; `None` where there were none.
    pub fn acceptance_rate(&self) -> Option<f64> {
        let drafts = u64::from(self.accepted_drafts) + u64::from(self.rejected_drafts);
        (drafts > 0).then(|| f64::from(self.accepted_drafts) / drafts as f64)
    }
}

/// Measured times of a request.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct Timings {
    /// From arrival to the first prompt token at work.
    pub queued_ms: f64,
    /// From arrival to the first generated token.
    pub ttft_ms: f64,
    /// Tokens of the prompt read per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens_per_s: Option<f64>,
    /// Tokens generated per second over all choices, after the first token; `None` for a single token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_s: Option<f64>,
}

/// Where the time of a request's steps went, as its scheduler has counted it. Of several choices, and of
/// steps on their way at once, each counts; of an answer that was interrupted, its last part.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct StepTimesView {
    /// What each stage computed, in order.
    pub stages: Vec<StageTimeView>,
    /// Milliseconds on links and waiting for other steps, until the first token.
    pub between_prompt_ms: f64,
    /// Milliseconds on links and waiting for other steps, after the first token.
    pub between_answer_ms: f64,
}

/// What one stage computed of a request.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct StageTimeView {
    /// Id of the stage's node, where the reader may see the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Device of the stage on that node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Milliseconds of computing until the first token.
    pub prompt_ms: f64,
    /// Milliseconds of computing after the first token.
    pub answer_ms: f64,
}

impl StepTimesView {
    /// For whoever may ask for answers and not see the cluster: without nodes and devices.
    pub fn without_places(mut self) -> Self {
        self.stages.iter_mut().for_each(|stage| (stage.node, stage.device) = (None, None));
        self
    }

    /// Takes in another choice. One that ran on other devices has another picture: the later stays.
    pub fn add(&mut self, other: Self) {
        let places = |times: &Self| -> Vec<_> {
            times.stages.iter().map(|stage| (stage.node.clone(), stage.device.clone())).collect()
        };
        if places(self) != places(&other) {
            *self = other;
            return;
        }
        for (stage, more) in self.stages.iter_mut().zip(other.stages) {
            stage.prompt_ms += more.prompt_ms;
            stage.answer_ms += more.answer_ms;
        }
        self.between_prompt_ms += other.between_prompt_ms;
        self.between_answer_ms += other.between_answer_ms;
    }
}

/// The end of a request.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Summary {
    /// Tokens that the request took.
    pub usage: Usage,
    /// How long each part of the request took.
    pub timings: Timings,
    /// Where the time of its steps went, where that is known.
    pub times: Option<StepTimesView>,
    /// The model's id in full.
    pub model_id: String,
    /// Kernel families that computed it, first stage first, each once: `cpu/avx2`. The same families and the
    /// same seed give the same text.
    pub kernels: Vec<String>,
    /// Stages of the pipeline.
    pub stages: u32,
    /// Places of tools' schemas that are not enforced, with what is wrong with each; only of tools that are
    /// not strict.
    pub unenforced: Vec<String>,
    /// Where the answer was interrupted and went on.
    pub resumed: Vec<Resumed>,
    /// Messages that were left out because the conversation was too long.
    pub left_out_messages: u32,
    /// Tools that were left out, as a setting has it.
    pub left_out_tools: Vec<String>,
}

/// Where an answer went on after what computed it was lost. Tokens that were sent before stay as they are:
/// where other kernels go on, the text may be another than theirs alone.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Resumed {
    /// Which choice, from 0.
    pub index: u16,
    /// Tokens of it that were there already.
    pub after_tokens: u32,
    /// The kernel families that compute it from there on.
    pub kernels: Vec<String>,
}

/// A part of a request, whatever its dialect calls it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestPart {
    /// The name of the model.
    Model,
    /// The conversation or the text.
    Prompt,
    /// The text behind the hole that is to be filled.
    Suffix,
    /// The context that it asks for.
    Context,
    /// The kind of the answer's format.
    Format,
    /// The schema of the answer.
    Schema,
    /// The regular expression of the answer.
    Regex,
    /// The grammar of the answer.
    Lark,
    /// The request's tools as a whole.
    Tools,
    /// The arguments' schema of one tool.
    ToolSchema(usize),
    /// Whether the model is to think.
    Thinking,
    /// How much the model is to think.
    Effort,
    /// Log-probabilities of the tokens.
    Logprobs,
    /// What is added to the scores of tokens.
    LogitBias,
    /// How rows become one vector.
    Pooling,
    /// How long vectors are.
    Dimensions,
}

/// Why there is no answer, or why it stopped short.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GenerateError {
    /// No model of that name.
    #[error("no model `{model}` is known here{}", known_hint(model, .known))]
    ModelUnknown {
        /// What was asked for.
        model: String,
        /// Names there are, for the message; may be cut short.
        known: Vec<String>,
    },
    /// The cluster's memory is too small.
    #[error("`{model}` needs {}, {} are free: {detail}", size_up(*needed_bytes), size(*free_bytes))]
    DoesNotFit {
        /// Name of the model.
        model: String,
        /// Bytes needed in all.
        needed_bytes: u64,
        /// Bytes free in all.
        free_bytes: u64,
        /// On which device how many bytes are missing.
        detail: String,
    },
    /// The model's files cannot be used.
    #[error("`{model}` could not be loaded: {reason}")]
    LoadFailed {
        /// Name of the model.
        model: String,
        /// What is wrong with the model.
        reason: String,
    },
    /// No room for the prompt and one token of answer.
    #[error("the prompt has {prompt_tokens} tokens, {}", room(*context_tokens, *cache_tokens))]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt_tokens: u64,
        /// Tokens of the context.
        context_tokens: u64,
        /// Tokens of keys and values over all sequences; as many as the context where that bounds it.
        cache_tokens: u64,
    },
    /// So much text that its tokens are not counted.
    #[error(
        "the prompt has {bytes} bytes of text, and the model's context holds {context_tokens} tokens including the answer: shorten the \
         prompt; of more than {bytes_max} bytes this node counts no tokens"
    )]
    PromptTooLarge {
        /// Bytes of its text.
        bytes: usize,
        /// Bytes that this node reads.
        bytes_max: usize,
        /// Tokens of the context.
        context_tokens: u64,
    },
    /// The chat template refused, looped or produced too much.
    #[error(
        "the model's chat template failed on these messages: {message}; `/v1/completions` uses no template"
    )]
    TemplateFailed {
        /// What the template engine said.
        message: String,
    },
    /// A part of the request does not go with this model.
    #[error("{message}")]
    Invalid {
        /// The part of the request.
        part: RequestPart,
        /// What is wrong and what is allowed.
        message: String,
    },
    /// Too many requests wait already.
    #[error(
        "{waiting} answers wait for `{model}` already and its queue holds no more: try again in {retry_after_s} s, \
         ask for fewer at once, or place the model with more slots"
    )]
    QueueFull {
        /// Name of the model.
        model: String,
        /// Answers (choices of requests) waiting.
        waiting: u32,
        /// Seconds after which to try again.
        retry_after_s: u32,
    },
    /// Not now: still loading after the longest wait, no coordinator, shutting down.
    #[error("not available at the moment: {reason}")]
    Unavailable {
        /// Why it is not available.
        reason: String,
        /// Seconds after which to try again.
        retry_after_s: u32,
    },
    /// The client takes the answer more slowly than it comes, by more than is kept for it.
    #[error("the client did not take {unread} events of its answer; the request was ended to free its slot")]
    SlowReader {
        /// Events that wait to be taken.
        unread: u32,
    },
    /// It ran and broke.
    #[error("{message}")]
    Failed {
        /// The kind of failure; stable, for programs.
        kind: FailureKind,
        /// What happened, to be displayed.
        message: String,
    },
    /// Nothing came within the time allowed.
    #[error("no result within {waited_ms} ms: {reason}; `exo status` shows what holds the model up")]
    Deadline {
        /// How long the request waited, in milliseconds.
        waited_ms: u64,
        /// What the request waited for.
        reason: String,
    },
    /// A bug of ours; the node goes on.
    #[error("internal error: {message}; `exo logs` shows what led to it")]
    Internal {
        /// What is known of the bug.
        message: String,
    },
}

/// What bounds a prompt: the context, or with it a cache that holds no more than one.
fn room(context_tokens: u64, cache_tokens: u64) -> String {
    if cache_tokens > context_tokens {
        return format!(
            "the model's context holds {context_tokens} including the answer; shorten the prompt, or place the model \
             with a larger context if it is made for one"
        );
    }
    format!(
        "the model was placed with a context of {context_tokens} and a cache of keys and values of {cache_tokens}, \
         including the answer; shorten the prompt, or place the model with a larger context and more cache_tokens"
    )
}

/// Names that somebody may have meant who named a model that is none: those that the name begins or is part
/// of, else all.
pub(crate) fn known_hint(model: &str, known: &[String]) -> String {
    let lower = model.to_lowercase();
    let is_meant = |name: &&String| !lower.is_empty() && name.to_lowercase().contains(&lower);
    let meant: Vec<&str> = known.iter().filter(is_meant).map(String::as_str).collect();
    match (meant.as_slice(), known) {
        (_, []) => String::new(),
        ([], known) => format!("; there are: {}", known.join(", ")),
        (meant, _) => format!("; did you mean {}?", meant.join(" or ")),
    }
}
