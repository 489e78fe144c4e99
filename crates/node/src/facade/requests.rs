//! From a request to what runs: the model, its limits, the prompt as tokens, and the sequences that the
//! machine is given.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use exo_api::{GenerateError, GenerateRequest, GenerateStream, Prompt, RequestPart, Resumable};
use exo_cluster::wire::Backup;
use exo_cluster::{DriverConfig, DriverStart, InstanceRequest};
use exo_machine::{BackupStart, Limits, Resolved, StartRequest};
use exo_stdx::unix_s;
use exo_types::{FailureKind, ModelId, PromptQuery, RequestId, SequenceId, SequenceSpec, shell_word};
use tokio::sync::mpsc;

use super::NodeFacade;
use super::placing::instance_request;
use super::prompts::{check_prompt_text, prompt_bytes, text_bytes};
use crate::draft_mismatch::DraftMismatch;
use crate::events::Event;
use crate::generate::{prepare, scores_prompt, stream};
use crate::library::OpenModel;
use crate::library_error::LibraryError;
use crate::meters::RequestWatch;
use crate::running::{Prepared, Running};
use exo_accelerators::chain;

impl NodeFacade {
    /// Runs a request, and counts how it ends.
    pub(super) async fn counted(&self, request: GenerateRequest) -> Result<GenerateStream, GenerateError> {
        let mut watch = self.meters.request(request.endpoint, request.answers());
        match self.run(request, &mut watch).await {
            Ok(stream) => Ok(watch.over(stream)),
            Err(error) => {
                watch.failed(&error);
                Err(error)
            }
        }
    }

    async fn run(
        &self,
        mut request: GenerateRequest,
        watch: &mut RequestWatch,
    ) -> Result<GenerateStream, GenerateError> {
        let arrived = Instant::now();
        let name = request.request;
        let answers = request.answers();
        if let Some(resumed) = request.resumable.as_ref().and_then(|resumable| resumable.resumed.as_ref()) {
            request.request = resumed.run;
        }
        let (resolved, open) = self.open(&request.model).await?;
        resolved.name.clone_into(&mut watch.model);
        self.check_draft(&resolved, &open)
            .map_err(|error| GenerateError::Invalid { part: RequestPart::Model, message: chain(&error) })?;
        let (place, limits) = self.limits(&resolved, &open, request.context_tokens_min)?;
        self.model_uses.note(resolved.id, unix_s());
        let Limits { context_tokens, cache_tokens } = limits;
        let model = resolved.id;
        let backup = request.resumable.as_mut().map(|resumable| backup(name, model, answers, resumable));
        check_resumed(&request, model, open.model.config.vocab)?;
        check_bias(&request.sampling.logit_bias, open.model.config.vocab)?;
        let (request, prepared) = self.prepare(request, open.clone(), context_tokens).await?;
        let longest = prepared.prompts.iter().map(|prompt| prompt.tokens.len()).max();
        let prompt_tokens = longest.unwrap_or(0) as u64;
        if prompt_tokens >= u64::from(context_tokens) {
            let (context_tokens, cache_tokens) = (context_tokens.into(), cache_tokens.into());
            return Err(GenerateError::PromptTooLong { prompt_tokens, context_tokens, cache_tokens });
        }
        let (tx, events) = mpsc::unbounded_channel();
        let start = StartRequest {
            config: self.deadlines(request.queue_wait_max),
            starts: starts(&request, &resolved, &open, &prepared, context_tokens),
            place,
            backup,
        };
        self.node.post(Event::Started { request: Box::new(start), events: tx });
        let node = self.node.clone();
        Ok(stream(Running { request, name, open, prepared, events, node, arrived }))
    }

    /// The deadlines of a request that may wait so long for its model and its turn.
    pub(super) fn deadlines(&self, queue_deadline: Duration) -> DriverConfig {
        let pause_max = self.config.stream_pause_max;
        DriverConfig { queue_deadline, pause_max, ..DriverConfig::default() }
    }

    /// The model of a request.
    pub(super) async fn open(&self, model: &str) -> Result<(Resolved, Arc<OpenModel>), GenerateError> {
        let resolved = self.resolve(model).await.map_err(|m| m.for_request(model))?;
        let open = self.library.open(resolved.id, &resolved.holders).await;
        let failed = |error: LibraryError| match error {
            LibraryError::Changed { .. } => {
                GenerateError::Invalid { part: RequestPart::Model, message: chain(&error) }
            }
            error => GenerateError::LoadFailed { model: model.to_owned(), reason: chain(&error) },
        };
        let open = open.map_err(failed)?;
        // What is asked of its tokenizer alone is answered as well, and by the same files.
        if resolved.limits.is_none() {
            self.library.check_placeable(resolved.id).await.map_err(failed)?;
        }
        Ok((resolved, open))
    }

    /// How the model would be placed, and what its placement, or that one, holds: at least the context that
    /// was asked for.
    pub(super) fn limits(
        &self,
        resolved: &Resolved,
        open: &OpenModel,
        context_tokens_min: Option<u32>,
    ) -> Result<(InstanceRequest, Limits), GenerateError> {
        let mut cache = self.config.usual_cache();
        let asked = context_tokens_min.unwrap_or(0);
        if asked > cache.context_tokens {
            (cache.context_tokens, cache.context_named) = (asked, true);
        }
        let part = if cache.context_named { RequestPart::Context } else { RequestPart::Model };
        let refused = |part, message| GenerateError::Invalid { part, message };
        // The budget was checked at the start; slots times context hangs on the model.
        let place = instance_request(resolved, open, cache, 1).map_err(|e| refused(part, e.to_string()))?;
        let place = InstanceRequest { is_on_demand: true, ..place };
        let would_be = Limits { context_tokens: place.context_tokens, cache_tokens: place.cache_tokens };
        let limits = resolved.limits.unwrap_or(would_be);
        let made_for = open.model.config.context_tokens_max;
        if asked > made_for {
            let message =
                format!("a context of {asked} tokens is more than the {made_for} that the model is made for");
            return Err(refused(RequestPart::Context, message));
        }
        if asked > limits.context_tokens {
            let (name, placed) = (shell_word(&resolved.name), limits.context_tokens);
            let message = format!(
                "the model is placed with a context of {placed} tokens: `exo place {name} --context {asked} --replace` \
                 places it with {asked}"
            );
            return Err(refused(RequestPart::Context, message));
        }
        Ok((place, limits))
    }

    /// Renders and tokenises, and lets go of what the prompt was made of: while a request runs its tokens are
    /// needed, and of that only the kind.
    async fn prepare(
        &self,
        mut request: GenerateRequest,
        open: Arc<OpenModel>,
        context_tokens: u32,
    ) -> Result<(GenerateRequest, Prepared), GenerateError> {
        check_prompt_text(text_bytes(&request), self.prompt_bytes_max, context_tokens)?;
        let (principal, bytes) = (request.principal, prompt_bytes(&request));
        let prepare = move || {
            let prepared = prepare(&open, &mut request, context_tokens)?;
            for prompt in &mut request.prompts {
                *prompt = match prompt {
                    Prompt::Chat { .. } => Prompt::Chat { messages: Vec::new() },
                    Prompt::Text(_) | Prompt::Tokens(_) | Prompt::Infill { .. } => Prompt::Tokens(Vec::new()),
                };
            }
            Ok((request, prepared))
        };
        self.in_turn(principal, bytes, prepare).await
    }

    /// Whether the small model, if there is one, can guess for this one.
    pub(super) fn check_draft(&self, resolved: &Resolved, open: &OpenModel) -> Result<(), DraftMismatch> {
        match &self.draft {
            Some(draft) => draft.check(resolved.id, &resolved.name, &open.tokenizer),
            None => Ok(()),
        }
    }
}

/// Tokens that another member says were there already.
fn check_resumed(request: &GenerateRequest, model: ModelId, vocab: u32) -> Result<(), GenerateError> {
    let Some(resumed) = request.resumable.as_ref().and_then(|resumable| resumable.resumed.as_ref()) else {
        return Ok(());
    };
    let wrong = |message| Err(GenerateError::Failed { kind: FailureKind::Protocol, message });
    if resumed.model != model {
        let (name, theirs) = (&request.model, resumed.model);
        return wrong(format!("`{name}` is model {model} here, and {theirs} where the answer began"));
    }
    match resumed.choices.iter().flatten().find(|token| token.token >= vocab) {
        None => Ok(()),
        Some(token) => {
            wrong(format!("the copy of the answer has token {}, the vocabulary {vocab} tokens", token.token))
        }
    }
}

/// A bias of a token that there is not would do nothing.
fn check_bias(bias: &BTreeMap<u32, f32>, vocab: u32) -> Result<(), GenerateError> {
    match bias.keys().next_back().filter(|token| **token >= vocab) {
        None => Ok(()),
        Some(token) => {
            let last = vocab.saturating_sub(1);
            let message =
                format!("there is no token {token}: the model's vocabulary has {vocab} tokens, 0 to {last}");
            Err(GenerateError::Invalid { part: RequestPart::LogitBias, message })
        }
    }
}

/// What the machine needs for the copy of a request. The tokens that there are stay with the request as well:
/// they are said again.
fn backup(request: RequestId, model: ModelId, choices: u16, resumable: &mut Resumable) -> BackupStart {
    let mut tokens = resumable.resumed.as_ref().map(|resumed| resumed.choices.clone()).unwrap_or_default();
    tokens.resize(usize::from(choices), Vec::new());
    let record = std::mem::take(&mut resumable.record);
    BackupStart { request, proof: resumable.proof, backup: Backup { model, record, choices: tokens } }
}

fn starts(
    request: &GenerateRequest,
    resolved: &Resolved,
    open: &OpenModel,
    prepared: &Prepared,
    context: u32,
) -> Vec<DriverStart> {
    let resumed = request.resumable.as_ref().and_then(|resumable| resumable.resumed.as_ref());
    let start = |prompt: usize, choice: u16| {
        let tokens = &prepared.prompts[prompt].tokens;
        let prompt_tokens = tokens.len() as u32;
        let room = context.saturating_sub(prompt_tokens);
        // There are no more answers than fit.
        let index = prompt as u16 * request.choices + choice;
        let there = resumed.and_then(|resumed| resumed.choices.get(usize::from(index)));
        let there = there.into_iter().flatten().map(|token| token.token);
        let mut sampling = request.sampling.clone();
        sampling.seed = sampling.seed.wrapping_add(choice.into());
        sampling.constraint = prepared.constraint.clone();
        DriverStart {
            model: resolved.id,
            spec: SequenceSpec {
                sequence: SequenceId { request: request.request, index },
                principal: request.principal,
                driver: resolved.me,
                sampling,
                history: tokens.iter().copied().chain(there).collect(),
                prompt_tokens,
                query: match scores_prompt(request) {
                    true => PromptQuery::Scores,
                    false => PromptQuery::Nothing,
                },
            },
            // What is reported of a prompt comes with a token, wanted or not.
            max_tokens: request.max_tokens.unwrap_or(room).min(room).max(1),
            vocab: open.model.config.vocab,
            stop_tokens: open.end_ids.clone(),
            ignore_eos: request.ignore_eos,
            speculate: true,
        }
    };
    let prompts = 0..prepared.prompts.len();
    prompts
        .flat_map(|prompt| (0..request.choices).map(move |choice| (prompt, choice)))
        .map(|(p, c)| start(p, c))
        .collect()
}
