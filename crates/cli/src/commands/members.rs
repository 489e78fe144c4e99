//! `exo remove`, `exo admit` and `exo leave`: who belongs to the cluster.

use std::io::{BufRead, IsTerminal};

use anyhow::{Context, bail};
use exo_api::{
    ClusterView, JoinRequestView, JoinWindowRequest, MemberRole, MemberView, NodeView, RoleRequest,
};
use exo_node::{DataDir, FilesError};
use exo_types::shell_word;
use serde_json::json;

use super::running;
use crate::args::{Admit, Json};
use crate::client::Client;
use crate::config::Config;
use crate::ui;

/// Characters of an id that name a node beyond doubt: 80 bits.
const ID_CHARS: usize = 16;

/// Puts a member out.
pub async fn remove(config: &Config, node: &str, json: Json) -> anyhow::Result<()> {
    let client = running(config).await?;
    let member = member(&client, node).await?;
    client.delete(&format!("/exo/v1/members/{}", member.node)).await?;
    ui::json_or(json.json, &json!({"node": member.node, "name": member.name}), || {
        ui::line(format!("removed {}: no member lets it in again", called(&member)));
    })
}

/// The member that is meant by a name, an id or the start of an id.
pub async fn member(client: &Client, wanted: &str) -> anyhow::Result<MemberView> {
    let mut members: Vec<MemberView> = client.get("/exo/v1/members").await?;
    let id = pick(wanted, members.iter().map(|m| (m.node.as_str(), m.name.as_str())), "member")?;
    members.retain(|member| member.node == id);
    members.pop().context("the member is not in the list any more")
}

/// A member as people read it: its name, which it says itself, and so much of its id that it is nobody
/// else's.
pub fn called(member: &MemberView) -> String {
    format!("{} ({})", member.name, member.node.get(..ID_CHARS).unwrap_or(&member.node))
}

/// Who is let in: one that asks, whoever asks, nobody.
pub async fn admit(config: &Config, args: &Admit) -> anyhow::Result<()> {
    let client = running(config).await?;
    if let Some(minutes) = args.anyone {
        let request = JoinWindowRequest { minutes: Some(minutes) };
        client.post::<()>("/exo/v1/join_window", &request).await?;
        return ui::json_or(args.json.json, &json!({"open_minutes": minutes}), || {
            ui::line(format!(
                "whoever is near and asks this node is let in for {minutes} min; `exo admit --nobody` ends it"
            ));
        });
    }
    if args.nobody {
        client.delete("/exo/v1/join_window").await?;
        let line = || ui::line("nobody is let in without a question any more; `exo admit` lists who asks");
        return ui::json_or(args.json.json, &json!({"open_minutes": 0}), line);
    }
    let view: ClusterView = client.get("/exo/v1/cluster").await?;
    let Some(node) = &args.node else {
        let document = json!({"join_requests": view.join_requests, "join_window": view.join_window});
        return ui::json_or(args.json.json, &document, || list(&view));
    };
    one(&client, &view, node, args).await
}

/// Lets one in that asks, or refuses it.
async fn one(client: &Client, view: &ClusterView, node: &str, args: &Admit) -> anyhow::Result<()> {
    let asking = view.join_requests.iter().map(|r| (r.node.as_str(), r.name.as_str()));
    let others = view.other_clusters.iter().map(|other| (other.node.as_str(), other.name.as_str()));
    // The node says why it does not let in one of another cluster.
    let asked = pick(node, asking, "node that asks to join");
    let id = asked.or_else(|error| pick(node, others, "node").map_err(|_| error))?;
    if args.refuse {
        client.delete(&format!("/exo/v1/join_requests/{id}")).await?;
        return ui::json_or(args.json.json, &json!({"node": id, "is_refused": true}), || {
            ui::line(format!(
                "{node} is not shown again for an hour; a code (`exo invite`) still lets it in"
            ));
        });
    }
    let member: MemberView = client.post("/exo/v1/members", &json!({"node": id})).await?;
    let (name, id) = (&member.name, node_word(&member.node));
    ui::json_or(args.json.json, &member, || {
        ui::line(format!(
            "{name} is let in, and joins when it asks next, within seconds; undo with `exo remove {id}`"
        ));
    })
}

fn list(view: &ClusterView) {
    for request in &view.join_requests {
        ui::paragraph(ask_line(view, request));
    }
    if let Some(text) = super::status::removed(view).or_else(|| super::status::admin_missing(view)) {
        return ui::paragraph(text);
    }
    match (view.join_requests.is_empty(), view.join_window.open) {
        (false, _) => {}
        (true, true) => ui::line("nobody asks; new nodes nearby are let in without a question at the moment"),
        (true, false) => ui::line("nobody asks to join"),
    }
}

/// Who asks, and how to let it in.
pub fn ask_line(view: &ClusterView, request: &JoinRequestView) -> String {
    let is_admin = |node: &&NodeView| node.role == MemberRole::Admin;
    let is_own = view.nodes.iter().filter(is_admin).any(|node| node.is_self);
    let at = match view.nodes.iter().filter(is_admin).find(|node| !node.status.is_gone()) {
        Some(admin) if !is_own => format!(" on {}", admin.name),
        _ => String::new(),
    };
    format!(
        "{} at {} asks to join ({}): `exo admit {}`{at} lets it in",
        request.name,
        request.address,
        request.check_words,
        node_word(&request.node)
    )
}

/// Makes a member an admin or a worker.
pub async fn set_role(config: &Config, node: &str, role: MemberRole, json: Json) -> anyhow::Result<()> {
    let client = running(config).await?;
    let member = MemberView { role, ..member(&client, node).await? };
    client.post::<()>(&format!("/exo/v1/members/{}/role", member.node), &RoleRequest { role }).await?;
    if json.json {
        return ui::json(&member);
    }
    let who = called(&member);
    ui::line(match role {
        MemberRole::Admin => format!("{who} is an admin: `exo admit` and `exo remove` work there, too"),
        MemberRole::Worker => format!("{who} is no admin any more, and stays a member"),
    });
    Ok(())
}

/// Makes this node new again. Needs no node that runs, and no journal that can be read.
pub fn leave(config: &Config, is_sure: bool) -> anyhow::Result<()> {
    let path = config.data_dir();
    let is_there = |name: &str| {
        let found = path.join(name).try_exists();
        found.with_context(|| format!("cannot look into the data folder {}", path.display()))
    };
    // A node whose key is lost has its log of trust still, and starts only without it.
    if !is_there("node.key")? && !is_there("trust.log")? {
        ui::line(format!("no node has been started in {}: it is as new", path.display()));
        return Ok(());
    }
    let data = match DataDir::open(&path) {
        Err(FilesError::InUse { .. }) => {
            bail!("the node of {} runs: end it first with `exo stop`", path.display())
        }
        opened => opened?,
    };
    if !is_sure && !agrees(&format!("Forget the cluster and the key of the node in {}?", path.display()))? {
        bail!("left as it is");
    }
    let was_removed = data.is_removed();
    let is_known = data.leave()?;
    ui::line("this node has left its cluster and begins anew at its next start; its models are kept");
    ui::line(if is_known {
        "as a new one it joins a cluster nearby whose door is open, but not the one it left: `exo invite` on an admin there and \
         `exo join CODE` here bring it back"
    } else {
        "its log of trust cannot be read, so that the new one does not know which cluster it left: start it with `exo --trust \
         closed` to choose by `exo join CODE`"
    });
    if !was_removed {
        ui::line(
            "if the cluster goes on without it: `exo remove` on an admin there takes it off the list of members",
        );
    }
    Ok(())
}

pub fn agrees(question: &str) -> anyhow::Result<bool> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        bail!("there is no terminal to ask: add --yes");
    }
    ui::exactly(&format!("{question} [y/N] "));
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// A node as a suggested command names it: by so much of its id that nobody finds a key of his own that
/// begins the same. Its name is what it says itself.
pub fn node_word(id: &str) -> String {
    shell_word(id.get(..ID_CHARS).unwrap_or(id))
}

/// The id meant by a name, an id or the start of an id. A long start of an id is that node, whoever calls
/// itself so.
pub fn pick<'a>(
    wanted: &str,
    known: impl Iterator<Item = (&'a str, &'a str)> + Clone,
    what: &str,
) -> anyhow::Result<String> {
    let fits = |(id, name): &(&str, &str)| *name == wanted || (wanted.len() >= 4 && id.starts_with(wanted));
    let mut found: Vec<_> = known.clone().filter(fits).collect();
    if found.iter().any(|(id, _)| wanted.len() >= ID_CHARS && id.starts_with(wanted)) {
        found.retain(|(id, _)| id.starts_with(wanted));
    }
    match found.as_slice() {
        [(id, _)] => Ok((*id).to_owned()),
        [] => {
            let names: Vec<_> = known.map(|(_, name)| name).collect();
            if names.is_empty() {
                bail!("no {what} is called `{wanted}`: there is none at all");
            }
            bail!("no {what} is called `{wanted}`; there are: {}", names.join(", "))
        }
        _ => bail!("`{wanted}` means {} of them; use the id", found.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::pick;

    #[test]
    fn a_name_an_id_or_its_start_mean_one_node_or_an_error() {
        let known = [("abcdef", "laptop"), ("abcxyz", "desk"), ("q", "desk")];
        let pick = |w| pick(w, known.iter().copied(), "member").ok();
        assert_eq!(pick("laptop").as_deref(), Some("abcdef"));
        assert_eq!(pick("abcx").as_deref(), Some("abcxyz"));
        assert_eq!(pick("abc"), None, "too short to be meant");
        assert_eq!(pick("desk"), None, "two of that name");
        let none = super::pick("desk", std::iter::empty(), "node that asks to join").unwrap_err().to_string();
        assert_eq!(none, "no node that asks to join is called `desk`: there is none at all");
    }

    #[test]
    fn a_member_is_called_by_its_name_and_so_much_of_its_id_that_it_is_nobody_elses() {
        let member = |node: &str| exo_api::MemberView {
            node: node.to_owned(),
            name: "desk".to_owned(),
            role: exo_api::MemberRole::Worker,
            is_self: false,
            check_words: None,
        };
        assert_eq!(super::called(&member("abcdefghijklmnopqrstuvwxyz")), "desk (abcdefghijklmnop)");
        assert_eq!(super::called(&member("short")), "desk (short)");
    }

    #[test]
    fn a_stranger_that_calls_itself_as_another_nodes_id_stands_in_no_ones_way() {
        let (honest, other) = ("abcdefghijklmnopqrstuvwxyz", "zyxwvutsrqponmlkjihgfedcba");
        let word = super::node_word(honest);
        let known = [(honest, "laptop"), (other, word.as_str())];
        assert_eq!(word, "abcdefghijklmnop");
        assert_eq!(pick(&word, known.iter().copied(), "node").unwrap(), honest);
    }
}
