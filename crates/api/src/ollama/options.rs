//! `options`: how tokens are chosen, where an answer ends, how much it may need.

use serde_json::Value;

use crate::fields::{BadParam, Fields, whole_number};
use crate::request::{SamplingFields, check_stops, token_bound, window};
use crate::table::{OLLAMA_GENERATE, Table};

/// What stands in for what is left out, as in this dialect; penalties are off.
const TEMPERATURE: f32 = 0.8;
const TOP_K: i64 = 40;
const TOP_P: f32 = 0.9;
const REPEAT_LAST_N: u32 = 64;

/// What they come to.
#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    pub sampling: SamplingFields,
    pub stop: Vec<String>,
    pub max_tokens: Option<u32>,
    /// The context that is asked for.
    pub context_tokens: Option<u32>,
}

/// Reads them out of the body.
pub fn take_options(body: &mut Fields, table: Table) -> Result<Options, BadParam> {
    let options = body.take_value("options").unwrap_or_else(|| Value::Object(serde_json::Map::new()));
    let mut fields = Fields::new(options, "options")?;
    let repetition_penalty: Option<f32> = fields.take("repeat_penalty", "a number")?;
    let presence_penalty: Option<f32> = fields.take("presence_penalty", "a number")?;
    let frequency_penalty: Option<f32> = fields.take("frequency_penalty", "a number")?;
    let last_n: Option<i64> = fields.take("repeat_last_n", "a whole number")?;
    // 0 turns penalties off, and -1 is the whole text.
    let (is_on, penalty_window) = match last_n {
        None => (true, REPEAT_LAST_N),
        Some(-1) => (true, 0),
        Some(0) => (false, 0),
        Some(n) => (true, window("options.repeat_last_n", n)?),
    };
    let sampling = SamplingFields {
        temperature: Some(fields.take("temperature", "a number")?.unwrap_or(TEMPERATURE)),
        top_k: Some(fields.take("top_k", "a whole number")?.unwrap_or(TOP_K)),
        top_p: Some(fields.take("top_p", "a number")?.unwrap_or(TOP_P)),
        min_p: fields.take("min_p", "a number")?,
        typical_p: fields.take("typical_p", "a number")?,
        repetition_penalty_window: Some(penalty_window),
        repetition_penalty: repetition_penalty.filter(|_| is_on),
        presence_penalty: presence_penalty.filter(|_| is_on),
        frequency_penalty: frequency_penalty.filter(|_| is_on),
        logit_bias: None,
        seed: fields.take("seed", "a whole number below 2^63")?.filter(|seed: &i64| *seed >= 0),
    };
    let max_tokens = match fields.take_value("num_predict") {
        // Without end, and until the context is full: the context ends it in both.
        Some(value) if matches!(whole_number(&value), Some(-1 | -2)) => None,
        value => token_bound("options.num_predict", value)?,
    };
    let context_tokens = token_bound("options.num_ctx", fields.take_value("num_ctx"))?;
    let stop = match fields.take_value("stop") {
        None => Vec::new(),
        Some(Value::String(one)) => vec![one],
        Some(many) => serde_json::from_value(many).map_err(|_| {
            BadParam::invalid("options.stop", "`options.stop` must be a string or an array of strings")
        })?,
    };
    let stop = check_stops("options.stop", stop)?;
    table.check(&mut fields, "options.")?;
    fields.finish()?;
    Ok(Options { sampling, stop, max_tokens, context_tokens })
}

/// Of the options of a request that only reads, the context that is asked for: all others are about generated
/// tokens.
pub fn take_context(body: &mut Fields, table: Table) -> Result<Option<u32>, BadParam> {
    let Some(options) = body.take_value("options") else { return Ok(None) };
    let mut fields = Fields::new(options, "options")?;
    let context_tokens = token_bound("options.num_ctx", fields.take_value("num_ctx"))?;
    table.check(&mut fields, "options.")?;
    for option in OLLAMA_GENERATE.all().filter_map(|field| field.path.strip_prefix("options.")) {
        fields.take_value(option);
    }
    fields.finish()?;
    Ok(context_tokens)
}

/// A complaint about a parameter of the sampler, by the name that it has here.
pub fn named_here(bad: BadParam) -> BadParam {
    let here = match bad.param.as_str() {
        "top_logprobs" => return bad,
        "repetition_penalty" => "options.repeat_penalty".to_owned(),
        other => format!("options.{other}"),
    };
    let message = bad.message.replace(&format!("`{}`", bad.param), &format!("`{here}`"));
    BadParam { param: here, message, ..bad }
}
