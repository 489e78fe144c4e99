//! A conversation as a template takes it. Clients send turns as they like: several of the system, two of the
//! user behind each other, text behind the result of a tool. Templates differ in what they take of that: some
//! refuse it, some print a part of it nowhere. So each is tried once, and what it does not take is joined to
//! what it does: nothing that was said is lost, and nothing is refused.

use exo_api::ChatMessage;
use exo_tokenizer::{ChatTemplate, RenderOptions};
use serde_json::{Value, json};

/// Signs of an id of a call that every template takes: some refuse all others.
const ID_LEN: usize = 9;
const BETWEEN: &str = "\n\n";

/// What conversations a template takes as they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TurnRules {
    /// A turn of the system.
    system: bool,
    /// Several of them, at the start and later.
    systems: bool,
    /// Two turns of one role behind each other.
    neighbours: bool,
    /// A turn of the user behind the result of a tool.
    text_behind_result: bool,
}

impl TurnRules {
    /// What `template` takes: it prints all of it. One that takes no conversation at all is given them as
    /// they come.
    pub fn find(template: &ChatTemplate) -> Self {
        let said = |role: &str, content: &str| json!({"role": role, "content": content});
        let (user, answer) = (said("user", "probe one"), said("assistant", "probe two"));
        let takes = |messages: &[Value], tools: Option<Value>| {
            let options = RenderOptions {
                add_generation_prompt: true,
                tools,
                now: Some(chrono::NaiveDateTime::default()),
                ..RenderOptions::default()
            };
            let said = messages.iter().filter_map(|message| message["content"].as_str());
            template
                .render(messages, &options)
                .is_ok_and(|text| said.into_iter().all(|said| text.contains(said)))
        };
        if !takes(std::slice::from_ref(&user), None) {
            return Self { system: true, systems: true, neighbours: true, text_behind_result: true };
        }
        let (first, later) = (said("system", "probe three"), said("system", "probe four"));
        let next = said("user", "probe five");
        let tools = json!([{"type": "function", "function": {"name": "probe_tool", "description": "A probe.", "parameters": {
            "type": "object", "properties": {"probe_key": {"type": "string", "description": "A key."}}}}}]);
        let call = json!({"role": "assistant", "content": "", "tool_calls": [{"id": "pr0be1aaa", "type": "function",
            "function": {"name": "probe_tool", "arguments": {"probe_key": "probe value"}}}]});
        let result = json!({"role": "tool", "name": "probe_tool", "tool_call_id": "pr0be1aaa", "content": "probe six"});
        let both = json!({"role": "tool", "name": "probe_tool", "tool_call_id": "pr0be1aaa", "content": "probe six\n\nprobe five"});
        Self {
            system: takes(&[first.clone(), user.clone()], None),
            systems: takes(&[first.clone(), later.clone(), user.clone()], None)
                && takes(&[first, user.clone(), answer, later, next.clone()], None),
            neighbours: takes(&[user.clone(), next.clone()], None),
            // Where results are printed nowhere, neither would be what is joined to them.
            text_behind_result: takes(&[user.clone(), call.clone(), result, next], Some(tools.clone()))
                || !takes(&[user, call, both], Some(tools)),
        }
    }

    /// The conversation with what the template does not take joined to what it does.
    pub fn joined(self, messages: &[ChatMessage]) -> Vec<ChatMessage> {
        let mut joined: Vec<ChatMessage> = Vec::with_capacity(messages.len());
        let mut system = String::new();
        // Whether the last one has several speakers, who are named in its text.
        let mut is_of_several = false;
        let systems = messages.iter().filter(|message| message.role == "system").count();
        let is_usual = systems == 1 && messages.first().is_some_and(|first| first.role == "system");
        for message in messages {
            let is_system = message.role == "system";
            let is_taken = self.system && (self.systems || is_usual);
            if is_system && !is_taken {
                add(&mut system, &message.content);
                continue;
            }
            match joined.last_mut() {
                Some(last) if !self.text_behind_result && last.role == "tool" && message.role == "user" => {
                    add(&mut last.content, &message.content);
                }
                Some(last) if !self.neighbours && !is_system && are_texts(last, message) => {
                    if !is_of_several && last.name != message.name {
                        last.content = named(last.name.take().as_deref(), &last.content);
                        is_of_several = true;
                    }
                    let speaker = message.name.as_deref().filter(|_| is_of_several);
                    add(&mut last.content, &named(speaker, &message.content));
                }
                _ => {
                    joined.push(message.clone());
                    is_of_several = false;
                }
            }
        }
        if system.is_empty() {
            return joined;
        }
        if self.system {
            joined.insert(
                0,
                ChatMessage { role: "system".to_owned(), content: system, ..ChatMessage::default() },
            );
        } else if let Some(first) = joined.iter_mut().find(|message| message.role == "user") {
            add(&mut system, &first.content);
            first.content = system;
        } else {
            joined.insert(
                0,
                ChatMessage { role: "user".to_owned(), content: system, ..ChatMessage::default() },
            );
        }
        joined
    }
}

/// Whether both are texts of the same role and nothing else.
fn are_texts(last: &ChatMessage, message: &ChatMessage) -> bool {
    let is_text = |message: &ChatMessage| message.tool_calls.is_empty() && message.tool_call_id.is_none();
    last.role == message.role && is_text(last) && is_text(message) && message.reasoning_content.is_none()
}

/// A text with its speaker in front, where that has a name.
fn named(speaker: Option<&str>, text: &str) -> String {
    speaker.map_or_else(|| text.to_owned(), |speaker| format!("{speaker}: {text}"))
}

fn add(text: &mut String, more: &str) {
    if !text.is_empty() && !more.is_empty() {
        text.push_str(BETWEEN);
    }
    text.push_str(more);
}

/// An id of another server, or of another model here, in the form that templates want: always the same of the
/// same.
pub fn shorten_id(id: &mut String) {
    if id.len() == ID_LEN && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return;
    }
    *id = short_id(blake3::hash(id.as_bytes()).as_bytes());
}

/// An id of letters and digits.
pub fn short_id(hash: &[u8; 32]) -> String {
    let sign = |byte: &u8| char::from(b"0123456789abcdefghijklmnopqrstuv"[usize::from(byte % 32)]);
    hash.iter().take(ID_LEN).map(sign).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(role: &str, content: &str) -> ChatMessage {
        ChatMessage { role: role.to_owned(), content: content.to_owned(), ..ChatMessage::default() }
    }

    /// What a template makes of a conversation that is joined as it wants, or why it takes none.
    fn rendered(source: &str, messages: &[ChatMessage]) -> (TurnRules, String) {
        let template = ChatTemplate::new(source, Some("<s>"), Some("</s>")).unwrap();
        let rules = TurnRules::find(&template);
        let shown: Vec<Value> =
            rules.joined(messages).iter().map(|message| serde_json::to_value(message).unwrap()).collect();
        (rules, template.render(&shown, &RenderOptions::default()).unwrap_or_else(|e| e.to_string()))
    }

    /// As Mistral's: turns of user and assistant alternate, calls and results do not count.
    const ALTERNATE: &str = "{%- if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set messages = messages[1:] %}{% endif %}\
        {%- set ns = namespace(index=0) %}\
        {%- for m in messages %}{% if not (m.role == 'tool' or m.tool_calls) %}\
        {%- if (m.role == 'user') != (ns.index % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}\
        {%- set ns.index = ns.index + 1 %}{% endif %}{% endfor %}\
        {%- for m in messages %}{% if m.role == 'user' %}[{{ system ~ '|' if system is defined and loop.last else '' }}{{ m.content }}]\
        {%- elif m.role == 'tool' %}<{{ m.content }}>{% elif m.tool_calls %}{{ m.tool_calls[0].function | tojson }}{% else %} {{ m.content }}{% endif %}{% endfor %}";
    /// As gpt-oss's: a system's turn that is not the first is printed nowhere.
    const FIRST_ONLY: &str = "{%- for m in messages %}{% if m.role != 'system' or loop.first %}{{ m.role }}: {{ m.content }}\n{% endif %}{% endfor %}";
    /// As Gemma's: there is no system.
    const NO_SYSTEM: &str = "{%- for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
    const ALL: &str = "{%- for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";

    #[test]
    fn turns_are_joined_where_a_template_does_not_take_them_and_nowhere_else() {
        let conversation = [
            said("system", "Be kind."),
            said("system", "Be brief."),
            said("user", "Here is a file."),
            said("user", "Read it."),
        ];
        let (rules, text) = rendered(ALTERNATE, &conversation);
        assert_eq!(text, "[Be kind.\n\nBe brief.|Here is a file.\n\nRead it.]");
        assert!(
            rules.system && !rules.systems && !rules.neighbours && !rules.text_behind_result,
            "{rules:?}"
        );
        let (_, text) = rendered(FIRST_ONLY, &conversation);
        assert_eq!(text, "system: Be kind.\n\nBe brief.\nuser: Here is a file.\nuser: Read it.\n");
        let (_, text) = rendered(NO_SYSTEM, &conversation);
        assert_eq!(text, "user: Be kind.\n\nBe brief.\n\nHere is a file.\nuser: Read it.\n");
        let (rules, text) = rendered(ALL, &conversation);
        assert_eq!(text, "system: Be kind.\nsystem: Be brief.\nuser: Here is a file.\nuser: Read it.\n");
        assert!(rules.system && rules.systems && rules.neighbours && rules.text_behind_result, "{rules:?}");
    }

    #[test]
    fn neighbours_with_different_names_are_joined_with_their_names_in_the_text() {
        let by = |name: &str, content: &str| ChatMessage {
            name: Some(name.to_owned()).filter(|name| !name.is_empty()),
            ..said("user", content)
        };
        let joined = |messages: &[ChatMessage]| rendered(ALTERNATE, messages).1;
        assert_eq!(
            joined(&[by("Ann", "Hi."), by("Ben", "Ho."), by("Ben", "Ha."), by("", "Hm.")]),
            "[Ann: Hi.\n\nBen: Ho.\n\nBen: Ha.\n\nHm.]"
        );
        assert_eq!(joined(&[by("", "Hm."), by("Ann", "Hi.")]), "[Hm.\n\nAnn: Hi.]");
        assert_eq!(
            joined(&[by("Ann", "Hi."), by("Ann", "Ho.")]),
            "[Hi.\n\nHo.]",
            "one speaker is the turn's"
        );
        let turns = [by("Ann", "Hi."), by("Ben", "Ho."), said("assistant", "So."), by("Ben", "Go.")];
        assert_eq!(joined(&turns), "[Ann: Hi.\n\nBen: Ho.] So.[Go.]");
    }

    #[test]
    fn text_behind_a_result_goes_with_it_where_turns_must_alternate() {
        let call = exo_api::ToolCall {
            id: "call_1".to_owned(),
            kind: "function".to_owned(),
            function: exo_api::CalledFunction { name: "f".to_owned(), arguments: "{}".to_owned() },
        };
        let conversation = [
            said("user", "Go."),
            ChatMessage { tool_calls: vec![call], ..said("assistant", "") },
            ChatMessage { tool_call_id: Some("call_1".to_owned()), ..said("tool", "Gone.") },
            said("user", "Mind the time."),
        ];
        let (_, text) = rendered(ALTERNATE, &conversation);
        assert_eq!(text, "[Go.]{\"name\": \"f\", \"arguments\": {}}<Gone.\n\nMind the time.>");
    }

    /// As Zephyr's: what is no system, user or assistant is passed over.
    const NO_RESULTS: &str = "{%- for m in messages %}{% if m.role in ['system', 'user', 'assistant'] %}{{ m.role }}: {{ m.content }}\n{% endif %}{% endfor %}";

    #[test]
    fn what_a_user_says_is_not_lost_with_a_result_that_is_printed_nowhere() {
        let conversation = [
            said("user", "Go."),
            said("assistant", "Going."),
            ChatMessage { tool_call_id: Some("call_1".to_owned()), ..said("tool", "Gone.") },
            said("user", "Mind the time."),
        ];
        let (_, text) = rendered(NO_RESULTS, &conversation);
        assert_eq!(text, "user: Go.\nassistant: Going.\nuser: Mind the time.\n");
    }

    #[test]
    fn the_only_turn_of_the_system_at_the_start_is_given_as_it_came() {
        let empty = ChatMessage { name: Some("n".to_owned()), ..said("system", "") };
        let template = ChatTemplate::new(FIRST_ONLY, None, None).unwrap();
        let given = TurnRules::find(&template).joined(&[empty.clone(), said("user", "Go.")]);
        assert_eq!(given[0], empty, "an empty one keeps a template from its own");
    }

    #[test]
    fn ids_of_calls_are_of_nine_signs_and_the_same_of_the_same() {
        let short = |id: &str| {
            let mut id = id.to_owned();
            shorten_id(&mut id);
            id
        };
        assert_eq!(short("aB3dE5gH7"), "aB3dE5gH7");
        let ids = ["call_1_0", "call_3f5b2e1c9d8a7b6c5d4e3f2a", "toolu_01A09q90qw90lq917835lq9", "abc-ef_hi"]
            .map(short);
        assert!(
            ids.iter().all(|id| id.len() == 9 && id.bytes().all(|b| b.is_ascii_alphanumeric())),
            "{ids:?}"
        );
        assert_eq!(short("call_1_0"), ids[0]);
        assert_eq!(ids.iter().collect::<std::collections::BTreeSet<_>>().len(), 4);
    }
}
