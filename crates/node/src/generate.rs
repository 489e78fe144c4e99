//! One request from messages to text: template, tokens, stop strings, events. The tokens come from the node's
//! machine.

use std::sync::Arc;

use exo_api::{
    ChatMessage, Delta, FinishReason, GenerateError, GenerateEvent, GenerateRequest, GenerateStream, Prompt,
    Reasoning, RequestPart, Tools,
};
use exo_cluster::wire::{Busy, EndReason, limits};
use exo_machine::SequenceEvent;
use exo_tokenizer::{ChatError, ChatTemplate, EncodeOptions, RenderOptions};
use exo_types::{FailureKind, PromptReport, RequestId, SampledToken};

use crate::choice::Choice;
use crate::constrain;
use crate::events::EventSender;
use crate::library::OpenModel;
use crate::outlet::{Sink, sink};
use crate::progress::Progress;
use crate::refusals::invalid;
use crate::running::{Prepared, PreparedPrompt, Running};
use crate::token_check::TokenCheck;
use crate::turn_rules::shorten_id;
use crate::turns::leave_out;

fn prompt_tokens(
    open: &OpenModel,
    request: &GenerateRequest,
    prompt: &Prompt,
) -> Result<Vec<u32>, GenerateError> {
    let tokens = match prompt {
        Prompt::Chat { messages } => {
            chat_tokens(open, messages, request.tools.as_ref(), &request.reasoning, true)?
        }
        Prompt::Text(text) => encode(open, text, RAW)?,
        Prompt::Infill { prefix, suffix } => infill(open, &request.model, prefix, suffix)?,
        Prompt::Tokens(tokens) => tokens.clone(),
    };
    // A tokenizer in a file of its own may know tokens that the model has no row for.
    check_tokens(open, &tokens)?;
    if tokens.is_empty() {
        return Err(invalid(RequestPart::Prompt, "the prompt has no token".to_owned()));
    }
    Ok(tokens)
}

/// Refuses what is not in the vocabulary.
pub fn check_tokens(open: &OpenModel, tokens: &[u32]) -> Result<(), GenerateError> {
    let vocab = open.model.config.vocab;
    match tokens.iter().find(|token| **token >= vocab) {
        Some(token) => {
            let message = format!("token {token} is not below the vocabulary's {vocab}");
            Err(invalid(RequestPart::Prompt, message))
        }
        None => Ok(()),
    }
}

/// The prompt's tokens, and the grammar of the answers. Blocks for as long as a long prompt takes: call it
/// where that is allowed.
pub fn prepare(
    open: &OpenModel,
    request: &mut GenerateRequest,
    context_tokens: u32,
) -> Result<Prepared, GenerateError> {
    let left_out_messages = shorten(open, request, context_tokens)?;
    let request = &*request;
    let prepare = |prompt| {
        let tokens = prompt_tokens(open, request, prompt)?;
        let undecodable = |e: exo_tokenizer::DecodeError| invalid(RequestPart::Prompt, e.to_string());
        let echo = match prompt {
            _ if !request.echo => String::new(),
            Prompt::Text(text) | Prompt::Infill { prefix: text, .. } => text.clone(),
            _ => open.tokenizer.decode(&tokens, true).map_err(undecodable)?,
        };
        Ok(PreparedPrompt { tokens, echo })
    };
    let prompts = request.prompts.iter().map(prepare).collect::<Result<Vec<_>, _>>()?;
    if scores_prompt(request) {
        prompts.iter().try_for_each(|prompt| check_scores(request, prompt.tokens.len()))?;
    }
    let mut plan = constrain::plan(open, request)?;
    let constraint = plan.constraint.take().map(Arc::new);
    Ok(Prepared { prompts, constraint, plan, left_out_messages })
}

/// Leaves out turns of a conversation that is too long, where that is asked for. A quarter of the context is
/// left for the answer, or what it may have at most; less where the last turn alone takes more than the rest.
fn shorten(
    open: &OpenModel,
    request: &mut GenerateRequest,
    context_tokens: u32,
) -> Result<u32, GenerateError> {
    let GenerateRequest { truncates: true, prompts, tools, reasoning, max_tokens, .. } = request else {
        return Ok(0);
    };
    let [Prompt::Chat { messages }] = prompts.as_mut_slice() else { return Ok(0) };
    let answer = (context_tokens / 4).min(max_tokens.unwrap_or(u32::MAX)).max(1);
    let room = |answer: u32| context_tokens.saturating_sub(answer) as usize;
    leave_out(messages, room(answer), room(1), |messages| {
        chat_tokens(open, messages, tools.as_ref(), reasoning, true).map(|tokens| tokens.len())
    })
}

/// Whether the probabilities of the prompt's tokens are asked for.
pub fn scores_prompt(request: &GenerateRequest) -> bool {
    request.echo && request.sampling.logprobs.is_some()
}

/// Refuses a prompt whose scores no message would hold.
fn check_scores(request: &GenerateRequest, tokens: usize) -> Result<(), GenerateError> {
    let top = request.sampling.logprobs.map_or(0, usize::from);
    if limits::scores_bytes(tokens, top) <= limits::SCORES_BYTES_MAX {
        return Ok(());
    }
    let most = limits::SCORES_BYTES_MAX / limits::scores_bytes(1, top);
    let message = format!(
        "the prompt has {tokens} tokens, and with {top} likeliest ones for each the probabilities of at most {most} are reported"
    );
    Err(invalid(RequestPart::Logprobs, message))
}

/// The tokens of a conversation.
pub fn chat_tokens(
    open: &OpenModel,
    messages: &[ChatMessage],
    tools: Option<&Tools>,
    reasoning: &Reasoning,
    opens_answer: bool,
) -> Result<Vec<u32>, GenerateError> {
    let template = template(open)?;
    let messages = shown_messages(open, template, messages);
    let options = render_options(open, tools, reasoning, opens_answer)?;
    open.tokenizer.encode_chat(template, &messages, &options).map_err(|error| match error {
        ChatError::Template(e) => GenerateError::TemplateFailed { message: exo_accelerators::chain(&e) },
        e => invalid(RequestPart::Prompt, exo_accelerators::chain(&e)),
    })
}

/// The text that the template makes of a conversation.
pub fn render_chat(
    open: &OpenModel,
    messages: &[ChatMessage],
    tools: Option<&Tools>,
    reasoning: &Reasoning,
    opens_answer: bool,
) -> Result<String, GenerateError> {
    let template = template(open)?;
    let options = render_options(open, tools, reasoning, opens_answer)?;
    template
        .render(&shown_messages(open, template, messages), &options)
        .map_err(|e| GenerateError::TemplateFailed { message: exo_accelerators::chain(&e) })
}

fn template(open: &OpenModel) -> Result<&ChatTemplate, GenerateError> {
    match &open.template {
        Some(Ok(template)) => Ok(template),
        Some(Err(error)) => Err(GenerateError::TemplateFailed { message: exo_accelerators::chain(error) }),
        None => {
            let message =
                "this model has no chat template; use /v1/completions, or `raw` in /api/generate".to_owned();
            Err(invalid(RequestPart::Prompt, message))
        }
    }
}

/// Messages as the template reads them: turns that it takes, ids of calls in the only form that all take,
/// thoughts in the field that it prints.
fn shown_messages(
    open: &OpenModel,
    template: &ChatTemplate,
    messages: &[ChatMessage],
) -> Vec<serde_json::Value> {
    let field = open.thought().map_or(USUAL, |thought| thought.field);
    let has_calls = messages.iter().any(|message| !message.tool_calls.is_empty()) && open.calls().is_ok();
    let shown = |mut message: ChatMessage| {
        if has_calls {
            let ids = message.tool_calls.iter_mut().map(|call| &mut call.id);
            ids.chain(&mut message.tool_call_id).for_each(shorten_id);
        }
        let mut shown = serde_json::to_value(&message).ok()?;
        if field != USUAL
            && let Some(fields) = shown.as_object_mut()
            && let Some(thought) = fields.shift_remove(USUAL)
        {
            // Beside a call such a template takes a thought or a text.
            if message.tool_calls.is_empty() || message.content.is_empty() {
                fields.insert(field.to_owned(), thought);
            }
        }
        Some(shown)
    };
    open.turns(template).joined(messages).into_iter().filter_map(shown).collect()
}

/// The field of a message that holds its thought.
const USUAL: &str = "reasoning_content";

fn render_options(
    open: &OpenModel,
    tools: Option<&Tools>,
    reasoning: &Reasoning,
    opens_answer: bool,
) -> Result<RenderOptions, GenerateError> {
    // Where nothing may be called, a model that cannot be given tools is not refused: it is told of none.
    let tools = tools.filter(|tools| tools.are_callable() || open.calls().is_ok());
    let shown = |tools: &Tools| tools.definitions.iter().map(|tool| tool.definition.clone()).collect();
    Ok(RenderOptions {
        add_generation_prompt: opens_answer,
        now: Some(chrono::Local::now().naive_local()),
        tools: tools.map(shown),
        vars: constrain::thinking_vars(open, reasoning)?,
    })
}

/// How a raw prompt is read, which is the whole text that a model sees: control tokens in it are control
/// tokens, as with llama.cpp and vLLM.
const RAW: EncodeOptions = EncodeOptions { add_special: true, parse_special: true };

/// The tokens of a text with a hole.
fn infill(open: &OpenModel, model: &str, prefix: &str, suffix: &str) -> Result<Vec<u32>, GenerateError> {
    let tokens = open.tokenizer.encode_infill(prefix, suffix);
    let tokens = tokens.map_err(|e| invalid(RequestPart::Prompt, exo_accelerators::chain(&e)))?;
    tokens.ok_or_else(|| {
        let message = format!("`{model}` has no tokens for filling in the middle: leave it out");
        invalid(RequestPart::Suffix, message)
    })
}

/// The tokens of a text.
pub fn encode(open: &OpenModel, text: &str, options: EncodeOptions) -> Result<Vec<u32>, GenerateError> {
    open.tokenizer
        .encode(text, options)
        .map_err(|e| invalid(RequestPart::Prompt, exo_accelerators::chain(&e)))
}

/// Turns the node's events into the client's. Dropping the stream cancels the request.
pub fn stream(running: Running) -> GenerateStream {
    let (sink, outlet) = sink();
    let (request, node) = (running.request.request, running.node.clone());
    let cancel = CancelOnDrop { request, node: node.clone() };
    tokio::spawn(async move {
        if let Err(error) = pump(running, &sink).await {
            // Its slot is free from now on, whenever the client reads why.
            node.cancel_request(request, None);
            sink.fail(error);
        }
    });
    Box::pin(futures_util::stream::unfold((outlet, cancel), |(mut outlet, cancel)| async move {
        outlet.next().await.map(|item| (item, (outlet, cancel)))
    }))
}

/// Cancels a request when no one waits for it any more. One that is over does not mind.
pub struct CancelOnDrop {
    pub request: RequestId,
    pub node: EventSender,
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.node.cancel_request(self.request, None);
    }
}

async fn pump(mut running: Running, sink: &Sink) -> Result<(), GenerateError> {
    let prompt_tokens = running.prepared.prompt_tokens();
    let count = running.request.answers();
    let mut choices: Vec<_> = (0..count).map(|i| Choice::new(i, &running)).collect();
    let mut checked = Vec::new();
    if let Some(constraint) = &running.prepared.constraint {
        for _ in 0..count {
            checked.push(TokenCheck::start(&running.open, constraint)?);
        }
    }
    let mut progress = Progress::new(running.arrived, prompt_tokens, running.request.choices);
    let resumed = running.request.resumable.take().and_then(|resumable| resumable.resumed);
    let given = resumed.map(|resumed| resumed.choices).unwrap_or_default();
    let is_resumed = !given.is_empty();
    let mut opening = Some(given);
    while let Some((at, event)) = running.events.recv().await {
        match event {
            SequenceEvent::Queued(wait) => sink.send(GenerateEvent::Queued { reason: wait.to_string() })?,
            SequenceEvent::Watched => sink.send(GenerateEvent::Watched)?,
            SequenceEvent::Started { index, kernels, stages, last_node } => {
                if let Some(checked) = checked.get_mut(usize::from(index)) {
                    checked.sampled_by(&last_node, stages);
                }
                let tokens = choices.get(usize::from(index)).map_or(0, Choice::tokens);
                progress.start(at, index, tokens, kernels, stages);
                if let Some(given) = opening.take() {
                    open_answer(sink, &running, count)?;
                    progress.resume(&given);
                    repeat(sink, &running, given, &mut choices, &mut checked).await?;
                }
            }
            SequenceEvent::Token { index, token } => {
                progress.token(at, index);
                let Some(choice) = choices.get_mut(usize::from(index)) else { continue };
                take_token(sink, &running, choice, checked.get_mut(usize::from(index)), &token)?;
            }
            SequenceEvent::Ended { index, reason, cached_tokens, drafts, times } => {
                progress.ended(index, cached_tokens, drafts);
                progress.add_times(times);
                // What another node began may be whole: then nothing of it starts here.
                if is_resumed && let Some(given) = opening.take() {
                    open_answer(sink, &running, count)?;
                    progress.resume(&given);
                    repeat(sink, &running, given, &mut choices, &mut checked).await?;
                }
                let Some(choice) = choices.get_mut(usize::from(index)) else { continue };
                // The token that a prompt's scores came with says nothing of an answer that was not asked
                // for.
                let is_empty = running.request.max_tokens == Some(0);
                let end = if is_empty { EndReason::MaxTokens } else { reason };
                finish(sink, choice, end, progress.kernels())?;
            }
            SequenceEvent::Refused(error) => return Err(error),
            SequenceEvent::Failed { kind: FailureKind::QueueFull, busy: Some(busy), .. } => {
                let Busy { waiting, retry_after_s } = busy;
                let model = running.request.model.clone();
                return Err(GenerateError::QueueFull { model, waiting, retry_after_s });
            }
            SequenceEvent::Failed { kind, message, .. } => {
                return Err(failure(&running, kind, message, &progress));
            }
        }
        if choices.iter().all(Choice::is_finished) {
            return sink.send(GenerateEvent::Done(progress.summary(&running, &choices)));
        }
    }
    Err(GenerateError::Unavailable { reason: "the node is shutting down".to_owned(), retry_after_s: 5 })
}

/// One more token of a choice.
fn take_token(
    sink: &Sink,
    running: &Running,
    choice: &mut Choice,
    checked: Option<&mut TokenCheck>,
    token: &SampledToken,
) -> Result<(), GenerateError> {
    if scores_prompt(&running.request) && choice.tokens() == 0 {
        sink.send(GenerateEvent::Delta(scored_echo(running, choice, token)?))?;
    }
    if running.request.max_tokens == Some(0) {
        return Ok(()); // only the prompt was asked for, and this came with it
    }
    if let Some(checked) = checked {
        checked.push(token.token)?;
    }
    if let Some(delta) = choice.push(token) {
        sink.send(GenerateEvent::Delta(delta))?;
    }
    if choice.found_stop().is_some() {
        running.node.cancel_request(running.request.request, Some(choice.index()));
    }
    Ok(())
}

/// The tokens that another node had, as if they came now.
async fn repeat(
    sink: &Sink,
    running: &Running,
    given: Vec<Vec<SampledToken>>,
    choices: &mut [Choice],
    checked: &mut [TokenCheck],
) -> Result<(), GenerateError> {
    for (index, (choice, tokens)) in choices.iter_mut().zip(given).enumerate() {
        for token in tokens {
            sink.room().await?;
            if let Some(checked) = checked.get_mut(index) {
                checked.push(token.token)?;
            }
            if let Some(delta) = choice.push(&token) {
                sink.send(GenerateEvent::Delta(delta))?;
            }
        }
        if choice.found_stop().is_some() {
            running.node.cancel_request(running.request.request, Some(choice.index()));
        }
    }
    Ok(())
}

/// What stands in front of the first token.
fn open_answer(sink: &Sink, running: &Running, count: u16) -> Result<(), GenerateError> {
    sink.send(GenerateEvent::Started { prompt_tokens: running.prepared.prompt_tokens() })?;
    // With its probabilities it comes when they do: with the first token.
    if !running.request.echo || scores_prompt(&running.request) {
        return Ok(());
    }
    for index in 0..count {
        let text = running.prompt_of(index).map(|prompt| prompt.echo.clone()).unwrap_or_default();
        sink.send(GenerateEvent::Delta(Delta { index, text, ..Default::default() }))?;
    }
    Ok(())
}

/// The prompt with the probabilities that came with the first token behind it.
fn scored_echo(running: &Running, choice: &Choice, first: &SampledToken) -> Result<Delta, GenerateError> {
    let failed =
        |message: &str| GenerateError::Failed { kind: FailureKind::Protocol, message: message.to_owned() };
    let prompt = running.prompt_of(choice.index()).ok_or_else(|| failed("a choice of no prompt"))?;
    match first.prompt.as_deref() {
        Some(PromptReport::Scores(scores)) if scores.len() + 1 == prompt.tokens.len() => {
            Ok(choice.echo(&prompt.echo, &prompt.tokens, scores))
        }
        _ => Err(failed("the last stage did not report the probabilities of the prompt's tokens")),
    }
}

fn finish(sink: &Sink, choice: &mut Choice, end: EndReason, kernels: &[String]) -> Result<(), GenerateError> {
    if choice.is_finished() {
        return Ok(());
    }
    if let Some(delta) = choice.finish() {
        sink.send(GenerateEvent::Delta(delta))?;
    }
    let reason = match end {
        _ if choice.found_stop().is_some() => FinishReason::Stop,
        EndReason::StopToken | EndReason::Cancelled if choice.has_calls() => FinishReason::ToolCalls,
        EndReason::StopToken | EndReason::Cancelled => FinishReason::Stop,
        EndReason::MaxTokens | EndReason::ContextFull => FinishReason::Length,
    };
    let (index, stop, completion_tokens) =
        (choice.index(), choice.found_stop().map(str::to_owned), choice.tokens());
    let kernels = kernels.to_vec();
    sink.send(GenerateEvent::Finished { index, reason, stop, completion_tokens, kernels })
}

fn failure(running: &Running, kind: FailureKind, message: String, progress: &Progress) -> GenerateError {
    match kind {
        FailureKind::Deadline if !progress.is_started() => {
            GenerateError::Unavailable { reason: message, retry_after_s: 30 }
        }
        FailureKind::Deadline => GenerateError::Deadline {
            waited_ms: running.arrived.elapsed().as_millis() as u64,
            reason: message,
        },
        kind => GenerateError::Failed { kind, message },
    }
}
