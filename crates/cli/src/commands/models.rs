//! `exo models`: what can be run, adding and forgetting.

use std::path::Path;

use anyhow::Context;
use exo_api::ModelView;

use super::running;
use crate::args::{Json, ModelsAction};
use crate::client::Client;
use crate::config::Config;
use crate::ui;

/// Lists, adds or removes.
pub async fn run(config: &Config, action: Option<ModelsAction>, json: Json) -> anyhow::Result<()> {
    let client = running(config).await?;
    match action {
        None => list(&client, json).await,
        Some(ModelsAction::Add { path }) => {
            let model = add(&client, &path).await?;
            ui::line(format!(
                "added {} ({}, {})",
                model.name,
                model.architecture,
                ui::bytes(model.weight_bytes)
            ));
            Ok(())
        }
        Some(ModelsAction::Remove { model }) => {
            client.delete(&format!("/exo/v1/models/{}", segment(&model))).await?;
            ui::line(format!("forgot {model}"));
            Ok(())
        }
    }
}

/// Makes a file or folder known to the node.
pub async fn add(client: &Client, path: &Path) -> anyhow::Result<ModelView> {
    let path = path.canonicalize().with_context(|| format!("cannot find {}", path.display()))?;
    let spinner = ui::spinner();
    spinner.set_message(format!("reading {}", path.display()));
    let model = client.post("/exo/v1/models", &serde_json::json!({"path": path.to_string_lossy()})).await;
    spinner.finish_and_clear();
    model
}

/// The name of a model the node knows: `model` itself, or after adding it if it is a path.
pub async fn resolve(client: &Client, model: &str) -> anyhow::Result<String> {
    let path = Path::new(model);
    let looks_like_path = model.contains(std::path::MAIN_SEPARATOR) || model.ends_with(".gguf");
    if looks_like_path || (path.exists() && !is_known(client, model).await?) {
        return Ok(add(client, path).await?.name);
    }
    Ok(model.to_owned())
}

async fn is_known(client: &Client, name: &str) -> anyhow::Result<bool> {
    let models: Vec<ModelView> = client.get("/exo/v1/models").await?;
    Ok(models.iter().any(|m| m.name == name || m.id.starts_with(name)))
}

async fn list(client: &Client, json: Json) -> anyhow::Result<()> {
    let models: Vec<ModelView> = client.get("/exo/v1/models").await?;
    if json.json {
        return ui::json(&models);
    }
    let rows = models
        .iter()
        .map(|m| {
            let types: Vec<_> = m.dtypes.keys().cloned().collect();
            let layers = m.layers.to_string();
            let state = if m.instances.is_empty() { "-".to_owned() } else { m.instances.join(", ") };
            vec![
                m.name.clone(),
                m.architecture.clone(),
                types.join(" "),
                ui::bytes(m.weight_bytes),
                layers,
                m.nodes.join(", "),
                state,
            ]
        })
        .collect();
    ui::table(&["model", "architecture", "types", "size", "layers", "on", "instances"], rows);
    Ok(())
}

/// A text as one segment of a URL path.
pub fn segment(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(byte as char),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_name_with_slashes_is_one_segment() {
        assert_eq!(super::segment("a/b c"), "a%2Fb%20c");
    }
}
