//! Chat templates of others against what is made of them: `templates FOLDER` reads each `.jinja` in it. Of
//! those that show tools to a model, a call, several calls and their results are rendered, read back as an
//! answer, and rendered again: the same text.
//!
//! Prints a line for each with the form that was found, or why none was, and what reading takes; the exit
//! status is 1 if fewer are right than when this was written, or more are not, or reading takes a microsecond
//! for a byte, or more for each of a longer text's. `cargo xtask prove constrained` gets the templates from a
//! public package.

#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use exo_tokenizer::calls::{
    AnswerFormat, AnswerParser, AnswerPart, CallFormat, ThoughtFormat, ToolParameters, ValueKinds,
};
use exo_tokenizer::{ChatTemplate, RenderOptions};
use serde_json::{Map, Value, json};

/// Of the 70 templates 63 show tools to a model. So many of these are right as this is written, and so many
/// are not, each with its reason: a change makes neither worse.
const RIGHT_MIN: usize = 56;
const LISTED_MAX: usize = 7;
const MICROSECONDS_MAX: f64 = 1.0;
/// What a byte of a text of sixteen times the length may take more: where that is quadratic, it is sixteen
/// times as much.
const LONGER_MAX: f64 = 3.0;

/// Texts of the tokens that end a turn. A model's files say which are its own; the folder has templates
/// alone.
const ENDS: [&str; 31] = [
    "</s>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|user|>",
    "<|observation|>",
    "<|END_OF_TURN_TOKEN|>",
    "<end_of_turn>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "<seed:eos>",
    "[e~[",
    "<|assistant_end|>",
    "<SPECIAL_12>",
    "<|role_end|>",
    "<|im_assistant_end|>",
    "<|message_sep|>",
    "<|tool_response|>",
    "<sep>",
    "<|eos|>",
    "<end_of_sentence>",
    "</assistant>",
    "<|tools_suffix|>",
    "<|eot|>",
    "<｜hy_eos:opensource｜>",
];

/// Name, id and arguments of a call.
type Call = (&'static str, &'static str, Value);

fn calls() -> [Call; 2] {
    [
        (
            "get_weather",
            "aB3dE5gH7",
            json!({"city": "Rome \"now\" é\n<b>", "days": 7, "half": 0.5, "detailed": true}),
        ),
        ("find", "zY8xW6vU4", json!({"tags": [1, "x", false], "place": {"a": "b", "c": 2}})),
    ]
}

fn tools() -> Value {
    let tool = |name: &str, properties: Value| {
        json!({"type": "function", "function": {"name": name, "description": "Does it.", "parameters": {
            "type": "object", "properties": properties, "required": []}}})
    };
    json!([
        tool(
            "get_weather",
            json!({"city": {"type": "string", "description": "Where."}, "days": {"type": "integer", "description": "When."},
            "half": {"type": "number", "description": "Half."}, "detailed": {"type": "boolean", "description": "How."}})
        ),
        tool(
            "find",
            json!({"tags": {"type": "array", "description": "Which.", "items": {"type": "string"}}, "place": {"type": "object", "description": "Where."}})
        ),
    ])
}

/// What the schemas of [`tools`] allow, for forms that print texts as they are.
fn parameters() -> BTreeMap<String, ToolParameters> {
    let kinds = |name: &str| {
        let none = ValueKinds::default();
        match name {
            "city" => ValueKinds { text: true, ..none },
            "days" => ValueKinds { integer: true, ..none },
            "half" => ValueKinds { number: true, ..none },
            "detailed" => ValueKinds { boolean: true, ..none },
            _ => ValueKinds { structure: true, ..none },
        }
    };
    let of = |names: &[&str]| ToolParameters {
        named: names.iter().map(|name| ((*name).to_owned(), kinds(name))).collect(),
        others: ValueKinds::default(),
    };
    let weather = of(&["city", "days", "half", "detailed"]);
    [("get_weather".to_owned(), weather), ("find".to_owned(), of(&["tags", "place"]))].into()
}

fn main() -> ExitCode {
    let Some(folder) = std::env::args().nth(1) else {
        eprintln!("usage: templates FOLDER");
        return ExitCode::from(2);
    };
    let entries = std::fs::read_dir(&folder).expect("a folder of templates");
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|ext| ext == "jinja"));
    paths.sort();
    let (mut right, mut listed, mut without) = (0, 0, 0);
    let (mut slowest, mut steepest) = (0.0_f64, 0.0_f64);
    for path in &paths {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        match judge(path) {
            Ok((found, [short, long])) => {
                right += 1;
                (slowest, steepest) = (slowest.max(long), steepest.max(long / short));
                println!("ok        {name}: {found}; {long:.3} us for a byte");
            }
            Err(Why::NoTools(why)) => {
                without += 1;
                println!("no tools  {name}: {why}");
            }
            Err(Why::Wrong(why)) => {
                listed += 1;
                println!("LISTED    {name}: {why}");
            }
        }
    }
    println!("{} templates: {right} right, {listed} listed, {without} without tools", paths.len());
    println!(
        "reading takes {slowest:.3} us for a byte at most, of a text sixteen times as long {steepest:.2} times as much"
    );
    let is_slow = slowest >= MICROSECONDS_MAX || steepest > LONGER_MAX;
    ExitCode::from(u8::from(right < RIGHT_MIN || listed > LISTED_MAX || is_slow))
}

enum Why {
    /// It shows no tools to a model, with or without which it prints the same.
    NoTools(String),
    Wrong(String),
}

/// The form, and what reading a byte takes, in microseconds, of a short text and a long one.
fn judge(path: &Path) -> Result<(String, [f64; 2]), Why> {
    let source = std::fs::read_to_string(path).expect("a template");
    let wrong = |why: String| Why::Wrong(why);
    let template = ChatTemplate::new(&source, Some("<s>"), Some("</s>")).map_err(|e| wrong(e.to_string()))?;
    let user = [json!({"role": "user", "content": "Go."})];
    let shows = |tools| render(&template, &user, tools, true);
    match (shows(None), shows(Some(tools()))) {
        (Ok(without), Ok(with)) if without == with => return Err(Why::NoTools("prints none".to_owned())),
        (_, Err(e)) => return Err(wrong(e)),
        _ => {}
    }
    let ends = ENDS.map(str::to_owned);
    let format = CallFormat::find(&template, &ends).map_err(|e| wrong(with_cause(&e)))?;
    let calls = calls();
    let counts: &[usize] = if format.between.is_some() { &[1, 2] } else { &[1] };
    for count in counts {
        round(&template, &format, &calls[..*count], &ends).map_err(wrong)?;
    }
    let what = format!("{}, {}", format.label(), if counts.len() > 1 { "several calls" } else { "one call" });
    let reading = reading(&template, &format);
    Ok((what, [64, 1024].map(|times| microseconds(&reading, times))))
}

/// What reading takes for each byte of text and then a call that could end at every place, in pieces as
/// tokens are; the best of three.
fn microseconds(reading: &AnswerFormat, times: usize) -> f64 {
    let text = format!(
        "{}{}",
        "some <tool [TOOL <|chan text\n".repeat(times),
        reading.calls.iter().map(|calls| calls.begin.as_str()).collect::<String>()
    );
    let text = text + &"{\"a\": \"</param \\\" }".repeat(times);
    let time = || {
        let began = Instant::now();
        let (mut parser, mut rest) = (AnswerParser::new(reading.clone()), text.as_str());
        while !rest.is_empty() {
            let end = (4..).find(|end| rest.is_char_boundary((*end).min(rest.len()))).unwrap_or(4);
            let (piece, more) = rest.split_at(end.min(rest.len()));
            drop(parser.push(piece));
            rest = more;
        }
        drop(parser.finish());
        began.elapsed().as_secs_f64() * 1e6 / text.len() as f64
    };
    (0..3).map(|_| time()).fold(f64::INFINITY, f64::min)
}

fn reading(template: &ChatTemplate, format: &CallFormat) -> AnswerFormat {
    let thought = ThoughtFormat::find(template);
    AnswerFormat {
        thought: thought.as_ref().map(|thought| (thought.open.clone(), thought.close.clone())),
        is_opened: false,
        answer_open: thought.map_or_else(|| format.answer_open.clone(), |thought| thought.answer_open),
        calls: Some(format.clone()),
        calls_come_first: false,
        parameters: parameters(),
    }
}

fn render(
    template: &ChatTemplate,
    messages: &[Value],
    tools: Option<Value>,
    add_generation_prompt: bool,
) -> Result<String, String> {
    let now = Some(chrono::NaiveDateTime::default());
    let options = RenderOptions { add_generation_prompt, tools, now, vars: Map::new() };
    template.render(messages, &options).map_err(|e| e.to_string())
}

/// A conversation with these calls and their results.
fn conversation(calls: &[(&str, &str, Value)]) -> Vec<Value> {
    let made = calls.iter().map(|(name, id, arguments)| {
        json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
    });
    let mut messages = vec![json!({"role": "user", "content": "Go."})];
    messages.push(json!({"role": "assistant", "content": "", "tool_calls": made.collect::<Vec<_>>()}));
    for (name, id, _) in calls {
        messages.push(json!({"role": "tool", "name": name, "tool_call_id": id, "content": "Done."}));
    }
    messages
}

/// Calls are printed, read as an answer of a model, and printed again.
fn round(
    template: &ChatTemplate,
    format: &CallFormat,
    calls: &[Call],
    ends: &[String],
) -> Result<(), String> {
    let printed = render(template, &conversation(calls), Some(tools()), false)?;
    let prompt = render(template, &conversation(&[])[..1], Some(tools()), true)?;
    let same = prompt.bytes().zip(printed.bytes()).take_while(|(a, b)| a == b).count();
    let same = printed.floor_char_boundary(same);
    let same = match printed[..same].rfind('<') {
        Some(sign) if same < prompt.len() && !printed[sign..same].contains('>') => sign,
        _ => same,
    };
    let turn = &printed[same..];
    let first = turn.find(calls[0].0).ok_or("the call is not in the turn")?;
    let end = ends.iter().filter_map(|end| Some(first + turn[first..].find(end.as_str())?)).min();
    let answer = &turn[..end.ok_or("nothing ends the turn")?];
    let mut reading = reading(template, format);
    // What closes an empty thought in the prompt is not the model's, where the turn repeats it.
    let close = ThoughtFormat::find(template).map(|thought| thought.close).unwrap_or_default();
    let repeats = !close.trim().is_empty() && prompt.trim_end().ends_with(close.trim());
    let answer = answer.strip_prefix(close.trim()).filter(|_| repeats).unwrap_or(answer);
    // A prompt that opens a thought has it in front of the turn, where the turn closes one.
    let opens = |thought: ThoughtFormat| {
        prompt.trim_end().ends_with(thought.open.trim()) && answer.contains(thought.close.trim())
    };
    reading.is_opened = ThoughtFormat::find(template).is_some_and(opens);
    let (said, read) = read(reading, answer);
    if !said.trim().is_empty() {
        return Err(format!("a part of its calls is read as text: {said:?}"));
    }
    let wanted: Vec<(String, Value)> =
        calls.iter().map(|(name, _, arguments)| ((*name).to_owned(), arguments.clone())).collect();
    let values: Vec<(String, Value)> = read
        .iter()
        .map(|(name, arguments)| (name.clone(), serde_json::from_str(arguments).unwrap_or_default()))
        .collect();
    if values != wanted {
        return Err(format!("read otherwise than printed: {read:?} of {answer:?}"));
    }
    let again: Vec<(&str, &str, Value)> =
        calls.iter().zip(&read).map(|((name, id, _), (_, text))| (*name, *id, json!(text))).collect();
    match render(template, &conversation(&again), Some(tools()), false)? == printed {
        true => Ok(()),
        false => Err("what was read is printed otherwise than before".to_owned()),
    }
}

/// The text of an answer that comes letter by letter, and its calls.
fn read(format: AnswerFormat, answer: &str) -> (String, Vec<(String, String)>) {
    let mut parser = AnswerParser::new(format);
    let mut parts: Vec<AnswerPart> =
        answer.chars().flat_map(|letter| parser.push(&letter.to_string())).collect();
    parts.extend(parser.finish());
    let (mut said, mut calls) = (String::new(), Vec::<(String, String)>::new());
    for part in parts {
        match part {
            AnswerPart::Call(name) => calls.push((name, String::new())),
            AnswerPart::Arguments(text) => calls.last_mut().expect("a call before").1.push_str(&text),
            AnswerPart::Text(text) => said.push_str(&text),
            AnswerPart::Thought(_) => {}
        }
    }
    (said, calls)
}

fn with_cause(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}
