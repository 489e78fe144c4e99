//! One hint per kind of failure: the next thing to do. Kinds are the stable codes of errors, never words in a
//! message.

use std::error::Error;
use std::io::ErrorKind;

use exo_accelerators::{BackendError, ChooseError, DeviceError, ProbeFailure};
use exo_backend::AllocError;
use exo_device::ConfineError;
use exo_node::{AskError, FilesError, StartError};
use exo_quant::QuantError;

use crate::client::Refused;
use crate::errors::{CommandError, PullFailed};

/// The hint for an error, if we know one.
pub fn of(error: &anyhow::Error) -> Option<String> {
    error.chain().find_map(hint_of)
}

fn hint_of(cause: &(dyn Error + 'static)) -> Option<String> {
    if let Some(failed) = cause.downcast_ref::<PullFailed>() {
        return failed.hint.clone();
    }
    if let Some(error) = cause.downcast_ref::<exo_hub::HubError>() {
        return error.hint().map(str::to_owned);
    }
    if let Some(error) = cause.downcast_ref::<exo_store::NoRoom>() {
        return Some(error.hint().to_owned());
    }
    match cause.downcast_ref() {
        Some(exo_store::StoreError::DiskFull { .. }) => return hint("disk_full").map(str::to_owned),
        Some(exo_store::StoreError::ReadOnly { .. }) => return hint("read_only").map(str::to_owned),
        _ => {}
    }
    hint(code(cause)?).map(str::to_owned)
}

/// The stable code of an error, if it has one.
fn code<'a>(cause: &'a (dyn Error + 'static)) -> Option<&'a str> {
    macro_rules! code_of {
        ($($error:ty),*) => {
            $(if let Some(error) = cause.downcast_ref::<$error>() {
                return Some(error.code());
            })*
        };
    }
    code_of!(
        CommandError,
        StartError,
        FilesError,
        AskError,
        ProbeFailure,
        DeviceError,
        ChooseError,
        BackendError
    );
    code_of!(exo_backend_cpu::OpenError, ConfineError, QuantError);
    if let Some(refused) = cause.downcast_ref::<Refused>() {
        return refused.code.as_deref();
    }
    if let Some(AllocError::OutOfMemory { needed_bytes, free_bytes, .. }) = cause.downcast_ref() {
        return (free_bytes >= needed_bytes).then_some("device_memory_refused");
    }
    let error = cause.downcast_ref::<std::io::Error>()?;
    if exo_stdx::is_out_of_files(error) {
        return Some("too_many_files");
    }
    match error.kind() {
        ErrorKind::AddrInUse => Some("port_in_use"),
        ErrorKind::PermissionDenied => Some("permission_denied"),
        ErrorKind::StorageFull => Some("disk_full"),
        ErrorKind::ReadOnlyFilesystem => Some("read_only"),
        ErrorKind::NotFound => Some("path_not_found"),
        _ => None,
    }
}

/// By code.
fn hint(code: &str) -> Option<&'static str> {
    Some(match code {
        "no_node" => "start one with `exo`, or name its data folder with --data-dir",
        "node_silent" => {
            "it is starting, stopped (`kill -CONT` with its process lets it go on) or stuck: wait, or end that process and start exo again"
        }
        "port_in_use" => {
            "another program, or another exo, has this port; give --api-listen or --listen another one"
        }
        "journal_format" => {
            "another version of exo wrote it: use that one, or type `exo leave`; the node then founds a new cluster, and models on \
             disk stay"
        }
        "data_folder_in_use" => {
            "end that exo (`exo run` ends by itself), or start `exo` once: all commands use that node"
        }
        "too_many_files" => {
            "allow more of them where exo is started: `ulimit -n 1024` in that shell, or LimitNOFILE=1024 in its systemd unit; each \
             client's connection and each member takes one or two"
        }
        "node_key_damaged" => {
            "put the 32 bytes back from a backup if there is one, or type `exo leave --yes`, which makes a new key: this machine is then \
             a new node that its cluster has to let in again (`exo invite` there, `exo join CODE` here), and `exo remove` there takes \
             its old entry out; its models stay on disk"
        }
        "setting_unknown" => "`exo config` lists the settings and where their values come from",
        "setting_memory_mib" => "leave --memory-mib out to take what is free less a reserve",
        "already_quantised" => "take the F16 or BF16 file of the model, or add --requantize",
        "file_exists" => "add --force to replace it, or name another file with -o",
        "file_is_source" | "not_a_file" => "name another file with -o",
        "permission_denied" => "check who owns the file or folder, or give --data-dir a folder of your own",
        "read_only" => "mount it so that it can be written, or give --data-dir another folder",
        "disk_failed" => {
            "check the disk of the node's data folder: where it is full, `exo prune` deletes what was never fetched whole and \
             `exo models remove NAME` a model; where it is read-only, mount it so that it can be \
             written; else see who may write there"
        }
        "disk_full" => {
            "free some disk space: `exo prune` deletes downloads that were never finished, `exo models remove NAME` a model, both \
             without a node too, where one that is placed can go as well; or give --data-dir a folder on another disk"
        }
        "model_not_fetched" => {
            "`exo fits` with the same text reads its headers and says how it would run here; `exo pull` with --layers makes it known to the cluster"
        }
        "path_not_found" => "check the path",
        "model_not_found" => {
            "`exo models` lists the models; `exo models add PATH` makes one known; one of a hub is named hf.co/ORG/REPO, one of Ollama's registry \
             with its tag, as in qwen3:8b"
        }
        "insufficient_memory" => {
            "start exo on more machines, or ask for less with --context, --slots or --cache-tokens; where a node computes on \
             a card alone, --backend cpu may have more memory"
        }
        "context_length_exceeded" => {
            "shorten the prompt (in a chat `/clear` starts over), or place the model with a larger --context and --cache-tokens"
        }
        _ => return device_hint(code),
    })
}

/// Of those about what computes.
fn device_hint(code: &str) -> Option<&'static str> {
    Some(match code {
        "worker_not_started" => {
            "check that exo's program is still there and may be run; --backend cpu needs no other"
        }
        "driver_ended_process" => {
            "install its driver again or another version of it; --backend cpu computes without it, and `exo devices` shows what \
             else there is"
        }
        "device_memory_refused" | "model_load_failed" => {
            "end other programs that use the device, let exo take less with --memory-mib, or choose a smaller type of the model"
        }
        "backend_unknown" | "backend_of_other_system" => {
            "leave --backend out and exo chooses; `exo devices` shows what there is on this machine"
        }
        "driver_missing" => {
            "install it, or leave --backend out: exo then chooses among what this machine has, which `exo devices` shows"
        }
        "accelerator_not_there" => {
            "`exo devices` shows the cards of this machine and what each lacks; without --backend exo chooses among them"
        }
        "device_not_shown" => "leave --device out, or --backend too: `exo devices` then shows all there is",
        "device_of_processor" => {
            "leave --device out, or name the backend whose device it is, as in --backend vulkan --device 0; `exo devices` shows \
             them"
        }
        "cpu_isa_missing" => "set `cpu_isa` to auto, or to one that it has",
        "cores_not_allowed" => "name some of those, or leave `cores` out to use all",
        "cores_not_supported" => "leave the setting `cores` out",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn a_hint_goes_by_code_however_deep_the_error_lies_and_whatever_it_says() {
        let refused = BackendError::Unknown { name: "opencl".to_owned() };
        let error = anyhow::Error::from(refused).context("cannot start");
        assert!(of(&error).is_some_and(|hint| hint.starts_with("leave --backend out")));
        let read_only = exo_store::StoreError::ReadOnly { attempt: "write", path: "/x".into() };
        assert!(of(&read_only.into()).is_some_and(|hint| hint.starts_with("mount it")));
        let words = anyhow::anyhow!("unknown backend `opencl`, and Address already in use");
        assert_eq!(of(&words), None);
        let taken = std::io::Error::from(ErrorKind::AddrInUse);
        let error = Err::<(), _>(taken).context("cannot open the API").unwrap_err();
        assert!(of(&error).is_some_and(|hint| hint.contains("--api-listen")));
        let full = std::io::Error::from_raw_os_error(24);
        let is_that_here = exo_stdx::is_out_of_files(&full);
        let error = Err::<(), _>(full).context("cannot accept").unwrap_err();
        assert_eq!(of(&error).is_some_and(|hint| hint.contains("ulimit -n")), is_that_here);
        let few = CommandError::FewFiles { limit: 20, min: 64 };
        assert!(
            few.to_string().contains("20 files")
                && of(&few.into()).is_some_and(|hint| hint.contains("ulimit -n"))
        );
        let lost = AllocError::OutOfMemory { what: "w".to_owned(), needed_bytes: 8, free_bytes: 7 };
        assert_eq!(of(&lost.into()), None, "what does not fit is no fault of other programs");
    }
}
