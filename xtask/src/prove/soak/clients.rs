//! Those who ask, one at each machine, one request after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::{Value, json};

use super::super::streams;
use super::hosts::{Door, Hosts};
use crate::http::Server;

/// A stream stands still for at most two minutes; who hears nothing for longer, or has no end by then, is
/// left hanging.
const END_MAX: Duration = Duration::from_secs(180);
/// Between two attempts where the node is not there or refuses.
const AGAIN: Duration = Duration::from_millis(250);

/// A request, and what it is answered with when nothing happens.
pub struct Question {
    body: Value,
    answer: String,
}

/// What became of requests.
#[derive(Default)]
pub struct Answers {
    pub right: usize,
    pub wrong: usize,
    pub hung: usize,
    /// Errors at machines that nothing happened to.
    pub errors: usize,
    /// Errors at others.
    pub struck: usize,
    /// The longest silence in each right answer.
    pub pauses: Vec<Duration>,
}

impl Answers {
    /// Adds another client's.
    pub fn add(&mut self, other: Self) {
        self.right += other.right;
        self.wrong += other.wrong;
        self.hung += other.hung;
        self.errors += other.errors;
        self.struck += other.struck;
        self.pauses.extend(other.pauses);
    }
}

/// The requests of a run, each answered once while nothing happens.
pub fn questions(hosts: &Hosts, model: &str) -> anyhow::Result<Vec<Question>> {
    let prompts =
        ["Once", "The old house at the end of the road", "One morning a girl found a key in the garden"];
    let bodies = (0..9).map(|number| {
        let (prompt, is_drawn) = (prompts[number % prompts.len()], number >= prompts.len());
        json!({
            "model": model, "prompt": prompt, "max_tokens": 200 + 100 * (number / prompts.len()), "ignore_eos": true,
            "temperature": if is_drawn { 1.0 } else { 0.0 }, "seed": number, "stream": true,
        })
    });
    let server = hosts.door(0).server().context("the first machine is gone")?;
    bodies.map(|body| Ok(Question { answer: ask(&server, &body)?.0, body })).collect()
}

/// Whether the machine gives the right answer now.
pub fn is_answered(hosts: &Hosts, at: usize, question: &Question) -> bool {
    let asked = hosts.door(at).server().map(|server| ask(&server, &question.body));
    asked.is_some_and(|asked| asked.is_ok_and(|(text, _)| text == question.answer))
}

/// Asks at one machine until told to end.
pub fn start(
    hosts: &Hosts,
    at: usize,
    questions: Arc<Vec<Question>>,
    ends: Arc<AtomicBool>,
) -> JoinHandle<Answers> {
    let door = hosts.door(at);
    std::thread::spawn(move || {
        let mut answers = Answers::default();
        for question in questions.iter().cycle().skip(at) {
            if ends.load(Ordering::Relaxed) {
                break;
            }
            one(&door, question, &mut answers);
        }
        answers
    })
}

fn one(door: &Door, question: &Question, answers: &mut Answers) {
    let began = Instant::now();
    let Some(server) = door.server() else {
        return std::thread::park_timeout(AGAIN);
    };
    let asked = ask(&server, &question.body);
    let (who, took) = (door.folder.file_name().unwrap_or_default().to_string_lossy(), began.elapsed());
    match asked {
        Ok((text, pause)) if text == question.answer => {
            answers.right += 1;
            answers.pauses.push(pause);
        }
        Ok((text, _)) => {
            answers.wrong += 1;
            eprintln!("a wrong text at {who}: `{text}` instead of `{}`", question.answer);
        }
        Err(error) if took >= END_MAX => {
            answers.hung += 1;
            eprintln!("no end at {who} after {} s: {error:#}", took.as_secs());
        }
        Err(_) if door.was_struck_since(began) => {
            answers.struck += 1;
            std::thread::park_timeout(AGAIN);
        }
        Err(error) => {
            answers.errors += 1;
            eprintln!("an error at {who} after {} ms: {error:#}", took.as_millis());
            std::thread::park_timeout(AGAIN);
        }
    }
}

/// The text of an answer, and its longest silence.
fn ask(server: &Server, body: &Value) -> anyhow::Result<(String, Duration)> {
    let began = Instant::now();
    let answer = streams::ask(server, body, END_MAX, |_| {})?;
    Ok((answer.text, answer.times.longest_pause_since(began)))
}
