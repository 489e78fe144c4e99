//! Inputs and effects as lines that people read. What comes all the time and changes nothing is left out.

use exo_cluster::wire::ControlMessage;
use exo_machine::{Effect, Input, Outgoing};
use exo_membership::{Body, Message};
use exo_types::Time;

use crate::shape::Names;
use crate::world::seconds;

/// Longer lines are cut.
const LINE_MAX: usize = 400;

/// Prints an input.
pub fn input(print: fn(&str), names: &Names, at: Time, node: usize, input: &Input) {
    let text = match input {
        Input::Timer | Input::Heard { .. } | Input::Sampled(_) => return,
        Input::Control { link, message } => match control(message) {
            Some(text) => format!("Control {} {text}", link.0),
            None => return,
        },
        other => format!("{other:?}"),
    };
    line(print, names, at, node, "->", &text);
}

/// Prints an effect.
pub fn effect(print: fn(&str), names: &Names, at: Time, node: usize, effect: &Effect) {
    let text = match effect {
        Effect::Publish { .. } | Effect::Send { message: Outgoing::Ping, .. } => return,
        Effect::Send { link, message: Outgoing::Control(message) } => match control(message) {
            Some(text) => format!("Send {} {text}", link.0),
            None => return,
        },
        Effect::Send { link, message: Outgoing::Data(message) } => format!("Send {} {message:?}", link.0),
        other => format!("{other:?}"),
    };
    line(print, names, at, node, "  ", &text);
}

/// A control message; `None` for heartbeats and reports.
fn control(message: &ControlMessage) -> Option<String> {
    match message {
        ControlMessage::Report(report) if report.instance_failures.is_empty() => None,
        ControlMessage::Report(report) => Some(format!("Report of troubles {:?}", report.instance_failures)),
        ControlMessage::Membership(bytes) => match Message::decode(bytes) {
            Ok(Message { body: Body::Heartbeat(_), .. }) => None,
            Ok(message) => Some(format!("{message:?}")),
            Err(error) => Some(format!("{error}")),
        },
        ControlMessage::Instances { epoch, instances } => {
            let views: Vec<String> = instances
                .iter()
                .map(|view| {
                    let key = view.placement.id;
                    let nodes = crate::shape::stage_nodes(&view.placement);
                    format!("{key:?} on {nodes:?} {:?}", view.state)
                })
                .collect();
            Some(format!("Instances {epoch} {views:?}"))
        }
        other => Some(format!("{other:?}")),
    }
}

fn line(print: fn(&str), names: &Names, at: Time, node: usize, arrow: &str, text: &str) {
    let text = names.shorten(text);
    let cut: String = text.chars().take(LINE_MAX).collect();
    let more = if cut.len() < text.len() { " …" } else { "" };
    print(&format!("{:>10.6} n{node} {arrow} {cut}{more}", seconds(at)));
}
