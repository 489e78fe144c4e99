//! `exo doctor`: what works on this machine and what does not, with the next step. Changes nothing.
//! With `--report` it goes into a file for somebody who helps. A running node looks in the same way, for its
//! page and for `exo doctor --cluster` on any member.

mod graphics;
mod machine;
mod network;
mod node;
mod redact;
mod report;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use exo_api::{CheckVerdict, CheckView as Check, ClusterView, DoctorView};
use exo_node::Doctor;

use super::running;
use crate::args;
use crate::client::Client;
use crate::config::Config;
use crate::ui;

/// For the disk of the data folder to answer: less than a running node has for all of its checks.
const DISK_MAX: Duration = Duration::from_secs(10);

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
    let mut checks = match of_machine(config, running.is_some()).await {
        Ok(checks) => checks,
        // What follows reads there, too.
        Err(hung) => return vec![hung],
    };
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

/// What is found out without asking anybody.
async fn of_machine(config: &Config, is_running: bool) -> Result<Vec<Check>, Check> {
    let (own, folder) = (config.clone(), config.data_dir());
    let look = move || {
        let folder = machine::data_folder(&own, is_running);
        // Where nothing can be written, room is of no use.
        let room = if is_broken(std::slice::from_ref(&folder)) { None } else { machine::disk(&own) };
        let mut checks = vec![folder];
        checks.extend(room);
        checks.push(machine::processor(&own));
        checks.push(machine::memory(&own));
        checks.extend(machine::large_pages());
        checks
    };
    looked_within(DISK_MAX, &folder, look).await
}

/// What `look` finds, on a thread that may wait for the disk: a running node looks as well, and its tasks
/// must not. That the disk does not answer in time is something found.
async fn looked_within(
    max: Duration,
    folder: &Path,
    look: impl FnOnce() -> Vec<Check> + Send + 'static,
) -> Result<Vec<Check>, Check> {
    let broken = |found: String| Check::broken("data folder", found);
    match tokio::time::timeout(max, tokio::task::spawn_blocking(look)).await {
        Ok(looked) => looked.map_err(|error| broken(format!("the look at this machine broke off: {error}"))),
        Err(_) => {
            let (folder, max) = (folder.display(), max.as_secs());
            Err(broken(format!("the disk of {folder} has not answered within {max} s"))
                .next("look at that disk and its cable, or at the network that it is mounted over"))
        }
    }
}

/// Looks at everything, or has the running node or every member look. Fails when something is broken or a
/// member does not answer, so that a script notices.
pub async fn run(config: &Config, args: &args::Doctor) -> anyhow::Result<ExitCode> {
    if args.cluster {
        return cluster(config, args.json.json).await;
    }
    let found = match of_running(config).await {
        Some(found) => found,
        None => checks(config).await,
    };
    let checks: Vec<Check> = configuration(config).into_iter().chain(found).collect();
    if let Some(path) = &args.report {
        let running = Client::running(&config.data_dir()).await;
        report::write(config, running.as_ref(), &checks, path.as_deref()).await?;
        return Ok(ExitCode::SUCCESS);
    }
    ui::json_or(args.json.json, &checks, || show(&checks))?;
    Ok(exit_code(is_broken(&checks)))
}

/// That the configuration file cannot be used. A running node has read it before that.
fn configuration(config: &Config) -> Option<Check> {
    let next = "correct it: other commands refuse it, and what is below was found without its settings";
    Some(Check::broken("configuration", config.file_problem()?).next(next))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_disk_that_does_not_answer_is_something_found_and_holds_up_no_task() {
        let (answer, disk) = std::sync::mpsc::channel::<()>();
        let hung = move || {
            let _ = disk.recv();
            Vec::new()
        };
        let (folder, within) = (Path::new("/data"), Duration::from_millis(50));
        let looked = looked_within(within, folder, hung);
        let found = tokio::time::timeout(Duration::from_secs(20), looked).await.unwrap().unwrap_err();
        drop(answer);
        assert_eq!(found.verdict, CheckVerdict::Broken);
        assert!(found.found.starts_with("the disk of /data has not answered"), "{}", found.found);
        let fine = || vec![Check::ok("disk", "1 GiB free")];
        assert_eq!(looked_within(DISK_MAX, folder, fine).await.unwrap().len(), 1);
    }
}
