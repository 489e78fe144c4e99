//! `exo run`: one answer, or a chat at a prompt.

use std::io::{IsTerminal, Read};
use std::process::ExitCode;

use anyhow::Context;
use exo_api::ModelView;
use rustyline::error::ReadlineError;
use serde_json::{Value, json};

use super::interrupt::INTERRUPTED;
use super::models;
use crate::answer::{self, Part};
use crate::args::Run;
use crate::client::Client;
use crate::config::Config;
use crate::run_node::{self, Stay};
use crate::ui::{self, Answers};

/// Longest prompt taken from standard input.
const STDIN_BYTES_MAX: u64 = 8 << 20;

/// Uses the running node, else starts one for the while.
pub async fn run(config: &Config, args: Run) -> anyhow::Result<ExitCode> {
    if let Some(client) = Client::running(&config.data_dir()).await {
        return answer_or_chat(config, &client, &args).await.map(|()| ExitCode::SUCCESS);
    }
    let mut stop = super::start::StopSignal::new()?;
    let Some(running) =
        run_node::start(config, Stay::ForTheWhile, ([127, 0, 0, 1], 0).into(), &mut stop).await?
    else {
        return Ok(ExitCode::from(INTERRUPTED));
    };
    let result = tokio::select! {
        result = answer_or_chat(config, &running.client, &args) => result.map(|()| ExitCode::SUCCESS),
        () = stop.wait() => Ok(ExitCode::from(INTERRUPTED)),
    };
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

async fn answer_or_chat(config: &Config, client: &Client, args: &Run) -> anyhow::Result<()> {
    let model = models::resolve(config, client, &args.model).await?;
    let mut session = Session::new(client, args, model).await?;
    if let Some(prompt) = prompt(args)? {
        let answer = session.ask(&prompt).await?;
        if args.json {
            return ui::json(&answer);
        }
        return Ok(());
    }
    chat(&mut session).await
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

async fn chat(session: &mut Session<'_>) -> anyhow::Result<()> {
    ui::line("Type a message; Ctrl-D ends. /clear starts over.");
    loop {
        let line = tokio::task::spawn_blocking(|| {
            let mut editor = rustyline::DefaultEditor::new()?;
            editor.readline("> ")
        });
        match line.await.context("the prompt failed")? {
            Ok(line) if line.trim().is_empty() => {}
            Ok(line) if line.trim() == "/clear" => session.messages.clear(),
            Ok(line) => {
                if let Err(error) = session.ask(&line).await {
                    ui::error(&error);
                }
            }
            Err(ReadlineError::Eof | ReadlineError::Interrupted) => return Ok(()),
            Err(error) => return Err(error).context("cannot read from the terminal"),
        }
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
    async fn new(client: &'a Client, args: &'a Run, model: String) -> anyhow::Result<Self> {
        let known: Vec<ModelView> = client.get("/exo/v1/models").await?;
        // A model without a template continues text instead of answering.
        let chat = known.iter().find(|m| m.name == model || m.id == model).is_none_or(|m| m.chat);
        let mut messages = Vec::new();
        messages.extend(args.system.iter().map(|text| json!({"role": "system", "content": text})));
        Ok(Self { client, args, model, chat, messages })
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
        if self.chat {
            self.messages.push(json!({"role": "user", "content": prompt}));
            body["messages"] = self.messages.clone().into();
        } else {
            body["prompt"] = prompt.into();
        }
        let path = if self.chat { "/v1/chat/completions" } else { "/v1/completions" };
        let answer = self.stream(path, &body).await;
        match &answer {
            Ok(value) if self.chat => {
                self.messages.push(json!({"role": "assistant", "content": value["text"]}))
            }
            Err(_) if self.chat => drop(self.messages.pop()),
            _ => {}
        }
        answer
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
