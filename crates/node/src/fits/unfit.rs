//! Why no machines hold a model.

use exo_planner::PlanError;

use super::{SizedModel, sentences};

/// Why machines could not hold a model, also with nothing beside it.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say what the fields are
pub enum Unfit {
    #[error("as {quantisation} it has {}, and no devices hold it in pieces", gib(.download_bytes))]
    NoPieces { quantisation: String, download_bytes: u64 },
    #[error("as {quantisation} it has {}, and {} of memory are missing", gib(.download_bytes), gib(.missing_bytes))]
    Missing { quantisation: String, download_bytes: u64, missing_bytes: u64 },
    #[error(
        "as {quantisation} it has {}, and {}{}", gib(.download_bytes), .disks.join("; "),
        .change.as_ref().map_or_else(String::new, |change| format!("; it would fit with {change}"))
    )]
    Disks { quantisation: String, download_bytes: u64, disks: Vec<String>, change: Option<String> },
    #[error(transparent)]
    Plan(#[from] PlanError),
}

impl Unfit {
    /// By so many bytes; by none where there is the memory, and not in pieces that its layers fit in.
    pub fn of(model: &SizedModel, missing_bytes: u64) -> Self {
        let (quantisation, download_bytes) = (model.quantisation.clone(), model.download_bytes);
        match missing_bytes {
            0 => Self::NoPieces { quantisation, download_bytes },
            _ => Self::Missing { quantisation, download_bytes, missing_bytes },
        }
    }

    /// By what disks leave of the file.
    pub fn of_disks(model: &SizedModel, disks: Vec<String>, change: Option<String>) -> Self {
        let (quantisation, download_bytes) = (model.quantisation.clone(), model.download_bytes);
        Self::Disks { quantisation, download_bytes, disks, change }
    }
}

fn gib(bytes: &u64) -> String {
    sentences::gib(*bytes)
}
