//! Messages to ids: control tokens come from the template, never from the text of a message.
//!
//! Rendered, a prompt is one text, and nothing in it tells `<|im_end|>` of the template from one that a user
//! typed. So each control token has a *key*, its first sign that is neither letter nor digit (`<`), and the
//! keys in the request are followed through the template: they go in as private characters and come out where
//! the template put them. A control token found in the prompt that has a key of the request in it is text.
//! Everything else is tokenised as the whole prompt always was.
//!
//! A template may look at such signs (`'</think>' in content`). Its prompt then differs when they are
//! private, and only those in control tokens that are written out whole in one string of the request are
//! followed.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use crate::template::{PRIVATE, ReadMessages};
use crate::{ChatTemplate, EncodeError, RenderOptions, TemplateError, Tokenizer};

/// Barring one control token can let another be found that overlapped it; after so many rounds all keys are
/// barred.
const ROUNDS_MAX: usize = 8;

/// Messages did not become tokens.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    /// The template failed, or refused the conversation.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The prompt could not be encoded.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

/// Private characters in the place of others.
#[derive(Default)]
struct PlaceholderChars {
    taken: BTreeSet<u32>,
    /// Private characters before this one are taken.
    next: u32,
    hidden: BTreeMap<char, char>,
    shown: BTreeMap<char, char>,
}

impl PlaceholderChars {
    /// With private characters that none of the texts has.
    fn beside<'t>(texts: impl IntoIterator<Item = &'t str>) -> Self {
        let private = texts.into_iter().flat_map(str::chars).map(u32::from).filter(|c| PRIVATE.contains(c));
        Self { taken: private.collect(), next: PRIVATE.start, ..Self::default() }
    }

    /// The private character for this one. Who sends all private characters there are gets U+FFFD.
    fn hide(&mut self, c: char) -> char {
        *self.hidden.entry(c).or_insert_with(|| {
            let free = (self.next..PRIVATE.end).find(|c| !self.taken.contains(c));
            self.next = free.map_or(PRIVATE.end, |c| c + 1);
            let private = free.and_then(char::from_u32).unwrap_or(char::REPLACEMENT_CHARACTER);
            self.shown.insert(private, c);
            private
        })
    }

    /// The text as it was, and where in it the hidden characters are.
    fn show(&self, text: &str) -> (String, Vec<usize>) {
        let (mut out, mut hidden) = (String::with_capacity(text.len()), Vec::new());
        for c in text.chars() {
            if self.shown.contains_key(&c) {
                hidden.push(out.len());
            }
            out.push(*self.shown.get(&c).unwrap_or(&c));
        }
        (out, hidden)
    }
}

/// Which bytes of a string begin a character to be followed.
type Which<'a> = dyn Fn(&str) -> Result<Vec<usize>, EncodeError> + 'a;

impl Tokenizer {
    /// The ids of the prompt that `template` makes of `messages`. Control tokens are the template's own;
    /// their text in a message, a tool or a variable is encoded as any other text. Where there is no such
    /// text, the ids are those of the rendered prompt with [`crate::EncodeOptions::parse_special`].
    pub fn encode_chat(
        &self,
        template: &ChatTemplate,
        messages: &[Value],
        options: &RenderOptions,
    ) -> Result<Vec<u32>, ChatError> {
        let ReadMessages { messages, mark } = ReadMessages::new(messages, options, template.source());
        let text = template.render_read(&messages, mark, options)?;
        let request = Request { template, messages: &messages, mark, options };
        let all = |text: &str| Ok(self.key_positions(text));
        let (text, theirs) = match request.follow(&all) {
            Ok(None) => (text, Vec::new()),
            Ok(Some((same, theirs))) if same == text => (text, theirs),
            // The template looked at a key, or failed for it.
            _ => {
                let whole = |text: &str| self.key_positions_in_specials(text);
                request.follow(&whole)?.unwrap_or((text, Vec::new()))
            }
        };
        Ok(self.encode_barring(&text, &theirs)?)
    }

    fn key_positions(&self, text: &str) -> Vec<usize> {
        text.char_indices().filter(|(_, c)| self.keys().has(*c)).map(|(at, _)| at).collect()
    }

    fn key_positions_in_specials(&self, text: &str) -> Result<Vec<usize>, EncodeError> {
        let mut keys = self.key_positions(text);
        // What is too long to be encoded is too long to be searched.
        if keys.is_empty() || self.check_length(text).is_err() {
            return Ok(keys);
        }
        let specials = self.find_specials(text)?;
        keys.retain(|at| {
            let next = specials.partition_point(|found| found.end <= *at);
            specials.get(next).is_some_and(|found| found.contains(at))
        });
        Ok(keys)
    }

    /// As [`Tokenizer::encode`] with control tokens, except those that have a character at one of `theirs` in
    /// them.
    fn encode_barring(&self, text: &str, theirs: &[usize]) -> Result<Vec<u32>, EncodeError> {
        self.check_length(text)?;
        let mut barred = vec![false; theirs.len()];
        for _ in 0..ROUNDS_MAX {
            let mut disguise = PlaceholderChars::beside([text]);
            let (hidden, at) = hide(text, theirs, &barred, &mut disguise);
            let specials = if theirs.is_empty() { Vec::new() } else { self.find_specials(&hidden)? };
            let mut is_done = true;
            for found in specials {
                let from = at.partition_point(|at| *at < found.start);
                let to = at.partition_point(|at| *at < found.end);
                is_done &= from == to;
                barred[from..to].fill(true);
            }
            if is_done {
                return self.encode_hidden(&hidden, &disguise.shown);
            }
        }
        let mut disguise = PlaceholderChars::beside([text]);
        let (hidden, _) = hide(text, theirs, &vec![true; theirs.len()], &mut disguise);
        self.encode_hidden(&hidden, &disguise.shown)
    }
}

/// `text` with the barred of `theirs` hidden, and where each of `theirs` is then.
fn hide(
    text: &str,
    theirs: &[usize],
    barred: &[bool],
    disguise: &mut PlaceholderChars,
) -> (String, Vec<usize>) {
    let (mut out, mut at, mut done) = (String::with_capacity(text.len()), Vec::new(), 0);
    for (&start, &is_barred) in theirs.iter().zip(barred) {
        out.push_str(&text[done..start]);
        done = start;
        at.push(out.len());
        if let Some(c) = text[start..].chars().next().filter(|_| is_barred) {
            out.push(disguise.hide(c));
            done += c.len_utf8();
        }
    }
    out.push_str(&text[done..]);
    (out, at)
}

struct Request<'a> {
    template: &'a ChatTemplate,
    messages: &'a [Value],
    /// What numbers with a spelling begin with.
    mark: Option<char>,
    options: &'a RenderOptions,
}

impl Request<'_> {
    /// Renders with some characters of the request followed: the prompt, and where in it they are. `None` if
    /// there are none.
    fn follow(&self, which: &Which<'_>) -> Result<Option<(String, Vec<usize>)>, ChatError> {
        let is_number = |text: &str| self.mark.is_some_and(|mark| text.starts_with(mark));
        let which = &|text: &str| if is_number(text) { Ok(Vec::new()) } else { which(text) };
        let vars = self.options.vars.values().chain(&self.options.tools);
        let said: Vec<String> = self.messages.iter().chain(vars).map(Value::to_string).collect();
        let texts = said.iter().map(String::as_str).chain(self.options.vars.keys().map(String::as_str));
        let mut disguise = PlaceholderChars::beside(texts.chain([self.template.source()]));
        let messages = self.messages.iter().map(|m| disguised(m, which, &mut disguise));
        let messages = messages.collect::<Result<Vec<_>, _>>()?;
        let mut options = self.options.clone();
        if let Some(tools) = &mut options.tools {
            *tools = disguised(tools, which, &mut disguise)?;
        }
        options.vars = disguised_map(&options.vars, which, &mut disguise)?;
        if disguise.shown.is_empty() {
            return Ok(None);
        }
        let text = self.template.render_read(&messages, self.mark, &options)?;
        Ok(Some(disguise.show(&text)))
    }
}

fn disguised(
    value: &Value,
    which: &Which<'_>,
    disguise: &mut PlaceholderChars,
) -> Result<Value, EncodeError> {
    Ok(match value {
        Value::String(text) => Value::String(disguised_text(text, which, disguise)?),
        Value::Array(items) => {
            Value::Array(items.iter().map(|v| disguised(v, which, disguise)).collect::<Result<_, _>>()?)
        }
        Value::Object(map) => Value::Object(disguised_map(map, which, disguise)?),
        plain => plain.clone(),
    })
}

fn disguised_map(
    map: &Map<String, Value>,
    which: &Which<'_>,
    disguise: &mut PlaceholderChars,
) -> Result<Map<String, Value>, EncodeError> {
    let pairs = map.iter();
    pairs
        .map(|(key, value)| Ok((disguised_text(key, which, disguise)?, disguised(value, which, disguise)?)))
        .collect()
}

fn disguised_text(
    text: &str,
    which: &Which<'_>,
    disguise: &mut PlaceholderChars,
) -> Result<String, EncodeError> {
    let at = which(text)?;
    Ok(hide(text, &at, &vec![true; at.len()], disguise).0)
}
