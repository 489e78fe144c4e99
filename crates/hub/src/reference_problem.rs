//! What is wrong with a text that should name a model.

#![allow(missing_docs)] // the messages say what the fields are

/// Why a text is no reference, and what would be one. Texts in it are cut short and made safe to show.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReferenceProblem {
    #[error("it has {bytes} bytes, 1 to {bytes_max} are allowed")]
    Length { bytes: usize, bytes_max: usize },
    #[error(
        "expected hf.co/ORG/REPO, hf.co/ORG/REPO:QUANTISATION, hf.co/ORG/REPO@REVISION, NAME:TAG of Ollama's registry, oci://HOST/NAME:TAG, https://… or a path"
    )]
    NoForm,
    #[error("a registry's model is oci://HOST/NAME:TAG")]
    NoRegistryName,
    #[error("an address needs a host, and no user name in it")]
    AddressHost,
    /// An address of another kind of file.
    #[error(
        "an address must end in the name of a .gguf file; safetensors come from a repository, as in hf.co/ORG/REPO"
    )]
    AddressFile,
    #[error("this page of the hub is neither a model nor a file of one")]
    OtherPage,
    #[error("{0}")]
    File(&'static str),
    #[error("a repository is ORG/REPO, two names; this has {parts}")]
    RepositoryParts { parts: usize },
    #[error("`{name}`: {refusal}")]
    Repository { name: String, refusal: &'static str },
    #[error("`{0}` cannot be the host of a registry")]
    RegistryHost(String),
    #[error("`{0}` cannot be a name of a registry's model, as qwen3:8b is one")]
    RegistryName(String),
    #[error("`{0}` cannot be a tag")]
    Tag(String),
    #[error("`{0}` cannot be a digest, sha256: and 64 digits")]
    Digest(String),
    #[error("`{0}` cannot be a revision: a branch, a tag or a commit")]
    Revision(String),
    #[error("`{0}` cannot be a quantisation, as Q4_K_M is one")]
    Quantisation(String),
    #[error("it makes no address")]
    NoAddress,
    #[error("it is a path, and there is nothing to fetch")]
    Path,
}
