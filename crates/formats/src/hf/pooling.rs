//! How Sentence Transformers folders say that rows become one vector: `modules.json` names the steps, and a
//! folder below has the numbers of the pooling.

use std::path::PathBuf;

use exo_types::Pooling;
use serde_json::Value;

use super::contained::Contained;
use super::json;
use crate::OpenError;

pub(super) const MODULES: &str = "modules.json";
const BYTES_MAX: u64 = 64 << 10;
const FOLDER_BYTES_MAX: usize = 64;

/// What a folder says of pooling, and the files that say it: names of one part, as models' files have, and
/// where they are.
#[derive(Default)]
pub(super) struct FoundPooling {
    pub(super) pooling: Option<Pooling>,
    pub(super) files: Vec<(String, PathBuf)>,
}

/// Reads what the folder says. Nothing is known of steps that are not understood, as all of them make the
/// vector.
pub(super) fn read(contained: &Contained<'_>) -> Result<FoundPooling, OpenError> {
    let document = |path: &PathBuf| -> Result<Option<Value>, OpenError> {
        let bytes = json::read_bytes(path, BYTES_MAX)?;
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    };
    let modules_path = contained.path(MODULES)?;
    let modules = document(&modules_path)?;
    let Some(folder) = modules.as_ref().and_then(pooling_folder) else { return Ok(FoundPooling::default()) };
    let below = contained.path(&format!("{folder}/config.json"))?;
    // In copies of the model, which have no folders, it stands beside the others.
    let name = format!("{folder}.config.json");
    for path in [below, contained.path(&name)?] {
        if let Some(config) = document(&path)? {
            let files = vec![(MODULES.to_owned(), modules_path), (name, path)];
            return Ok(FoundPooling { pooling: pooling_of(&config), files });
        }
    }
    Ok(FoundPooling::default())
}

/// The folder of the pooling, where the steps are the model, a pooling and at most scaling to length 1, which
/// all vectors are.
fn pooling_folder(modules: &Value) -> Option<&str> {
    let steps = modules.as_array()?;
    let kind = |step: &Value| step.get("type")?.as_str()?.rsplit('.').next().map(str::to_owned);
    let kinds: Vec<String> = steps.iter().map(kind).collect::<Option<_>>()?;
    let kinds: Vec<&str> = kinds.iter().map(String::as_str).collect();
    let (["Transformer", "Pooling"] | ["Transformer", "Pooling", "Normalize"]) = kinds.as_slice() else {
        return None;
    };
    let folder = steps[1].get("path")?.as_str()?;
    let is_plain = folder.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
    (is_plain && (1..=FOLDER_BYTES_MAX).contains(&folder.len())).then_some(folder)
}

/// One way of pooling. Several at once would be a longer vector.
fn pooling_of(config: &Value) -> Option<Pooling> {
    let named = match config.get("pooling_mode").and_then(Value::as_str) {
        Some(name) => vec![name],
        None => {
            let modes = config.as_object()?.iter().filter(|(_, is_on)| **is_on == Value::Bool(true));
            modes.filter_map(|(key, _)| key.strip_prefix("pooling_mode_")).collect()
        }
    };
    match named.as_slice() {
        ["mean" | "mean_tokens"] => Some(Pooling::Mean),
        ["cls" | "cls_token"] => Some(Pooling::First),
        ["lasttoken"] => Some(Pooling::Last),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn one_way_of_pooling_is_read_in_both_spellings() {
        let mode = |on: &[&str]| {
            let mut config = json!({"word_embedding_dimension": 64, "include_prompt": true});
            for mode in ["cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "lasttoken"] {
                config[format!("pooling_mode_{mode}")] = json!(on.contains(&mode));
            }
            pooling_of(&config)
        };
        assert_eq!(mode(&["lasttoken"]), Some(Pooling::Last));
        assert_eq!(mode(&["mean_tokens"]), Some(Pooling::Mean));
        assert_eq!(mode(&["cls_token"]), Some(Pooling::First));
        assert_eq!(
            (mode(&["max_tokens"]), mode(&["cls_token", "mean_tokens"]), mode(&[])),
            (None, None, None)
        );
        assert_eq!(
            pooling_of(&json!({"embedding_dimension": 64, "pooling_mode": "mean"})),
            Some(Pooling::Mean)
        );
        assert_eq!(pooling_of(&json!({"pooling_mode": ["mean", "max"]})), None);
    }

    #[test]
    fn steps_that_make_another_vector_say_nothing_of_pooling() {
        let steps = |kinds: &[&str], path: &str| {
            let step =
                |kind: &&str| json!({"path": path, "type": format!("sentence_transformers.models.{kind}")});
            pooling_folder(&kinds.iter().map(step).collect()).map(str::to_owned)
        };
        let usual = ["Transformer", "Pooling", "Normalize"];
        assert_eq!(steps(&usual, "1_Pooling"), Some("1_Pooling".to_owned()));
        assert_eq!(steps(&usual[..2], "1_Pooling"), Some("1_Pooling".to_owned()));
        for path in ["", "..", "a/b", "/etc", "a\\b", "C:", &"a".repeat(65)] {
            assert_eq!(steps(&usual, path), None, "{path}");
        }
        assert_eq!(steps(&["Transformer", "Pooling", "Dense", "Normalize"], "1_Pooling"), None);
        assert_eq!((steps(&usual[..1], "x"), pooling_folder(&json!({}))), (None, None));
    }
}
