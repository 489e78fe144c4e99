//! Responses that are kept for those who go on from them: in the memory of this node, up to a number of bytes for all.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use exo_api::responses::Response;
use exo_api::{ChatMessage, ToolCall};
use exo_types::Principal;

/// About what a message takes beside its texts.
const MESSAGE_BYTES: usize = 256;

/// The responses that are kept.
pub struct KeptResponses {
    all: Mutex<VecDeque<Kept>>,
    bytes_max: usize,
}

/// One of them.
struct Kept {
    principal: Principal,
    id: String,
    /// As its client got it.
    json: String,
    /// The conversation up to its end, without instructions.
    conversation: Vec<ChatMessage>,
    bytes: usize,
}

impl KeptResponses {
    /// None yet; at most so many bytes.
    pub fn new(bytes_max: usize) -> Self {
        Self { all: Mutex::default(), bytes_max }
    }

    /// Keeps a response and the conversation before it, for `principal`. Makes room at who takes the most.
    pub fn keep(&self, principal: Principal, response: &Response, mut conversation: Vec<ChatMessage>) {
        conversation.push(response.said());
        // Plain values always serialise.
        let Ok(json) = serde_json::to_string(response) else { return };
        let bytes = json.len() + conversation.iter().map(message_bytes).sum::<usize>();
        let id = response.id.clone();
        let mut all = self.all();
        all.push_back(Kept { principal, id, json, conversation, bytes });
        while all.iter().map(|kept| kept.bytes).sum::<usize>() > self.bytes_max {
            let Some(oldest) = oldest_of_largest(&all) else { return };
            all.remove(oldest);
        }
    }

    /// About what a response and its conversation take.
    pub fn bytes(&self, principal: Principal, id: &str) -> Option<usize> {
        self.find(principal, id, |kept| kept.bytes)
    }

    /// The conversation up to the end of a response.
    pub fn conversation(&self, principal: Principal, id: &str) -> Option<Vec<ChatMessage>> {
        self.find(principal, id, |kept| kept.conversation.clone())
    }

    /// A response, as JSON.
    pub fn json(&self, principal: Principal, id: &str) -> Option<String> {
        self.find(principal, id, |kept| kept.json.clone())
    }

    /// Keeps a response no longer; whether it was there.
    pub fn forget(&self, principal: Principal, id: &str) -> bool {
        let mut all = self.all();
        let place = all.iter().position(|kept| kept.principal == principal && kept.id == id);
        place.and_then(|place| all.remove(place)).is_some()
    }

    fn find<T>(&self, principal: Principal, id: &str, take: impl Fn(&Kept) -> T) -> Option<T> {
        self.all().iter().find(|kept| kept.principal == principal && kept.id == id).map(take)
    }

    fn all(&self) -> MutexGuard<'_, VecDeque<Kept>> {
        // Nothing panics between two changes that belong together.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The oldest of the principal whose responses take the most, so that nobody pushes out those of others.
fn oldest_of_largest(all: &VecDeque<Kept>) -> Option<usize> {
    let mut bytes = BTreeMap::<[u8; 16], usize>::new();
    for kept in all {
        *bytes.entry(kept.principal.0).or_default() += kept.bytes;
    }
    let (largest, _) = bytes.into_iter().max_by_key(|(_, bytes)| *bytes)?;
    all.iter().position(|kept| kept.principal.0 == largest)
}

fn message_bytes(message: &ChatMessage) -> usize {
    let optional = [&message.name, &message.reasoning_content, &message.tool_call_id];
    let texts: usize = optional.into_iter().flatten().map(String::len).sum();
    let call = |call: &ToolCall| {
        let ToolCall { id, function, .. } = call;
        // A document takes several times its text.
        MESSAGE_BYTES + id.len() + function.name.len() + 8 * function.arguments.to_string().len()
    };
    MESSAGE_BYTES + message.content.len() + texts + message.tool_calls.iter().map(call).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use exo_api::responses::ResponsesRequest;
    use serde_json::json;

    use super::*;

    #[test]
    fn room_is_made_at_who_takes_the_most_and_nobody_sees_what_is_anothers() {
        let kept = KeptResponses::new(16 << 10);
        let (ann, bob) = (Principal([1; 16]), Principal([2; 16]));
        let keep = |principal, id: &str, bytes: usize| {
            let head =
                ResponsesRequest::parse(json!({"model": "m", "input": "x"})).expect("a request").head(id, 1);
            let content = "x".repeat(bytes);
            kept.keep(principal, &head, vec![ChatMessage { content, ..ChatMessage::default() }]);
        };
        keep(bob, "b1", 10);
        for id in ["a1", "a2", "a3"] {
            keep(ann, id, 5 << 10);
        }
        let there = |principal, id: &str| kept.json(principal, &format!("resp_{id}")).is_some();
        assert!(!there(ann, "a1") && there(ann, "a2") && there(ann, "a3") && there(bob, "b1"));
        assert!(!there(bob, "a3") && !kept.forget(bob, "resp_a3") && kept.forget(ann, "resp_a3"));
        assert!(!there(ann, "a3"));
        assert_eq!(kept.conversation(ann, "resp_a2").map(|messages| messages.len()), Some(2));
        keep(ann, "huge", 1 << 20);
        assert!(!there(ann, "huge") && there(bob, "b1"), "what has no room is not kept");
    }
}
