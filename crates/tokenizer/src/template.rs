//! Chat templates: messages to the prompt text a model was trained on.
//!
//! A template is a program from a model file. It gets what Hugging Face gives it (Jinja2 with trimmed blocks,
//! loop controls, `raise_exception`, `strftime_now`, `tojson`, Python's string methods) and no more: no
//! files, no clock, a limit on instructions, on the size of any value, on what it writes and on time.

mod budget;
mod compile;
mod functions;
mod library;
mod lists;
mod numbers;
mod operators;
mod unprinted;

use std::ops::Range;
use std::sync::Arc;

use chrono::NaiveDateTime;
use serde_json::{Map, Value};

use crate::TemplateError;
use budget::Budget;
pub(crate) use numbers::ReadMessages;

/// Characters for private use, which few texts and no known tokenizer have.
pub(crate) const PRIVATE: Range<u32> = 0xF_0000..0xF_FFFE;

/// What a template is told besides the messages.
#[derive(Clone, Debug, Default)]
pub struct RenderOptions {
    /// Open the assistant's turn at the end.
    pub add_generation_prompt: bool,
    /// The `tools` of the request, a JSON array. A template that never reads them and reads `functions` has
    /// their definitions there as JSON text, and the day as `datetime` (FireFunction).
    pub tools: Option<Value>,
    /// Further variables by name (`enable_thinking`, `documents`); they do not override the standard ones.
    pub vars: Map<String, Value>,
    /// Local date and time for `strftime_now`; without it that function is an error.
    pub now: Option<NaiveDateTime>,
}

/// A compiled chat template.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    source: Arc<str>,
    bos_token: Option<String>,
    eos_token: Option<String>,
}

impl ChatTemplate {
    /// Compiles `source`. The two texts are what the template sees as `bos_token` and `eos_token`.
    pub fn new(
        source: &str,
        bos_token: Option<&str>,
        eos_token: Option<&str>,
    ) -> Result<Self, TemplateError> {
        let source = compile::prepare(source)?;
        let source: Arc<str> = (unprinted::lead(&source) + &source).into();
        // Compiled again for each rendering, which takes a fraction of a millisecond: the compiled form
        // borrows the source.
        compile::compile(&source)?;
        Ok(Self { source, bos_token: bos_token.map(str::to_owned), eos_token: eos_token.map(str::to_owned) })
    }

    /// What was compiled.
    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    /// The prompt for `messages`, each an object with `role` and `content` and whatever else the template
    /// reads. Arguments of calls are objects, or JSON text whose numbers are printed as they are spelled.
    pub fn render(&self, messages: &[Value], options: &RenderOptions) -> Result<String, TemplateError> {
        let ReadMessages { messages, mark } = ReadMessages::new(messages, options, &self.source);
        self.render_read(&messages, mark, options)
    }

    /// The prompt for messages with objects as arguments, in which `mark` stands in front of numbers with a
    /// spelling.
    pub(crate) fn render_read(
        &self,
        messages: &[Value],
        mark: Option<char>,
        options: &RenderOptions,
    ) -> Result<String, TemplateError> {
        let mut vars: Map<String, Value> = options.vars.clone();
        if let Some(tools) = &options.tools
            && has_word(&self.source, "functions")
            && !has_word(&self.source, "tools")
        {
            let day = options.now.map(|now| now.format("%Y-%m-%d").to_string());
            for (name, text) in [("functions", definitions(tools)), ("datetime", day)] {
                if let Some(text) = text {
                    vars.entry(name).or_insert(Value::String(text));
                }
            }
        }
        let mut set = |name: &str, value: Value| vars.insert(name.to_owned(), value);
        set("messages", Value::Array(messages.to_vec()));
        set("tools", options.tools.clone().unwrap_or_default());
        set("add_generation_prompt", Value::Bool(options.add_generation_prompt));
        for (name, token) in [("bos_token", &self.bos_token), ("eos_token", &self.eos_token)] {
            if let Some(text) = token {
                set(name, Value::String(text.clone()));
            }
        }
        let compiled = compile::compile(&self.source)?;
        compiled.render(functions::value_of(&Value::Object(vars), mark), Budget::start(), options.now)
    }
}

fn has_word(source: &str, word: &str) -> bool {
    source.split(|c: char| !c.is_alphanumeric() && c != '_').any(|found| found == word)
}

/// What the functions of `tools` are, as one JSON text.
fn definitions(tools: &Value) -> Option<String> {
    let functions: Vec<&Value> = tools.as_array()?.iter().filter_map(|tool| tool.get("function")).collect();
    serde_json::to_string(&functions).ok()
}
