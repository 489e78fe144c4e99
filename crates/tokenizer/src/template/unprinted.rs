//! Calls for templates that show tools to a model, know what it writes when it calls one, and print no call
//! that a conversation has. What their authors leave to the caller is put in front of such a template: the
//! text of the calls, behind what the assistant's message says.

/// A template's words, and what stands around the list of calls that its models write.
const KNOWN: [(&str, [&str; 2]); 2] = [
    // Granite 3 in the words of its own prompt.
    ("<|tool_call|> followed by a JSON list of tools", ["<|tool_call|>[", "]"]),
    // LFM2, which writes Python there or, if that is all it may write, JSON.
    ("\"List of tools: ", ["<|tool_call_start|>[", "]<|tool_call_end|>"]),
];

/// Messages with their calls as text. The signs around the list go where it says so.
const LEAD: &str = concat!(
    "{% set printed = namespace(messages=[]) %}{% for message in messages %}{% if message.tool_calls %}",
    "{% set text %}{{ message.content or '' }}BEGIN{% for call in message.tool_calls %}",
    "{{ ', ' if not loop.first }}{\"name\": {{ call.function.name | tojson }}, \"arguments\": {{ call.function.arguments | tojson }}}",
    "{% endfor %}END{% endset %}{% set message = dict(message, content=text) %}{% endif %}",
    "{% set _ = printed.messages.append(message) %}{% endfor %}",
    // The line's end belongs to the tag in front of it.
    "{% set messages = printed.messages %}\n",
);

/// What prints the calls, in front of a template that does not; nothing in front of others.
pub(crate) fn lead(source: &str) -> String {
    let known = KNOWN.iter().find(|(words, _)| source.contains(words) && !source.contains("tool_calls"));
    known.map(|(_, [begin, end])| LEAD.replace("BEGIN", begin).replace("END", end)).unwrap_or_default()
}
