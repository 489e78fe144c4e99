//! Calls whose arguments are JSON and whose name stands in front of it, outside: harmony's, DeepSeek's, and
//! Functionary's, which have nothing else in front.

use std::ops::Range;

use super::format::{
    ARGUMENTS, CallFormat, CallOpening, CallPart, IDS, NAME, OTHER, OTHER_ARGUMENTS, RenderedTurn, parts,
    up_to_end,
};
use super::thoughts::{ThoughtFormat, answer_open};
use crate::ChatTemplate;

/// Harmony names who is called either where the speaker is named, as its template prints it, or in the
/// channel, as models write it.
const IN_ROLE: [&str; 2] = [" to=functions.", "<|channel|>commentary json<|message|>"];
const IN_CHANNEL: [&str; 2] = ["<|channel|>commentary to=functions.", " <|constrain|>json<|message|>"];

/// What `template` prints, `one` being a turn with one call.
pub(super) fn find(template: &ChatTemplate, one: &RenderedTurn, ends: &[String]) -> Option<CallFormat> {
    let turn = &one.turn;
    let name_at = turn.find(NAME)?;
    let at = name_at + turn[name_at..].find(ARGUMENTS)?;
    // The call's id may stand on either side of the name.
    let start = turn[..name_at].find(IDS[0]).unwrap_or(name_at);
    let (begin, head) = turn[..at].split_at(start);
    let rest = up_to_end(&turn[at + ARGUMENTS.len()..], ends)?;
    // Without a sign in front, a call is told from an answer by the one that stands in front of that; behind
    // a thought between tags both are looked for otherwise.
    let is_read =
        |open: &String| ThoughtFormat::find(template).is_none_or(|thought| thought.answer_open == *open);
    let answer_open = if name_at == 0 { answer_open(template).filter(is_read)? } else { String::new() };
    // A name that ends where its arguments begin could go on.
    if begin.trim().is_empty() && answer_open.is_empty() || head.ends_with(NAME) || rest.contains(IDS[0]) {
        return None;
    }
    let (between, head) = match second_call(template, turn, start..at, rest, ends) {
        Some((between, head)) => (Some(between).filter(|between| !between.is_empty()), head),
        None => (None, parts(head)),
    };
    let is_in_role = begin == IN_ROLE[0]
        && matches!(&head[..], [CallPart::Name, CallPart::Text(text)] if text == IN_ROLE[1]);
    let other = is_in_role.then(|| CallOpening {
        begin: IN_CHANNEL[0].to_owned(),
        head: vec![CallPart::Name, CallPart::Text(IN_CHANNEL[1].to_owned())],
    });
    Some(CallFormat {
        begin: begin.to_owned(),
        between,
        end: rest.to_owned(),
        head,
        tail: Vec::new(),
        other,
        parameters: None,
        answer_open,
    })
}

/// What stands between a first call, which ends behind its `head` and arguments, and a second one with the
/// same `rest` behind it; and the parts of their heads.
fn second_call(
    template: &ChatTemplate,
    turn: &str,
    head: Range<usize>,
    rest: &str,
    ends: &[String],
) -> Option<(String, Vec<CallPart>)> {
    let calls = [(NAME, IDS[0], ARGUMENTS), (OTHER, IDS[1], OTHER_ARGUMENTS)];
    let two = RenderedTurn::render(template, &calls).ok()?.turn;
    let behind_first = up_to_end(&two, ends)?.strip_prefix(&turn[..head.end + ARGUMENTS.len()])?;
    let before = behind_first.strip_suffix(rest)?.strip_suffix(OTHER_ARGUMENTS)?;
    let expected = turn[head].replace(NAME, OTHER).replace(IDS[0], IDS[1]);
    let at = before.len().checked_sub(expected.len())?;
    let head = parts_of_both(&expected, before.get(at..)?)?;
    Some((before[..at].to_owned(), head))
}

/// The parts of the heads of two calls, the second being as `expected` after the first, or with the next
/// number in one place.
fn parts_of_both(expected: &str, second: &str) -> Option<Vec<CallPart>> {
    let as_first = |text: &str| parts(&text.replace(OTHER, NAME).replace(IDS[1], IDS[0]));
    let Some(at) = expected.bytes().zip(second.bytes()).position(|(a, b)| a != b) else {
        return (expected == second).then(|| as_first(expected));
    };
    let number = |text: &str| text.get(at..=at)?.parse::<u8>().ok();
    let (front, tail) = (expected.get(..at)?, expected.get(at + 1..)?);
    let is_digit = |c: char| c.is_ascii_digit();
    // A number that stands alone, so that it can be read whatever it is.
    let is_alone = !front.ends_with(is_digit) && !front.ends_with(OTHER) && !tail.starts_with(is_digit);
    let is_next = number(second)? == number(expected)? + 1 && second.get(at + 1..) == Some(tail);
    (is_alone && is_next).then(|| [as_first(front), vec![CallPart::Number], as_first(tail)].concat())
}
