//! `exo alerts`: what is wrong in the cluster, and what to do about it.

use anyhow::{Context, anyhow, bail};
use exo_api::{AlertView, SilenceRequest};
use serde_json::Value;

use super::running;
use crate::args::{Alerts, AlertsAction};
use crate::client::{Client, is_not_found};
use crate::config::Config;
use crate::ui;

/// Lists alerts, or silences one.
pub async fn run(config: &Config, args: &Alerts) -> anyhow::Result<()> {
    let client = running(config).await?;
    if let Some(AlertsAction::Silence { alert, time }) = &args.action {
        let for_s = seconds(time)?;
        let silence = SilenceRequest { alert: alert.clone(), for_s };
        if let Err(error) = client.post::<Value>("/exo/v1/alerts/silence", &silence).await {
            return Err(if is_not_found(&error) { with_alerts(&client, error).await } else { error });
        }
        ui::line(match for_s {
            0 => format!("{alert} is silenced no longer"),
            _ => format!("{alert} is silenced for {time} at this node"),
        });
        return Ok(());
    }
    let mut alerts: Vec<AlertView> = client.get("/exo/v1/alerts").await?;
    if !args.all {
        alerts.retain(|alert| alert.resolved_unix_s.is_none());
    }
    if args.json.json {
        return ui::json(&alerts);
    }
    if alerts.is_empty() {
        let over =
            if args.all { " and was not within the last day" } else { "; `exo alerts --all` shows what was" };
        ui::line(format!("nothing is wrong{over}"));
    }
    let now = exo_stdx::unix_s();
    for (title, text) in alerts.iter().flat_map(|alert| lines(alert, now)) {
        ui::titled(&title, &text);
    }
    Ok(())
}

/// The refusal of an alert that is none, with those that there are.
async fn with_alerts(client: &Client, error: anyhow::Error) -> anyhow::Error {
    let Ok(alerts) = client.get::<Vec<AlertView>>("/exo/v1/alerts").await else { return error };
    let active = alerts.iter().filter(|alert| alert.resolved_unix_s.is_none());
    let ids: Vec<&str> = active.map(|alert| alert.id.as_str()).collect();
    let there_are = match ids.as_slice() {
        [] => "there is none now".to_owned(),
        ids => format!("there are: {}", ids.join(", ")),
    };
    let rules: Vec<&str> = exo_node::ALERT_RULES.iter().map(|rule| rule.id).collect();
    let rules = rules.join(", ");
    anyhow!(
        "{error}, and no rule of that name; {there_are}; rules are: {rules}; docs/runbook.md has a section \
         for each"
    )
}

/// How bad the worst is called, and a space.
const TITLE_COLUMNS: usize = 9;

/// What stands in the first column, and what behind it: its further lines begin there, too.
fn lines(alert: &AlertView, now_unix_s: u64) -> Vec<(String, String)> {
    let row = |title: &str, text: String| (format!("{title:TITLE_COLUMNS$}"), text);
    let since = ago(alert.since_unix_s, now_unix_s);
    let mut state = match alert.resolved_unix_s {
        Some(at) => format!("over since {}", ago(at, now_unix_s)),
        None => format!("since {since}"),
    };
    if alert.silenced_until_unix_s.is_some() {
        state.push_str(", silenced");
    }
    let mut lines = vec![row(alert.severity.as_str(), format!("{} ({state})", alert.text))];
    if alert.resolved_unix_s.is_none() {
        lines.push(row("", alert.what_to_do.clone()));
        lines.push(row("", format!("{} · {}", alert.id, alert.runbook)));
    }
    lines
}

fn ago(at_unix_s: u64, now_unix_s: u64) -> String {
    ui::age(now_unix_s.saturating_sub(at_unix_s))
}

/// `90s`, `30m`, `2h`, `1d`, or `0`.
fn seconds(text: &str) -> anyhow::Result<u64> {
    if text == "0" {
        return Ok(0);
    }
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let each = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 24 * 3600,
        _ => bail!("`{text}` is not a time: write 90s, 30m, 2h or 1d, or 0 to end a silence"),
    };
    let number: u64 = number.parse().with_context(|| format!("`{text}` does not begin with a number"))?;
    number.checked_mul(each).with_context(|| format!("`{text}` is too long"))
}

#[cfg(test)]
mod tests {
    use exo_api::Severity;

    use super::*;

    #[test]
    fn times_have_a_unit_and_nought_has_none() {
        for (text, expected) in
            [("90s", Some(90)), ("30m", Some(1800)), ("2h", Some(7200)), ("1d", Some(86_400)), ("0", Some(0))]
        {
            assert_eq!(seconds(text).ok(), expected);
        }
        for wrong in ["", "2", "h", "-1h", "1w", "99999999999999999999d", "9999999999999999999h"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_alert_says_what_is_wrong_since_when_and_what_to_do() {
        let alert = AlertView {
            id: "node_lost:ab".to_owned(),
            rule: "node_lost".to_owned(),
            severity: Severity::Critical,
            since_unix_s: 1000,
            resolved_unix_s: None,
            silenced_until_unix_s: Some(5000),
            node: Some("ab".to_owned()),
            device: None,
            instance: None,
            subject: "attic".to_owned(),
            text: "attic is not there".to_owned(),
            what_to_do: "start it".to_owned(),
            runbook: "docs/runbook.md#node_lost".to_owned(),
        };
        let shown = |alert: &AlertView, columns: usize| -> String {
            let text = |(title, text): (String, String)| ui::titled_text(&title, &text, columns);
            lines(alert, 1130).into_iter().map(text).collect::<Vec<_>>().join("\n")
        };
        assert_eq!(
            shown(&alert, 80),
            "critical attic is not there (since 2 min, silenced)\n         start it\n         node_lost:ab · docs/runbook.md#node_lost"
        );
        // What is broken stays in its column, however short the first one is.
        let info = AlertView { severity: Severity::Info, ..alert.clone() };
        assert_eq!(
            shown(&info, 32),
            "info     attic is not there\n         (since 2 min, silenced)\n         start it\n         node_lost:ab ·\n         docs/runbook.md#node_lost"
        );
        let over = AlertView { resolved_unix_s: Some(1100), ..alert };
        assert_eq!(shown(&over, 80), "critical attic is not there (over since 30 s, silenced)");
    }
}
