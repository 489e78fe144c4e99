//! Orders that clients give until the nodes are gone: models are placed and unloaded, a member is put out.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};

use super::acknowledged::{Acknowledged, Subject};
use crate::http::Server;

/// For the answer to an order.
const ORDER_MAX: Duration = Duration::from_secs(60);
/// After an order that was refused or not answered.
const AGAIN: Duration = Duration::from_millis(20);

/// Places a model and unloads it, again and again.
pub fn place_and_unload(server: &Server, model: &str, acknowledged: &Acknowledged, is_over: &AtomicBool) {
    let order = json!({ "model": model, "context_tokens": 256, "slots": 1 });
    while !is_over.load(Ordering::Relaxed) {
        // One may be there from the time before.
        let done = placed(server, model).and_then(|ids| match ids.first() {
            Some(id) => unload(server, id, acknowledged),
            None => {
                let placed = server.post("/exo/v1/instances", &order, ORDER_MAX)?;
                acknowledged.is_there(Subject::Instance(text(&placed, "id")?));
                Ok(())
            }
        });
        if done.is_err() {
            std::thread::park_timeout(AGAIN);
        }
    }
}

/// Puts a member out, until that is acknowledged.
pub fn put_out(admin: &Server, node: &str, acknowledged: &Acknowledged, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) && remove(admin, node, acknowledged).is_err() {
        std::thread::park_timeout(AGAIN);
    }
}

/// Puts a member out.
pub fn remove(admin: &Server, node: &str, acknowledged: &Acknowledged) -> anyhow::Result<()> {
    let member = Subject::Member(node.to_owned());
    acknowledged.is_ordered(member.clone());
    admin.order("DELETE", &format!("/exo/v1/members/{node}"), &Value::Null, ORDER_MAX)?;
    acknowledged.is_gone(member);
    Ok(())
}

fn unload(server: &Server, id: &str, acknowledged: &Acknowledged) -> anyhow::Result<()> {
    let instance = Subject::Instance(id.to_owned());
    acknowledged.is_ordered(instance.clone());
    server.order("DELETE", &format!("/exo/v1/instances/{id}"), &Value::Null, ORDER_MAX)?;
    acknowledged.is_gone(instance);
    Ok(())
}

/// The instances of a model.
fn placed(server: &Server, model: &str) -> anyhow::Result<Vec<String>> {
    let all = server.get("/exo/v1/instances", ORDER_MAX)?;
    let of_model = all.as_array().into_iter().flatten().filter(|instance| instance["model"] == model);
    of_model.map(|instance| text(instance, "id")).collect()
}

/// All that a node says is there.
pub fn there(server: &Server) -> anyhow::Result<BTreeSet<Subject>> {
    let instances = server.get("/exo/v1/instances", ORDER_MAX)?;
    let members = server.get("/exo/v1/members", ORDER_MAX)?;
    let instances = instances.as_array().into_iter().flatten();
    let members = members.as_array().into_iter().flatten();
    let instances = instances.map(|instance| Ok(Subject::Instance(text(instance, "id")?)));
    instances.chain(members.map(|member| Ok(Subject::Member(text(member, "node")?)))).collect()
}

fn text(value: &Value, field: &str) -> anyhow::Result<String> {
    let text = value[field].as_str().with_context(|| format!("an answer has no `{field}`"))?;
    Ok(text.to_owned())
}
