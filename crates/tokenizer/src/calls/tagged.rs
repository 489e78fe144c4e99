//! Calls whose parameters stand between tags, each for itself: how a template prints them, found as for calls
//! in JSON.

use super::format::{CallFormat, IDS, NAME, OTHER, Probe, RenderedTurn, parts, up_to_end};
use crate::{CallFormatError, ChatTemplate};

const KEY: &str = "probe_key";
/// A text that a template has to leave as it is: no JSON, no markup, no white space taken away.
const TEXT: &str = "probe \"value\" <b> & so\n on";
/// Parameters of one call, as JSON and, where all templates have to agree, as they stand between tags.
const VALUES: [(&str, &str, Option<&str>); 7] = [
    (KEY, r#""probe \"value\" <b> & so\n on""#, Some(TEXT)),
    ("probe_n", "7", Some("7")),
    ("probe_half", "0.5", Some("0.5")),
    ("probe_list", r#"[1, "x", true]"#, Some(r#"[1, "x", true]"#)),
    ("probe_map", r#"{"a": "b", "c": 2}"#, Some(r#"{"a": "b", "c": 2}"#)),
    ("probe_yes", "true", None),
    ("probe_not", "false", None),
];
/// Some of them as Python prints them.
const PYTHON: [(&str, &str); 2] = [("probe_list", "[1, 'x', True]"), ("probe_map", "{'a': 'b', 'c': 2}")];

/// How a template prints a parameter: `open`, its name, `behind_name`, its value, `close`. Texts stand as
/// they are, all else as JSON but for three words, or as Python prints it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParameterFormat {
    /// In front of the name.
    pub open: String,
    /// Between name and value.
    pub behind_name: String,
    /// Between name and value where the value is no text, if the template says so there: what a value is then
    /// goes by this sign.
    pub before_json: Option<String>,
    /// Behind the value; it has a sign that is no white space.
    pub close: String,
    /// `true` as it is printed.
    pub true_word: String,
    /// `false` as it is printed.
    pub false_word: String,
    /// `null` as it is printed, if it is.
    pub null_word: Option<String>,
    /// Arrays or objects are printed as Python prints them. They are read so, and as JSON.
    pub is_python: bool,
}

/// What `template` prints. `None` where its calls have no parameters between tags; an error where they have
/// and cannot be followed.
pub(super) fn find(template: &ChatTemplate, ends: &[String]) -> Option<Result<CallFormat, CallFormatError>> {
    let probes = Probes { template, ends };
    let one_value = object(&VALUES[..1]);
    let one = probes.turn(&[(NAME, IDS[0], &one_value)])?;
    let name_at = one.find(NAME)?;
    let key_at = name_at + one[name_at..].find(KEY)?;
    let (value_at, value) = value_behind(&one, key_at + KEY.len())?;
    Some(probes.format(&one, name_at, key_at, value_at..value_at + value.len()))
}

/// Where the first parameter's value begins: as it is, or changed.
fn value_behind(turn: &str, from: usize) -> Option<(usize, &'static str)> {
    // A value that was changed has at least its first word.
    [TEXT, "probe"].into_iter().find_map(|value| Some((from + turn[from..].find(value)?, value)))
}

struct Probes<'a> {
    template: &'a ChatTemplate,
    ends: &'a [String],
}

impl Probes<'_> {
    fn turn(&self, calls: &[Probe<'_>]) -> Option<String> {
        let turn = RenderedTurn::render(self.template, calls).ok()?.turn;
        up_to_end(&turn, self.ends).map(str::to_owned)
    }

    fn format(
        &self,
        one: &str,
        name_at: usize,
        key_at: usize,
        value: std::ops::Range<usize>,
    ) -> Result<CallFormat, CallFormatError> {
        if &one[value.clone()] != TEXT {
            return Err(CallFormatError::ChangesTexts);
        }
        let none = self.turn(&[(NAME, IDS[0], "{}")]).ok_or(CallFormatError::NoEmptyCall)?;
        let head_len = head_len(&none, one, name_at, key_at).ok_or(CallFormatError::OtherEmptyCall)?;
        let (head, end) = none.split_at(head_len);
        let close = one[value.end..].strip_suffix(end).ok_or(CallFormatError::OtherEnd)?;
        // What stands between parameters and not behind the last opens each, where it is in front of the
        // first as well. A call without any has it once more than it is read with.
        let gap = self.gap(&one[..value.end + close.len()], &one[head_len..key_at]).unwrap_or_default();
        let head = head.strip_suffix(gap.as_str()).unwrap_or(head);
        let (open, behind_name) = (&one[head.len()..key_at], &one[key_at + KEY.len()..value.start]);
        let mut parameters = ParameterFormat {
            open: open.to_owned(),
            behind_name: behind_name.to_owned(),
            before_json: self.before_json(head, open, behind_name),
            close: close.to_owned(),
            true_word: String::new(),
            false_word: String::new(),
            null_word: None,
            is_python: false,
        };
        self.check_values(head, end, &mut parameters)?;
        let begin = match head[..name_at].rfind('<') {
            Some(tag) if !head[tag..name_at].contains('>') && !head[..tag].trim().is_empty() => tag,
            _ => name_at,
        };
        let (begin, head_of_call) = head.split_at(begin);
        if begin.trim().is_empty() {
            return Err(CallFormatError::NoSign);
        }
        let between = self.between(begin, head_of_call, name_at - begin.len(), one, end);
        Ok(CallFormat {
            begin: begin.to_owned(),
            between,
            end: end.to_owned(),
            head: parts(head_of_call),
            tail: Vec::new(),
            other: None,
            parameters: Some(parameters),
            answer_open: String::new(),
        })
    }

    /// White space between two parameters, `first` being all up to the end of one that stands alone.
    fn gap(&self, first: &str, open: &str) -> Option<String> {
        let two = self.turn(&[(NAME, IDS[0], &object(&VALUES[..2]))])?;
        let rest = two.strip_prefix(first)?;
        let gap = &rest[..rest.find(open)?];
        gap.trim().is_empty().then(|| gap.to_owned())
    }

    /// What stands between a name and a value that is no text, where that is another sign than a text has.
    fn before_json(&self, head: &str, open: &str, behind_name: &str) -> Option<String> {
        let (key, value, _) = VALUES[1];
        let turn = self.turn(&[(NAME, IDS[0], &object(&VALUES[1..2]))])?;
        let rest = turn.strip_prefix(head)?.strip_prefix(open)?.strip_prefix(key)?;
        let sign = &rest[..rest.find(value)?];
        // A sign within the other could not be told from it while it comes.
        let is_told = !sign.trim().is_empty() && !sign.contains(behind_name) && !behind_name.contains(sign);
        (is_told && !rest.starts_with(behind_name)).then(|| sign.to_owned())
    }

    /// Renders a call with a value of each kind: the parts must be those that were found, and the values as
    /// they should be. What is known only from them is set.
    fn check_values(
        &self,
        head: &str,
        end: &str,
        found: &mut ParameterFormat,
    ) -> Result<(), CallFormatError> {
        let ParameterFormat { open, behind_name, before_json, close, .. } = &*found;
        if open.trim().is_empty() || behind_name.trim().is_empty() || close.trim().is_empty() {
            return Err(CallFormatError::NoParameterSigns);
        }
        let is_of_json = |c: char| c == ' ' || c.is_ascii_alphanumeric() || "\"'+,-.:[]{}".contains(c);
        if close.starts_with(is_of_json) {
            return Err(CallFormatError::CloseAsJson);
        }
        if end.trim().is_empty() {
            return Err(CallFormatError::NoClose);
        }
        let read = |values: &[(&str, &str, Option<&str>)]| -> Option<Vec<String>> {
            let turn = self.turn(&[(NAME, IDS[0], &object(values))])?;
            let mut rest = turn.strip_prefix(head)?;
            let mut printed = Vec::new();
            for (key, json, _) in values {
                let sign = before_json.as_ref().filter(|_| !json.starts_with('"')).unwrap_or(behind_name);
                rest = rest.strip_prefix(open.as_str())?.strip_prefix(key)?.strip_prefix(sign.as_str())?;
                let value = rest.find(close.as_str())?;
                printed.push(rest[..value].to_owned());
                rest = &rest[value + close.len()..];
            }
            (rest == end).then_some(printed)
        };
        let printed = read(&VALUES).ok_or(CallFormatError::OtherTags)?;
        let mut is_python = false;
        for ((key, _, expected), printed) in VALUES.iter().zip(&printed) {
            if expected.is_some_and(|expected| expected != printed) {
                if !PYTHON.contains(&(*key, printed.as_str())) {
                    return Err(CallFormatError::NotJson { key });
                }
                is_python = true;
            }
        }
        let null = read(&[("probe_null", "null", None)]).and_then(|mut printed| printed.pop());
        let is_word = |word: &String| !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphabetic());
        let [.., yes, not] = printed.as_slice() else { return Err(CallFormatError::OtherTags) };
        if !is_word(yes) || !is_word(not) {
            return Err(CallFormatError::NoWords);
        }
        (found.true_word, found.false_word) = (yes.clone(), not.clone());
        found.null_word = null.filter(is_word);
        found.is_python = is_python;
        Ok(())
    }

    /// What stands between two calls of one turn, where it prints two and they look as one does.
    fn between(&self, begin: &str, head: &str, name_at: usize, one: &str, end: &str) -> Option<String> {
        let value = object(&VALUES[..1]);
        let two = self.turn(&[(NAME, IDS[0], &value), (OTHER, IDS[1], &value)])?;
        let first = one.strip_suffix(end)?;
        let rest = two.strip_prefix(first)?;
        let second = rest.find(OTHER)?.checked_sub(name_at)?;
        let other_head = head.replace(NAME, OTHER).replace(IDS[0], IDS[1]);
        let other_call = rest.get(second..)?.strip_prefix(other_head.as_str())?;
        let call = first.strip_prefix(begin)?.strip_prefix(head)?;
        (other_call == format!("{call}{end}")).then(|| rest[..second].to_owned())
    }
}

/// How much two calls, one without arguments, have in common in front of the first parameter. Never a part of
/// a tag: tags of parameters begin like those that close a call.
fn head_len(none: &str, one: &str, name_at: usize, key_at: usize) -> Option<usize> {
    let same = none.bytes().zip(one.bytes()).take_while(|(a, b)| a == b).count().min(key_at);
    let same = none.floor_char_boundary(same);
    let cut = match none[..same].rfind('<') {
        Some(tag) if tag > name_at && !none[tag..same].contains('>') => tag,
        _ => same,
    };
    (cut >= name_at + NAME.len()).then_some(cut)
}

fn object(values: &[(&str, &str, Option<&str>)]) -> String {
    let fields: Vec<String> = values.iter().map(|(key, value, _)| format!("\"{key}\": {value}")).collect();
    format!("{{{}}}", fields.join(", "))
}
