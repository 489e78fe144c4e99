//! A node made of scripts, a server around it, and a client that says exactly the bytes it is told to.

// Each test file uses its part; helpers of tests fail by panicking.
#![allow(dead_code, clippy::unwrap_used)]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use exo_api::{
    AdminError, AlertView, BoxFuture, BoxStream, CallDelta, Capabilities, ClusterView, Delta, DoctorScope,
    DoctorView, Downloads, Drain, EmbedRequest, Embeddings, Facade, FinishReason, FoundModelView,
    FoundRepoView, GenerateError, GenerateEvent, GenerateRequest, GenerateStream, HealthStatus, HealthView,
    HubLoginRequest, HubSearchRequest, HubShowRequest, InstanceState, InstanceView, InviteRequest,
    InviteView, JoinRequest, JoinedView, LoadView, LogLevelRequest, LogQuery, LogsView, MemberRole,
    MemberView, ModelCheckView, ModelView, PlaceRequest, PlanQuery, PlanView, Prompt, PrunedView,
    PullRequest, PullState, PullView, ReplanRequest, ReplanView, RepoView, SeriesQuery, SeriesView, Severity,
    SignOfLife, SilenceRequest, Summary, TelemetryView, Timings, TokenPiece, TokenizerInfo, TokensAnswer,
    TokensRequest, TopToken, UpdateQuery, UpdateView, Usage,
};
use exo_local_channel::LocalListener;
use exo_server::{ServerOptions, serve};
use exo_types::{FailureKind, InstanceId, NodeId, Principal};
use futures_util::{StreamExt, stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

pub const SECRET: &str = "s3cret-of-this-node";

/// Behaves as the name of the model says; see `generate`.
pub struct Fake {
    pub last: Mutex<Option<GenerateRequest>>,
    pub calls: Mutex<Vec<String>>,
    /// Who asked the tokenizer.
    pub askers: Mutex<Vec<Principal>>,
    /// What the tokenizer was asked last.
    pub asked: Mutex<Option<TokensRequest>>,
    pub telemetry: Mutex<TelemetryView>,
    /// What is slow goes on when this says so.
    pub slow: tokio::sync::Notify,
    /// What it shows of its cluster.
    pub view: watch::Sender<ClusterView>,
    live: Arc<AtomicUsize>,
}

impl Default for Fake {
    fn default() -> Self {
        Self {
            last: Mutex::default(),
            calls: Mutex::default(),
            askers: Mutex::default(),
            asked: Mutex::default(),
            telemetry: Mutex::default(),
            slow: tokio::sync::Notify::new(),
            view: watch::Sender::new(cluster()),
            live: Arc::default(),
        }
    }
}

impl Fake {
    /// Requests whose streams exist.
    pub fn live(&self) -> usize {
        self.live.load(Ordering::SeqCst)
    }

    fn note(&self, call: impl Into<String>) {
        self.calls.lock().unwrap().push(call.into());
    }

    /// Notes a call that is answered at once.
    fn noted<T: Send + 'static>(
        &self,
        call: impl Into<String>,
        answer: T,
    ) -> BoxFuture<'_, Result<T, AdminError>> {
        self.note(call);
        Box::pin(std::future::ready(Ok(answer)))
    }
}

/// Counts a stream as long as it lives.
struct Alive(Arc<AtomicUsize>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "a bug while an answer is ended");
    }
}

type Item = Result<GenerateEvent, GenerateError>;

fn delta(index: u16, text: &str, probabilities: bool) -> Item {
    let top = |text: &str, logprob| TopToken { id: 1, text: text.into(), bytes: text.into(), logprob };
    let piece = TokenPiece {
        id: 7,
        text: text.into(),
        bytes: text.into(),
        logprob: Some(-0.25),
        is_text: true,
        top: vec![top(text, -0.25), top("?", -2.0)],
    };
    let tokens = if probabilities { vec![piece] } else { Vec::new() };
    Ok(GenerateEvent::Delta(Delta { index, text: text.into(), tokens, ..Delta::default() }))
}

fn started() -> Item {
    Ok(GenerateEvent::Started { prompt_tokens: 5 })
}

fn queued(reason: &str) -> Item {
    Ok(GenerateEvent::Queued { reason: reason.into() })
}

fn done(completion_tokens: u32) -> Item {
    Ok(GenerateEvent::Done(Summary {
        usage: Usage {
            prompt_tokens: 5,
            completion_tokens,
            cached_tokens: 2,
            accepted_drafts: 3,
            rejected_drafts: 1,
            reasoning_tokens: 0,
        },
        timings: Timings {
            queued_ms: 1.0,
            ttft_ms: 2.0,
            prompt_tokens_per_s: None,
            tokens_per_s: Some(50.0),
        },
        times: Some(exo_api::StepTimesView {
            stages: vec![exo_api::StageTimeView {
                node: Some("n1".into()),
                device: Some("cpu".into()),
                prompt_ms: 0.5,
                answer_ms: 9.0,
            }],
            between_prompt_ms: 0.25,
            between_answer_ms: 1.0,
        }),
        model_id: "ab".repeat(32),
        kernels: vec!["cpu/avx2".into()],
        stages: 3,
        ..Summary::default()
    }))
}

/// The end of a request with tools of which this is not enforced.
fn done_without(unenforced: &str) -> Item {
    done(2).map(|event| match event {
        GenerateEvent::Done(summary) => {
            GenerateEvent::Done(Summary { unenforced: vec![unenforced.to_owned()], ..summary })
        }
        other => other,
    })
}

/// "The answer." to each choice, one word a delta, as a good node would.
fn good(request: &GenerateRequest) -> Vec<Item> {
    let probabilities = request.sampling.logprobs.is_some();
    let mut items = vec![queued("waiting for a slot"), started()];
    for index in 0..request.answers() {
        let prompt = &request.prompts[usize::from(index / request.choices)];
        if let (true, Prompt::Text(text)) = (request.echo, prompt) {
            items.push(delta(index, text, false));
        }
        items.extend([delta(index, "The", probabilities), delta(index, " answer.", probabilities)]);
        items.push(delta(index, "", false));
        let reason = if request.max_tokens == Some(2) { FinishReason::Length } else { FinishReason::Stop };
        let kernels = vec!["cpu/avx2".to_owned()];
        items.push(Ok(GenerateEvent::Finished { index, reason, stop: None, completion_tokens: 2, kernels }));
    }
    items.push(done(2 * u32::from(request.answers())));
    items
}

/// A thought, a text and a call.
fn calling() -> Vec<Item> {
    let part = |delta: Delta| Ok(GenerateEvent::Delta(delta));
    let call = |begins: Option<(&str, &str)>, arguments: &str| {
        let begins = begins.map(|(id, name)| (id.to_owned(), name.to_owned()));
        let call = CallDelta { index: 0, begins, arguments: arguments.to_owned() };
        part(Delta { calls: vec![call], ..Delta::default() })
    };
    let reason = FinishReason::ToolCalls;
    vec![
        started(),
        part(Delta { reasoning: "Rome?".into(), ..Delta::default() }),
        part(Delta { text: "I look.".into(), ..Delta::default() }),
        call(Some(("call_1", "weather")), ""),
        call(None, r#"{"city": "#),
        call(None, r#""Rome"}"#),
        Ok(GenerateEvent::Finished {
            index: 0,
            reason,
            stop: None,
            completion_tokens: 8,
            kernels: Vec::new(),
        }),
        done(8),
    ]
}

fn failed() -> GenerateError {
    GenerateError::Failed { kind: FailureKind::StageLost, message: "node b is gone".into() }
}

/// Answers that come at once.
fn written(request: &GenerateRequest) -> Option<Vec<Item>> {
    let end = |stop: Option<&str>, completion_tokens| {
        let (reason, stop) = (FinishReason::Stop, stop.map(str::to_owned));
        Ok(GenerateEvent::Finished { index: 0, reason, stop, completion_tokens, kernels: Vec::new() })
    };
    Some(match request.model.as_str() {
        "good" | "org/good" => good(request),
        "thinks-and-calls" => calling(),
        "stops" => vec![started(), delta(0, "The", false), end(Some("END"), 2), done(2)],
        // A whole answer of a megabyte.
        "long" => vec![started(), delta(0, &"x".repeat(1 << 20), false), end(None, 9), done(9)],
        // One of eight, which no socket takes.
        "longest" => {
            let texts = (0..8).map(|_| delta(0, &"x".repeat(1 << 20), false));
            [started()].into_iter().chain(texts).chain([end(None, 9), done(9)]).collect()
        }
        "stops-short" => vec![started(), delta(0, "The", false)],
        "half-enforces" => {
            vec![started(), delta(0, "The", false), end(None, 2), done_without("tool `f` at `#/not`")]
        }
        _ => return None,
    })
}

/// The same again and again, without an end.
fn every(ms: u64, item: fn() -> Item) -> GenerateStream {
    Box::pin(stream::unfold((), move |()| async move {
        tokio::time::sleep(Duration::from_millis(ms)).await;
        Some((item(), ()))
    }))
}

fn script(request: &GenerateRequest) -> Result<GenerateStream, GenerateError> {
    if let Some(items) = written(request) {
        return Ok(Box::pin(stream::iter(items)));
    }
    let then = |first: Vec<Item>, rest: GenerateStream| -> GenerateStream {
        Box::pin(stream::iter(first).chain(rest))
    };
    let after = |ms, item: Item| -> GenerateStream {
        Box::pin(stream::once(async move {
            tokio::time::sleep(Duration::from_millis(ms)).await;
            item
        }))
    };
    Ok(match request.model.as_str() {
        // Queued for longer than headers wait, then a good answer.
        "loading" => {
            let rest = stream::iter(good(request));
            let wait = after(300, queued("loading 74 %"));
            then(vec![queued("loading 37 %")], Box::pin(wait.chain(rest)))
        }
        "never-loads" => {
            let late =
                GenerateError::Unavailable { reason: "still loading at 99 %".into(), retry_after_s: 9 };
            then(vec![queued("loading 99 %")], after(300, Err(late)))
        }
        "endless" => then(vec![started()], every(10, || delta(0, "x", false))),
        // A thought that never ends.
        "ponders" => then(
            vec![started()],
            every(10, || Ok(GenerateEvent::Delta(Delta { reasoning: "hm".into(), ..Delta::default() }))),
        ),
        // Faster than any reader that pauses.
        "flood" => then(vec![started()], every(1, || delta(0, &"x".repeat(16 << 10), false))),
        "silent" => Box::pin(stream::pending()),
        "babbling" => every(20, || queued("placing")),
        "breaks" => then(vec![started(), delta(0, "The", false)], after(0, Err(failed()))),
        // Panics outside of what the node is asked, behind the head and in front of it.
        "panics-when-dropped" | "panics-before-its-head" => {
            let panics = PanicsWhenDropped;
            let broken = after(0, Err(failed())).map(move |item| {
                let _ = &panics;
                item
            });
            match request.model.as_str() {
                "panics-when-dropped" => then(vec![started(), delta(0, "The", false)], Box::pin(broken)),
                _ => Box::pin(broken),
            }
        }
        "panics" => panic!("a bug while starting"),
        "panics-later" => {
            then(vec![started()], Box::pin(stream::once(async { panic!("a bug while running") })))
        }
        "small" => {
            let (context_tokens, cache_tokens) = (4096, 16384);
            return Err(GenerateError::PromptTooLong { prompt_tokens: 9000, context_tokens, cache_tokens });
        }
        other => {
            let known = vec!["good".to_owned()];
            return Err(GenerateError::ModelUnknown { model: other.into(), known });
        }
    })
}

impl Facade for Fake {
    fn generate(&self, request: GenerateRequest) -> BoxFuture<'_, Result<GenerateStream, GenerateError>> {
        *self.last.lock().unwrap() = Some(request.clone());
        Box::pin(async move {
            self.live.fetch_add(1, Ordering::SeqCst);
            let alive = Alive(self.live.clone());
            if request.model == "looks-and-refuses" {
                tokio::time::sleep(Duration::from_millis(400)).await;
            }
            let events = script(&request)?;
            let mut tokens = std::collections::BTreeMap::new();
            let counted = events.map(move |mut item| {
                let _ = &alive;
                if let Ok(GenerateEvent::Delta(delta)) = &mut item {
                    let own = tokens.entry(delta.index).or_insert(0);
                    *own += 1;
                    delta.position = *own;
                }
                item
            });
            Ok(Box::pin(counted) as GenerateStream)
        })
    }

    fn telemetry(&self) -> BoxFuture<'_, Result<TelemetryView, AdminError>> {
        let view = self.telemetry.lock().unwrap().clone();
        Box::pin(async move { Ok(view) })
    }

    fn series(&self, query: SeriesQuery) -> BoxFuture<'_, Result<SeriesView, AdminError>> {
        let subject = query.device.or(query.instance).or(query.node);
        Box::pin(async move {
            let subject = subject.ok_or(AdminError::NotFound { what: "node", name: String::new() })?;
            Ok(SeriesView { subject, step_s: 5, end_unix_s: 9, series: Vec::new() })
        })
    }

    fn alerts(&self) -> BoxFuture<'_, Result<Vec<AlertView>, AdminError>> {
        Box::pin(async { Ok(vec![alert()]) })
    }

    fn silence(&self, request: SilenceRequest) -> BoxFuture<'_, Result<(), AdminError>> {
        self.noted(format!("silence {} for {}", request.alert, request.for_s), ())
    }

    fn logs(&self, query: LogQuery) -> BoxFuture<'_, Result<LogsView, AdminError>> {
        self.noted(format!("logs {query:?}"), LogsView::default())
    }

    fn doctor(&self, of: DoctorScope) -> BoxFuture<'_, Result<DoctorView, AdminError>> {
        self.noted(format!("doctor {of:?}"), DoctorView::default())
    }

    fn raise_log_level(&self, request: LogLevelRequest) -> BoxFuture<'_, Result<(), AdminError>> {
        self.noted(format!("raise {} to {}", request.target, request.level.as_str()), ())
    }

    fn embed(
        &self,
        request: EmbedRequest,
        heard: SignOfLife,
    ) -> BoxFuture<'_, Result<Embeddings, GenerateError>> {
        self.note(format!(
            "vectors of {} inputs: {:?} {:?}",
            request.inputs.len(),
            request.pooling,
            request.dimensions
        ));
        Box::pin(async move {
            self.live.fetch_add(1, Ordering::SeqCst);
            let _alive = Alive(self.live.clone());
            match request.model.as_str() {
                "good" => {}
                "hang" => std::future::pending().await,
                // Slow, and says all the while that it is at work.
                "slow" => {
                    for _ in 0..8 {
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        heard(0);
                    }
                }
                // Vectors of ten MiB, and more to come.
                "wide" => {
                    heard(10 << 20);
                    std::future::pending().await
                }
                other => {
                    let known = vec!["good".to_owned()];
                    return Err(GenerateError::ModelUnknown { model: other.into(), known });
                }
            }
            let vectors = request.inputs.iter().map(|_| vec![0.6, -0.8]).collect();
            let truncated_tokens = if request.truncates { 3 } else { 0 };
            Ok(Embeddings { vectors, prompt_tokens: 7, truncated_tokens, ..Embeddings::default() })
        })
    }

    fn tokens(&self, request: TokensRequest) -> BoxFuture<'_, Result<TokensAnswer, GenerateError>> {
        self.note(format!("tokens of {}", request.model));
        self.askers.lock().unwrap().push(request.principal);
        *self.asked.lock().unwrap() = Some(request.clone());
        let tokens = vec![1, 2, 3, 4, 5];
        let pieces: [&[u8]; 5] = [b"a", b"b", b"c", b"d", &[0xe2]];
        let pieces = pieces.iter().filter(|_| request.with_pieces).map(|piece| piece.to_vec()).collect();
        let answer = TokensAnswer {
            tokens,
            pieces,
            text: "text".into(),
            context_tokens: 4096,
            capabilities: Capabilities { tools: true, thinking: false, infill: true },
            tokenizer: TokenizerInfo { eos_token: Some("<end>".into()), ..TokenizerInfo::default() },
        };
        Box::pin(async move {
            if request.model == "good" || request.model == "ab".repeat(32) {
                return Ok(answer);
            }
            Err(GenerateError::ModelUnknown { model: request.model, known: vec![] })
        })
    }

    fn models(&self) -> BoxFuture<'_, Result<Vec<ModelView>, AdminError>> {
        Box::pin(async { Ok(vec![model("good"), model("org/good")]) })
    }

    fn model(&self, name: String) -> BoxFuture<'_, Result<ModelView, AdminError>> {
        Box::pin(async move {
            let found = self.models().await?.into_iter().find(|model| model.name == name);
            found.ok_or(AdminError::ModelUnknown { model: name, known: vec![] })
        })
    }

    fn cluster(&self) -> BoxFuture<'_, Result<ClusterView, AdminError>> {
        let view = self.view.borrow().clone();
        Box::pin(async { Ok(view) })
    }

    fn watch(&self) -> BoxStream<ClusterView> {
        let mut view = self.view.subscribe();
        view.mark_changed();
        Box::pin(stream::unfold(view, |mut view| async move {
            view.changed().await.ok()?;
            let now = view.borrow_and_update().clone();
            Some((now, view))
        }))
    }

    fn place(&self, request: PlaceRequest) -> BoxFuture<'_, Result<InstanceView, AdminError>> {
        Box::pin(async move {
            self.note(format!("place {request:?}"));
            if request.model == "huge" {
                let detail = "a lacks 5 bytes, b lacks 3".to_owned();
                return Err(AdminError::DoesNotFit {
                    model: "huge".into(),
                    needed_bytes: 9,
                    free_bytes: 1,
                    detail,
                });
            }
            Ok(instance())
        })
    }

    fn plan(&self, query: PlanQuery) -> BoxFuture<'_, Result<PlanView, AdminError>> {
        Box::pin(async move {
            self.note(format!("plan {} {:?}", query.model, query.pins));
            if query.model != "good" {
                return Err(AdminError::NotFound { what: "model", name: query.model });
            }
            Ok(plan_view())
        })
    }

    fn replan(
        &self,
        id: InstanceId,
        request: ReplanRequest,
    ) -> BoxFuture<'_, Result<ReplanView, AdminError>> {
        Box::pin(async move {
            self.note(format!("replan {id} {request:?}"));
            Ok(ReplanView {
                instance: id.to_string(),
                reason: "it is well placed".to_owned(),
                now_ms: 1.0,
                then_ms: 1.0,
                ..ReplanView::default()
            })
        })
    }

    fn unload(&self, id: InstanceId) -> BoxFuture<'_, Result<(), AdminError>> {
        Box::pin(async move {
            self.note(format!("unload {id}"));
            match id {
                InstanceId(0x1a) => Ok(()),
                _ => Err(AdminError::NotFound { what: "instance", name: id.to_string() }),
            }
        })
    }

    /// The last request, as if its node were lost. Its first proof was right.
    fn claim(
        &self,
        request: exo_types::RequestId,
        proof: [u8; 32],
    ) -> BoxFuture<'_, Result<exo_api::ClaimedRequest, AdminError>> {
        let last = self.last.lock().unwrap().clone();
        let is_meant = |last: &GenerateRequest| last.request == request;
        let resumable = last.filter(is_meant).and_then(|last| last.resumable).filter(|r| r.proof == proof);
        let missing = AdminError::NotFound { what: "request", name: request.to_string() };
        let claimed = resumable.map(|r| exo_api::ClaimedRequest {
            model: exo_types::ModelId([7; 32]),
            record: r.record,
            choices: vec![Vec::new()],
        });
        Box::pin(async move { claimed.ok_or(missing) })
    }

    fn requests(&self) -> BoxFuture<'_, Result<Vec<exo_api::RequestView>, AdminError>> {
        let request = exo_api::RequestView {
            id: "1".to_owned(),
            model: "good".to_owned(),
            principal: "local".to_owned(),
            prompt_tokens: 1,
            age_ms: 1,
            ..exo_api::RequestView::default()
        };
        Box::pin(async { Ok(vec![request]) })
    }

    fn retry_device(&self, node: NodeId, device: String) -> BoxFuture<'_, Result<(), AdminError>> {
        self.noted(format!("retry {device} of {node}"), ())
    }

    fn members(&self) -> BoxFuture<'_, Result<Vec<MemberView>, AdminError>> {
        Box::pin(async { Ok(vec![member()]) })
    }

    fn admit_member(&self, node: NodeId) -> BoxFuture<'_, Result<MemberView, AdminError>> {
        self.noted(format!("admit {node}"), member())
    }

    fn refuse_node(&self, node: NodeId) -> BoxFuture<'_, Result<(), AdminError>> {
        self.noted(format!("refuse {node}"), ())
    }

    fn open_join_window(&self, minutes: Option<u32>) -> BoxFuture<'_, Result<(), AdminError>> {
        self.noted(format!("open the window for {minutes:?}"), ())
    }

    fn shut_join_window(&self) -> BoxFuture<'_, Result<(), AdminError>> {
        self.noted("shut the window".to_owned(), ())
    }

    fn remove_member(&self, node: NodeId) -> BoxFuture<'_, Result<(), AdminError>> {
        self.noted(format!("remove {node}"), ())
    }

    fn set_role(&self, node: NodeId, role: MemberRole) -> BoxFuture<'_, Result<(), AdminError>> {
        self.noted(format!("set {node} {role:?}"), ())
    }

    fn drain(&self, node: NodeId, drain: Drain) -> BoxFuture<'_, Result<(), AdminError>> {
        self.noted(format!("drain {node} {drain:?}"), ())
    }

    fn invite(&self, request: InviteRequest) -> BoxFuture<'_, Result<InviteView, AdminError>> {
        self.note(format!("invite {request:?}"));
        let (code, node) = ("123-456-789".to_owned(), member().node);
        Box::pin(async {
            Ok(InviteView { code, uses: 1, expires_at_unix_s: 1, node, addresses: Vec::new() })
        })
    }

    fn join(&self, request: JoinRequest) -> BoxFuture<'_, Result<JoinedView, AdminError>> {
        self.noted(
            format!("join {:?}", request.addresses),
            JoinedView { name: "a".into(), check_words: "a b c d".into() },
        )
    }

    fn add_model(&self, path: String, _name: Option<String>) -> BoxFuture<'_, Result<ModelView, AdminError>> {
        self.note(format!("add {path}"));
        Box::pin(async move {
            if path.contains("slow") {
                self.slow.notified().await;
                self.note(format!("added {path}"));
            }
            Ok(model("good"))
        })
    }

    fn keep_model(&self, model_name: String, kept: bool) -> BoxFuture<'_, Result<ModelView, AdminError>> {
        self.noted(format!("keep {model_name} {kept}"), ModelView { kept, ..model(&model_name) })
    }

    fn check_model(&self, model: String) -> BoxFuture<'_, Result<ModelCheckView, AdminError>> {
        self.noted(format!("check {model}"), model_check())
    }

    fn model_checks(&self) -> Vec<ModelCheckView> {
        vec![model_check()]
    }

    fn remove_model(&self, name: String) -> BoxFuture<'_, Result<(), AdminError>> {
        self.noted(format!("forget {name}"), ())
    }

    fn fits(
        &self,
        query: exo_api::fits::FitsQuery,
    ) -> BoxFuture<'_, Result<exo_api::fits::FitsView, AdminError>> {
        self.note(format!("fits {query:?}"));
        let (context_tokens, machines, memory_free_bytes) = (4096, 1, 9);
        Box::pin(async move {
            Ok(exo_api::fits::FitsView { context_tokens, machines, memory_free_bytes, models: vec![] })
        })
    }

    fn downloads(&self) -> &dyn exo_api::Downloads {
        self
    }

    fn health(&self) -> HealthView {
        HealthView { status: HealthStatus::Ok, version: "0".into(), uptime_s: 1 }
    }

    fn shutdown(&self) {
        self.note("shutdown");
    }
}

impl Fake {
    fn known_pull(&self, call: &str, id: &str) -> Result<PullView, AdminError> {
        self.note(format!("{call} {id}"));
        match id {
            "7" => Ok(pull_view()),
            _ => Err(AdminError::NotFound { what: "download", name: id.to_owned() }),
        }
    }
}

impl Downloads for Fake {
    fn start(&self, request: PullRequest) -> BoxFuture<'_, Result<PullView, AdminError>> {
        self.noted(format!("pull {request:?}"), pull_view())
    }

    fn list(&self) -> Vec<PullView> {
        vec![pull_view()]
    }

    fn watch(&self) -> BoxStream<Vec<PullView>> {
        Box::pin(stream::iter([vec![pull_view()]]).chain(stream::pending()))
    }

    fn pause(&self, pull: &str) -> Result<PullView, AdminError> {
        self.known_pull("pause", pull)
    }

    fn resume(&self, pull: &str) -> Result<PullView, AdminError> {
        self.known_pull("resume", pull)
    }

    fn cancel(&self, pull: String) -> BoxFuture<'_, Result<(), AdminError>> {
        Box::pin(async move { self.known_pull("cancel", &pull).map(drop) })
    }

    fn search(&self, request: HubSearchRequest) -> BoxFuture<'_, Result<Vec<FoundRepoView>, AdminError>> {
        self.note(format!("search {}", request.text));
        let (repo, format) = ("org/good".to_owned(), Some("gguf".to_owned()));
        Box::pin(async { Ok(vec![FoundRepoView { repo, downloads: 9, likes: 1, gated: false, format }]) })
    }

    fn show(&self, request: HubShowRequest) -> BoxFuture<'_, Result<RepoView, AdminError>> {
        self.note(format!("show {}", request.reference));
        let (repo, commit, licence) = ("org/good".to_owned(), "0".repeat(40), "mit".to_owned());
        let view = RepoView { repo, commit, gated: false, licence, terms: None, models: vec![] };
        Box::pin(async { Ok(view) })
    }

    fn updates(&self, query: UpdateQuery) -> BoxFuture<'_, Result<Vec<UpdateView>, AdminError>> {
        self.noted(format!("updates {query:?}"), vec![update_view()])
    }

    fn prune(&self) -> BoxFuture<'_, Result<PrunedView, AdminError>> {
        self.noted("prune", PrunedView { files: 1, bytes: 4096 })
    }

    fn login(&self, request: HubLoginRequest) -> BoxFuture<'_, Result<(), AdminError>> {
        self.noted(format!("login {request:?}"), ())
    }

    fn logout(&self) -> BoxFuture<'_, Result<(), AdminError>> {
        self.noted("logout", ())
    }

    fn found(&self) -> BoxFuture<'_, Result<Vec<FoundModelView>, AdminError>> {
        let found = FoundModelView {
            name: "qwen3:8b".to_owned(),
            program: "Ollama".to_owned(),
            path: "/blobs/sha256-0".to_owned(),
            bytes: 5,
            sha256: None,
            problem: None,
        };
        Box::pin(async { Ok(vec![found]) })
    }
}

fn update_view() -> UpdateView {
    UpdateView {
        model: "good".to_owned(),
        id: "0a".to_owned(),
        reference: "hf.co/org/good".to_owned(),
        state: exo_api::UpdateState::Newer,
        commit: "0".repeat(40),
        newest: Some("1".repeat(40)),
        total_bytes: 10,
        fetch_bytes: 5,
        chunks: 2,
        chunks_here: 1,
        ..UpdateView::default()
    }
}

fn pull_view() -> PullView {
    PullView {
        id: "7".to_owned(),
        reference: "hf.co/org/good".to_owned(),
        state: PullState::Fetching,
        node: member().node,
        node_name: "a".to_owned(),
        source: "huggingface.co".to_owned(),
        label: Some("Q8_0".to_owned()),
        licence: Some("mit".to_owned()),
        file: Some("good-Q8_0.gguf".to_owned()),
        files: 1,
        verified_bytes: 5,
        received_bytes: 6,
        total_bytes: Some(10),
        ranges: 4,
        bytes_per_s: Some(1.0),
        seconds_left: Some(5),
        started_unix_s: 1,
        ..PullView::default()
    }
}

fn model(name: &str) -> ModelView {
    ModelView {
        id: "ab".repeat(32),
        name: name.into(),
        architecture: "llama".into(),
        format: "gguf".into(),
        weight_bytes: 10,
        layers: 8,
        context_tokens_max: 4096,
        nodes: vec!["a".into()],
        chat: true,
        added_unix_s: 5,
        parameters: 3_000_000,
        ..ModelView::default()
    }
}

fn instance() -> InstanceView {
    InstanceView {
        id: "i1a".into(),
        model_id: "ab".repeat(32),
        model: "good".into(),
        state: InstanceState::Loading { progress: 0.5 },
        placement: "p1/1@aeaqcaib".into(),
        context_tokens: 4096,
        slots: 4,
        cache_tokens: 16384,
        load: Some(LoadView::default()),
        ..InstanceView::default()
    }
}

fn plan_view() -> PlanView {
    PlanView {
        model: "good".into(),
        context_tokens: 4096,
        slots: 4,
        cache_tokens: 16384,
        objective_ms: 1.0,
        lower_bound_ms: 1.0,
        verdict: "no plan is faster, by these numbers".to_owned(),
        ..PlanView::default()
    }
}

pub fn alert() -> AlertView {
    AlertView {
        id: "node_lost:a".into(),
        rule: "node_lost".into(),
        severity: Severity::Critical,
        since_unix_s: 1,
        node: Some(NodeId([1; 32]).to_full()),
        subject: "a".into(),
        text: "a is not there".into(),
        what_to_do: "start it".into(),
        runbook: "docs/runbook.md#node_lost".into(),
        ..AlertView::default()
    }
}

/// One node of which nothing is told but its name.
pub fn telemetry() -> TelemetryView {
    let id = NodeId([1; 32]).to_full();
    let node = serde_json::json!({
        "node": id, "name": "a", "status": "alive", "age_s": 0.5, "version": "1", "platform": "test", "uptime_s": null,
        "clock_ahead_s": null, "process_bytes": null, "memory_total_bytes": null, "memory_available_bytes": null,
        "disk_free_bytes": null, "disk_room_bytes": null, "battery": null, "mains_power": null, "transfers": 0, "transferred_bytes": 7,
        "unreached": [], "devices": [], "links": [], "stages": [], "instances": [], "requests": [],
    });
    TelemetryView { self_node: id, nodes: vec![serde_json::from_value(node).unwrap()] }
}

fn member() -> MemberView {
    let node = NodeId([1; 32]).to_full();
    MemberView { node, name: "a".into(), role: MemberRole::Admin, is_self: true, check_words: None }
}

pub fn cluster() -> ClusterView {
    ClusterView {
        self_node: NodeId([1; 32]).to_full(),
        instances: vec![instance()],
        ..ClusterView::default()
    }
}

/// A running server.
pub struct Server {
    pub address: SocketAddr,
    pub fake: Arc<Fake>,
    pub stop: Arc<tokio::sync::Notify>,
    pub task: tokio::task::JoinHandle<Result<(), exo_server::ServeError>>,
}

/// Short times, so that bounds can be tested; everything else as by default.
pub fn quick() -> ServerOptions {
    ServerOptions {
        stream_headers_after: Duration::from_millis(100),
        keep_alive_every: Duration::from_millis(50),
        ..ServerOptions::new(SECRET)
    }
}

pub async fn start() -> Server {
    start_with("127.0.0.1:0", quick()).await
}

pub async fn start_with(listen: &str, options: ServerOptions) -> Server {
    start_both(listen, None, options).await
}

pub async fn start_both(listen: &str, local: Option<LocalListener>, options: ServerOptions) -> Server {
    let listener = TcpListener::bind(listen).await.unwrap();
    let address = listener.local_addr().unwrap();
    let fake = Arc::new(Fake::default());
    let stop = Arc::new(tokio::sync::Notify::new());
    let (facade, stopped) = (fake.clone(), stop.clone());
    let task =
        tokio::spawn(async move { serve(listener, None, local, facade, options, stopped.notified()).await });
    Server { address, fake, stop, task }
}

/// An answer, taken apart.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: String,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    /// Status, code and parameter of an error.
    pub fn error(&self) -> String {
        let error = &self.json()["error"];
        assert!(error["message"].as_str().is_some_and(|m| !m.is_empty()), "no message: {}", self.body);
        assert!(error["type"].is_string() && error.as_object().unwrap().contains_key("param"));
        let param = error["param"].as_str().map(|p| format!(" {p}")).unwrap_or_default();
        format!("{} {}{param}", self.status, error["code"].as_str().unwrap_or("-"))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .lines()
            .find_map(|l| l.split_once(": ").filter(|(n, _)| n.eq_ignore_ascii_case(name)))
            .map(|(_, v)| v)
    }
}

impl Server {
    /// Sends bytes and reads until the server closes, at most 10 s.
    pub async fn raw(&self, bytes: &[u8]) -> Answer {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        // A server that answers early may close while we write.
        let _ = stream.write_all(bytes).await;
        let mut read = Vec::new();
        let all = stream.read_to_end(&mut read);
        tokio::time::timeout(Duration::from_secs(10), all).await.expect("an answer within 10 s").unwrap_or(0);
        parse(&read)
    }

    /// Sends a request whose head is `lines`; Host and Connection are added unless given.
    pub async fn send(&self, line: &str, headers: &[&str], body: &str) -> Answer {
        let has = |name: &str| headers.iter().any(|h| h.to_ascii_lowercase().starts_with(name));
        let mut text = format!("{line} HTTP/1.1\r\nconnection: close\r\n");
        if !has("host:") {
            text += &format!("host: {}\r\n", self.address);
        }
        for header in headers {
            text += &format!("{header}\r\n");
        }
        if !body.is_empty() || line.starts_with("POST") {
            text += &format!("content-length: {}\r\n", body.len());
        }
        self.raw((text + "\r\n" + body).as_bytes()).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(&format!("GET {path}"), &[], "").await
    }

    pub async fn post(&self, path: &str, body: &str) -> Answer {
        self.send(&format!("POST {path}"), &["content-type: application/json"], body).await
    }

    pub async fn admin(&self, line: &str, body: &str) -> Answer {
        let secret = format!("authorization: Bearer {SECRET}");
        self.send(line, &["content-type: application/json", &secret], body).await
    }

    /// A chat request to `model` with `extra` fields (JSON, leading comma).
    pub async fn chat(&self, model: &str, extra: &str) -> Answer {
        self.post("/v1/chat/completions", &chat_body(model, extra)).await
    }

    /// A request to `/v1/messages`.
    pub async fn messages(&self, model: &str, extra: &str) -> Answer {
        self.post("/v1/messages", &messages_body(model, extra)).await
    }

    pub async fn complete(&self, model: &str, extra: &str) -> Answer {
        self.post("/v1/completions", &format!(r#"{{"model":"{model}","prompt":"Once"{extra}}}"#)).await
    }

    /// Waits until `count` requests live at the node, at most a second.
    pub async fn until_live(&self, count: usize) {
        for _ in 0..100 {
            if self.fake.live() == count {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{} requests live after a second, not {count}", self.fake.live());
    }
}

pub fn chat_body(model: &str, extra: &str) -> String {
    format!(r#"{{"model":"{model}","messages":[{{"role":"user","content":"Hi"}}]{extra}}}"#)
}

pub fn messages_body(model: &str, extra: &str) -> String {
    format!(r#"{{"model":"{model}","max_tokens":9,"messages":[{{"role":"user","content":"Hi"}}]{extra}}}"#)
}

fn parse(bytes: &[u8]) -> Answer {
    let text = String::from_utf8_lossy(bytes);
    let (headers, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = headers.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
    let chunked = headers.to_ascii_lowercase().contains("transfer-encoding: chunked");
    let body = if chunked { unchunk(body) } else { body.to_owned() };
    Answer { status, headers: headers.to_owned(), body }
}

fn unchunk(mut body: &str) -> String {
    let mut out = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap_or(0);
        if size == 0 || rest.len() < size {
            break;
        }
        out.push_str(&rest[..size]);
        body = rest[size..].trim_start_matches("\r\n");
    }
    out
}

/// The parts of an event stream: `data`, `event` and comment lines as they stand, ids and times made plain.
pub fn events(answer: &Answer) -> String {
    let plain = |value: &mut serde_json::Value| {
        if let Some(object) = value.as_object_mut() {
            for name in ["id", "created"] {
                if let Some(v) = object.get_mut(name) {
                    *v = "…".into();
                }
            }
            if let Some(request) = object.get_mut("exo").and_then(|e| e.get_mut("request")) {
                *request = "…".into();
            }
        }
    };
    let line = |line: &str| match line.strip_prefix("data: ").map(serde_json::from_str::<serde_json::Value>) {
        Some(Ok(mut value)) => {
            plain(&mut value);
            format!("data: {value}")
        }
        _ => line.to_owned(),
    };
    answer.body.lines().filter(|l| !l.is_empty()).map(line).collect::<Vec<_>>().join("\n")
}

fn model_check() -> ModelCheckView {
    ModelCheckView {
        model: "good".into(),
        id: "0a".into(),
        state: exo_api::CheckState::Running,
        bytes: 0,
        nodes: Vec::new(),
        message: None,
    }
}
