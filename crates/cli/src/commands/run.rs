//! `exo run`: one answer, or a chat at a prompt.

use std::io::{IsTerminal, Read};
use std::path::PathBuf;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use exo_api::ModelView;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use serde_json::{Value, json};

use super::doctor;
use super::interrupt::INTERRUPTED;
use super::models;
use crate::answer::{self, Part};
use crate::args::Run;
use crate::client::Client;
use crate::config::Config;
use crate::run_node::{self, Stay};
use crate::stop::{Stop, StopSignal};
use crate::system::TerminalState;
use crate::ui::{self, Answers};

/// A pipe from which nothing comes for so long is not waited for where there are words.
const READS_SILENTLY: Duration = Duration::from_secs(2);
/// Longest prompt taken from standard input.
const STDIN_BYTES_MAX: u64 = 8 << 20;
/// Of the chat at a prompt.
const CHAT_HELP: &str = "Type a message; Ctrl-C stops an answer, Ctrl-D or /bye ends. /clear starts over, /system TEXT gives the \
                         model another system prompt, /system clear takes it away, /help says this. A line with a space or // in \
                         front is always a message, and sent as it is.";
/// From Ctrl-C to the end of what cleans up after itself.
const CLEAN_UP_MAX: Duration = Duration::from_secs(5);

/// Uses the running node, else starts one for the while.
pub async fn run(config: &Config, args: Run) -> anyhow::Result<ExitCode> {
    let mut stop = StopSignal::new()?;
    if let Some(client) = Client::running(&config.data_dir()).await {
        return answer_or_chat(config, &client, &args, &mut stop).await;
    }
    let started = run_node::start(config, Stay::ForTheWhile, doctor::of(config), &mut stop).await?;
    let Some(running) = started else { return Ok(ExitCode::from(INTERRUPTED)) };
    let result = answer_or_chat(config, &running.client, &args, &mut stop).await;
    // Neither a disk that does not answer nor a person who has waited enough is kept waiting for it.
    let is_cut_short = tokio::select! {
        unloaded = tokio::time::timeout(CLEAN_UP_MAX, unload_own(&running.client)) => {
            if unloaded.is_err() {
                tracing::warn!(seconds = CLEAN_UP_MAX.as_secs(), "what was placed here may stay placed");
            }
            false
        }
        () = stop.again() => true,
    };
    let at_once = async {
        if !is_cut_short {
            stop.again().await;
        }
    };
    running.stop_until(at_once).await;
    result
}

/// What was placed for the while must not be loaded again at the next start. A cluster's instances stay.
async fn unload_own(client: &Client) {
    let Ok(view) = client.get::<exo_api::ClusterView>("/exo/v1/cluster").await else { return };
    if view.nodes.len() > 1 {
        return;
    }
    for instance in view.instances {
        if let Err(error) = client.delete(&format!("/exo/v1/instances/{}", instance.id)).await {
            tracing::warn!(%error, "an instance stays placed");
        }
    }
}

async fn answer_or_chat(
    config: &Config,
    client: &Client,
    args: &Run,
    stop: &mut StopSignal,
) -> anyhow::Result<ExitCode> {
    let prompt = tokio::select! {
        prompt = whole_prompt(&args.prompt) => prompt?,
        () = stop.wait() => return Ok(ExitCode::from(INTERRUPTED)),
    };
    if prompt.as_ref().is_some_and(|prompt| prompt.trim().is_empty()) {
        anyhow::bail!("the prompt is empty; without one, at a terminal, `exo run` is a chat");
    }
    let mut session = pin!(Session::new(config, client, args));
    let mut session = tokio::select! {
        session = &mut session => session?,
        () = stop.wait() => {
            // A download listens for itself, and ends what it has begun at the node.
            let _ = tokio::time::timeout(CLEAN_UP_MAX, session).await;
            return Ok(ExitCode::from(INTERRUPTED));
        }
    };
    let Some(prompt) = prompt else {
        let _terminal = TerminalState::kept();
        return chat(&mut session, stop).await;
    };
    let answer = tokio::select! {
        answer = session.ask(&prompt) => answer?,
        () = stop.wait() => return Ok(ExitCode::from(INTERRUPTED)),
    };
    if args.json {
        ui::json(&answer)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The prompt from the command line, and behind it what comes from a pipe; `None` if there is neither. A pipe
/// from which nothing comes holds up no prompt that was typed.
async fn whole_prompt(words: &[String]) -> anyhow::Result<Option<String>> {
    let words = (!words.is_empty()).then(|| words.join(" "));
    let input = std::io::stdin();
    if input.is_terminal() {
        return Ok(words);
    }
    let has_begun = Arc::new(AtomicBool::new(false));
    let reads = Watched { input, has_begun: has_begun.clone() };
    let mut read = tokio::task::spawn_blocking(move || piped(reads));
    let early = tokio::time::timeout(READS_SILENTLY, &mut read).await;
    if early.is_err() && words.is_some() && !has_begun.load(Ordering::Relaxed) {
        ui::note("nothing comes from standard input: the words are the whole prompt");
        return Ok(words);
    }
    let read = match early {
        Ok(read) => read,
        Err(_) => read.await,
    };
    let piped = read.context("reading the prompt broke off")??;
    Ok(Some(match words {
        Some(words) if piped.trim().is_empty() => words,
        Some(words) => format!("{words}\n\n{piped}"),
        None => piped,
    }))
}

/// Text from a pipe, to its end.
fn piped(input: impl Read) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    input
        .take(STDIN_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .context("cannot read the prompt from standard input")?;
    if bytes.len() as u64 > STDIN_BYTES_MAX {
        anyhow::bail!("standard input has more than {} MiB, too much for a prompt", STDIN_BYTES_MAX >> 20);
    }
    String::from_utf8(bytes).context("standard input is not UTF-8 text")
}

/// Notes when the first bytes come.
struct Watched<R> {
    input: R,
    has_begun: Arc<AtomicBool>,
}

impl<R: Read> Read for Watched<R> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let count = self.input.read(into)?;
        self.has_begun.fetch_or(count > 0, Ordering::Relaxed);
        Ok(count)
    }
}

/// Ctrl-C ends the answer that comes; at the prompt it ends the line, and twice in a row the chat.
async fn chat(session: &mut Session<'_>, stop: &mut StopSignal) -> anyhow::Result<ExitCode> {
    ui::paragraph(CHAT_HELP);
    let editor = Arc::new(Mutex::new(DefaultEditor::new().context("cannot use the terminal")?));
    let mut is_left = false;
    loop {
        // A second Ctrl-C that came just as the answer ended meant the answer.
        let early = tokio::time::timeout(Duration::ZERO, stop.why()).await;
        if early.is_ok_and(|why| why != Stop::Interrupt) {
            return Ok(ExitCode::from(INTERRUPTED));
        }
        let line = tokio::select! {
            line = read_line(editor.clone()) => line?,
            () = stop.wait() => return Ok(ExitCode::from(INTERRUPTED)),
        };
        let was_left = std::mem::take(&mut is_left);
        let line = match line {
            Line::End => return Ok(ExitCode::SUCCESS),
            Line::Left if was_left => return Ok(ExitCode::SUCCESS),
            Line::Left => {
                is_left = true;
                ui::line("Ctrl-C once more, or Ctrl-D, ends the chat");
                continue;
            }
            Line::Typed(line) => line,
        };
        let message = match Typed::of(&line) {
            Typed::Message(blank) if blank.trim().is_empty() => continue,
            Typed::Message(message) => message,
            Typed::Help => {
                ui::paragraph(CHAT_HELP);
                continue;
            }
            Typed::Clear => {
                session.clear();
                continue;
            }
            Typed::System(text) => {
                ui::line(session.set_system(text));
                continue;
            }
            Typed::NoSystem => {
                ui::line(session.clear_system());
                continue;
            }
            Typed::Bye => return Ok(ExitCode::SUCCESS),
            Typed::Unknown(word) => {
                ui::paragraph(format!(
                    "/{word} is no command, and the line was not sent: with a space in front it is a message. {CHAT_HELP}"
                ));
                continue;
            }
        };
        let answer = tokio::select! {
            answer = session.ask(message) => Some(answer),
            why = stop.why() => match why {
                Stop::Interrupt => None,
                Stop::Terminate | Stop::Parent | Stop::Asked => return Ok(ExitCode::from(INTERRUPTED)),
            },
        };
        match answer {
            Some(Ok(_)) => {}
            Some(Err(error)) => ui::error(&error),
            None => ui::line("\nstopped; what was asked and the beginning of its answer are forgotten"),
        }
    }
}

/// What a line at the prompt is.
#[derive(PartialEq, Eq, Debug)]
enum Typed<'l> {
    /// For the model.
    Message(&'l str),
    Help,
    Clear,
    /// Another system prompt, or nothing to see which there is.
    System(&'l str),
    /// The system prompt is to go.
    NoSystem,
    Bye,
    /// This word is no command.
    Unknown(&'l str),
}

impl<'l> Typed<'l> {
    fn of(line: &'l str) -> Self {
        // Only at the very beginning: with a space in front, whatever is to be sent is sent as it is.
        match line.strip_prefix('/').and_then(command) {
            None => Self::Message(line),
            Some(("help", "")) => Self::Help,
            Some(("clear", "")) => Self::Clear,
            Some(("system", "clear" | "\"\"")) => Self::NoSystem,
            Some(("system", text)) => Self::System(text),
            Some(("bye" | "exit" | "quit", "")) => Self::Bye,
            Some((word, _)) => Self::Unknown(word),
        }
    }
}

/// The word and what stands behind it, of a line without its slash that is meant for the program. A path has
/// a second slash or a dot, and a comment in a program begins with two slashes.
fn command(line: &str) -> Option<(&str, &str)> {
    let (word, text) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let is_word = !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase());
    is_word.then(|| (word, text.trim()))
}

/// What came of asking for a line.
enum Line {
    Typed(String),
    /// Ctrl-C, maybe in the middle of it.
    Left,
    End,
}

/// A line from the terminal.
async fn read_line(editor: Arc<Mutex<DefaultEditor>>) -> anyhow::Result<Line> {
    let read = move || {
        let mut editor = editor.lock().unwrap_or_else(PoisonError::into_inner);
        let line = editor.readline("> ")?;
        editor.add_history_entry(&line)?;
        Ok(line)
    };
    match tokio::task::spawn_blocking(read).await.context("the prompt failed")? {
        Ok(line) => Ok(Line::Typed(line)),
        Err(ReadlineError::Interrupted) => Ok(Line::Left),
        Err(ReadlineError::Eof) => Ok(Line::End),
        Err(error) => Err(error).context("cannot read from the terminal"),
    }
}

/// A conversation with one model.
struct Session<'a> {
    client: &'a Client,
    data_dir: PathBuf,
    /// No other member has a copy of what it is asked.
    is_alone: bool,
    args: &'a Run,
    model: String,
    chat: bool,
    system: Option<String>,
    /// Longest context of a request; 0 where that is not known.
    context_tokens: u32,
    messages: Vec<Value>,
}

impl<'a> Session<'a> {
    async fn new(config: &Config, client: &'a Client, args: &'a Run) -> anyhow::Result<Self> {
        let model = models::resolve(config, client, &args.model).await?;
        let known: Vec<ModelView> = client.get("/exo/v1/models").await?;
        // A model without a template continues text instead of answering.
        let meant = known.iter().find(|m| m.request_name() == model || m.id == model);
        let chat = meant.is_none_or(|m| m.chat);
        let context_tokens = meant.map_or(0, |m| m.context_tokens);
        let data_dir = config.data_dir();
        let cluster: exo_api::ClusterView = client.get("/exo/v1/cluster").await?;
        let is_alone = cluster.nodes.len() < 2;
        let (system, messages) = (args.system.clone(), Vec::new());
        let mut session =
            Self { client, data_dir, is_alone, args, model, chat, system, context_tokens, messages };
        session.clear();
        Ok(session)
    }

    /// Forgets what was said; the system prompt stays.
    fn clear(&mut self) {
        self.messages = self.system.iter().map(|text| json!({"role": "system", "content": text})).collect();
    }

    /// Takes another system prompt, also for what was said already; what there is to say of it.
    fn set_system(&mut self, text: &str) -> String {
        if !self.chat {
            return "this model has no chat template: it goes on with a text and takes no system prompt"
                .to_owned();
        }
        if text.is_empty() {
            return match &self.system {
                Some(system) => format!("the system prompt is: {system}"),
                None => "there is no system prompt; /system TEXT gives one".to_owned(),
            };
        }
        let said = self.messages.split_off(usize::from(self.system.is_some()));
        self.system = Some(text.to_owned());
        self.clear();
        let next = if said.is_empty() { "" } else { "; what was said stays, /clear starts over with it" };
        self.messages.extend(said);
        format!("the system prompt is set{next}")
    }

    /// Goes on without a system prompt; what there is to say of it.
    fn clear_system(&mut self) -> &'static str {
        if self.system.take().is_none() {
            return "there is no system prompt";
        }
        self.messages.retain(|message| message["role"] != "system");
        "the system prompt is gone; what was said stays"
    }

    /// Streams one answer to standard output and keeps it as history.
    async fn ask(&mut self, prompt: &str) -> anyhow::Result<Value> {
        let mut body = json!({
            "model": self.model, "stream": true, "temperature": self.args.temperature,
            "stream_options": {"include_usage": true},
        });
        if let Some(seed) = self.args.seed {
            body["seed"] = seed.into();
        }
        if let Some(max) = self.args.max_tokens {
            body["max_tokens"] = max.into();
        }
        let question = json!({"role": "user", "content": prompt});
        if self.chat {
            body["messages"] = self.messages.iter().chain([&question]).cloned().collect();
        } else {
            body["prompt"] = prompt.into();
        }
        let path = if self.chat { "/v1/chat/completions" } else { "/v1/completions" };
        let answer = self.stream(path, &body).await?;
        if self.chat {
            let said = json!({"role": "assistant", "content": answer["text"]});
            self.messages.extend([question, said]);
        }
        Ok(answer)
    }

    async fn stream(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        let spinner = ui::spinner();
        spinner.set_message(format!("waiting for {}", self.model));
        let (quiet, answers) = (self.args.json, Answers::to_stdout(self.args.raw));
        let (mut has_begun, mut lines) = (false, ui::WaitLines::begin());
        let mut on_part = |part: Part<'_>| match part {
            Part::Waiting(reason) => {
                spinner.set_message(reason.to_owned());
                lines.tell(reason);
            }
            Part::Away => {
                spinner.finish_and_clear();
                if has_begun && std::io::stdout().is_terminal() {
                    ui::line("");
                }
                ui::note(&format!(
                    "the node is away; the answer goes on when it is back, {} s at most (Ctrl-C ends it)",
                    answer::AWAY_MAX.as_secs()
                ));
            }
            Part::Text(piece) => {
                spinner.finish_and_clear();
                if !quiet {
                    answers.print(piece);
                    has_begun = true;
                }
            }
        };
        let result = match self.is_alone {
            true => answer::read(self.client, path, body, &mut on_part).await,
            false => {
                answer::read_through_restarts(&self.data_dir, self.client, path, body, &mut on_part).await
            }
        };
        spinner.finish_and_clear();
        // What went wrong does not stand behind the text of an answer.
        if has_begun || (result.is_ok() && !quiet) {
            ui::line("");
        }
        let answer = result?;
        if answer.finish_reason.as_deref() == Some("length") {
            ui::note(&cut_text(&self.model, self.args.max_tokens, self.context_tokens, &answer.usage));
        }
        Ok(json!({
            "text": answer.text, "finish_reason": answer.finish_reason, "usage": answer.usage, "exo": answer.exo,
            "model": self.model,
        }))
    }
}

/// What cut an answer, and how to get more of it.
fn cut_text(model: &str, max_tokens: Option<u32>, context_tokens: u32, usage: &Value) -> String {
    let count = |name: &str| usage[name].as_u64().unwrap_or(0);
    let tokens = count("completion_tokens");
    match max_tokens {
        Some(max) if tokens >= u64::from(max) => {
            format!("the answer was cut at {max} tokens: a larger --max-tokens lets it go on")
        }
        _ if context_tokens > 0 && count("total_tokens") >= u64::from(context_tokens) => {
            let model = exo_types::shell_word(model);
            format!(
                "the answer was cut: the context, which prompt and answer share, is full; `exo place {model} --context N --replace` \
                 makes it longer"
            )
        }
        None if context_tokens > 0 => {
            format!("the answer was cut after {tokens} tokens: --max-tokens lets it go on")
        }
        _ => format!("the answer was cut after {tokens} tokens, by --max-tokens or the context of the model"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{STDIN_BYTES_MAX, Typed, cut_text};

    #[test]
    fn an_answer_that_was_cut_says_by_what_and_how_to_get_more() {
        let usage = json!({"completion_tokens": 16, "total_tokens": 40});
        assert!(cut_text("m", Some(16), 4096, &usage).contains("a larger --max-tokens"));
        assert!(cut_text("m", Some(99), 40, &usage).contains("`exo place m --context N --replace`"));
        assert!(cut_text("m", None, 4096, &usage).contains("cut after 16 tokens: --max-tokens"));
    }

    #[test]
    fn what_is_piped_is_text_of_a_bounded_length() {
        let piped = |bytes: &[u8]| super::piped(bytes).map_err(|e| e.to_string());
        assert_eq!(piped(b"a\nb\n"), Ok("a\nb\n".to_owned()));
        let long = vec![b'a'; STDIN_BYTES_MAX as usize + 1];
        assert!(piped(&long).unwrap_err().contains("more than 8 MiB"));
        assert!(piped(&[0xff]).unwrap_err().contains("UTF-8"));
    }

    #[test]
    fn a_slash_and_a_word_are_no_message() {
        for (line, typed) in [
            ("/bye ", Typed::Bye),
            (" /bye", Typed::Message(" /bye")),
            ("/help", Typed::Help),
            ("/clear", Typed::Clear),
            ("/system  Speak as a pirate. ", Typed::System("Speak as a pirate.")),
            ("/system", Typed::System("")),
            ("/system clear", Typed::NoSystem),
            ("/system \"\"", Typed::NoSystem),
            ("/system clear answers only", Typed::System("clear answers only")),
            ("/set temperature 1", Typed::Unknown("set")),
            ("/clear the table", Typed::Unknown("clear")),
            ("/tmp is full", Typed::Unknown("tmp")),
            (" /tmp is full", Typed::Message(" /tmp is full")),
        ] {
            assert_eq!(Typed::of(line), typed, "{line}");
        }
        for message in [
            "/",
            "what is /etc",
            "/etc/hosts is odd",
            "/a.txt",
            "hello",
            "/Users",
            "// a comment",
            "//todo x",
            "//system",
            "//",
            "/*",
        ] {
            assert_eq!(Typed::of(message), Typed::Message(message));
        }
    }
}
