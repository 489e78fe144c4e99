//! Responses that are kept for those who go on from them: in the memory of this node, up to a number of bytes
//! for all.

use std::collections::{BTreeMap, VecDeque};

use exo_api::responses::{DeltaLen, Response};
use exo_api::{ChatMessage, ToolCall};
use exo_stdx::Mutex;
use exo_types::Principal;

/// About what a message takes beside its texts.
const MESSAGE_BYTES: usize = 256;

/// The responses that are kept.
pub struct KeptResponses {
    all: Mutex<All>,
    bytes_max: usize,
}

/// Those of everybody.
#[derive(Default)]
struct All {
    by_principal: BTreeMap<[u8; 16], Shelf>,
    bytes: usize,
}

/// Those of one principal, oldest first.
#[derive(Default)]
struct Shelf {
    kept: VecDeque<KeptResponse>,
    bytes: usize,
}

/// One of them.
struct KeptResponse {
    id: String,
    /// As its client got it.
    json: String,
    /// The deltas that it came in.
    deltas: Vec<DeltaLen>,
    /// The conversation up to its end, without instructions.
    conversation: Vec<ChatMessage>,
    bytes: usize,
}

impl KeptResponses {
    /// None yet; at most so many bytes.
    pub fn new(bytes_max: usize) -> Self {
        Self { all: Mutex::default(), bytes_max }
    }

    /// Keeps a response, the deltas that it came in and the conversation before it, for `principal`. Makes
    /// room at who takes the most.
    pub fn keep(
        &self,
        principal: Principal,
        response: &Response,
        deltas: &[DeltaLen],
        mut conversation: Vec<ChatMessage>,
    ) {
        conversation.push(response.said());
        // Plain values always serialise.
        let Ok(json) = serde_json::to_string(response) else { return };
        let said_bytes = json.len() + conversation.iter().map(message_bytes).sum::<usize>();
        let bytes = said_bytes + size_of_val(deltas);
        let id = response.id.clone();
        // No room that others give up would do.
        if bytes > self.bytes_max {
            return;
        }
        let mut all = self.all.lock();
        all.push(principal, KeptResponse { id, json, deltas: deltas.to_vec(), conversation, bytes });
        while all.bytes > self.bytes_max {
            let largest = all.by_principal.iter().max_by_key(|(_, shelf)| shelf.bytes);
            let Some(principal) = largest.map(|(principal, _)| Principal(*principal)) else { return };
            // The oldest of the principal whose responses take the most: nobody pushes out those of others.
            all.remove(principal, 0);
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

    /// A response, as JSON, and the deltas that it came in.
    pub fn replayed(&self, principal: Principal, id: &str) -> Option<(String, Vec<DeltaLen>)> {
        self.find(principal, id, |kept| (kept.json.clone(), kept.deltas.clone()))
    }

    /// Keeps a response no longer; whether it was there.
    pub fn forget(&self, principal: Principal, id: &str) -> bool {
        let mut all = self.all.lock();
        let shelf = all.by_principal.get(&principal.0);
        let place = shelf.and_then(|shelf| shelf.kept.iter().position(|kept| kept.id == id));
        place.is_some_and(|place| all.remove(principal, place))
    }

    fn find<T>(&self, principal: Principal, id: &str, take: impl Fn(&KeptResponse) -> T) -> Option<T> {
        self.all.lock().by_principal.get(&principal.0)?.kept.iter().find(|kept| kept.id == id).map(take)
    }
}

impl All {
    fn push(&mut self, principal: Principal, kept: KeptResponse) {
        let shelf = self.by_principal.entry(principal.0).or_default();
        shelf.bytes += kept.bytes;
        self.bytes += kept.bytes;
        shelf.kept.push_back(kept);
    }

    /// Removes the one at this place of the principal's; whether it was there.
    fn remove(&mut self, principal: Principal, place: usize) -> bool {
        let Some(shelf) = self.by_principal.get_mut(&principal.0) else { return false };
        let Some(kept) = shelf.kept.remove(place) else { return false };
        shelf.bytes -= kept.bytes;
        self.bytes -= kept.bytes;
        if shelf.kept.is_empty() {
            self.by_principal.remove(&principal.0);
        }
        true
    }
}

/// About what a message takes.
pub fn message_bytes(message: &ChatMessage) -> usize {
    let optional = [&message.name, &message.reasoning_content, &message.tool_call_id];
    let texts: usize = optional.into_iter().flatten().map(String::len).sum();
    let call = |call: &ToolCall| {
        let ToolCall { id, function, .. } = call;
        MESSAGE_BYTES + id.len() + function.name.len() + function.arguments.len()
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
            kept.keep(principal, &head, &[], vec![ChatMessage { content, ..ChatMessage::default() }]);
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
        assert!(!there(ann, "huge") && there(ann, "a2") && there(bob, "b1"), "what has no room is not kept");
    }
}
