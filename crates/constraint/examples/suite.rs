//! The JSON Schema Test Suite against grammars: `suite FOLDER/draft2020-12`. Of each schema that is taken
//! whole, no invalid instance may be an answer, and every valid one must be, written as answers are: keys in
//! the schema's order, numbers without `.0`.
//!
//! Prints what was refused and why; the exit status is 1 if an instance was judged otherwise than by the
//! suite.

#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use exo_constraint::{Body, Compiler, Fold, Layout, Schema, Strictness, Thought, TokenKind, Vocabulary};
use exo_sampler::TokenConstraint;
use serde_json::{Map, Value};

const END: u32 = 256;
/// Most keys whose orders are all tried.
const PERMUTED_MAX: usize = 4;

#[derive(Default)]
struct Counts {
    taken: u32,
    refused: BTreeMap<String, u32>,
    valid: u32,
    invalid: u32,
    wrong: Vec<String>,
}

fn main() -> ExitCode {
    let Some(folder) = std::env::args().nth(1) else {
        eprintln!("usage: suite FOLDER");
        return ExitCode::from(2);
    };
    let bytes = (0..=255u8).map(|byte| TokenKind::Bytes(vec![byte]));
    let vocabulary = Vocabulary::new(bytes.chain([TokenKind::Control]), &[END]).expect("it has an end");
    let compiler = Compiler::new(vocabulary).expect("a compiler");
    let mut counts = Counts::default();
    for file in [Path::new(&folder).to_owned(), Path::new(&folder).join("optional/format")] {
        let mut paths: Vec<_> = std::fs::read_dir(&file)
            .expect("the folder of the suite")
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|ext| ext == "json"))
            // It says there that formats are not asserted; they are here, and judged by the other folder.
            .filter(|path| path.file_name().is_none_or(|name| name != "format.json"))
            .collect();
        paths.sort();
        for path in paths {
            let text = std::fs::read_to_string(&path).expect("a file of the suite");
            let groups: Vec<Value> = serde_json::from_str(&text).expect("JSON");
            let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
            groups.iter().for_each(|group| judge(&compiler, &name, group, &mut counts));
        }
    }
    report(&counts)
}

fn report(counts: &Counts) -> ExitCode {
    let refused: u32 = counts.refused.values().sum();
    println!("{} schemas taken, {refused} refused:", counts.taken);
    counts.refused.iter().for_each(|(reason, count)| println!("  {count:4} {reason}"));
    let Counts { valid, invalid, wrong, .. } = counts;
    println!("{valid} valid and {invalid} invalid instances judged, {} of them otherwise:", wrong.len());
    wrong.iter().for_each(|line| println!("  {line}"));
    ExitCode::from(u8::from(!wrong.is_empty()))
}

fn judge(compiler: &Compiler, file: &str, group: &Value, counts: &mut Counts) {
    let (schema, about) = (&group["schema"], group["description"].as_str().unwrap_or_default());
    let refuse = |counts: &mut Counts, reason: &str| {
        *counts.refused.entry(reason.chars().take(100).collect()).or_default() += 1;
    };
    let read = match Schema::read(schema, Strictness::Whole) {
        Ok(read) => read.value,
        Err(error) => return refuse(counts, &error.reason),
    };
    let layout =
        Layout { thought: Thought::No, answer_open: vec![], spelled: vec![], body: Body::Json(read) };
    let constraint = match compiler.constrain(layout.grammar()) {
        Ok(constraint) => constraint,
        Err(error) => return refuse(counts, &error.to_string()),
    };
    counts.taken += 1;
    for test in group["tests"].as_array().into_iter().flatten() {
        let is_valid = test["valid"].as_bool().unwrap_or_default();
        let is_taken = ways(schema, &test["data"]).iter().any(|text| {
            let fold = compiler.start(&constraint).expect("it compiled");
            takes(fold, text)
        });
        *(if is_valid { &mut counts.valid } else { &mut counts.invalid }) += 1;
        if is_valid != is_taken {
            let what = if is_taken { "taken, and invalid" } else { "valid, and refused" };
            let (test, data) = (test["description"].as_str().unwrap_or_default(), &test["data"]);
            counts.wrong.push(format!("{file}: {about}: {test}: {what}: {data}"));
        }
    }
}

fn takes(mut fold: Fold, text: &str) -> bool {
    for byte in text.bytes() {
        if fold.allows(byte.into()) != Ok(true) {
            return false;
        }
        fold.accept(byte.into());
    }
    fold.may_end() == Ok(true)
}

/// The instance in the ways in which an answer may write it: its keys in other orders.
fn ways(schema: &Value, instance: &Value) -> Vec<String> {
    let ordered = ordered(schema, instance);
    let mut ways = vec![text(instance), text(&ordered)];
    if let Value::Object(object) = &ordered
        && object.len() <= PERMUTED_MAX
    {
        let mut orders = vec![Vec::new()];
        for (key, value) in object {
            let insert = |order: &Vec<(String, Value)>| {
                (0..=order.len())
                    .map(|at| {
                        let mut order = order.clone();
                        order.insert(at, (key.clone(), value.clone()));
                        order
                    })
                    .collect::<Vec<_>>()
            };
            orders = orders.iter().flat_map(insert).collect();
        }
        ways.extend(orders.into_iter().map(|order| text(&Value::Object(order.into_iter().collect()))));
    }
    ways
}

/// With keys in the order of the schema's properties, as far as they are found at once.
fn ordered(schema: &Value, instance: &Value) -> Value {
    match instance {
        Value::Object(object) => {
            let named = schema["properties"].as_object().into_iter().flat_map(Map::keys);
            let named: Vec<&String> = named.filter(|key| object.contains_key(*key)).collect();
            let others = object.keys().filter(|key| !named.contains(key));
            let of = |key: &String| (key.clone(), ordered(&schema["properties"][key], &object[key]));
            Value::Object(named.iter().copied().chain(others).map(of).collect())
        }
        Value::Array(items) => items.iter().map(|item| ordered(&schema["items"], item)).collect(),
        other => other.clone(),
    }
}

/// As answers are written.
fn text(value: &Value) -> String {
    match value {
        Value::Object(object) => {
            let member =
                |(key, value): (&String, &Value)| format!("{}: {}", Value::from(key.as_str()), text(value));
            format!("{{{}}}", object.iter().map(member).collect::<Vec<_>>().join(", "))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(text).collect::<Vec<_>>().join(", ")),
        Value::Number(number) => match number.as_f64() {
            Some(whole) if number.is_f64() && whole.fract() == 0.0 && whole.abs() < 1e19 => {
                format!("{whole:.0}")
            }
            _ => number.to_string(),
        },
        other => other.to_string(),
    }
}
