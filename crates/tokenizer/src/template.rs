//! Chat templates: messages to the prompt text a model was trained on.

use chrono::NaiveDateTime;
use serde_json::{Map, Value};

use crate::TemplateError;

/// What a template is told besides the messages.
#[derive(Clone, Debug, Default)]
pub struct RenderOptions {
    /// Open the assistant's turn at the end.
    pub add_generation_prompt: bool,
    /// The `tools` of the request, a JSON array.
    pub tools: Option<Value>,
    /// Further variables by name (`enable_thinking`, `documents`); they do not override the standard ones.
    pub vars: Map<String, Value>,
    /// Local date and time for `strftime_now`; without it that function is an error.
    pub now: Option<NaiveDateTime>,
}

/// A compiled chat template.
#[derive(Clone)]
pub struct ChatTemplate {}

impl ChatTemplate {
    /// Compiles `source`. The two texts are what the template sees as `bos_token` and `eos_token`.
    pub fn new(
        _source: &str,
        _bos_token: Option<&str>,
        _eos_token: Option<&str>,
    ) -> Result<Self, TemplateError> {
        todo!()
    }

    /// The prompt for `messages`, each an object with `role` and `content` and whatever else the template reads.
    pub fn render(&self, _messages: &[Value], _options: &RenderOptions) -> Result<String, TemplateError> {
        todo!()
    }
}
