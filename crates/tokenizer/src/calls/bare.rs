//! Calls whose arguments are JSON and whose name stands in front of it, outside: harmony's, and DeepSeek's.

use super::format::{
    ARGUMENTS, CallFormat, CallOpening, CallPart, IDS, NAME, OTHER, OTHER_ARGUMENTS, RenderedTurn, parts,
    up_to_end,
};
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
    // A name that ends where its arguments begin could go on.
    if begin.trim().is_empty() || head.ends_with(NAME) || rest.contains(IDS[0]) {
        return None;
    }
    let head = parts(head);
    let is_in_role = begin == IN_ROLE[0]
        && matches!(&head[..], [CallPart::Name, CallPart::Text(text)] if text == IN_ROLE[1]);
    let other = is_in_role.then(|| CallOpening {
        begin: IN_CHANNEL[0].to_owned(),
        head: vec![CallPart::Name, CallPart::Text(IN_CHANNEL[1].to_owned())],
    });
    let calls = [(NAME, IDS[0], ARGUMENTS), (OTHER, IDS[1], OTHER_ARGUMENTS)];
    let between = || -> Option<String> {
        let two = RenderedTurn::render(template, &calls).ok()?.turn;
        let two = up_to_end(&two, ends)?;
        let behind_first = two.strip_prefix(&turn[..at + ARGUMENTS.len()])?;
        let other_head = turn[start..at].replace(NAME, OTHER).replace(IDS[0], IDS[1]);
        let second = behind_first.find(&format!("{other_head}{OTHER_ARGUMENTS}"))?;
        behind_first.ends_with(&format!("{OTHER_ARGUMENTS}{rest}")).then(|| behind_first[..second].to_owned())
    };
    Some(CallFormat {
        begin: begin.to_owned(),
        between: between().filter(|between| !between.is_empty()),
        end: rest.to_owned(),
        head,
        tail: Vec::new(),
        other,
        parameters: None,
    })
}
