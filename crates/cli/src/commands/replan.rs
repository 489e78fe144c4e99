//! `exo replan`: whether a placed model should be elsewhere, and the move there.

use std::time::{Duration, Instant};

use anyhow::bail;
use exo_api::{
    ClusterView, InstanceView, MovingView, ReplanDecision, ReplanRequest, ReplanStageView, ReplanView,
};

use super::place::{PlacedAs, placed_as};
use super::running;
use crate::args::Replan;
use crate::client::Client;
use crate::config::Config;
use crate::ui;

/// Without progress: a coordinator gives a device two minutes.
const STALLED_MAX: Duration = Duration::from_secs(150);
const POLL: Duration = Duration::from_millis(50);

/// Shows what a move gains and costs, and waits for it if it is made.
pub async fn run(config: &Config, args: Replan) -> anyhow::Result<()> {
    let client = running(config).await?;
    let before = find(&client, &args.model).await?;
    let request = ReplanRequest { dry_run: args.dry_run };
    let said: ReplanView = client.post(&format!("/exo/v1/instances/{}/replan", before.id), &request).await?;
    if !args.json.json {
        show(&said);
    }
    if said.decision == ReplanDecision::Move {
        moved(&client, &before).await?;
    }
    if args.json.json {
        return ui::json(&said);
    }
    if said.decision == ReplanDecision::Move {
        ui::paragraph(format!("{} has moved", before.id));
    }
    Ok(())
}

async fn find(client: &Client, wanted: &str) -> anyhow::Result<InstanceView> {
    let PlacedAs { found, there, .. } = placed_as(client, wanted).await?;
    match found.into_iter().next() {
        Some(instance) => Ok(instance),
        None => bail!("nothing called `{wanted}` is placed; there are: {there}"),
    }
}

fn show(said: &ReplanView) {
    let row = |stage: &ReplanStageView| {
        let layers = format!("{}..{}", stage.layers.start, stage.layers.end);
        vec![stage.node_name.clone(), stage.device.clone(), layers]
    };
    ui::table(&["node", "device", "layers"], said.stages.iter().map(row).collect());
    ui::paragraph(costs(said));
    let word = match said.decision {
        ReplanDecision::Keep => "keep",
        ReplanDecision::WouldMove => "would move",
        ReplanDecision::Move => "move",
    };
    ui::paragraph(format!("{word}: {}", said.reason));
}

/// "now 920 ms, there 410 ms; it loads 4.1 GiB, of which 0 B are fetched in 0.0 s at least, and all tokens of
/// 2 running answers are computed again"
fn costs(said: &ReplanView) -> String {
    let again = match said.running {
        0 => String::new(),
        1 => ", and all tokens of a running answer are computed again".to_owned(),
        running => format!(", and all tokens of {running} running answers are computed again"),
    };
    format!(
        "now {} ms, there {} ms; it loads {}, of which {} are fetched in {:.1} s at least{again}",
        ui::figure(said.now_ms),
        ui::figure(said.then_ms),
        ui::bytes(said.load_bytes),
        ui::bytes(said.fetch_bytes),
        said.fetch_ms / 1e3
    )
}

/// Waits until the model serves elsewhere.
async fn moved(client: &Client, before: &InstanceView) -> anyhow::Result<()> {
    let bar = ui::bar(1000, "{spinner} moving [{bar:30}] {percent} %");
    let mut progressed = (Instant::now(), -1.0);
    loop {
        let view: ClusterView = client.get("/exo/v1/cluster").await?;
        let Some(now) = view.instances.into_iter().find(|i| i.id == before.id) else {
            bar.finish_and_clear();
            bail!("instance {} was removed while it moved", before.id);
        };
        if now.placement != before.placement {
            bar.finish_and_clear();
            return Ok(());
        }
        if let Some(MovingView::Loading { progress, .. }) = now.moving {
            bar.set_position((progress * 1000.0) as u64);
            if progress > progressed.1 {
                progressed = (Instant::now(), progress);
            }
        } else if progressed.1 >= 0.0 {
            bar.finish_and_clear();
            bail!(
                "the move was given up; the model serves where it was. `exo replan {}` tries again",
                before.id
            );
        }
        if progressed.0.elapsed() > STALLED_MAX {
            bail!("nothing moved for {} s; see `exo status`", STALLED_MAX.as_secs());
        }
        tokio::time::sleep(POLL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_move_costs_names_the_answers_that_it_disturbs() {
        let said = |running| {
            costs(&ReplanView {
                decision: ReplanDecision::WouldMove,
                now_ms: 900.0,
                then_ms: 400.0,
                load_bytes: 1 << 30,
                running,
                ..ReplanView::default()
            })
        };
        assert!(said(0).ends_with("are fetched in 0.0 s at least"), "{}", said(0));
        assert!(said(3).ends_with(", and all tokens of 3 running answers are computed again"), "{}", said(3));
    }
}
