//! The description of the API, made from [`ENDPOINTS`] and the schemas of the types. `openapi.json` at the
//! root of the repository is written by `cargo run -p exo-api --example openapi`, and a test fails when it
//! differs.

use utoipa::OpenApi;
use utoipa::openapi::path::{OperationBuilder, Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::{ArrayBuilder, Ref, Schema, SchemaType, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    ContentBuilder, HttpMethod, InfoBuilder, ObjectBuilder, Paths, RefOr, Required, Response, ResponseBuilder,
};

use crate::endpoints::{Access, ENDPOINTS, Endpoint, Method, SuccessBody};
use crate::table::{self, Table, Treatment};
use crate::{
    alerts, anthropic, doctor, downloads, fits, live, logs, ollama, openai, plan, responses, session,
    telemetry, tokens, updates, view,
};

#[derive(OpenApi)]
#[openapi(components(schemas(
    openai::ChatRequest,
    openai::ChatCompletion,
    openai::ChatChunk,
    openai::CompletionRequest,
    openai::Completion,
    openai::EmbeddingList,
    openai::ErrorBody,
    openai::ModelList,
    openai::ModelObject,
    openai::Tokenized,
    openai::Detokenized,
    openai::RenderedPrompt,
    tokens::TokenizerInfo,
    responses::Response,
    responses::ResponseEvent,
    responses::ResponseDeleted,
    responses::InputTokenCount,
    anthropic::Message,
    anthropic::MessageEvent,
    anthropic::TokenCount,
    anthropic::MessagesError,
    anthropic::ModelPage,
    ollama::OllamaAnswer,
    ollama::OllamaEmbeddings,
    ollama::OllamaEmbedding,
    ollama::OllamaError,
    ollama::OllamaModels,
    ollama::OllamaShow,
    ollama::OllamaPull,
    ollama::OllamaVersion,
    view::HealthView,
    view::ClusterView,
    view::InstanceView,
    view::PlaceRequest,
    plan::PlanQuery,
    plan::ReplanRequest,
    plan::ReplanView,
    plan::ReplanDecision,
    plan::ReplanStageView,
    plan::PlanView,
    view::MemberView,
    view::RequestView,
    view::RecentRequestView,
    live::LiveEvent,
    session::CodeView,
    session::SessionRequest,
    session::SessionView,
    view::AdmitRequest,
    view::JoinWindowRequest,
    view::RoleRequest,
    view::DrainRequest,
    view::InviteRequest,
    view::InviteView,
    view::JoinRequest,
    view::JoinedView,
    view::ModelTools,
    view::ModelView,
    view::AddModelRequest,
    telemetry::TelemetryView,
    telemetry::SeriesView,
    telemetry::ScrapeTargets,
    alerts::AlertView,
    alerts::SilenceRequest,
    logs::LogsView,
    logs::LogLevelRequest,
    doctor::DoctorView,
    fits::FitsQuery,
    fits::FitsView,
    downloads::PullRequest,
    downloads::PullView,
    downloads::HubLoginRequest,
    downloads::HubSearchRequest,
    downloads::FoundRepoView,
    downloads::HubShowRequest,
    downloads::RepoView,
    downloads::PrunedView,
    updates::UpdateQuery,
    updates::UpdateView,
    downloads::KeepModelRequest,
    downloads::ModelCheckRequest,
    downloads::ModelCheckView,
    downloads::FoundModelView,
)))]
struct Schemas;

const API_KEY: &str = "api_key";
const LOCAL_SECRET: &str = "local_secret";

/// The description of the API.
pub fn document() -> utoipa::openapi::OpenApi {
    let mut document = Schemas::openapi();
    document.info =
        InfoBuilder::new().title("exo").version(env!("CARGO_PKG_VERSION")).description(Some(ABOUT)).build();
    document.paths = ENDPOINTS.iter().fold(Paths::new(), |mut paths, endpoint| {
        paths.add_path_operation(endpoint.path, vec![http(endpoint.method)], operation(endpoint));
        paths
    });
    if let Some(components) = document.components.as_mut() {
        for (name, table, required) in BODIES {
            components.schemas.insert((*name).to_owned(), body(table, required));
        }
        let bearer = |about: &str| {
            let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(about));
            SecurityScheme::Http(scheme.build())
        };
        components.add_security_scheme(API_KEY, bearer("Needed unless the API is called on loopback."));
        components.add_security_scheme(
            LOCAL_SECRET,
            bearer("The content of the node's secret file (mode 0600), or the token of a session."),
        );
    }
    document
}

/// Bodies that are described by the table of fields: name, fields, and those that must be there.
const BODIES: &[(&str, Table, &[&str])] = &[
    ("ResponsesRequest", table::RESPONSES, &["model", "input"]),
    ("MessagesRequest", table::MESSAGES, &["model", "max_tokens", "messages"]),
    ("CountTokensRequest", table::MESSAGES_COUNT, &["model", "messages"]),
    ("EmbeddingsRequest", table::EMBEDDINGS, &["model", "input"]),
    ("OllamaEmbedRequest", table::OLLAMA_EMBED, &["model", "input"]),
    ("OllamaEmbeddingsRequest", table::OLLAMA_EMBEDDINGS, &["model", "prompt"]),
    ("OllamaChatRequest", table::OLLAMA_CHAT, &["model", "messages"]),
    ("OllamaGenerateRequest", table::OLLAMA_GENERATE, &["model"]),
    ("OllamaNamedRequest", table::OLLAMA_NAMED, &["model"]),
    ("TokenizeRequest", table::TOKENIZE, &[]),
    ("DetokenizeRequest", table::DETOKENIZE, &["tokens"]),
    ("ApplyTemplateRequest", table::APPLY_TEMPLATE, &["messages"]),
];

fn body(table: &Table, required: &[&str]) -> RefOr<Schema> {
    let about = "Every field, and what stands in it, is in `docs/api.md`.";
    let is_taken = |field: &&table::Field| {
        !field.path.contains('.') && !matches!(field.treatment, Treatment::Refused(_))
    };
    let object = table.all().filter(is_taken).fold(ObjectBuilder::new(), |object, field| {
        let any = ObjectBuilder::new().schema_type(SchemaType::AnyValue).description(Some(field.note));
        object.property(field.path, any.build())
    });
    let object = required.iter().fold(object, |object, name| object.required(*name));
    RefOr::T(Schema::Object(object.description(Some(about)).build()))
}

const ABOUT: &str = "The API of one exo node. `/v1/*` is compatible with OpenAI's, `/v1/messages` with \
Anthropic's, `/api/*` with Ollama's; `/exo/v1/*` shows and changes the \
cluster. A parameter that is not honoured is refused with a 400 that names it. Every POST needs `Content-Type: \
application/json`; under `/api/` what curl sends by itself passes as well.";

/// [`document`] as it stands in the repository: indented, with a final newline.
pub fn to_json() -> String {
    // Serialising plain owned values to a string has no way to fail.
    document().to_pretty_json().expect("the description serialises") + "\n"
}

fn operation(endpoint: &Endpoint) -> OperationBuilder {
    let mut op =
        OperationBuilder::new().operation_id(Some(endpoint.operation)).summary(Some(endpoint.summary)).tag(
            endpoint.path.split("/v1/").next().filter(|_| endpoint.path.contains("/v1/")).map_or("node", tag),
        );
    for name in endpoint.path.split('{').skip(1).filter_map(|rest| rest.split('}').next()) {
        op = op.parameter(text_parameter(name, ParameterIn::Path, Required::True));
    }
    for name in endpoint.query {
        op = op.parameter(text_parameter(name, ParameterIn::Query, Required::False));
    }
    if let Some(schema) = endpoint.request {
        let content = ContentBuilder::new().schema(Some(reference(schema))).build();
        let body = RequestBodyBuilder::new().required(Some(Required::True)).content(JSON, content);
        op = op.request_body(Some(body.build()));
    }
    let with = |name| SecurityRequirement::new(name, Vec::<String>::new());
    op = match endpoint.access {
        // What lets somebody into the last two is no header.
        Access::Open | Access::Code | Access::Owner => op,
        Access::Viewer | Access::Known => op.security(with(LOCAL_SECRET)).security(with(API_KEY)),
        // The empty requirement says that none will do: on loopback.
        Access::Api => op.security(SecurityRequirement::default()).security(with(API_KEY)),
        Access::Admin => op.security(with(LOCAL_SECRET)),
        Access::Metrics => op.security(with(API_KEY)).security(with(LOCAL_SECRET)),
    };
    let status = if endpoint.answer == SuccessBody::Nothing { "204" } else { "200" };
    op.response(status, success(endpoint.answer)).response("default", failure())
}

fn http(method: Method) -> HttpMethod {
    match method {
        Method::Get => HttpMethod::Get,
        Method::Post => HttpMethod::Post,
        Method::Delete => HttpMethod::Delete,
    }
}

fn tag(path: &str) -> &'static str {
    match path {
        path if path.starts_with("/exo/") => "cluster",
        path if path.starts_with("/v1/") => "openai",
        _ => "node",
    }
}

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";
const LINES: &str = "application/x-ndjson";
const EXPOSITION: &str = "text/plain; version=0.0.4";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0";

fn reference(schema: &str) -> RefOr<Schema> {
    RefOr::Ref(Ref::from_schema_name(schema))
}

fn success(answer: SuccessBody) -> Response {
    let content = |schema: RefOr<Schema>| ContentBuilder::new().schema(Some(schema)).build();
    let builder = ResponseBuilder::new().description("Success");
    let builder = match answer {
        SuccessBody::One(schema) => builder.content(JSON, content(reference(schema))),
        SuccessBody::Many(schema) => {
            let array = ArrayBuilder::new().items(reference(schema)).build();
            builder.content(JSON, content(RefOr::T(Schema::Array(array))))
        }
        SuccessBody::OneOrStream(one, event) => {
            builder.content(JSON, content(reference(one))).content(EVENTS, content(reference(event)))
        }
        SuccessBody::OneOrLines(one) => {
            builder.content(JSON, content(reference(one))).content(LINES, content(reference(one)))
        }
        SuccessBody::Stream(event) => builder.content(EVENTS, content(reference(event))),
        SuccessBody::Nothing => builder,
        SuccessBody::Exposition => {
            let text =
                || content(RefOr::T(Schema::Object(ObjectBuilder::new().schema_type(Type::String).build())));
            builder.content(EXPOSITION, text()).content(OPEN_METRICS, text())
        }
        SuccessBody::Json => {
            let object = ObjectBuilder::new().schema_type(Type::Object).build();
            builder.content(JSON, content(RefOr::T(Schema::Object(object))))
        }
    };
    builder.build()
}

fn failure() -> Response {
    let content = ContentBuilder::new().schema(Some(reference("ErrorBody"))).build();
    ResponseBuilder::new().description("Refused or failed; `code` is stable").content(JSON, content).build()
}

fn text_parameter(name: &str, place: ParameterIn, required: Required) -> Parameter {
    let text = ObjectBuilder::new().schema_type(Type::String).build();
    let builder = ParameterBuilder::new().name(name).parameter_in(place).required(required);
    builder.schema(Some(RefOr::T(Schema::Object(text)))).build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_description_is_the_current_one() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../openapi.json");
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(committed == to_json(), "openapi.json differs: run `cargo run -p exo-api --example openapi`");
    }

    #[test]
    fn every_schema_that_is_referred_to_exists() {
        let json = to_json();
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        let schemas = value["components"]["schemas"].as_object().unwrap();
        for part in json.split("#/components/schemas/").skip(1) {
            let name = part.split('"').next().unwrap();
            assert!(schemas.contains_key(name), "{name} is referred to but not described");
        }
    }

    #[test]
    fn nothing_under_exo_is_open() {
        for endpoint in ENDPOINTS {
            let is_open = matches!(endpoint.access, Access::Open | Access::Api | Access::Metrics);
            assert_eq!(endpoint.path.starts_with("/exo/"), !is_open, "{}", endpoint.path);
        }
    }
}
