//! `exo logs`: the last log lines of all nodes, or of one.

use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use exo_api::{ClusterView, LOG_RAISED_S, LogLevel, LogLevelRequest, LogLineView, LogsView};
use serde_json::Value;

use super::running;
use crate::args::Logs;
use crate::client::{Client, is_not_found};
use crate::config::Config;
use crate::system;
use crate::ui;

/// Between two looks while following.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Shows lines, and goes on with `--follow`.
pub async fn run(config: &Config, args: &Logs) -> anyhow::Result<()> {
    let client = running(config).await?;
    if let Some(level) = &args.raise {
        let level = level_of(level)?;
        let target = args.target.clone().context("`--raise` needs `--target`: whose lines are to be kept")?;
        let shown = target.clone();
        client.post::<Value>("/exo/v1/logs/level", &LogLevelRequest { target, level }).await?;
        let (word, minutes) = (level.as_str(), LOG_RAISED_S / 60);
        ui::note(&format!("this node keeps {word} lines of {shown} for {minutes} minutes"));
    }
    let next = match show(&client, args, None).await {
        Err(error) if args.node.is_some() && is_not_found(&error) => {
            return Err(with_nodes(&client, error).await);
        }
        told => told?,
    };
    if !args.follow {
        return Ok(());
    }
    tokio::select! {
        result = follow(&client, args, next) => result,
        // As behind `| head`, also where nothing new comes.
        () = system::unread(std::io::stdout()) => Ok(()),
    }
}

/// Shows what is new until the output takes no more.
async fn follow(client: &Client, args: &Logs, mut next: String) -> anyhow::Result<()> {
    while !ui::is_output_over() {
        tokio::time::sleep(LOOK_EVERY).await;
        next = show(client, args, Some(&next)).await?;
    }
    Ok(())
}

/// The refusal of a node that is none, with those that there are.
async fn with_nodes(client: &Client, error: anyhow::Error) -> anyhow::Error {
    let Ok(view) = client.get::<ClusterView>("/exo/v1/cluster").await else { return error };
    let names: Vec<&str> = view.nodes.iter().map(|node| node.name.as_str()).collect();
    anyhow!("{error}; there are: {}", names.join(", "))
}

/// Shows what there is behind `after`, and says what to ask for next.
async fn show(client: &Client, args: &Logs, after: Option<&str>) -> anyhow::Result<String> {
    let logs: LogsView = client.get(&path(args, after)?).await?;
    // Who follows hears once who is silent.
    if after.is_none() {
        for silent in &logs.silent {
            ui::note(&format!("no lines of {}: {}", silent.name, silent.reason));
        }
        if logs.lines.is_empty() {
            ui::note(&format!("no lines{}", wanted(args)));
        }
    }
    if args.json.json {
        logs.lines.iter().try_for_each(|line| serde_json::to_string(line).map(ui::line))?;
    } else {
        logs.lines.iter().map(shown).for_each(ui::line);
    }
    Ok(logs.next)
}

fn path(args: &Logs, after: Option<&str>) -> anyhow::Result<String> {
    let level = args.level.as_deref().map(level_of).transpose()?.map(|level| level.as_str().to_owned());
    let asked = [
        ("node", args.node.clone()),
        ("level", level),
        ("target", args.target.clone()),
        ("request", args.request.clone()),
        ("after", after.map(str::to_owned)),
        ("limit", Some(args.lines.to_string())),
    ];
    let part = |(name, value): (&str, Option<String>)| {
        Some(format!("{name}={}", exo_types::percent_encoded(&value?, b"")))
    };
    let parts: Vec<String> = asked.into_iter().filter_map(part).collect();
    Ok(format!("/exo/v1/logs?{}", parts.join("&")))
}

/// Of what lines were asked for; empty where of all.
fn wanted(args: &Logs) -> String {
    let asked = [
        ("of node", &args.node),
        ("of request", &args.request),
        ("of target", &args.target),
        ("from level", &args.level),
    ];
    asked.into_iter().filter_map(|(what, value)| Some(format!(" {what} `{}`", value.as_ref()?))).collect()
}

/// A line as people see it.
pub(super) fn shown(line: &LogLineView) -> String {
    let (time, level) = (time_of_day(line.at_unix_ms), line.level.as_str());
    format!("{time} {} {level:5} {}: {}", line.name, line.target, line.text)
}

/// By the clock of the line's node, in UTC: clocks of several machines stand side by side.
fn time_of_day(at_unix_ms: u64) -> String {
    let (seconds, ms) = (at_unix_ms / 1000 % 86_400, at_unix_ms % 1000);
    format!("{:02}:{:02}:{:02}.{ms:03}Z", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

fn level_of(word: &str) -> anyhow::Result<LogLevel> {
    use LogLevel::{Debug, Error, Info, Trace, Warn};
    match [Trace, Debug, Info, Warn, Error].into_iter().find(|level| level.as_str() == word) {
        Some(level) => Ok(level),
        None => bail!("unknown level `{word}`: use trace, debug, info, warn or error"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Json;

    #[test]
    fn what_is_asked_for_is_escaped() {
        let args = Logs {
            node: Some("my desk&x".to_owned()),
            level: Some("warn".to_owned()),
            target: None,
            request: Some("ab".to_owned()),
            lines: 50,
            follow: false,
            raise: None,
            json: Json::default(),
        };
        let path = path(&args, Some("id:7,other:9")).unwrap();
        let expected =
            "/exo/v1/logs?node=my%20desk%26x&level=warn&request=ab&after=id%3A7%2Cother%3A9&limit=50";
        assert_eq!(path, expected);
        assert_eq!(wanted(&args), " of node `my desk&x` of request `ab` from level `warn`");
        assert!(super::path(&Logs { level: Some("loud".to_owned()), ..args }, None).is_err());
    }

    #[test]
    fn times_are_those_of_the_day() {
        assert_eq!(time_of_day(1_700_000_000_123), "22:13:20.123Z");
    }
}
