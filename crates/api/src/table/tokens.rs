//! Fields of `/tokenize`, `/detokenize` and `/apply-template`.

use super::Treatment::{Honoured, Refused};
use super::{Field, Table, field};

/// `POST /tokenize`
pub const TOKENIZE: Table = Table { endpoint: "POST /tokenize", fields: [TOKENIZE_FIELDS, TEMPLATE_FIELDS] };
/// `POST /detokenize`
pub const DETOKENIZE: Table = Table { endpoint: "POST /detokenize", fields: [DETOKENIZE_FIELDS, &[]] };
/// `POST /apply-template`
pub const APPLY_TEMPLATE: Table = Table { endpoint: "POST /apply-template", fields: [TEMPLATE_FIELDS, &[]] };

const MODEL: Field = field(
    "model",
    Honoured,
    "name or id of a model; left out, it is the one that is placed, if there is one",
);

const TOKENIZE_FIELDS: &[Field] = &[
    field("content", Honoured, "llama.cpp's: a string"),
    field("add_special", Honoured, "with `content`: the model's own start and end tokens; default false"),
    field(
        "parse_special",
        Honoured,
        "with `content`: control tokens in the text are those tokens; default true",
    ),
    field("with_pieces", Honoured, "with `content`: each token's text; of at most 65,536 tokens"),
    field("prompt", Honoured, "vLLM's: a string"),
    field(
        "add_special_tokens",
        Honoured,
        "with `prompt`: default true; with `messages` only false, as the template writes them",
    ),
    field(
        "return_token_strs",
        Honoured,
        "with `prompt` or `messages`: each token's text; of at most 65,536 tokens",
    ),
];

const DETOKENIZE_FIELDS: &[Field] =
    &[MODEL, field("tokens", Honoured, "ids, at most 1,048,576; control tokens become their names")];

const TEMPLATE_FIELDS: &[Field] = &[
    MODEL,
    field("messages", Honoured, "as in `/v1/chat/completions`"),
    field("tools", Honoured, "with `messages`, as in `/v1/chat/completions`"),
    field("tool_choice", Honoured, "the same; with `none`, too, the template is told of the tools"),
    field("parallel_tool_calls", Honoured, "the same; the prompt is the same for both"),
    field("reasoning_effort", Honoured, "the same"),
    field(
        "add_generation_prompt",
        Honoured,
        "with `messages`: the answer's opening at the end; default true",
    ),
    field("continue_final_message", Refused(&["false"]), "no template here continues a message"),
    field("chat_template", Refused(&[]), "the model's own is used"),
    field("chat_template_kwargs", Refused(&["{}"]), "`reasoning_effort` says whether to think"),
    field("mm_processor_kwargs", Refused(&["{}"]), "models here read text"),
];
