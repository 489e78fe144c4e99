//! Every endpoint, once. `openapi.json` is made from this list, and `server` tests that it serves all of it.

/// How a resource is acted on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// GET: reads a resource.
    Get,
    /// POST: makes or starts something.
    Post,
    /// DELETE: takes a resource away.
    Delete,
}

impl Method {
    /// As HTTP writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Delete => "DELETE",
        }
    }
}

/// Who may call an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Anyone who reaches the port.
    Open,
    /// Anyone on loopback; elsewhere with an API key.
    Api,
    /// Who has the local secret, or a session.
    Admin,
    /// Who has an API key or the local secret; anyone who reaches the port where the setting `metrics_open`
    /// says so.
    Metrics,
    /// The same, and with the setting `keys_see_cluster` who has an API key.
    Viewer,
    /// The user whose node it is, over the local channel.
    Owner,
    /// Who has a code or the local secret, on this machine.
    Code,
    /// Who has any of secret, session and API key.
    Known,
}

/// What a success carries. Names are those of schemas.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SuccessBody {
    /// A JSON object of this schema.
    One(&'static str),
    /// A JSON array of objects.
    Many(&'static str),
    /// A JSON object, or with `stream` server-sent events of the second.
    OneOrStream(&'static str, &'static str),
    /// A stream of server-sent events.
    Stream(&'static str),
    /// A JSON object, or a stream of lines, each such an object.
    OneOrLines(&'static str),
    /// No body, status 204.
    Nothing,
    /// JSON of any form.
    Json,
    /// Metrics as Prometheus reads them: its text format, or OpenMetrics.
    Exposition,
}

/// One endpoint of the API.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Endpoint {
    /// The endpoint's HTTP method.
    pub method: Method,
    /// Where; `{name}` stands for one parameter.
    pub path: &'static str,
    /// The endpoint's name in generated clients.
    pub operation: &'static str,
    /// What the endpoint does, to be displayed.
    pub summary: &'static str,
    /// Who may call the endpoint.
    pub access: Access,
    /// Schema of the body.
    pub request: Option<&'static str>,
    /// Parameters behind the question mark; none must be given.
    pub query: &'static [&'static str],
    /// What a success answers with.
    pub answer: SuccessBody,
}

const fn get(
    path: &'static str,
    operation: &'static str,
    access: Access,
    answer: SuccessBody,
    summary: &'static str,
) -> Endpoint {
    Endpoint { method: Method::Get, path, operation, summary, access, request: None, query: &[], answer }
}

const fn post(
    path: &'static str,
    operation: &'static str,
    access: Access,
    request: Option<&'static str>,
    answer: SuccessBody,
    summary: &'static str,
) -> Endpoint {
    Endpoint { method: Method::Post, path, operation, summary, access, request, query: &[], answer }
}

const fn query(
    path: &'static str,
    operation: &'static str,
    access: Access,
    query: &'static [&'static str],
    answer: SuccessBody,
    summary: &'static str,
) -> Endpoint {
    Endpoint { method: Method::Get, path, operation, summary, access, request: None, query, answer }
}

const fn delete(path: &'static str, operation: &'static str, summary: &'static str) -> Endpoint {
    let (access, answer) = (Access::Admin, SuccessBody::Nothing);
    Endpoint { method: Method::Delete, path, operation, summary, access, request: None, query: &[], answer }
}

use Access::{Admin, Api, Code, Known, Metrics, Open, Owner, Viewer};
use SuccessBody::{Exposition, Json, Many, Nothing, One, OneOrLines, OneOrStream, Stream};

/// All endpoints but the landing page.
pub const ENDPOINTS: &[Endpoint] = &[
    get(
        "/health",
        "health",
        Open,
        One("HealthView"),
        "Whether the node takes requests: 200, or 503 while it does not",
    ),
    get("/openapi.json", "openapi", Open, Json, "This description"),
    query(
        "/metrics",
        "metrics",
        Metrics,
        &["scope", "node"],
        Exposition,
        "Metrics of this node, or with `scope=cluster` of all of them, for Prometheus",
    ),
    get(
        "/metrics/targets",
        "metrics_targets",
        Metrics,
        Many("ScrapeTargets"),
        "Where nodes are scraped, in the format of Prometheus' HTTP service discovery",
    ),
    get("/v1/models", "list_models", Api, One("ModelList"), "Models that can be asked for"),
    get("/v1/models/{model}", "get_model", Api, One("ModelObject"), "One model"),
    query(
        "/v1/requests/{request}",
        "resume_request",
        Api,
        &["stream"],
        Stream("ChatChunk"),
        "The rest of a streamed answer that was asked for with `exo-keep` (`true`, or `ID.SECRET` that the client has drawn, 32 \
         hexadecimal digits each), or whose node is lost, in its own dialect; takes `exo-resume` and `Last-Event-ID`. With \
         `stream=false` the whole of one whose node is lost",
    ),
    Endpoint {
        method: Method::Delete,
        path: "/v1/requests/{request}",
        operation: "stop_request",
        summary: "Ends an answer that was asked for with `exo-keep`; takes `exo-resume`",
        access: Api,
        request: None,
        query: &[],
        answer: Nothing,
    },
    post(
        "/v1/chat/completions",
        "create_chat_completion",
        Api,
        Some("ChatRequest"),
        OneOrStream("ChatCompletion", "ChatChunk"),
        "The next message of a conversation; places the model if it is not placed",
    ),
    post(
        "/v1/completions",
        "create_completion",
        Api,
        Some("CompletionRequest"),
        OneOrStream("Completion", "Completion"),
        "The continuation of a text; places the model if it is not placed",
    ),
    post(
        "/v1/responses",
        "create_response",
        Api,
        Some("ResponsesRequest"),
        OneOrStream("Response", "ResponseEvent"),
        "The next response of a conversation; places the model if it is not placed",
    ),
    query(
        "/v1/responses/{response}",
        "get_response",
        Api,
        &["stream", "starting_after"],
        OneOrStream("Response", "ResponseEvent"),
        "A response that this node keeps for who asked. With `exo-resume` one whose node is lost, or with `stream=true` as well \
         its events behind `starting_after`",
    ),
    Endpoint {
        method: Method::Delete,
        path: "/v1/responses/{response}",
        operation: "delete_response",
        summary: "Keeps a response no longer",
        access: Api,
        request: None,
        query: &[],
        answer: One("ResponseDeleted"),
    },
    post(
        "/v1/messages",
        "create_message",
        Api,
        Some("MessagesRequest"),
        OneOrStream("Message", "MessageEvent"),
        "The next message of a conversation, as Anthropic's clients ask for it",
    ),
    post(
        "/v1/messages/count_tokens",
        "count_message_tokens",
        Api,
        Some("CountTokensRequest"),
        One("TokenCount"),
        "How many tokens a prompt has; generates nothing",
    ),
    post(
        "/v1/embeddings",
        "create_embeddings",
        Api,
        Some("EmbeddingsRequest"),
        One("EmbeddingList"),
        "One vector for each text",
    ),
    post(
        "/api/embed",
        "ollama_embed",
        Api,
        Some("OllamaEmbedRequest"),
        One("OllamaEmbeddings"),
        "One vector for each text, as Ollama's clients ask for it",
    ),
    post(
        "/api/embeddings",
        "ollama_embeddings",
        Api,
        Some("OllamaEmbeddingsRequest"),
        One("OllamaEmbedding"),
        "The vector of a text, as Ollama's older clients ask for it",
    ),
    post(
        "/api/chat",
        "ollama_chat",
        Api,
        Some("OllamaChatRequest"),
        OneOrLines("OllamaAnswer"),
        "The next message of a conversation, as Ollama's clients ask for it",
    ),
    post(
        "/api/generate",
        "ollama_generate",
        Api,
        Some("OllamaGenerateRequest"),
        OneOrLines("OllamaAnswer"),
        "The answer to a prompt, as Ollama's clients ask for it",
    ),
    get("/api/tags", "ollama_tags", Api, One("OllamaModels"), "Models that can be asked for"),
    get("/api/ps", "ollama_ps", Api, One("OllamaModels"), "Models that are placed"),
    get(
        "/api/version",
        "ollama_version",
        Api,
        One("OllamaVersion"),
        "The version of Ollama whose API is spoken, and this program's",
    ),
    post("/api/show", "ollama_show", Api, Some("OllamaNamedRequest"), One("OllamaShow"), "One model"),
    post(
        "/api/pull",
        "ollama_pull",
        Api,
        Some("OllamaNamedRequest"),
        OneOrLines("OllamaPull"),
        "Success for a model that is known; nothing is fetched",
    ),
    post(
        "/tokenize",
        "tokenize",
        Api,
        Some("TokenizeRequest"),
        One("Tokenized"),
        "The tokens of a text or a conversation, as llama.cpp and vLLM are asked for them",
    ),
    post(
        "/detokenize",
        "detokenize",
        Api,
        Some("DetokenizeRequest"),
        One("Detokenized"),
        "The text of tokens",
    ),
    post(
        "/apply-template",
        "apply_template",
        Api,
        Some("ApplyTemplateRequest"),
        One("RenderedPrompt"),
        "The prompt that the model's template makes of a conversation",
    ),
    query(
        "/tokenizer_info",
        "tokenizer_info",
        Api,
        &["model"],
        One("TokenizerInfo"),
        "The chat template and the tokens that begin and end a text, as vLLM is asked for them",
    ),
    post(
        "/exo/v1/codes",
        "give_code",
        Owner,
        None,
        One("CodeView"),
        "Gives out a code that becomes a session, once and within a minute: what `exo open` asks for",
    ),
    post(
        "/exo/v1/session",
        "begin_session",
        Code,
        Some("SessionRequest"),
        One("SessionView"),
        "Begins a session, for a code or the local secret",
    ),
    get("/exo/v1/session", "session", Known, One("SessionView"), "What the sender's token or key opens"),
    delete("/exo/v1/session", "end_session", "Ends the session of the sender"),
    delete("/exo/v1/sessions", "end_all_sessions", "Ends all sessions, and makes codes void"),
    get("/exo/v1/cluster", "cluster", Viewer, One("ClusterView"), "The cluster as this node sees it"),
    get(
        "/exo/v1/events",
        "events",
        Viewer,
        Stream("LiveEvent"),
        "The cluster: a snapshot, then what changes; goes on behind `Last-Event-ID` where that is remembered; owners have lists of PullView between (`event: pulls`)",
    ),
    get("/exo/v1/instances", "list_instances", Viewer, Many("InstanceView"), "Placed models"),
    post(
        "/exo/v1/instances",
        "place",
        Admin,
        Some("PlaceRequest"),
        One("InstanceView"),
        "Places a model; returns when the plan stands, loading goes on",
    ),
    post(
        "/exo/v1/plan",
        "plan",
        Admin,
        Some("PlanQuery"),
        One("PlanView"),
        "How a model would be placed and how fast it would be; loads nothing",
    ),
    get("/exo/v1/instances/{instance}", "get_instance", Viewer, One("InstanceView"), "One placed model"),
    delete("/exo/v1/instances/{instance}", "unload", "Unloads a placed model"),
    post(
        "/exo/v1/instances/{instance}/replan",
        "replan",
        Admin,
        Some("ReplanRequest"),
        One("ReplanView"),
        "Asks the planner again where a placed model should be, with gain and cost, and moves it if that is worth it",
    ),
    get(
        "/exo/v1/requests",
        "list_requests",
        Admin,
        Many("RequestView"),
        "Requests of this node's clients that run or wait, without their text",
    ),
    get(
        "/exo/v1/requests/recent",
        "list_recent_requests",
        Admin,
        Many("RecentRequestView"),
        "Requests of this node's clients that have ended, the last first, without their text",
    ),
    delete(
        "/exo/v1/requests/{request}",
        "cancel_request",
        "Ends a request of a client of this node: its answer ends with the error `cancelled`",
    ),
    get(
        "/exo/v1/telemetry",
        "telemetry",
        Admin,
        One("TelemetryView"),
        "Measurements of every node: devices, links, stages, instances and counts of requests",
    ),
    query(
        "/exo/v1/series",
        "series",
        Admin,
        &["device", "instance", "node"],
        One("SeriesView"),
        "Measurements of one device (`NODE/DEVICE`), instance or node over the last hour",
    ),
    get(
        "/exo/v1/alerts",
        "list_alerts",
        Admin,
        Many("AlertView"),
        "What is wrong in the cluster, and what was within the last day, the newest first",
    ),
    post(
        "/exo/v1/alerts/silence",
        "silence_alert",
        Admin,
        Some("SilenceRequest"),
        Nothing,
        "Silences an alert, or all of a rule, for a while at this node",
    ),
    query(
        "/exo/v1/logs",
        "logs",
        Admin,
        &["node", "level", "target", "request", "after", "limit"],
        One("LogsView"),
        "The last log lines of all nodes that are reached, or of one",
    ),
    post(
        "/exo/v1/logs/level",
        "raise_log_level",
        Admin,
        Some("LogLevelRequest"),
        Nothing,
        "Has more of one target kept in this node's log for ten minutes",
    ),
    query(
        "/exo/v1/doctor",
        "doctor",
        Admin,
        &["of"],
        One("DoctorView"),
        "Has every machine of the cluster looked over by its node, or with `of=self` only this one: what works, what does not, and the next step. Takes some seconds",
    ),
    post(
        "/exo/v1/members/{node}/devices/{device}/retry",
        "retry_device",
        Admin,
        None,
        Nothing,
        "Has a node check a device of it that is in quarantine now, and use it again if it passes; how that ends shows in the cluster's view",
    ),
    get("/exo/v1/members", "list_members", Admin, Many("MemberView"), "Members of the cluster"),
    post(
        "/exo/v1/members",
        "admit",
        Admin,
        Some("AdmitRequest"),
        One("MemberView"),
        "Lets a node in that asks to join",
    ),
    delete("/exo/v1/members/{node}", "remove_member", "Puts a member out"),
    delete(
        "/exo/v1/join_requests/{node}",
        "refuse",
        "Refuses a node that asks to join: it is not shown again for an hour",
    ),
    post(
        "/exo/v1/join_window",
        "open_join_window",
        Admin,
        Some("JoinWindowRequest"),
        Nothing,
        "Lets nodes nearby that ask this node join without a question, for some minutes",
    ),
    delete(
        "/exo/v1/join_window",
        "shut_join_window",
        "Ends that, also where the first ten minutes are not over",
    ),
    post(
        "/exo/v1/members/{node}/drain",
        "drain",
        Admin,
        Some("DrainRequest"),
        Nothing,
        "Moves a node's stages elsewhere and places none there, or allows it again; returns at once",
    ),
    post(
        "/exo/v1/members/{node}/role",
        "set_role",
        Admin,
        Some("RoleRequest"),
        Nothing,
        "Makes a member an admin or a worker",
    ),
    post(
        "/exo/v1/invites",
        "invite",
        Admin,
        Some("InviteRequest"),
        One("InviteView"),
        "Gives out a code that lets a node in",
    ),
    post(
        "/exo/v1/join",
        "join",
        Admin,
        Some("JoinRequest"),
        One("JoinedView"),
        "Joins where a code was given out",
    ),
    get(
        "/exo/v1/models",
        "list_local_models",
        Admin,
        Many("ModelView"),
        "Models with their files and places",
    ),
    post(
        "/exo/v1/models",
        "add_model",
        Admin,
        Some("AddModelRequest"),
        One("ModelView"),
        "Makes a model file or folder of this node known",
    ),
    get(
        "/exo/v1/models/{model}",
        "find_model",
        Admin,
        One("ModelView"),
        "The model that a request of this name or id is answered by",
    ),
    delete("/exo/v1/models/{model}", "remove_model", "Forgets a model; files the user added stay"),
    post(
        "/exo/v1/kept_models",
        "keep_model",
        Admin,
        Some("KeepModelRequest"),
        One("ModelView"),
        "Keeps a model on the disk of the node that answers, however full that is, or lets it go again when room is needed",
    ),
    get(
        "/exo/v1/model_checks",
        "list_model_checks",
        Admin,
        Many("ModelCheckView"),
        "Checks of models of a hub, under way and over",
    ),
    post(
        "/exo/v1/model_checks",
        "check_model",
        Admin,
        Some("ModelCheckRequest"),
        One("ModelCheckView"),
        "Begins to compare a model of a hub with the hub's digests, over the nodes that have its layers; or finds the check under way",
    ),
    get(
        "/exo/v1/fits",
        "fits",
        Admin,
        One("FitsView"),
        "Which well-known models fit the cluster as it is, how fast each would be, and what would make the others fit",
    ),
    post(
        "/exo/v1/fits",
        "fits_one",
        Admin,
        Some("FitsQuery"),
        One("FitsView"),
        "The same for another context, or of one model: of the catalogue, one that is known, or of a hub by the head of its files",
    ),
    get(
        "/exo/v1/pulls",
        "list_pulls",
        Admin,
        Many("PullView"),
        "Downloads of this node with their progress: those that run or wait, and the last that are over",
    ),
    post(
        "/exo/v1/pulls",
        "pull",
        Admin,
        Some("PullRequest"),
        One("PullView"),
        "Starts a download and returns; one of the same reference that is not over goes on and is answered",
    ),
    post(
        "/exo/v1/pulls/{pull}/pause",
        "pause_pull",
        Admin,
        None,
        One("PullView"),
        "Stops fetching; what is verified stays",
    ),
    post(
        "/exo/v1/pulls/{pull}/resume",
        "resume_pull",
        Admin,
        None,
        One("PullView"),
        "Goes on from what is verified, also after an error",
    ),
    delete(
        "/exo/v1/pulls/{pull}",
        "cancel_pull",
        "Ends a download and takes it from the list; what is verified stays on the disk until it is pruned",
    ),
    post(
        "/exo/v1/hub/search",
        "search_hub",
        Admin,
        Some("HubSearchRequest"),
        Many("FoundRepoView"),
        "Models that the hub finds for a text, most downloaded first",
    ),
    post(
        "/exo/v1/hub/show",
        "show_repo",
        Admin,
        Some("HubShowRequest"),
        One("RepoView"),
        "What a repository of the hub has; fetches no weights",
    ),
    post(
        "/exo/v1/hub/updates",
        "list_updates",
        Admin,
        Some("UpdateQuery"),
        Many("UpdateView"),
        "What updates of this node's models of hubs would fetch: commits, files that differ, bytes, room; fetches no weights",
    ),
    post(
        "/exo/v1/hub/prune",
        "prune_pulls",
        Admin,
        None,
        One("PrunedView"),
        "Deletes downloads that were never finished and are not in the list",
    ),
    post(
        "/exo/v1/hub/login",
        "login_hub",
        Admin,
        Some("HubLoginRequest"),
        Nothing,
        "Keeps a token for the node's hub in its data folder: for that hub alone, and never shown",
    ),
    delete("/exo/v1/hub/login", "logout_hub", "Deletes the token that was kept"),
    get(
        "/exo/v1/found",
        "list_found_models",
        Admin,
        Many("FoundModelView"),
        "Models that other programs have on this node's disk",
    ),
    post("/exo/v1/shutdown", "shutdown", Admin, None, Nothing, "Ends the node cleanly"),
];
