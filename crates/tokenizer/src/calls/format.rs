//! How a template prints calls of tools and thoughts, found by rendering conversations whose parts are known.
//!
//! Nothing goes by a model's name. A call is looked for where the assistant's turn begins: what stands before, between and behind
//! calls, and around name and arguments, is what the model was trained to write.

use serde_json::{Map, Value, json};

use crate::{ChatTemplate, RenderOptions, TemplateError};

const NAME: &str = "probe_tool";
const OTHER: &str = "probe_other";
/// Nine letters and digits: what the templates that check a call's id accept.
const IDS: [&str; 2] = ["pr0be1aaa", "pr0be2bbb"];
const ARGUMENTS: &str = r#"{"probe_key": "probe value", "probe_n": 7}"#;
const OTHER_ARGUMENTS: &str = r#"{"probe_key": "another value", "probe_n": 8}"#;

/// A part of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CallPart {
    /// The same in every call.
    Text(String),
    /// The tool's name.
    Name,
    /// The call's id: letters and digits, so many.
    Id(usize),
}

/// How a template prints calls: `begin`, a call, (`between`, a call)*, `end`. A call is `head`, the arguments as JSON with a space
/// behind commas and colons, `tail`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallFormat {
    /// In front of the first call.
    pub begin: String,
    /// From one call to the next; `None` where a turn has one call.
    pub between: Option<String>,
    /// Behind the last call.
    pub end: String,
    /// In front of the arguments.
    pub head: Vec<CallPart>,
    /// Behind the arguments.
    pub tail: Vec<CallPart>,
}

impl CallFormat {
    /// What `template` prints, `ends` being the texts of the tokens that end a turn. An error says why it prints no calls that could
    /// be recognised.
    pub fn find(template: &ChatTemplate, ends: &[String]) -> Result<Self, String> {
        let calls = [(NAME, IDS[0], ARGUMENTS), (OTHER, IDS[1], OTHER_ARGUMENTS)];
        let one = Turn::render(template, &calls[..1]).map_err(|e| format!("it prints no calls: {e}"))?;
        if !one.prompt.contains(NAME) {
            return Err("it does not show tools to the model".to_owned());
        }
        let only =
            one.call(&calls[0], 0).ok_or("its calls are no JSON objects with a name and then arguments")?;
        let begin = one.turn[..only.start].to_owned();
        let end = up_to_end(&one.turn[only.end..], ends).ok_or("nothing ends a turn of calls")?.to_owned();
        let object = &one.turn[only.start..only.end];
        let at = object.find(ARGUMENTS).ok_or("its arguments are spaced in another way")?;
        let (head, tail) = (parts(&object[..at]), parts(&object[at + ARGUMENTS.len()..]));
        if !head.contains(&CallPart::Name) {
            return Err("its calls have the name behind the arguments".to_owned());
        }
        let format = Self { begin, between: None, end, head, tail };
        let between = Turn::render(template, &calls).ok().and_then(|two| format.between(&two, &calls, ends));
        Ok(Self { between, ..format })
    }

    /// What stands between two calls of one turn, if the turn is otherwise as expected.
    fn between(&self, two: &Turn, calls: &[Probe<'_>; 2], ends: &[String]) -> Option<String> {
        let first = two.call(&calls[0], 0)?;
        let second = two.call(&calls[1], first.end)?;
        let between = &two.turn[first.end..second.start];
        let is_same = two.turn[..first.start] == self.begin
            && up_to_end(&two.turn[second.end..], ends) == Some(self.end.as_str())
            && !ends.iter().any(|end| between.contains(end.as_str()));
        is_same.then(|| between.to_owned())
    }

    /// The form in a few words, with the sign that calls begin with.
    pub fn label(&self) -> String {
        match self.begin.trim() {
            "" => "a JSON object".to_owned(),
            sign => format!("JSON behind {sign:.40}"),
        }
    }

    /// Whether calls have an id of their own in the text.
    pub fn has_ids(&self) -> bool {
        self.head.iter().chain(&self.tail).any(|part| matches!(part, CallPart::Id(_)))
    }
}

/// How a template opens and closes thoughts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ThoughtFormat {
    /// `<think>`
    pub open: String,
    /// `</think>`
    pub close: String,
    /// The prompt ends inside a thought.
    pub is_opened: bool,
    /// The template can be told to have none (`enable_thinking`).
    pub can_be_off: bool,
}

/// Signs of thoughts, as models write them.
const THOUGHTS: [(&str, &str); 3] =
    [("<think>", "</think>"), ("<thinking>", "</thinking>"), ("<seed:think>", "</seed:think>")];

impl ThoughtFormat {
    /// What `template` does, if it knows of thoughts.
    pub fn find(template: &ChatTemplate) -> Option<Self> {
        let user = [json!({"role": "user", "content": "probe"})];
        let prompt = |vars: Map<String, Value>| {
            let options =
                RenderOptions { add_generation_prompt: true, now: Some(some_day()), vars, tools: None };
            template.render(&user, &options)
        };
        let usual = prompt(Map::new()).ok()?;
        let &(open, close) = THOUGHTS.iter().find(|(open, close)| {
            template.source().contains(close)
                || template.source().contains(open)
                || usual.trim_end().ends_with(open)
        })?;
        let off = prompt(Map::from_iter([("enable_thinking".to_owned(), Value::Bool(false))]));
        let is_opened = |text: &str| text.trim_end().ends_with(open);
        Some(Self {
            open: open.to_owned(),
            close: close.to_owned(),
            is_opened: is_opened(&usual),
            can_be_off: off.is_ok_and(|off| off != usual && !is_opened(&off)),
        })
    }
}

type Probe<'a> = (&'a str, &'a str, &'a str);

/// A conversation with calls: what a model would have been asked with, and what its turn is.
struct Turn {
    prompt: String,
    turn: String,
}

struct Span {
    start: usize,
    end: usize,
}

impl Turn {
    fn render(template: &ChatTemplate, calls: &[Probe<'_>]) -> Result<Self, TemplateError> {
        let tool = |name: &str| {
            json!({"type": "function", "function": {"name": name, "description": "A probe.", "parameters": {
                "type": "object", "properties": {"probe_key": {"type": "string"}, "probe_n": {"type": "integer"}},
            }}})
        };
        let options = |add_generation_prompt| RenderOptions {
            add_generation_prompt,
            tools: Some(json!([tool(NAME), tool(OTHER)])),
            vars: Map::new(),
            now: Some(some_day()),
        };
        let mut messages = vec![json!({"role": "user", "content": "probe"})];
        let prompt = template.render(&messages, &options(true))?;
        let call = |(name, id, arguments): &Probe<'_>| {
            let arguments: Value = serde_json::from_str(arguments).unwrap_or_default();
            json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
        };
        let calls_made: Vec<Value> = calls.iter().map(call).collect();
        messages.push(json!({"role": "assistant", "content": "", "tool_calls": calls_made}));
        for (name, id, _) in calls {
            messages.push(json!({"role": "tool", "name": name, "tool_call_id": id, "content": "probed"}));
        }
        let whole = template.render(&messages, &options(false))?;
        // A prompt may end in an opened thought, which is not there in a turn that is over.
        let same = prompt.bytes().zip(whole.bytes()).take_while(|(a, b)| a == b).count();
        let same = (0..=same).rev().find(|at| whole.is_char_boundary(*at)).unwrap_or(0);
        Ok(Self { prompt, turn: whole[same..].to_owned() })
    }

    /// The first JSON object from `from` on that is a call of this tool.
    fn call(&self, (name, ..): &Probe<'_>, from: usize) -> Option<Span> {
        let named = from + self.turn[from..].find(&format!("\"{name}\""))?;
        // The innermost brace in front of the name that begins an object with it.
        self.turn[from..named].rmatch_indices('{').find_map(|(at, _)| {
            let start = from + at;
            let mut values = serde_json::Deserializer::from_str(&self.turn[start..]).into_iter::<Value>();
            let is_object = values.next()?.is_ok_and(|value| value.is_object());
            let end = start + values.byte_offset();
            (is_object && end > named).then_some(Span { start, end })
        })
    }
}

/// Templates that print a date print this one.
fn some_day() -> chrono::NaiveDateTime {
    chrono::NaiveDateTime::default()
}

/// The text in front of the first sign that ends a turn.
fn up_to_end<'t>(text: &'t str, ends: &[String]) -> Option<&'t str> {
    let at = ends.iter().filter(|end| !end.is_empty()).filter_map(|end| text.find(end.as_str())).min()?;
    Some(&text[..at])
}

/// A text around arguments, with name and id by their places.
fn parts(text: &str) -> Vec<CallPart> {
    let marks = [(NAME, CallPart::Name), (IDS[0], CallPart::Id(IDS[0].len()))];
    let mut found = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let next = marks
            .iter()
            .filter_map(|(mark, part)| Some((rest.find(mark)?, mark.len(), part)))
            .min_by_key(|m| m.0);
        let (at, len, part) = match next {
            Some((at, len, part)) => (at, len, Some(part.clone())),
            None => (rest.len(), 0, None),
        };
        if at > 0 {
            found.push(CallPart::Text(rest[..at].to_owned()));
        }
        found.extend(part);
        rest = &rest[at + len..];
    }
    found
}
