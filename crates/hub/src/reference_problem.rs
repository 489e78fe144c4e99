//! What is wrong with a text that should name a model.

/// Why a text is no reference, and what would be one. Texts in it are cut short and made safe to show.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReferenceProblem {
    /// It is empty or far too long.
    #[error("it has {bytes} bytes, 1 to {bytes_max} are allowed")]
    Length {
        /// Its length.
        bytes: usize,
        /// The bound.
        bytes_max: usize,
    },
    /// It has none of the forms.
    #[error(
        "expected hf.co/ORG/REPO, hf.co/ORG/REPO:QUANTISATION, hf.co/ORG/REPO@REVISION, NAME:TAG of Ollama's registry, oci://HOST/NAME:TAG, https://… or a path"
    )]
    NoForm,
    /// `oci://` without a name.
    #[error("a registry's model is oci://HOST/NAME:TAG")]
    NoRegistryName,
    /// An address without a host, or with a user.
    #[error("an address needs a host, and no user name in it")]
    AddressHost,
    /// An address of another kind of file.
    #[error(
        "an address must end in the name of a .gguf file; safetensors come from a repository, as in hf.co/ORG/REPO"
    )]
    AddressFile,
    /// A page of the hub about something else.
    #[error("this page of the hub is neither a model nor a file of one")]
    OtherPage,
    /// A file that may not be fetched.
    #[error("{0}")]
    File(&'static str),
    /// Not `ORG/REPO`.
    #[error("a repository is ORG/REPO, two names; this has {parts}")]
    RepositoryParts {
        /// How many it has.
        parts: usize,
    },
    /// No name of a repository.
    #[error("`{name}`: {refusal}")]
    Repository {
        /// What was typed.
        name: String,
        /// What is wrong with it.
        refusal: &'static str,
    },
    /// No host of a registry.
    #[error("`{0}` cannot be the host of a registry")]
    RegistryHost(String),
    /// No name of a model in a registry.
    #[error("`{0}` cannot be a name of a registry's model, as qwen3:8b is one")]
    RegistryName(String),
    /// No tag of a registry.
    #[error("`{0}` cannot be a tag")]
    Tag(String),
    /// No digest of a registry.
    #[error("`{0}` cannot be a digest, sha256: and 64 digits")]
    Digest(String),
    /// No revision of a repository.
    #[error("`{0}` cannot be a revision: a branch, a tag or a commit")]
    Revision(String),
    /// No quantisation.
    #[error("`{0}` cannot be a quantisation, as Q4_K_M is one")]
    Quantisation(String),
    /// It cannot be made a part of an address.
    #[error("it makes no address")]
    NoAddress,
    /// It is on this disk already.
    #[error("it is a path, and there is nothing to fetch")]
    Path,
}
