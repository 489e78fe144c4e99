//! What commands refuse themselves, typed where a hint goes with it.

use std::net::SocketAddr;

/// A command cannot do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// A command needs a running node and there is none.
    #[error("no exo node is running on the data folder {data_dir}")]
    NoNode {
        /// Where we looked.
        data_dir: String,
    },
    /// A node runs and says nothing.
    #[error("the exo node on the data folder {data_dir}{} does not answer{}", .pid.map(|p| format!(" (process {p})")).unwrap_or_default(), .seconds.map(|s| format!(" within {s} s")).unwrap_or_else(|| ": it has not opened its API yet".to_owned()))]
    NodeSilent {
        /// Its data folder.
        data_dir: String,
        /// Its process, if that is known.
        pid: Option<u32>,
        /// As long as it was waited for; not at all where it has no API yet.
        seconds: Option<u64>,
    },
    /// A node was there, and does not answer what it was asked.
    #[error("the exo node at {address} has not answered within {seconds} s")]
    NoAnswer {
        /// Where its API is.
        address: SocketAddr,
        /// As long as it was waited for.
        seconds: u64,
    },
    /// A node would run out of files and connections at once.
    #[error("this process may have {limit} files and connections open at once, and a node needs {min}")]
    FewFiles {
        /// So many.
        limit: u64,
        /// So many it needs.
        min: u64,
    },
    /// A model that is to be fetched first.
    #[error("`{reference}` is not here, and `exo plan` fetches nothing")]
    NotFetched {
        /// What was asked for.
        reference: String,
    },
    /// A file of settings has a name that is none.
    #[error("{file}: `{name}` is not a setting; {} {known}", there_are(.meant.as_deref()))]
    UnknownSetting {
        /// Which file.
        file: String,
        /// Which name.
        name: String,
        /// The one that may have been meant.
        meant: Option<String>,
        /// Those that are.
        known: String,
    },
    /// A setting has a value that it cannot have.
    #[error("setting `{name}` is `{value}` (from {from}): {reason}")]
    BadSetting {
        /// The name.
        name: String,
        /// What it is.
        value: String,
        /// Flag, variable or file.
        from: String,
        /// Why it cannot be.
        reason: String,
        /// Of the error that refused it, if that has one.
        code: Option<&'static str>,
    },
    /// A device beside the backend that is one.
    #[error("setting `device` is `{value}` (from {from}), but the backend is cpu, which is one device")]
    DeviceOfProcessor {
        /// What it is.
        value: String,
        /// Flag, variable or file.
        from: String,
    },
    /// `--backend` names one that shows nothing.
    #[error("{backend} shows no graphics processor: {why}")]
    NothingShown {
        /// The backend.
        backend: String,
        /// Why it shows none.
        why: String,
    },
    /// `--device` names none that is there.
    #[error("no device that is shown is called `{which}` or stands there; there is: {there}")]
    NoSuchDevice {
        /// The name that was given.
        which: String,
        /// What there is.
        there: String,
    },
    /// A driver took a child along.
    #[error("{device}: something, most likely its driver, ended the process that computed on it ({how})")]
    DriverEnded {
        /// What it computed on.
        device: String,
        /// How the process ended.
        how: String,
    },
}

impl CommandError {
    /// Stable, for whoever chooses by it.
    pub fn code(&self) -> &str {
        match self {
            Self::NoNode { .. } => "no_node",
            Self::NodeSilent { .. } | Self::NoAnswer { .. } => "node_silent",
            Self::UnknownSetting { .. } => "setting_unknown",
            Self::BadSetting { code: Some(code), .. } => code,
            Self::BadSetting { name, .. } if name == "memory_mib" => "setting_memory_mib",
            Self::BadSetting { .. } => "setting_bad",
            Self::DeviceOfProcessor { .. } => "device_of_processor",
            Self::FewFiles { .. } => "too_many_files",
            Self::NotFetched { .. } => "model_not_fetched",
            Self::NothingShown { .. } => "accelerator_not_there",
            Self::NoSuchDevice { .. } => "device_not_shown",
            Self::DriverEnded { .. } => "driver_ended_process",
        }
    }
}

fn there_are(meant: Option<&str>) -> String {
    match meant {
        Some(meant) => format!("did you mean `{meant}`? There are:"),
        None => "there are:".to_owned(),
    }
}

/// A download failed at the node, in its words.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct PullFailed {
    pub message: String,
    pub hint: Option<String>,
}
