//! `exo doctor`: what works on this machine and what does not, with the next step. Changes nothing.
//! With `--report` it goes into a file for somebody who helps.

mod graphics;
mod machine;
mod network;
mod node;
mod redact;
mod report;

use std::process::ExitCode;

use serde::Serialize;

use crate::args::Doctor;
use crate::client::Client;
use crate::config::Config;
use crate::ui;

/// How a check went.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    /// Works.
    Ok,
    /// Worth knowing; nothing is wrong.
    Note,
    /// Something is worse than it could be; exo runs.
    Warning,
    /// exo cannot run like this.
    Broken,
}

/// One thing that was looked at.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct Check {
    check: &'static str,
    verdict: Verdict,
    found: String,
    /// What to do about it; empty when there is nothing to do.
    next: String,
}

impl Check {
    fn new(check: &'static str, verdict: Verdict, found: impl Into<String>) -> Self {
        Self { check, verdict, found: found.into(), next: String::new() }
    }

    fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(check, Verdict::Ok, found)
    }

    fn note(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(check, Verdict::Note, found)
    }

    fn warning(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(check, Verdict::Warning, found)
    }

    fn broken(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(check, Verdict::Broken, found)
    }

    fn next(mut self, next: impl Into<String>) -> Self {
        self.next = next.into();
        self
    }
}

/// Looks at everything. Fails when something is broken, so that a script notices.
pub async fn run(config: &Config, args: &Doctor) -> anyhow::Result<ExitCode> {
    let running = Client::running(&config.data_dir()).await;
    let mut checks = vec![machine::data_folder(config, running.is_some())];
    checks.extend(machine::disk(config));
    checks.push(machine::processor(config));
    checks.push(machine::memory(config));
    checks.extend(machine::large_pages());
    checks.extend(graphics::graphics(config).await);
    checks.push(node::running(config, running.as_ref()));
    checks.extend(network::ports(config, running.is_some()));
    checks.extend(network::api_keys(config));
    checks.extend(network::multicast(config).await);
    checks.extend(network::peers(config).await);
    match &running {
        Some(client) => checks.extend(node::cluster(client).await?),
        None => {
            checks.push(Check::note("demo model", "carried by this program, unpacked when a node starts"))
        }
    }
    if let Some(path) = &args.report {
        report::write(config, running.as_ref(), &checks, path.as_deref()).await?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.json.json {
        ui::json(&checks)?;
    } else {
        show(&checks);
    }
    let broken = checks.iter().any(|c| c.verdict == Verdict::Broken);
    Ok(if broken { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn show(checks: &[Check]) {
    for check in checks {
        let mark = match check.verdict {
            Verdict::Ok => "ok     ",
            Verdict::Note => "note   ",
            Verdict::Warning => "warning",
            Verdict::Broken => "BROKEN ",
        };
        ui::titled(&format!("{mark}  {:<16} ", check.check), &check.found);
        if !check.next.is_empty() {
            ui::titled(&format!("{:26} next: ", ""), &check.next);
        }
    }
}
