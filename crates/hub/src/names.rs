//! Which names of a hub may become names here, and which files are ever fetched.

use std::path::PathBuf;

use exo_types::file_name_refusal;

/// The first characters of a commit by which a person may name it.
pub(crate) const COMMIT_CHARS_MIN: usize = 7;
/// Folders beside those of a hub's organisations.
pub(crate) const REGISTRIES: &str = "registries";
pub(crate) const ADDRESSES: &str = "addresses";
const PATH_BYTES_MAX: usize = 500;
const REPO_PART_BYTES_MAX: usize = 96;
/// Weights without code in them, JSON, templates and text. Nothing else is ever fetched: no pickles, no
/// scripts.
const EXTENSIONS: [&str; 6] = ["gguf", "safetensors", "json", "jinja", "txt", "md"];

/// Why a path of a repository cannot be fetched; `None` if it can.
pub(crate) fn refusal(path: &str) -> Option<&'static str> {
    if path.len() > PATH_BYTES_MAX {
        return Some("its name is longer than 500 bytes");
    }
    if let Some(reason) = path.split('/').find_map(file_name_refusal) {
        return Some(reason);
    }
    (!is_fetchable(path)).then_some("only GGUF, safetensors, JSON, templates and text are fetched")
}

/// Whether a file is of a kind that is ever fetched.
pub(crate) fn is_fetchable(path: &str) -> bool {
    let name = file_name(path).to_ascii_lowercase();
    let extension = name.rsplit_once('.').map(|(_, extension)| extension);
    match extension {
        Some(extension) => EXTENSIONS.contains(&extension),
        None => is_licence(&name),
    }
}

/// `LICENSE`, `LICENCE.txt`, `USE_POLICY.md` and the like.
pub(crate) fn is_licence(path: &str) -> bool {
    let name = path.to_ascii_lowercase();
    let stem = name.split('.').next().unwrap_or_default();
    !name.contains('/') && matches!(stem, "license" | "licence" | "notice" | "use_policy" | "copying")
}

/// The last component of a path of a repository.
pub(crate) fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// A path of a repository as a path here, below some folder. Only for one that [`refusal`] let through.
pub(crate) fn relative(path: &str) -> PathBuf {
    path.split('/').collect()
}

/// A name for the folder of a model of this label: the label itself, or where it can be none, as
/// `My Model (1)`, its hash.
pub(crate) fn folder_name(label: &str) -> String {
    match repo_part_refusal(label) {
        None => label.to_owned(),
        Some(_) => blake3::hash(label.as_bytes()).to_hex()[..16].to_owned(),
    }
}

/// Why a text cannot be the organisation or the name of a repository.
pub(crate) fn repo_part_refusal(part: &str) -> Option<&'static str> {
    match part {
        "" => Some("a part of it is empty"),
        _ if part.len() > REPO_PART_BYTES_MAX => Some("a part of it is longer than 96 bytes"),
        _ if !part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)) => {
            Some("only letters, digits, `-`, `_` and `.` are allowed in it")
        }
        _ if part.contains("..") || part.contains("--") => Some("`..` and `--` are not allowed in it"),
        _ => file_name_refusal(part),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_weights_json_templates_and_text_are_fetched() {
        for good in [
            "a.gguf",
            "sub/b-00001-of-00002.gguf",
            "model.safetensors",
            "config.json",
            "LICENSE",
            "x/chat.jinja",
        ] {
            assert_eq!(refusal(good), None, "{good}");
        }
        for bad in [
            "pytorch_model.bin",
            "model.pt",
            "x.pkl",
            "modeling.py",
            "run.sh",
            "weights",
            "a.gguf.exe",
            "tokenizer.model",
        ] {
            assert!(refusal(bad).is_some_and(|why| why.starts_with("only GGUF")), "{bad}");
        }
    }

    #[test]
    fn a_name_that_leads_out_of_its_folder_is_refused() {
        for bad in [
            "../a.gguf",
            "a/../../b.gguf",
            "/a.gguf",
            "a//b.gguf",
            "a\\..\\b.gguf",
            "C:a.gguf",
            ".a.gguf",
            "a./b.gguf",
            "nul.gguf",
            "a\u{202E}.gguf",
            "a\n.gguf",
            "./a.gguf",
        ] {
            assert!(refusal(bad).is_some(), "{bad:?}");
        }
        assert!(refusal(&format!("{}.gguf", "a/".repeat(300))).is_some());
    }
}
