//! A request that runs: its prompts as tokens, and what its answers are made of.

use std::sync::Arc;
use std::time::Instant;

use exo_api::GenerateRequest;
use exo_types::{Constraint, RequestId};
use tokio::sync::mpsc;

use crate::constrain::AnswerPlan;
use crate::events::{EventSender, ToldEvent};
use crate::library::OpenModel;

pub struct Prepared {
    pub prompts: Vec<PreparedPrompt>,
    /// What the answers must spell.
    pub constraint: Option<Arc<Constraint>>,
    pub plan: AnswerPlan,
    /// Messages that were left out of the conversation.
    pub left_out_messages: u32,
}

pub struct PreparedPrompt {
    pub tokens: Vec<u32>,
    /// What `echo` sends first.
    pub echo: String,
}

impl Prepared {
    pub fn prompt_tokens(&self) -> u32 {
        self.prompts.iter().map(|prompt| prompt.tokens.len() as u32).sum()
    }
}

/// Everything the streaming half needs.
pub struct Running {
    pub request: GenerateRequest,
    /// The request as its client knows it.
    pub name: RequestId,
    pub open: Arc<OpenModel>,
    pub prepared: Prepared,
    pub events: mpsc::UnboundedReceiver<ToldEvent>,
    pub node: EventSender,
    pub arrived: Instant,
}

impl Running {
    /// What a choice goes on from.
    pub fn prompt_of(&self, index: u16) -> Option<&PreparedPrompt> {
        self.prepared.prompts.get(usize::from(index / self.request.choices.max(1)))
    }
}
