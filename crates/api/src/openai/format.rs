//! What an answer must be: `response_format` and the extension `grammar`, from field to [`AnswerFormat`].

use serde_json::Value;

use crate::fields::{BadParam, Fields};
use crate::generate::AnswerFormat;
use crate::request::{check_source_len, json_schema};

/// Reads both fields, of which at most one may ask for something.
pub fn take_format(fields: &mut Fields) -> Result<AnswerFormat, BadParam> {
    let format = match fields.take_value("response_format") {
        Some(value) => response_format(value)?,
        None => AnswerFormat::Text,
    };
    let Some(grammar) = fields.take_value("grammar") else { return Ok(format) };
    if format != AnswerFormat::Text {
        let message = "`grammar` and `response_format` both say what the answer must be: send one of them";
        return Err(BadParam::invalid("grammar", message));
    }
    self::grammar(grammar)
}

fn response_format(value: Value) -> Result<AnswerFormat, BadParam> {
    const NAME: &str = "response_format";
    let mut fields = Fields::new(value, NAME)?;
    let kind: String = fields.take_required("type", "a string")?;
    let format = match kind.as_str() {
        "text" => AnswerFormat::Text,
        "json_object" => AnswerFormat::JsonObject,
        "json_schema" => {
            let inner = fields
                .take_value("json_schema")
                .ok_or_else(|| BadParam::missing("response_format.json_schema"))?;
            let mut inner = Fields::new(inner, "response_format.json_schema")?;
            for hint in ["name", "description"] {
                let _: Option<String> = inner.take(hint, "a string")?;
            }
            let _: Option<bool> = inner.take("strict", "true or false")?;
            let name = inner.name("schema");
            let schema = inner.take_value("schema").ok_or_else(|| BadParam::missing(&name))?;
            inner.finish()?;
            json_schema(&name, schema)?
        }
        other => {
            let message = format!("unknown format `{other:.40}`: use text, json_object or json_schema");
            return Err(BadParam::invalid(fields.name("type"), message));
        }
    };
    fields.finish()?;
    Ok(format)
}

fn grammar(value: Value) -> Result<AnswerFormat, BadParam> {
    let mut fields = Fields::new(value, "grammar")?;
    let regex: Option<String> = fields.take("regex", "a string")?;
    let lark: Option<String> = fields.take("lark", "a string")?;
    fields.finish()?;
    let (name, format) = match (regex, lark) {
        (Some(regex), None) => ("grammar.regex", AnswerFormat::Regex(regex)),
        (None, Some(lark)) => ("grammar.lark", AnswerFormat::Lark(lark)),
        _ => return Err(BadParam::invalid("grammar", "`grammar` must hold either `regex` or `lark`")),
    };
    if let AnswerFormat::Regex(text) | AnswerFormat::Lark(text) = &format {
        check_source_len(name, text.len())?;
        if text.trim().is_empty() {
            return Err(BadParam::invalid(name, format!("`{name}` is empty")));
        }
    }
    Ok(format)
}
