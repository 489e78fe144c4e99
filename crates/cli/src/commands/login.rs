//! `exo login hub`: a token for gated and private repositories, kept in the data folder.

use std::borrow::Cow;
use std::io::{IsTerminal, Read};

use anyhow::Context;
use rustyline::completion::Completer;
use rustyline::highlight::{CmdKind, Highlighter};
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::Validator;
use rustyline::{Editor, Helper};

use crate::args::LoginTo;
use crate::config::Config;
use crate::ui;

/// More than any token has.
const INPUT_BYTES_MAX: u64 = 4096;

/// Keeps a token, or deletes the one that is kept. A node that runs on the data folder reads it there.
pub async fn run(config: &Config, to: LoginTo) -> anyhow::Result<()> {
    let LoginTo::Hub { forget } = to;
    let (data_dir, settings) = (config.data_dir(), super::pull::settings(config)?);
    let work = tokio::task::spawn_blocking(move || -> anyhow::Result<()> {
        if forget {
            let had = exo_hub::forget_token(&data_dir)?;
            ui::line(if had { "the token is deleted" } else { "no token was kept" });
            return Ok(());
        }
        let hub = settings.endpoint.host().unwrap_or_default();
        settings.keep_token(&data_dir, &ask(hub)?)?;
        ui::line(format!("the token is kept in {}, for {hub} alone", data_dir.display()));
        Ok(())
    });
    work.await.context("keeping the token broke off")?
}

/// Typed without being shown, or from a pipe.
fn ask(hub: &str) -> anyhow::Result<String> {
    if !std::io::stdin().is_terminal() {
        let mut text = String::new();
        let read = std::io::stdin().lock().take(INPUT_BYTES_MAX).read_to_string(&mut text);
        read.context("cannot read the token")?;
        return Ok(text);
    }
    let is_plain =
        std::env::var("TERM").is_ok_and(|term| ["dumb", "cons25", "emacs"].contains(&term.as_str()));
    anyhow::ensure!(
        !is_plain,
        "this terminal shows what is typed: give the token through a pipe, `exo login hub < FILE`"
    );
    let mut editor = Editor::<Hidden, DefaultHistory>::new()?;
    editor.set_helper(Some(Hidden));
    Ok(editor.readline(&format!("token for {hub}: "))?)
}

/// Shows stars for what is typed.
struct Hidden;

impl Highlighter for Hidden {
    fn highlight<'l>(&self, line: &'l str, _pos: usize) -> Cow<'l, str> {
        Cow::Owned("*".repeat(line.chars().count()))
    }

    fn highlight_char(&self, _line: &str, _pos: usize, _kind: CmdKind) -> bool {
        true
    }
}

impl Completer for Hidden {
    type Candidate = String;
}

impl Hinter for Hidden {
    type Hint = String;
}

impl Validator for Hidden {}

impl Helper for Hidden {}
