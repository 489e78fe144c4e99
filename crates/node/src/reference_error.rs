//! Why a reference to a model of a hub could not be looked at.

use exo_formats::OpenError;
use exo_hub::HubError;
use exo_store::NoRoom;

/// Why a reference could not be looked at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the fields are
pub enum ReferenceError {
    #[error(transparent)]
    Hub(#[from] HubError),
    #[error(
        "`{0}` is neither a model that is known here, nor a name of the catalogue, nor a repository of a hub, as in hf.co/ORG/REPO"
    )]
    Unknown(String),
    #[error("the description of {file} is larger than the {bytes_max} bytes that are read for it")]
    TooLarge { file: String, bytes_max: u64 },
    #[error("{reference} does not fit these machines: {summary}; nothing of it was fetched")]
    DoesNotFit { reference: String, summary: String },
    #[error("cannot read what {reference} is")]
    Open { reference: String, source: Box<OpenError> },
    /// It was to take the place of a model that has none any more.
    #[error("the model that this updates is not here any more, or another commit has taken its place")]
    Superseded,
    /// The disk has no room for it.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    #[error("cannot write the outline of the model to {folder}")]
    Disk { folder: String, source: std::io::Error },
}

impl ReferenceError {
    /// What would help.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Hub(error) => error.hint(),
            Self::NoRoom(error) => Some(error.hint()),
            Self::DoesNotFit { .. } => Some(
                "`exo fits` with the same name says what would make it fit; `exo pull` fetches it all the same",
            ),
            Self::Superseded => {
                Some("`exo update` looks again; `exo pulls cancel` takes this one from the list")
            }
            _ => None,
        }
    }
}
