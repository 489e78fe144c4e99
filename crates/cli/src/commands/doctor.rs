//! `exo doctor`: what works on this machine and what does not, with the next step. Changes nothing.
//! With `--report` it goes into a file for somebody who helps. A running node looks in the same way, for its
//! page and for `exo doctor --cluster` on any member.

mod graphics;
mod machine;
mod network;
mod node;
mod redact;
mod report;

use std::process::ExitCode;
use std::sync::Arc;

use exo_api::{CheckVerdict, CheckView as Check, ClusterView, DoctorView};
use exo_node::Doctor;

use super::running;
use crate::args;
use crate::client::Client;
use crate::config::Config;
use crate::ui;

/// How a node that is started with these settings looks over its machine: as the command does.
pub fn of(config: &Config) -> Doctor {
    let config = Arc::new(config.clone());
    Doctor::new(move || {
        let config = config.clone();
        Box::pin(async move { checks(&config).await })
    })
}

/// Looks at everything on this machine.
async fn checks(config: &Config) -> Vec<Check> {
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
    checks.extend(network::allowed_origins(config));
    checks.extend(network::multicast(config).await);
    checks.extend(network::peers(config).await);
    checks.extend(node::cluster(running.as_ref()).await);
    checks
}

/// Looks at everything, or has the running node or every member look. Fails when something is broken or a
/// member does not answer, so that a script notices.
pub async fn run(config: &Config, args: &args::Doctor) -> anyhow::Result<ExitCode> {
    if args.cluster {
        return cluster(config, args.json.json).await;
    }
    let checks = match of_running(config).await {
        Some(checks) => checks,
        None => checks(config).await,
    };
    if let Some(path) = &args.report {
        let running = Client::running(&config.data_dir()).await;
        report::write(config, running.as_ref(), &checks, path.as_deref()).await?;
        return Ok(ExitCode::SUCCESS);
    }
    ui::json_or(args.json.json, &checks, || show(&checks))?;
    Ok(exit_code(is_broken(&checks)))
}

/// What the node that runs on the data folder finds: it has settings of its own, and looks in the same way.
async fn of_running(config: &Config) -> Option<Vec<Check>> {
    let client = Client::running(&config.data_dir()).await?;
    let own = client.get::<ClusterView>("/exo/v1/cluster").await.ok()?.self_node;
    // A node of an older version has all members look, so the own one is picked out.
    let view: DoctorView = client.get("/exo/v1/doctor?of=self").await.ok()?;
    let mut checks = view.nodes.into_iter().find(|node| node.node == own)?.checks;
    // Peers that are named to this command are asked for by whoever types it.
    let named = network::peers(config).await;
    checks.extend(named.into_iter().filter(|check| !checks.contains(check)).collect::<Vec<_>>());
    Some(checks)
}

/// What every member finds on its machine, asked through the node that runs here.
async fn cluster(config: &Config, is_json: bool) -> anyhow::Result<ExitCode> {
    let view: DoctorView = running(config).await?.get("/exo/v1/doctor").await?;
    if is_json {
        ui::json(&view)?;
    } else {
        for (at, node) in view.nodes.iter().enumerate() {
            ui::line(format!("{}{}", if at == 0 { "" } else { "\n" }, node.name));
            show(&node.checks);
        }
    }
    for silent in &view.silent {
        ui::warning(&format!("{} was not looked over: {}", silent.name, silent.reason));
    }
    Ok(exit_code(!view.silent.is_empty() || view.nodes.iter().any(|node| is_broken(&node.checks))))
}

fn is_broken(checks: &[Check]) -> bool {
    checks.iter().any(|check| check.verdict == CheckVerdict::Broken)
}

fn exit_code(has_failed: bool) -> ExitCode {
    if has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn show(checks: &[Check]) {
    for check in checks {
        let mark = match check.verdict {
            CheckVerdict::Ok => "ok     ",
            CheckVerdict::Note => "note   ",
            CheckVerdict::Warning => "warning",
            CheckVerdict::Broken => "BROKEN ",
        };
        ui::titled(&format!("{mark}  {:<16} ", check.check), &check.found);
        if !check.next.is_empty() {
            ui::titled(&format!("{:26} next: ", ""), &check.next);
        }
    }
}
