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

const fn one(listed: &[&'static str]) -> Option<&'static str> {
    match listed {
        [one] => Some(*one),
        _ => None,
    }
}

/// Below its summary what each endpoint is: `METHOD PATH OPERATION ACCESS`, what its body is (`takes`), its
/// parameters (`query`), and after the arrow what it answers with.
macro_rules! endpoints {
    ($(
        $(#[doc = $summary:literal])+
        $method:ident $path:literal $operation:ident $access:ident
            $(takes $request:literal)? $(query $($parameter:ident)+)? -> $answer:expr;
    )+) => {
        &[$(Endpoint {
            method: Method::$method,
            path: $path,
            operation: stringify!($operation),
            // Each line of a comment begins with a space.
            summary: concat!($($summary),+).trim_ascii_start(),
            access: Access::$access,
            request: one(&[$($request)?]),
            query: &[$($(stringify!($parameter)),+)?],
            answer: $answer,
        },)+]
    };
}

use SuccessBody::{Exposition, Json, Many, Nothing, One, OneOrLines, OneOrStream, Stream};

/// All endpoints but the landing page.
pub const ENDPOINTS: &[Endpoint] = endpoints! {
    /// Whether the node takes requests: 200, or 503 while it does not
    Get "/health" health Open -> One("HealthView");
    /// This description
    Get "/openapi.json" openapi Open -> Json;
    /// Metrics of this node, or with `scope=cluster` of all of them, for Prometheus
    Get "/metrics" metrics Metrics query scope node -> Exposition;
    /// Where nodes are scraped, in the format of Prometheus' HTTP service discovery
    Get "/metrics/targets" metrics_targets Metrics -> Many("ScrapeTargets");
    /// Models that can be asked for
    Get "/v1/models" list_models Api -> One("ModelList");
    /// One model
    Get "/v1/models/{model}" get_model Api -> One("ModelObject");
    /// The rest of a streamed answer that was asked for with `exo-keep` (`true`, or `ID.SECRET` that the
    /// client has drawn, 32 hexadecimal digits each), or whose node is lost, in its own dialect; takes
    /// `exo-resume` and `Last-Event-ID`. With `stream=false` the whole of one whose node is lost
    Get "/v1/requests/{request}" resume_request Api query stream -> Stream("ChatChunk");
    /// Ends an answer that was asked for with `exo-keep`; takes `exo-resume`
    Delete "/v1/requests/{request}" stop_request Api -> Nothing;
    /// The next message of a conversation; places the model if it is not placed
    Post "/v1/chat/completions" create_chat_completion Api takes "ChatRequest"
        -> OneOrStream("ChatCompletion", "ChatChunk");
    /// The continuation of a text; places the model if it is not placed
    Post "/v1/completions" create_completion Api takes "CompletionRequest"
        -> OneOrStream("Completion", "Completion");
    /// The next response of a conversation; places the model if it is not placed
    Post "/v1/responses" create_response Api takes "ResponsesRequest"
        -> OneOrStream("Response", "ResponseEvent");
    /// How many tokens the prompt of a response has; generates nothing
    Post "/v1/responses/input_tokens" count_response_tokens Api takes "ResponsesRequest"
        -> One("InputTokenCount");
    /// A response that this node keeps for who asked, or with `exo-resume` one whose node is lost; with
    /// `stream=true` its events, behind `starting_after`
    Get "/v1/responses/{response}" get_response Api query stream starting_after
        -> OneOrStream("Response", "ResponseEvent");
    /// Keeps a response no longer
    Delete "/v1/responses/{response}" delete_response Api -> One("ResponseDeleted");
    /// The next message of a conversation, as Anthropic's clients ask for it
    Post "/v1/messages" create_message Api takes "MessagesRequest" -> OneOrStream("Message", "MessageEvent");
    /// How many tokens a prompt has; generates nothing
    Post "/v1/messages/count_tokens" count_message_tokens Api takes "CountTokensRequest" -> One("TokenCount");
    /// One vector for each text
    Post "/v1/embeddings" create_embeddings Api takes "EmbeddingsRequest" -> One("EmbeddingList");
    /// One vector for each text, as Ollama's clients ask for it
    Post "/api/embed" ollama_embed Api takes "OllamaEmbedRequest" -> One("OllamaEmbeddings");
    /// The vector of a text, as Ollama's older clients ask for it
    Post "/api/embeddings" ollama_embeddings Api takes "OllamaEmbeddingsRequest" -> One("OllamaEmbedding");
    /// The next message of a conversation, as Ollama's clients ask for it
    Post "/api/chat" ollama_chat Api takes "OllamaChatRequest" -> OneOrLines("OllamaAnswer");
    /// The answer to a prompt, as Ollama's clients ask for it
    Post "/api/generate" ollama_generate Api takes "OllamaGenerateRequest" -> OneOrLines("OllamaAnswer");
    /// Models that can be asked for
    Get "/api/tags" ollama_tags Api -> One("OllamaModels");
    /// Models that are placed
    Get "/api/ps" ollama_ps Api -> One("OllamaModels");
    /// The version of Ollama whose API is spoken, and this program's
    Get "/api/version" ollama_version Api -> One("OllamaVersion");
    /// One model
    Post "/api/show" ollama_show Api takes "OllamaNamedRequest" -> One("OllamaShow");
    /// Success for a model that is known; nothing is fetched
    Post "/api/pull" ollama_pull Api takes "OllamaNamedRequest" -> OneOrLines("OllamaPull");
    /// The tokens of a text or a conversation, as llama.cpp and vLLM are asked for them
    Post "/tokenize" tokenize Api takes "TokenizeRequest" -> One("Tokenized");
    /// The text of tokens
    Post "/detokenize" detokenize Api takes "DetokenizeRequest" -> One("Detokenized");
    /// The prompt that the model's template makes of a conversation
    Post "/apply-template" apply_template Api takes "ApplyTemplateRequest" -> One("RenderedPrompt");
    /// The chat template and the tokens that begin and end a text, as vLLM is asked for them
    Get "/tokenizer_info" tokenizer_info Api query model -> One("TokenizerInfo");
    /// Gives out a code that becomes a session, once and within a minute: what `exo open` asks for
    Post "/exo/v1/codes" give_code Owner -> One("CodeView");
    /// Begins a session, for a code or the local secret
    Post "/exo/v1/session" begin_session Code takes "SessionRequest" -> One("SessionView");
    /// What the sender's token or key opens
    Get "/exo/v1/session" session Known -> One("SessionView");
    /// Ends the session of the sender
    Delete "/exo/v1/session" end_session Admin -> Nothing;
    /// Ends all sessions, and makes codes void
    Delete "/exo/v1/sessions" end_all_sessions Admin -> Nothing;
    /// The cluster as this node sees it
    Get "/exo/v1/cluster" cluster Viewer -> One("ClusterView");
    /// The cluster: a snapshot, then what changes; goes on behind `Last-Event-ID` where that is remembered;
    /// owners have lists of PullView between (`event: pulls`)
    Get "/exo/v1/events" events Viewer -> Stream("LiveEvent");
    /// Placed models
    Get "/exo/v1/instances" list_instances Viewer -> Many("InstanceView");
    /// Places a model; returns when the plan stands, loading goes on
    Post "/exo/v1/instances" place Admin takes "PlaceRequest" -> One("InstanceView");
    /// How a model would be placed and how fast it would be; loads nothing
    Post "/exo/v1/plan" plan Admin takes "PlanQuery" -> One("PlanView");
    /// One placed model
    Get "/exo/v1/instances/{instance}" get_instance Viewer -> One("InstanceView");
    /// Unloads a placed model
    Delete "/exo/v1/instances/{instance}" unload Admin -> Nothing;
    /// Asks the planner again where a placed model should be, with gain and cost, and moves it if that is
    /// worth it
    Post "/exo/v1/instances/{instance}/replan" replan Admin takes "ReplanRequest" -> One("ReplanView");
    /// Requests of this node's clients that run or wait, without their text
    Get "/exo/v1/requests" list_requests Admin -> Many("RequestView");
    /// Requests of this node's clients that have ended, the last first, without their text
    Get "/exo/v1/requests/recent" list_recent_requests Admin -> Many("RecentRequestView");
    /// Ends a request of a client of this node: its answer ends with the error `cancelled`
    Delete "/exo/v1/requests/{request}" cancel_request Admin -> Nothing;
    /// Measurements of every node: devices, links, stages, instances and counts of requests
    Get "/exo/v1/telemetry" telemetry Admin -> One("TelemetryView");
    /// Measurements of one device (`NODE/DEVICE`), instance or node over the last hour
    Get "/exo/v1/series" series Admin query device instance node -> One("SeriesView");
    /// What is wrong in the cluster, and what was within the last day, the newest first
    Get "/exo/v1/alerts" list_alerts Admin -> Many("AlertView");
    /// Silences an alert, or all of a rule, for a while at this node
    Post "/exo/v1/alerts/silence" silence_alert Admin takes "SilenceRequest" -> Nothing;
    /// The last log lines of all nodes that are reached, or of one
    Get "/exo/v1/logs" logs Admin query node level target request after limit -> One("LogsView");
    /// Has more of one target kept in this node's log for ten minutes
    Post "/exo/v1/logs/level" raise_log_level Admin takes "LogLevelRequest" -> Nothing;
    /// Has every machine of the cluster looked over by its node, or with `of=self` only this one: what works,
    /// what does not, and the next step. Takes some seconds
    Get "/exo/v1/doctor" doctor Admin query of -> One("DoctorView");
    /// Has a node check a device of it that is in quarantine now, and use it again if it passes; how that
    /// ends shows in the cluster's view
    Post "/exo/v1/members/{node}/devices/{device}/retry" retry_device Admin -> Nothing;
    /// Members of the cluster
    Get "/exo/v1/members" list_members Admin -> Many("MemberView");
    /// Lets a node in that asks to join
    Post "/exo/v1/members" admit Admin takes "AdmitRequest" -> One("MemberView");
    /// Puts a member out
    Delete "/exo/v1/members/{node}" remove_member Admin -> Nothing;
    /// Refuses a node that asks to join: it is not shown again for an hour
    Delete "/exo/v1/join_requests/{node}" refuse Admin -> Nothing;
    /// Lets nodes nearby that ask this node join without a question, for some minutes
    Post "/exo/v1/join_window" open_join_window Admin takes "JoinWindowRequest" -> Nothing;
    /// Ends that, also where the first ten minutes are not over
    Delete "/exo/v1/join_window" shut_join_window Admin -> Nothing;
    /// Moves a node's stages elsewhere and places none there, or allows it again; returns at once
    Post "/exo/v1/members/{node}/drain" drain Admin takes "DrainRequest" -> Nothing;
    /// Makes a member an admin or a worker
    Post "/exo/v1/members/{node}/role" set_role Admin takes "RoleRequest" -> Nothing;
    /// Gives out a code that lets a node in
    Post "/exo/v1/invites" invite Admin takes "InviteRequest" -> One("InviteView");
    /// Joins where a code was given out
    Post "/exo/v1/join" join Admin takes "JoinRequest" -> One("JoinedView");
    /// Models with their files and places
    Get "/exo/v1/models" list_local_models Admin -> Many("ModelView");
    /// Makes a model file or folder of this node known
    Post "/exo/v1/models" add_model Admin takes "AddModelRequest" -> One("ModelView");
    /// The model that a request of this name or id is answered by
    Get "/exo/v1/models/{model}" find_model Admin -> One("ModelView");
    /// Forgets a model; files the user added stay
    Delete "/exo/v1/models/{model}" remove_model Admin -> Nothing;
    /// Keeps a model on the disk of the node that answers, however full that is, or lets it go again when
    /// room is needed
    Post "/exo/v1/kept_models" keep_model Admin takes "KeepModelRequest" -> One("ModelView");
    /// Checks of models of a hub, under way and over
    Get "/exo/v1/model_checks" list_model_checks Admin -> Many("ModelCheckView");
    /// Begins to compare a model of a hub with the hub's digests, over the nodes that have its layers; or
    /// finds the check under way
    Post "/exo/v1/model_checks" check_model Admin takes "ModelCheckRequest" -> One("ModelCheckView");
    /// Which well-known models fit the cluster as it is, how fast each would be, and what would make the
    /// others fit
    Get "/exo/v1/fits" fits Admin -> One("FitsView");
    /// The same for another context, or of one model: of the catalogue, one that is known, or of a hub by the
    /// head of its files
    Post "/exo/v1/fits" fits_one Admin takes "FitsQuery" -> One("FitsView");
    /// Downloads of this node with their progress: those that run or wait, and the last that are over
    Get "/exo/v1/pulls" list_pulls Admin -> Many("PullView");
    /// Starts a download and returns; one of the same reference that is not over goes on and is answered
    Post "/exo/v1/pulls" pull Admin takes "PullRequest" -> One("PullView");
    /// Stops fetching; what is verified stays
    Post "/exo/v1/pulls/{pull}/pause" pause_pull Admin -> One("PullView");
    /// Goes on from what is verified, also after an error
    Post "/exo/v1/pulls/{pull}/resume" resume_pull Admin -> One("PullView");
    /// Ends a download and takes it from the list; what is verified stays on the disk until it is pruned
    Delete "/exo/v1/pulls/{pull}" cancel_pull Admin -> Nothing;
    /// Models that the hub finds for a text, most downloaded first
    Post "/exo/v1/hub/search" search_hub Admin takes "HubSearchRequest" -> Many("FoundRepoView");
    /// What a repository of the hub has; fetches no weights
    Post "/exo/v1/hub/show" show_repo Admin takes "HubShowRequest" -> One("RepoView");
    /// What updates of this node's models of hubs would fetch: commits, files that differ, bytes, room;
    /// fetches no weights
    Post "/exo/v1/hub/updates" list_updates Admin takes "UpdateQuery" -> Many("UpdateView");
    /// Deletes downloads that were never finished and are not in the list
    Post "/exo/v1/hub/prune" prune_pulls Admin -> One("PrunedView");
    /// Keeps a token for the node's hub in its data folder: for that hub alone, and never shown
    Post "/exo/v1/hub/login" login_hub Admin takes "HubLoginRequest" -> Nothing;
    /// Deletes the token that was kept
    Delete "/exo/v1/hub/login" logout_hub Admin -> Nothing;
    /// Models that other programs have on this node's disk
    Get "/exo/v1/found" list_found_models Admin -> Many("FoundModelView");
    /// Ends the node cleanly
    Post "/exo/v1/shutdown" shutdown Admin -> Nothing;
};
