//! `exo config`: every setting, its value, and where that came from; and which a node would refuse.

use crate::api_keys;
use crate::args::Json;
use crate::config::{Config, default_file};
use crate::{environment, run_node, ui};

/// Prints the settings, and fails where `exo start` would for one of them.
pub fn run(config: &Config, json: Json) -> anyhow::Result<()> {
    environment::warn_of_unknown();
    show(config, json)?;
    run_node::check_settings(config)
}

fn show(config: &Config, json: Json) -> anyhow::Result<()> {
    if json.json {
        let all: serde_json::Map<_, _> = config
            .entries()
            .map(|(key, value)| {
                let entry = serde_json::json!({"value": shown(config, key.name, &value.text), "source": value.source.to_string()});
                (key.name.to_owned(), entry)
            })
            .collect();
        return ui::json(&all);
    }
    let rows = config
        .entries()
        .map(|(key, value)| {
            let text = shown(config, key.name, &value.text);
            vec![key.name.to_owned(), text, value.source.to_string(), key.help.to_owned()]
        })
        .collect();
    ui::table(&["setting", "value", "from", "what it is"], rows);
    ui::line(format!("file: {}", default_file()?.display()));
    Ok(())
}

/// Keys are secrets: only their number is shown, and whose they are.
fn shown(config: &Config, name: &str, text: &str) -> String {
    if name == "api_keys" && !config.api_keys().is_empty() {
        return format!("({})", api_keys::summary(config.api_keys()));
    }
    text.to_owned()
}
