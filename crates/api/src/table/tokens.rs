//! Fields of `/tokenize`, `/detokenize` and `/apply-template`.

use super::Treatment::{Honoured, Refused};
use super::{Field, Table};

/// `POST /tokenize`
pub const TOKENIZE: Table = Table { endpoint: "POST /tokenize", fields: [TOKENIZE_FIELDS, TEMPLATE_FIELDS] };
/// `POST /detokenize`
pub const DETOKENIZE: Table = Table { endpoint: "POST /detokenize", fields: [DETOKENIZE_FIELDS, &[]] };
/// `POST /apply-template`
pub const APPLY_TEMPLATE: Table = Table { endpoint: "POST /apply-template", fields: [TEMPLATE_FIELDS, &[]] };

const MODEL: &str = "name or id of a model; left out, it is the one that is placed, if there is one";

const TOKENIZE_FIELDS: &[Field] = fields! {
    "content": Honoured, "llama.cpp's: a string";
    "add_special": Honoured, "with `content`: the model's own start and end tokens; default false";
    "parse_special": Honoured, "with `content`: control tokens in the text are those tokens; default true";
    "with_pieces": Honoured, "with `content`: each token's text; of at most 65,536 tokens";
    "prompt": Honoured, "vLLM's: a string";
    "add_special_tokens": Honoured,
        "with `prompt`: default true; with `messages` only false, as the template writes them";
    "return_token_strs": Honoured, "with `prompt` or `messages`: each token's text; of at most 65,536 tokens";
};

const DETOKENIZE_FIELDS: &[Field] = fields! {
    "model": Honoured, MODEL;
    "tokens": Honoured, "ids, at most 1,048,576; control tokens become their names";
};

const TEMPLATE_FIELDS: &[Field] = fields! {
    "model": Honoured, MODEL;
    "messages": Honoured, "as in `/v1/chat/completions`";
    "tools": Honoured, "with `messages`, as in `/v1/chat/completions`";
    "tool_choice": Honoured, "the same; with `none`, too, the template is told of the tools";
    "parallel_tool_calls": Honoured, "the same; the prompt is the same for both";
    "reasoning_effort": Honoured, "the same";
    "add_generation_prompt": Honoured, "with `messages`: the answer's opening at the end; default true";
    "continue_final_message": Refused(&["false"]), "no template here continues a message";
    "chat_template": Refused(&[]), "the model's own is used";
    "chat_template_kwargs": Refused(&["{}"]), "`reasoning_effort` says whether to think";
    "mm_processor_kwargs": Refused(&["{}"]), "models here read text";
};
