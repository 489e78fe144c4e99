//! Texts to vectors: each text is a sequence of which the last stage reports the pooled rows with its first
//! token.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use exo_api::{EmbedRequest, Embeddings, GenerateError, Prompt, RequestPart, SignOfLife};
use exo_cluster::wire::{Busy, limits};
use exo_cluster::{DriverConfig, DriverStart};
use exo_machine::{Limits, Resolved, SequenceEvent, StartRequest};
use exo_stdx::unix_s;
use exo_tokenizer::EncodeOptions;
use exo_types::{FailureKind, Pooling, PromptQuery, PromptReport, SamplingParams, SequenceId, SequenceSpec};
use tokio::sync::mpsc;

use super::NodeFacade;
use super::prompts::check_prompt_text;
use crate::events::{Event, EventSender};
use crate::generate::{CancelOnDrop, check_tokens, encode};
use crate::library::OpenModel;
use crate::meters::RequestWatch;
use crate::refusals::invalid;

/// Texts of one request that are with the scheduler at once. A request of thousands takes no more of the
/// queue than one of a few.
const WINDOW: usize = 16;

/// A request whose vectors are being made.
struct Embedding {
    request: EmbedRequest,
    resolved: Resolved,
    open: Arc<OpenModel>,
    place: exo_cluster::InstanceRequest,
    pooling: Pooling,
    deadlines: DriverConfig,
    arrived: Instant,
    started: Option<Instant>,
    kernels: BTreeSet<String>,
}

impl NodeFacade {
    /// Makes the vectors of a request, and counts how it ends.
    pub(super) async fn embed_texts(
        &self,
        request: EmbedRequest,
        heard: SignOfLife,
    ) -> Result<Embeddings, GenerateError> {
        let mut watch = self.meters.request(request.endpoint, 1);
        let made = self.embed_watched(request, &heard, &mut watch).await;
        match &made {
            Ok(embeddings) => watch.embedded(embeddings),
            Err(error) => watch.failed(error),
        }
        made
    }

    async fn embed_watched(
        &self,
        mut request: EmbedRequest,
        heard: &SignOfLife,
        watch: &mut RequestWatch,
    ) -> Result<Embeddings, GenerateError> {
        let arrived = Instant::now();
        let (resolved, open) = self.open(&request.model).await?;
        resolved.name.clone_into(&mut watch.model);
        let (place, limits) = self.limits(&resolved, &open, request.context_tokens_min)?;
        self.model_uses.note(resolved.id, unix_s());
        let (pooling, dimensions) =
            (self.pooling(&open, request.pooling)?, dimensions(&open, request.dimensions)?);
        let inputs = std::mem::take(&mut request.inputs);
        let text_bytes = inputs.iter().map(text_bytes).sum();
        check_prompt_text(text_bytes, self.prompt_bytes_max, limits.context_tokens)?;
        let (model, truncates) = (open.clone(), request.truncates);
        let tokenise = move || tokenise(&model, inputs, limits, truncates);
        let (texts, truncated_tokens) = self.in_turn(request.principal, text_bytes, tokenise).await?;
        let prompt_tokens = texts.iter().map(|tokens| tokens.len() as u64).sum();
        let deadlines = self.deadlines(request.queue_wait_max);
        let (started, kernels) = (None, BTreeSet::new());
        let mut embedding =
            Embedding { request, resolved, open, place, pooling, deadlines, arrived, started, kernels };
        let mut vectors = embedding.vectors(&self.node, heard, texts).await?;
        vectors.iter_mut().for_each(|vector| to_length_one(vector, dimensions));
        let ms = |at: Option<Instant>| at.map_or(0.0, |at| (at - arrived).as_secs_f64() * 1e3);
        Ok(Embeddings {
            vectors,
            prompt_tokens,
            truncated_tokens,
            queued_ms: ms(embedding.started),
            total_ms: ms(Some(Instant::now())),
            model_id: embedding.open.id.to_full(),
            kernels: embedding.kernels.into_iter().collect(),
        })
    }

    /// How rows become a vector: as the caller says, or the model's files, or this node's setting.
    fn pooling(&self, open: &OpenModel, asked: Option<Pooling>) -> Result<Pooling, GenerateError> {
        let hidden = open.model.config.hidden as usize;
        if hidden > limits::EMBEDDING_MAX {
            let most = limits::EMBEDDING_MAX;
            let message = format!("the model's vectors have {hidden} elements, {most} at most are sent");
            return Err(invalid(RequestPart::Model, message));
        }
        asked.or(open.model.embedding.pooling).or(self.config.embedding_pooling).ok_or_else(|| {
            let message = "the model's files do not say how its rows become one vector, as it was made to write text: \
                           send `pooling` with `first`, `mean` or `last`, or name one for all requests of this node \
                           with its setting `embedding_pooling`";
            invalid(RequestPart::Pooling, message.to_owned())
        })
    }
}

impl Embedding {
    /// The vectors of all texts, which together have the time of one answer.
    async fn vectors(
        &mut self,
        node: &EventSender,
        heard: &SignOfLife,
        texts: Vec<Vec<u32>>,
    ) -> Result<Vec<Vec<f32>>, GenerateError> {
        let all = texts.len();
        let mut vectors = Vec::with_capacity(all);
        let mut texts = texts.into_iter().enumerate().peekable();
        while texts.peek().is_some() {
            let left = time_left(self.arrived.elapsed(), vectors.len(), all)?;
            let window: Vec<(usize, Vec<u32>)> = texts.by_ref().take(WINDOW).collect();
            match tokio::time::timeout(left, self.window(node, heard, window)).await {
                Ok(made) => vectors.extend(made?),
                Err(_) => return Err(out_of_time(vectors.len(), all)),
            }
        }
        Ok(vectors)
    }

    /// The vectors of a few texts, each with its place among all. Dropped, it cancels them.
    async fn window(
        &mut self,
        node: &EventSender,
        heard: &SignOfLife,
        texts: Vec<(usize, Vec<u32>)>,
    ) -> Result<Vec<Vec<f32>>, GenerateError> {
        let first = texts.first().map_or(0, |(index, _)| *index);
        let mut vectors: Vec<Option<Vec<f32>>> = vec![None; texts.len()];
        let left = self.request.queue_wait_max.saturating_sub(self.arrived.elapsed());
        let queue_deadline = if first == 0 { left } else { self.request.queue_wait_max };
        let start = StartRequest {
            config: DriverConfig { queue_deadline, ..self.deadlines },
            starts: texts.into_iter().map(|(index, tokens)| self.start(index, tokens)).collect(),
            place: self.place.clone(),
            backup: None,
        };
        let (tx, mut events) = mpsc::unbounded_channel();
        node.post(Event::Started { request: Box::new(start), events: tx });
        let _cancel = CancelOnDrop { request: self.request.request, node: node.clone() };
        while let Some((at, event)) = events.recv().await {
            // Why it waits may be told without an end; only the node's watch over it is a sign of life.
            if !matches!(event, SequenceEvent::Queued(_)) {
                let made = first + vectors.iter().flatten().count();
                heard(made * self.open.model.config.hidden as usize * size_of::<f32>());
            }
            match event {
                SequenceEvent::Queued(_) | SequenceEvent::Watched => {}
                SequenceEvent::Started { kernels, .. } => {
                    self.started.get_or_insert(at);
                    self.kernels.extend(kernels);
                }
                SequenceEvent::Token { index, token } => {
                    let vector = self.checked(token.prompt.as_deref())?;
                    if let Some(place) =
                        usize::from(index).checked_sub(first).and_then(|i| vectors.get_mut(i))
                    {
                        *place = Some(vector);
                    }
                }
                SequenceEvent::Ended { .. } if vectors.iter().all(Option::is_some) => {
                    return Ok(vectors.into_iter().flatten().collect());
                }
                SequenceEvent::Ended { .. } => {}
                SequenceEvent::Refused(error) => return Err(error),
                SequenceEvent::Failed { kind: FailureKind::QueueFull, busy: Some(busy), .. } => {
                    let Busy { waiting, retry_after_s } = busy;
                    let model = self.request.model.clone();
                    return Err(GenerateError::QueueFull { model, waiting, retry_after_s });
                }
                SequenceEvent::Failed { kind: FailureKind::Deadline, message, .. }
                    if self.started.is_none() =>
                {
                    return Err(GenerateError::Unavailable { reason: message, retry_after_s: 30 });
                }
                SequenceEvent::Failed { kind, message, .. } => {
                    return Err(GenerateError::Failed { kind, message });
                }
            }
        }
        Err(GenerateError::Unavailable { reason: "the node is shutting down".to_owned(), retry_after_s: 5 })
    }

    /// The vector that a stage reports: of this model's width and of numbers, whoever sends it.
    fn checked(&self, report: Option<&PromptReport>) -> Result<Vec<f32>, GenerateError> {
        let hidden = self.open.model.config.hidden as usize;
        match report {
            Some(PromptReport::Embedding(vector))
                if vector.len() == hidden && vector.iter().all(|value| value.is_finite()) =>
            {
                Ok(vector.clone())
            }
            _ => {
                let message = format!("the last stage gave no vector of {hidden} numbers for a text");
                Err(GenerateError::Failed { kind: FailureKind::Protocol, message })
            }
        }
    }

    fn start(&self, index: usize, history: Vec<u32>) -> DriverStart {
        let prompt_tokens = history.len() as u32;
        // There are no more texts than fit.
        let index = index as u16;
        DriverStart {
            model: self.resolved.id,
            spec: SequenceSpec {
                sequence: SequenceId { request: self.request.request, index },
                principal: self.request.principal,
                driver: self.resolved.me,
                sampling: SamplingParams::greedy(),
                history,
                prompt_tokens,
                query: PromptQuery::Embedding(self.pooling),
            },
            // The report comes with a token, which no one is told.
            max_tokens: 1,
            vocab: self.open.model.config.vocab,
            stop_tokens: Vec::new(),
            ignore_eos: true,
            speculate: false,
        }
    }
}

/// How long the texts of a request may take yet, of which so many have their vectors.
fn time_left(elapsed: Duration, made: usize, all: usize) -> Result<Duration, GenerateError> {
    let left = DriverConfig::default().overall_deadline.saturating_sub(elapsed);
    if left.is_zero() { Err(out_of_time(made, all)) } else { Ok(left) }
}

fn out_of_time(made: usize, all: usize) -> GenerateError {
    let waited_ms = DriverConfig::default().overall_deadline.as_millis() as u64;
    let reason = format!("{made} of {all} texts had their vectors by then; send fewer texts in one request");
    GenerateError::Deadline { waited_ms, reason }
}

/// How many elements of a vector are wanted.
fn dimensions(open: &OpenModel, asked: Option<u32>) -> Result<usize, GenerateError> {
    let hidden = open.model.config.hidden;
    match asked {
        None => Ok(hidden as usize),
        Some(length) if open.model.embedding.lengths.allow(length, hidden) => Ok(length as usize),
        Some(length) => {
            let message = format!(
                "the model's files do not say that the first {length} elements of its vectors mean something by themselves; \
                 all {hidden} do"
            );
            Err(invalid(RequestPart::Dimensions, message))
        }
    }
}

fn text_bytes(input: &Prompt) -> usize {
    match input {
        Prompt::Text(text) => text.len(),
        Prompt::Tokens(tokens) => size_of_val(tokens.as_slice()),
        Prompt::Chat { .. } | Prompt::Infill { .. } => 0,
    }
}

/// Texts as tokens, and how many were left out at their ends.
fn tokenise(
    open: &OpenModel,
    inputs: Vec<Prompt>,
    limits: Limits,
    truncates: bool,
) -> Result<(Vec<Vec<u32>>, u64), GenerateError> {
    let mut left_out = 0;
    let mut tokenise = |input: Prompt| {
        let mut tokens = match input {
            // What a text says is text: no control token stands in it.
            Prompt::Text(text) => {
                encode(open, &text, EncodeOptions { add_special: true, parse_special: false })?
            }
            Prompt::Tokens(tokens) => tokens,
            Prompt::Chat { .. } | Prompt::Infill { .. } => Vec::new(),
        };
        check_tokens(open, &tokens)?;
        if tokens.is_empty() {
            return Err(invalid(RequestPart::Prompt, "a text has no token".to_owned()));
        }
        // One place is left for the token that the vector comes with.
        let room = (limits.context_tokens as usize).saturating_sub(1);
        if tokens.len() > room && truncates && room > 0 {
            left_out += (tokens.len() - room) as u64;
            tokens = shortened(tokens, room, open.tokenizer.eos());
        }
        if tokens.len() > room {
            let (context_tokens, cache_tokens) = (limits.context_tokens.into(), limits.cache_tokens.into());
            let prompt_tokens = tokens.len() as u64;
            return Err(GenerateError::PromptTooLong { prompt_tokens, context_tokens, cache_tokens });
        }
        Ok(tokens)
    };
    let texts = inputs.into_iter().map(&mut tokenise).collect::<Result<Vec<_>, _>>()?;
    Ok((texts, left_out))
}

/// The first tokens. Where the last was the end token, which models that pool it were trained with, it stays.
fn shortened(mut tokens: Vec<u32>, room: usize, end: Option<u32>) -> Vec<u32> {
    let last = tokens.last().copied().filter(|last| Some(*last) == end);
    tokens.truncate(room);
    if let (Some(last), Some(place)) = (last, tokens.last_mut()) {
        *place = last;
    }
    tokens
}

/// Cuts a vector, and scales it to length one. A vector of zeros stays one.
fn to_length_one(vector: &mut Vec<f32>, dimensions: usize) {
    vector.truncate(dimensions);
    let length = vector.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|value| *value = (f64::from(*value) / length) as f32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_is_cut_and_then_of_length_one() {
        let mut vector = vec![3.0, 4.0, 12.0];
        to_length_one(&mut vector, 2);
        assert_eq!(vector, [0.6, 0.8]);
        let mut none = vec![0.0; 3];
        to_length_one(&mut none, 3);
        assert_eq!(none, [0.0; 3]);
    }

    #[test]
    fn all_texts_of_a_request_have_the_time_of_one_answer() {
        let hour = DriverConfig::default().overall_deadline;
        let second = Duration::from_secs(1);
        assert_eq!(time_left(hour - second, 16, 2048), Ok(second));
        let Err(GenerateError::Deadline { waited_ms, reason }) = time_left(hour, 16, 2048) else {
            panic!("a window has no hour of its own");
        };
        assert_eq!(waited_ms, 3_600_000);
        assert!(reason.contains("16 of 2048 texts") && reason.contains("send fewer"), "{reason}");
    }

    #[test]
    fn a_text_that_is_cut_keeps_its_end_token() {
        assert_eq!(shortened(vec![1, 2, 3, 9], 2, Some(9)), [1, 9]);
        assert_eq!(shortened(vec![1, 2, 3, 4], 2, Some(9)), [1, 2]);
        assert_eq!(shortened(vec![1, 2], 1, None), [1]);
    }
}
