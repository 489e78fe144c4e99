//! `exo invite` and `exo join`: a code that lets a machine in.

use std::time::{Duration, Instant};

use anyhow::Context;
use exo_api::{ClusterView, InviteRequest, InviteView, JoinRequest, JoinedView, NodeStatus, NodeView};
use serde::Serialize;

use super::running;
use crate::args::Json;
use crate::client::{Client, Refused};
use crate::config::{Config, JOIN_TOKEN_VARIABLE as TOKEN_VARIABLE, join_token};
use crate::ui;

/// How the text of a QR code begins; a token, or nine digits with a place as a token has it, follows.
const LINK: &str = "exo://join/";
/// Between two attempts with it.
const AGAIN: Duration = Duration::from_secs(10);
/// Attempts with it: the machine that gave it out may start later than this one.
const ATTEMPTS: u32 = 60;

/// From joining to the first word of another member.
const HEARD_MAX: Duration = Duration::from_secs(3);
const HEARD_LOOK_EVERY: Duration = Duration::from_millis(50);

/// An invitation for scripts.
#[derive(Serialize)]
struct Invited<'a> {
    #[serde(flatten)]
    invite: &'a InviteView,
    /// For the environment of a node; `None` for digits.
    token: Option<String>,
    /// What `exo join` takes on any network.
    link: String,
}

/// Shows a code.
pub async fn invite(
    config: &Config,
    uses: Option<u32>,
    hours: Option<u32>,
    json: Json,
) -> anyhow::Result<()> {
    let client = running(config).await?;
    let invite: InviteView = client.post("/exo/v1/invites", &InviteRequest { uses, hours }).await?;
    let now = exo_stdx::unix_s();
    let left = ui::duration(Duration::from_secs(invite.expires_at_unix_s.saturating_sub(now)));
    let is_token = uses.is_some() || hours.is_some();
    if json.json {
        let (token, link) = (is_token.then(|| token(&invite)), link(&invite));
        return ui::json(&Invited { invite: &invite, token, link });
    }
    if is_token {
        let machines =
            if invite.uses == 1 { "one machine".to_owned() } else { format!("{} machines", invite.uses) };
        ui::line(format!("This token lets in {machines}, for {left} and while this node runs:"));
        ui::line(format!("    {}", token(&invite)));
        ui::line(format!(
            "On the other machine: `exo join` with it, or {TOKEN_VARIABLE} in the environment of its node."
        ));
    } else {
        ui::line(format!("On the other machine, within {left}:"));
        ui::line(format!("    exo join {}", invite.code));
        if let Some(address) = invite.addresses.first() {
            ui::line("If it is on another network, or does not find this one:");
            ui::line(format!("    exo join {} --peer {}@{address}", invite.code, invite.node));
        }
        ui::line("The code lets in one machine, and is void after three wrong tries.");
    }
    if ui::qr_code(&link(&invite)) {
        ui::line(
            "The square holds code, address and this node's id: `exo join 'TEXT'` with its text does the same.",
        );
    }
    Ok(())
}

/// A token says where it counts: a machine that starts alone finds the way.
fn token(invite: &InviteView) -> String {
    match invite.addresses.as_slice() {
        [] => invite.code.clone(),
        addresses => format!("{}@{}@{}", invite.code, invite.node, addresses.join(",")),
    }
}

/// What a QR code says: all that the other machine needs.
fn link(invite: &InviteView) -> String {
    format!("{LINK}{}", token(invite))
}

/// Joins with a code, where `--peer` says: `[ID@]HOST:PORT`.
pub async fn join(config: &Config, code: &str) -> anyhow::Result<()> {
    let client = running(config).await?;
    let request = request(code, &config.list("peers")).await?;
    exo_node::check_code(&request.code)?;
    if let Some(name) = member_already(&client, &request).await? {
        ui::line(format!("this node is a member of the cluster of {name} already"));
        return Ok(());
    }
    let spinner = ui::spinner();
    let asking = "asking the nodes nearby, or those of --peer, with the code";
    spinner.set_message(asking);
    ui::note_in_pipe(asking);
    let joined: JoinedView = client.post("/exo/v1/join", &request).await?;
    spinner.set_message("joined; waiting for the first word of the others");
    wait_for(&client, &joined.name).await;
    spinner.finish_and_clear();
    ui::line(format!("joined the cluster of {}", joined.name));
    ui::line(format!("both machines show these words: {}", joined.check_words));
    Ok(())
}

/// Waits until who let this node in was heard of, or as long as a person would: who looks at the cluster next
/// is to see it.
async fn wait_for(client: &Client, name: &str) {
    let began = Instant::now();
    let is_it = |node: &NodeView| !node.is_self && node.name == name && node.status == NodeStatus::Alive;
    while began.elapsed() < HEARD_MAX {
        let view = client.get::<ClusterView>("/exo/v1/cluster").await;
        if view.is_ok_and(|view| view.nodes.iter().any(is_it)) {
            return;
        }
        tokio::time::sleep(HEARD_LOOK_EVERY).await;
    }
}

/// What the node that is to be joined is called, where that is a member of the same cluster: a script that
/// joins may run twice.
async fn member_already(client: &Client, request: &JoinRequest) -> anyhow::Result<Option<String>> {
    let Some(id) = &request.node else { return Ok(None) };
    let view: ClusterView = client.get("/exo/v1/cluster").await?;
    // A node that was removed sees its former cluster, and not itself.
    let is_member = view.nodes.iter().any(|node| node.is_self);
    let other = view.nodes.into_iter().find(|node| node.id == *id);
    Ok(other.filter(|_| is_member).map(|node| node.name))
}

/// Joins with the token in the environment, if there is one: for a node without a terminal.
pub async fn join_by_environment(client: Client) {
    let Some(token) = join_token() else { return };
    const ALONE: &str = "this node joins nobody by itself: `exo join` with a new token or a code, or start it without the variable";
    for attempt in 1..=ATTEMPTS {
        // A node that has joined starts with the same environment again.
        let view = client.get::<ClusterView>("/exo/v1/cluster").await;
        if view.is_ok_and(|view| view.nodes.len() > 1) {
            return;
        }
        // A name server may not answer yet where a machine has just been switched on.
        let joined = match request(&token, &[]).await {
            Ok(request) => client.post::<JoinedView>("/exo/v1/join", &request).await,
            Err(error) => Err(error),
        };
        match joined {
            Ok(_) => return, // the node says so itself
            Err(error) if is_no_token(&error) => {
                return ui::line(format!("{TOKEN_VARIABLE} is not used: {error:#}; {ALONE}"));
            }
            Err(error) if attempt == 1 => {
                let (wait, within) = (ui::duration(AGAIN), ui::duration(AGAIN * ATTEMPTS));
                ui::line(format!("{TOKEN_VARIABLE}: {error:#}; tried again every {wait} for {within}"));
            }
            Err(error) => tracing::debug!(attempt, error = format!("{error:#}"), "not joined by token"),
        }
        tokio::time::sleep(AGAIN).await;
    }
    ui::line(format!("{TOKEN_VARIABLE}: given up; {ALONE}"));
}

/// Whether no other attempt would do better: it is no token, or was cut short.
fn is_no_token(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Refused>().is_some_and(|refused| refused.status == 400)
}

/// What is asked of the node: a code, and where to go with it. A token names its place itself.
async fn request(code: &str, peers: &[String]) -> anyhow::Result<JoinRequest> {
    let code = code.trim();
    let code = code.strip_prefix(LINK).unwrap_or(code);
    let (code, place) = code.split_once('@').unwrap_or((code, ""));
    let places = peers.iter().map(String::as_str).chain([place]).filter(|place| !place.is_empty());
    let (mut node, mut addresses) = (None, Vec::new());
    for place in places {
        let (id, hosts) = place.split_once('@').map_or((None, place), |(id, hosts)| (Some(id), hosts));
        node = node.or(id.map(str::to_owned));
        for host in hosts.split(',') {
            let found = tokio::time::timeout(Duration::from_secs(5), tokio::net::lookup_host(host)).await;
            let found = found.with_context(|| format!("no name server answered for `{host}` within 5 s"))?;
            let wrong = || format!("`{host}` is not an address; write HOST:PORT, such as 192.168.1.20:52416");
            addresses.extend(found.with_context(wrong)?.map(|address| address.to_string()));
        }
    }
    Ok(JoinRequest { code: code.to_owned(), node, addresses })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_token_carries_its_way_and_a_peer_is_named_with_or_without_its_id() {
        let invite = InviteView {
            code: "abc".to_owned(),
            uses: 2,
            expires_at_unix_s: 0,
            node: "id".to_owned(),
            addresses: vec!["10.0.0.1:1".to_owned(), "[::1]:2".to_owned()],
        };
        let read = request(&token(&invite), &[]).await.unwrap();
        assert_eq!((read.code.as_str(), read.node.as_deref()), ("abc", Some("id")));
        assert_eq!(read.addresses, invite.addresses);
        assert!(link(&invite).starts_with("exo://join/abc@id@10.0.0.1:1"));
        assert!(
            request(&format!(" {}\n", link(&invite)), &[]).await.unwrap() == read,
            "the text of a QR code"
        );
        let read = request(" 123-456-789", &["127.0.0.1:9".to_owned()]).await.unwrap();
        assert_eq!((read.code.as_str(), read.node), ("123-456-789", None));
        assert_eq!(read.addresses, ["127.0.0.1:9"]);
        let read = request("123-456-789", &["id@127.0.0.1:9".to_owned()]).await.unwrap();
        assert_eq!(read.node.as_deref(), Some("id"));
        for wrong in ["127.0.0.1", "id@"] {
            assert!(request("123-456-789", &[wrong.to_owned()]).await.is_err(), "{wrong}");
        }
    }
}
