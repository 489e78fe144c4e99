//! How a template prints thoughts, and what it opens an answer with, found by rendering turns whose parts are
//! known.

use serde_json::{Map, Value, json};

use super::format::some_day;
use crate::{ChatTemplate, RenderOptions};

/// How a template opens and closes thoughts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ThoughtFormat {
    /// `<think>`
    pub open: String,
    /// `</think>`, and whatever stands between a thought and what comes next.
    pub close: String,
    /// A prompt for an answer with a thought ends inside it.
    pub is_opened: bool,
    /// The template can be told to have none.
    pub can_be_off: bool,
    /// There are none unless the template is told to have them.
    pub must_be_asked: bool,
    /// The variable that tells it.
    switch: &'static str,
    /// The template can be told how much of it (`reasoning_effort`).
    pub has_efforts: bool,
    /// What stands in front of an answer, where answers stand in a channel of their own; else nothing.
    pub answer_open: String,
    /// The field of a message that the template prints as its thought.
    pub field: &'static str,
}

/// Signs of thoughts, as models write them.
pub(super) const THOUGHTS: [(&str, &str); 3] =
    [("<think>", "</think>"), ("<thinking>", "</thinking>"), ("<seed:think>", "</seed:think>")];
/// Fields that templates read thoughts from.
const FIELDS: [&str; 2] = ["reasoning_content", "thinking"];
/// Variables that tell templates whether to think.
const SWITCHES: [&str; 2] = ["enable_thinking", "thinking"];
const ANSWER: &str = "probe answer";
const THOUGHT: &str = "probe thought";

impl ThoughtFormat {
    /// What `template` does, if it knows of thoughts.
    pub fn find(template: &ChatTemplate) -> Option<Self> {
        Self::find_tags(template).or_else(|| Self::find_channels(template))
    }

    fn find_tags(template: &ChatTemplate) -> Option<Self> {
        let usual = prompt(template, Map::new())?;
        let &(open, close) = THOUGHTS.iter().find(|(open, close)| {
            template.source().contains(close)
                || template.source().contains(open)
                || usual.trim_end().ends_with(open)
        })?;
        let is_opened = |text: &str| text.trim_end().ends_with(open);
        let told = |switch, is_on| prompt(template, switch_var(switch, is_on));
        let switched = |switch| Some((switch, told(switch, true)?, told(switch, false)?));
        let switches = SWITCHES.into_iter().filter_map(switched);
        let found = switches.into_iter().find(|(_, on, off)| on != off && !is_opened(off));
        let must_be_asked = found.as_ref().is_some_and(|(_, _, off)| *off == usual);
        let with_thoughts = found.as_ref().filter(|_| must_be_asked).map_or(&usual, |(_, on, _)| on);
        Some(Self {
            open: open.to_owned(),
            close: close.to_owned(),
            is_opened: is_opened(with_thoughts),
            can_be_off: found.is_some(),
            must_be_asked,
            switch: found.as_ref().map_or(SWITCHES[0], |(switch, ..)| switch),
            has_efforts: false,
            answer_open: String::new(),
            field: FIELDS[0],
        })
    }

    /// Thoughts and answers that each stand in a message of their own, behind signs of their own: harmony, as
    /// gpt-oss writes it.
    fn find_channels(template: &ChatTemplate) -> Option<Self> {
        let answer_open = answer_open(template)?;
        let usual = prompt(template, Map::new())?;
        let (field, turn) = FIELDS.into_iter().find_map(|field| {
            let turn = answered(template, &usual, Some(field))?;
            turn.contains(THOUGHT).then_some((field, turn))
        })?;
        let (open, rest) = turn.split_once(THOUGHT)?;
        let close = rest[..rest.find(ANSWER)?].strip_suffix(answer_open.as_str())?;
        let effort = |effort: &str| prompt(template, effort_var(effort));
        // Where one begins like the other, which it is could not be told.
        let is_told = !open.trim().is_empty()
            && !close.trim().is_empty()
            && !answer_open.starts_with(open)
            && !open.starts_with(&answer_open);
        is_told.then(|| Self {
            open: open.to_owned(),
            close: close.to_owned(),
            is_opened: false,
            can_be_off: false,
            must_be_asked: false,
            switch: SWITCHES[0],
            has_efforts: effort("low") != effort("high"),
            answer_open,
            field,
        })
    }

    /// What tells the template whether to think.
    pub fn told(&self, is_on: bool) -> Map<String, Value> {
        switch_var(self.switch, is_on)
    }
}

/// What stands in front of an answer, where it has a sign of its own.
pub(super) fn answer_open(template: &ChatTemplate) -> Option<String> {
    let plain = answered(template, &prompt(template, Map::new())?, None)?;
    let open = &plain[..plain.find(ANSWER)?];
    (!open.trim().is_empty()).then(|| open.to_owned())
}

fn switch_var(switch: &str, is_on: bool) -> Map<String, Value> {
    Map::from_iter([(switch.to_owned(), Value::Bool(is_on))])
}

/// What tells a template how much to think.
pub fn effort_var(effort: &str) -> Map<String, Value> {
    Map::from_iter([("reasoning_effort".to_owned(), effort.into())])
}

fn render(
    template: &ChatTemplate,
    messages: &[Value],
    is_prompt: bool,
    vars: Map<String, Value>,
) -> Option<String> {
    let options =
        RenderOptions { add_generation_prompt: is_prompt, now: Some(some_day()), vars, tools: None };
    template.render(messages, &options).ok()
}

fn prompt(template: &ChatTemplate, vars: Map<String, Value>) -> Option<String> {
    render(template, &[json!({"role": "user", "content": "probe"})], true, vars)
}

/// The assistant's turn behind this prompt, with a thought in this field.
fn answered(template: &ChatTemplate, prompt: &str, field: Option<&str>) -> Option<String> {
    let mut answer = json!({"role": "assistant", "content": ANSWER});
    if let Some(field) = field {
        answer[field] = THOUGHT.into();
    }
    let messages = [json!({"role": "user", "content": "probe"}), answer];
    render(template, &messages, false, Map::new())?.strip_prefix(prompt).map(str::to_owned)
}
