//! `exo run`: one answer, or a chat at a prompt.

use std::io::{IsTerminal, Read};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use exo_api::ModelView;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use serde_json::{Value, json};

use super::interrupt::INTERRUPTED;
use super::models;
use crate::answer::{self, Part};
use crate::args::Run;
use crate::client::Client;
use crate::config::Config;
use crate::run_node::{self, Stay};
use crate::stop::{Stop, StopSignal};
use crate::ui::{self, Answers};

/// Longest prompt taken from standard input.
const STDIN_BYTES_MAX: u64 = 8 << 20;

/// Uses the running node, else starts one for the while.
pub async fn run(config: &Config, args: Run) -> anyhow::Result<ExitCode> {
    let mut stop = StopSignal::new()?;
    if let Some(client) = Client::running(&config.data_dir()).await {
        return answer_or_chat(config, &client, &args, &mut stop).await;
    }
    let Some(running) =
        run_node::start(config, Stay::ForTheWhile, ([127, 0, 0, 1], 0).into(), &mut stop).await?
    else {
        return Ok(ExitCode::from(INTERRUPTED));
    };
    let result = answer_or_chat(config, &running.client, &args, &mut stop).await;
    unload_own(&running.client).await;
    running.stop().await;
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
    let Some(prompt) = prompt(args)? else {
        let mut session = tokio::select! {
            session = Session::new(config, client, args) => session?,
            () = stop.wait() => return Ok(ExitCode::from(INTERRUPTED)),
        };
        return chat(&mut session, stop).await;
    };
    let answer = async { Session::new(config, client, args).await?.ask(&prompt).await };
    let answer = tokio::select! {
        answer = answer => answer?,
        () = stop.wait() => return Ok(ExitCode::from(INTERRUPTED)),
    };
    if args.json {
        ui::json(&answer)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The prompt from the command line, else from a pipe; `None` at a terminal.
fn prompt(args: &Run) -> anyhow::Result<Option<String>> {
    if !args.prompt.is_empty() {
        return Ok(Some(args.prompt.join(" ")));
    }
    if std::io::stdin().is_terminal() {
        return Ok(None);
    }
    let mut text = String::new();
    std::io::stdin()
        .take(STDIN_BYTES_MAX)
        .read_to_string(&mut text)
        .context("cannot read the prompt from standard input")?;
    Ok(Some(text))
}

/// Ctrl-C ends the answer that comes, and at the prompt the chat.
async fn chat(session: &mut Session<'_>, stop: &mut StopSignal) -> anyhow::Result<ExitCode> {
    ui::line("Type a message; Ctrl-C stops an answer, Ctrl-D ends. /clear starts over.");
    let editor = Arc::new(Mutex::new(DefaultEditor::new().context("cannot use the terminal")?));
    loop {
        let line = tokio::select! {
            line = read_line(editor.clone()) => line?,
            () = stop.wait() => return Ok(ExitCode::from(INTERRUPTED)),
        };
        match line.as_deref().map(str::trim) {
            None => return Ok(ExitCode::SUCCESS),
            Some("") => continue,
            Some("/clear") => {
                session.clear();
                continue;
            }
            Some(_) => {}
        }
        let answer = tokio::select! {
            answer = session.ask(line.as_deref().unwrap_or_default()) => Some(answer),
            why = stop.why() => match why {
                Stop::Interrupt => None,
                Stop::Terminate | Stop::Parent => return Ok(ExitCode::from(INTERRUPTED)),
            },
        };
        match answer {
            Some(Ok(_)) => {}
            Some(Err(error)) => ui::error(&error),
            None => ui::line("stopped; what was asked and the beginning of its answer are forgotten"),
        }
    }
}

/// A line from the terminal; `None` when it ends.
async fn read_line(editor: Arc<Mutex<DefaultEditor>>) -> anyhow::Result<Option<String>> {
    let read = move || {
        let mut editor = editor.lock().unwrap_or_else(PoisonError::into_inner);
        let line = editor.readline("> ")?;
        editor.add_history_entry(&line)?;
        Ok(line)
    };
    match tokio::task::spawn_blocking(read).await.context("the prompt failed")? {
        Ok(line) => Ok(Some(line)),
        Err(ReadlineError::Eof | ReadlineError::Interrupted) => Ok(None),
        Err(error) => Err(error).context("cannot read from the terminal"),
    }
}

/// A conversation with one model.
struct Session<'a> {
    client: &'a Client,
    args: &'a Run,
    model: String,
    chat: bool,
    messages: Vec<Value>,
}

impl<'a> Session<'a> {
    async fn new(config: &Config, client: &'a Client, args: &'a Run) -> anyhow::Result<Self> {
        let model = models::resolve(config, client, &args.model).await?;
        let known: Vec<ModelView> = client.get("/exo/v1/models").await?;
        // A model without a template continues text instead of answering.
        let chat = known.iter().find(|m| m.name == model || m.id == model).is_none_or(|m| m.chat);
        let mut session = Self { client, args, model, chat, messages: Vec::new() };
        session.clear();
        Ok(session)
    }

    /// Forgets what was said; the system prompt stays.
    fn clear(&mut self) {
        let system = self.args.system.iter().map(|text| json!({"role": "system", "content": text}));
        self.messages = system.collect();
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
        let mut on_part = |part: Part<'_>| match part {
            Part::Waiting(reason) => spinner.set_message(reason.to_owned()),
            Part::Text(piece) => {
                spinner.finish_and_clear();
                if !quiet {
                    answers.print(piece);
                }
            }
        };
        let result = answer::read(self.client, path, body, &mut on_part).await;
        spinner.finish_and_clear();
        let answer = result?;
        if !quiet {
            ui::line("");
        }
        Ok(json!({"text": answer.text, "usage": answer.usage, "exo": answer.exo, "model": self.model}))
    }
}
