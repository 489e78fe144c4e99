//! One hint per kind of failure: the next thing to do.

use std::io::ErrorKind;

use crate::client::Refused;

const CHOOSES: &str =
    "leave --backend out and exo chooses; `exo devices` shows what there is on this machine";
const SHOWS: &str = "`exo devices` shows the cards of this machine and what each lacks; without --backend exo chooses among them";

/// The hint for an error, if we know one.
pub fn of(error: &anyhow::Error) -> Option<String> {
    if error.is::<NoNode>() {
        return Some("start one with `exo`, or name its data folder with --data-dir".to_owned());
    }
    if let Some(refused) = error.downcast_ref::<Refused>() {
        return refused_hint(refused);
    }
    let text = format!("{error:#}");
    let table: &[(&str, &str)] = &[
        (
            "Address already in use",
            "another program, or another exo, has this port; give --api-listen or --listen another one",
        ),
        (
            "has journal format",
            "another version of exo wrote it: use that one, or type `exo leave`; the node then founds a new cluster, and models on \
             disk stay",
        ),
        ("already in use by", "end the other exo first, or give this one its own --data-dir"),
        ("is not a setting", "`exo config` lists the settings and where their values come from"),
        (
            "ended the process that computed on it",
            "install its driver again or another version of it; --backend cpu computes without it, and `exo devices` shows what \
             else there is",
        ),
        (
            "which its driver refused, though",
            "end other programs that use the device, let exo take less with --memory-mib, or choose a smaller type of the model",
        ),
        ("is no backend", CHOOSES),
        ("is a backend of", CHOOSES),
        (
            "driver library (",
            "install it, or leave --backend out: exo then chooses among what this machine has, which `exo devices` shows",
        ),
        ("shows no graphics processor", SHOWS),
        ("'s driver shows no card", SHOWS),
        ("driver sees no card", SHOWS),
        (
            "no device that is shown is called",
            "leave --device out, or --backend too: `exo devices` then shows all there is",
        ),
        (
            "but the backend is cpu",
            "leave --device out, or name the backend whose device it is, as in --backend vulkan --device 0; `exo devices` shows \
             them",
        ),
        ("setting `memory_mib` is", "leave --memory-mib out to take what is free less a reserve"),
        ("this processor does not have", "set `cpu_isa` to auto, or to one that it has"),
        (
            "is not among those that this process may use",
            "name some of those, or leave `cores` out to use all",
        ),
        ("exo cannot choose its cores", "leave the setting `cores` out"),
        ("loses twice", "take the F16 or BF16 file of the model, or add --requantize"),
        ("is already there", "add --force to replace it, or name another file with -o"),
        ("is the source itself", "name another file with -o"),
        ("Permission denied", "check who owns the file or folder, or give --data-dir a folder of your own"),
        ("No space left", "free some disk space, or give --data-dir a folder on another disk"),
    ];
    if let Some((_, hint)) = table.iter().find(|(part, _)| text.contains(part)) {
        return Some((*hint).to_owned());
    }
    let io = error.chain().find_map(|e| e.downcast_ref::<std::io::Error>())?;
    (io.kind() == ErrorKind::NotFound).then(|| "check the path".to_owned())
}

fn refused_hint(refused: &Refused) -> Option<String> {
    let hint = match refused.code.as_deref()? {
        "model_not_found" => "`exo models` lists the models; `exo models add PATH` makes one known",
        "insufficient_memory" => {
            "start exo on more machines, or ask for less with --context, --slots or --cache-tokens; where a node computes on \
             a card alone, --backend cpu may have more memory"
        }
        "context_length_exceeded" => {
            "shorten the prompt, or place the model with a larger --context and --cache-tokens"
        }
        _ => return None,
    };
    Some(hint.to_owned())
}

/// A command needs a running node and there is none.
#[derive(Debug, thiserror::Error)]
#[error("no exo node is running on the data folder {data_dir}")]
pub struct NoNode {
    /// Where we looked.
    pub data_dir: String,
}
