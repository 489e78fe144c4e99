//! `/v1/messages`: events to Anthropic's events and answers.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;
use exo_api::anthropic::{Message, MessageStream, MessagesRequest, TokenCount};
use exo_api::{GenerateEvent, Summary};
use exo_types::Principal;

use crate::app::App;
use crate::body::{json, read_json};
use crate::dialect::Dialect;
use crate::encode::{Chunks, Whole, push_event, push_ping};
use crate::errors::ApiError;
use crate::generate::{IncomingRequest, PostedRequest, read, stream, whole};
use crate::resumed::Resumed;
use crate::ticket::recorded;

/// `POST /v1/messages`
pub async fn messages(State(app): State<Arc<App>>, posted: PostedRequest) -> Result<Response, ApiError> {
    let take = |body, text: &str| {
        let messages = MessagesRequest::parse(body)?;
        Ok((recorded(messages.streams, text), messages.with_inputs_of(text)))
    };
    let IncomingRequest { body: (record, messages), context, origin, lease: _lease } =
        read(&app, posted, take).await?;
    let id = context.request;
    let fold = MessageStream::new(id.to_string(), messages.model.clone(), messages.thoughts);
    let streams = messages.streams;
    let request = messages.into_generate(context)?;
    let ticket = origin.ticket(&app, Resumed::Messages, &request, record)?;
    if streams && !ticket.is_whole {
        let request_id = id.to_string();
        stream(&app, Dialect::Messages, request, MessageChunks { fold, request_id }, ticket).await
    } else {
        whole(&app, Dialect::Messages, request, MessageWhole(fold), ticket).await
    }
}

/// `POST /v1/messages/count_tokens`
pub async fn count_tokens(
    State(app): State<Arc<App>>,
    Extension(principal): Extension<Principal>,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let (messages, _lease) = read_json(&parts.headers, body, &app, |body, text| {
        Ok(MessagesRequest::parse_count(body)?.with_inputs_of(text))
    })
    .await?;
    let count = messages.into_count(principal, app.options.leave_out_hosted_tools)?;
    let answer = app.tokens(Dialect::Messages, count).await?;
    Ok(json(&TokenCount { input_tokens: answer.tokens.len() as u32 }))
}

/// Events of a streamed answer.
struct MessageChunks {
    fold: MessageStream,
    request_id: String,
}

impl Chunks for MessageChunks {
    fn push(&mut self, event: GenerateEvent, out: &mut String) {
        for event in self.fold.push(event) {
            push_event(out, event.name(), &event);
        }
    }

    fn keep_alive(&self, waiting_for: Option<&str>, out: &mut String) {
        push_ping(waiting_for, out);
    }

    fn fail(&mut self, error: &ApiError, out: &mut String) {
        push_event(out, "error", &error.anthropic_body(&self.request_id));
    }
}

/// The whole answer.
struct MessageWhole(MessageStream);

impl Whole for MessageWhole {
    type Answer = Message;

    fn push(&mut self, event: GenerateEvent) {
        let _ = self.0.push(event);
    }

    fn finish(mut self, summary: &Summary) -> Option<Message> {
        let _ = self.0.push(GenerateEvent::Done(summary.clone()));
        self.0.into_message()
    }
}
