//! Fields of `/v1/responses`.

use super::Treatment::{Hint, Honoured, Refused};
use super::{Field, Table};

/// `POST /v1/responses` and `POST /v1/responses/input_tokens`
pub const RESPONSES: Table = Table {
    endpoint: "POST /v1/responses` and `POST /v1/responses/input_tokens",
    fields: [RESPONSES_FIELDS, &[]],
};

const CACHED: &str = "what was read before is found by itself";

const RESPONSES_FIELDS: &[Field] = fields! {
    "model": Honoured, "name or id of a model";
    "input": Honoured, "a string, or up to 16,384 items";
    "input[].type": Honoured,
        "message, function_call, function_call_output, reasoning; item_reference, of a response that this node keeps";
    "input[].role": Honoured, "user, assistant, system, developer";
    "input[].content": Honoured, "a string or parts; of a thought, its text";
    "input[].content[].type": Honoured, "input_text, output_text; of a thought, reasoning_text";
    "input[].content[].text": Honoured, "";
    "input[].content[].annotations": Hint, "";
    "input[].content[].logprobs": Hint, "";
    "input[].content[].prompt_cache_breakpoint": Hint, CACHED;
    "input[].call_id": Honoured, "of a call; of a result, a call before it";
    "input[].name": Honoured, "of a call: the tool";
    "input[].arguments": Honoured, "of a call: a JSON object as text";
    "input[].output": Honoured, "of a call's result: a string or parts";
    "input[].output[].type": Honoured, "only `input_text`";
    "input[].output[].text": Honoured, "";
    "input[].output[].prompt_cache_breakpoint": Hint, CACHED;
    "input[].summary": Honoured, "stands for a thought whose `content` is not there";
    "input[].summary[].type": Honoured, "only `summary_text`";
    "input[].summary[].text": Honoured, "";
    "input[].encrypted_content": Hint, "thoughts that another server encrypted are left out";
    "input[].id": Hint, "";
    "input[].status": Hint, "";
    "input[].phase": Hint, "";
    "input[].caller": Refused(&[r#"{"type": "direct"}"#]), "no code runs here";
    "input[].namespace": Refused(&[]), "there are no namespaces";
    "input[].async": Refused(&["false"]), "calls are answered in the next request";
    "instructions": Honoured, "not those of `previous_response_id`";
    "tools": Honoured, "at most 512; where the model's template has a form for calls that is recognised";
    "tools[].type": Honoured,
        "`function`; others are refused, or left out and named in `exo.left_out_tools` with the setting `leave_out_hosted_tools`";
    "tools[].name": Honoured, "1 to 128 letters, digits and `_-.`";
    "tools[].description": Honoured, "for the model";
    "tools[].parameters": Honoured, "arguments keep to it token by token, as far as it can be enforced";
    "tools[].strict": Honoured, "true: wholly, or the request is refused";
    "tools[].output_schema": Hint, "results are taken as they come";
    "tools[].defer_loading": Refused(&["false"]), "every tool is shown to the model";
    "tools[].allowed_callers": Refused(&[r#"["direct"]"#]), "no code runs here";
    "tools[].async": Refused(&["false"]), "calls are answered in the next request";
    "tool_choice": Honoured, "none, auto, required, a function, allowed_tools";
    "tool_choice.type": Honoured, "";
    "tool_choice.name": Honoured, "";
    "tool_choice.mode": Honoured, "";
    "tool_choice.tools": Honoured, "";
    "parallel_tool_calls": Honoured, "default true; false: one call at most";
    "text": Honoured, "";
    "text.format": Honoured, "kept to while the answer is made, never checked after it";
    "text.format.type": Honoured, "`text`, `json_object`, `json_schema`";
    "text.format.name": Hint, "";
    "text.format.description": Hint, "";
    "text.format.schema": Honoured, "whole, or refused by the place of what is not enforced";
    "text.format.strict": Hint, "every schema is enforced as if it were true";
    "text.verbosity": Refused(&[r#""medium""#]), "say it in the prompt";
    "reasoning": Honoured, "";
    "reasoning.effort": Honoured,
        "`medium` is what the model does by itself; others as `reasoning_effort` in chat";
    "reasoning.max_tokens": Honoured,
        "extension; most tokens of a thought, which is closed then; asks nothing of a model that does not reason";
    "reasoning.summary": Hint, "the whole thought is in the item's `content`";
    "reasoning.generate_summary": Hint, "the same";
    "reasoning.context": Refused(&[r#""auto""#]), "the model's template says what becomes of old thoughts";
    "reasoning.mode": Refused(&[r#""standard""#]), "there is one";
    "max_output_tokens": Honoured, "an upper bound; the context bounds it anyway";
    "temperature": Honoured, "0 to 2, default 1; 0 is greedy";
    "top_p": Honoured, "0 to 1";
    "top_k": Honoured, "extension; 0 and -1 keep all";
    "min_p": Honoured, "extension; 0 to 1";
    "typical_p": Honoured, "extension; 0 to 1";
    "repetition_penalty_window": Honoured, super::WINDOW;
    "repetition_penalty": Honoured, "extension; 0.01 to 10";
    "presence_penalty": Honoured, "extension; -2 to 2";
    "frequency_penalty": Honoured, "extension; -2 to 2";
    "logit_bias": Honoured, "extension; token ids of the vocabulary to -100 to 100, at most 1024";
    "seed": Honoured, "extension; the same seed, prompt and parameters give the same text";
    "top_logprobs": Honoured, "0 to 20; of the raw logits";
    "include": Honoured,
        "`message.output_text.logprobs`; thoughts come in clear, and what is of tools that do not run here asks for nothing";
    "stream": Honoured, "";
    "stream_options": Honoured, "";
    "stream_options.include_obfuscation": Refused(&["false"]), "nothing is padded";
    "store": Honoured,
        "default true: in the memory of the node that answers, for who asked, until others need the room";
    "previous_response_id": Honoured, "of an answer that this node keeps; else a 404";
    "metadata": Honoured, "at most 16 strings; the answer repeats it";
    "truncation": Honoured,
        "`disabled`, the default: what is too long is refused with both numbers; `auto`: whole turns go, the oldest first, and \
         `exo.left_out_messages` says how many messages";
    "background": Refused(&["false"]), "stream it";
    "background_options": Refused(&["{}"]), "stream it";
    "conversation": Refused(&[]), "send `previous_response_id` or the whole conversation";
    "context_management": Refused(&["[]"]), "nothing is left out of a conversation";
    "prompt": Refused(&[]), "no prompts are kept here: send the text";
    "moderation": Refused(&[]), "nothing is moderated";
    "image": Refused(&[]), "models here read text";
    "access_programs": Refused(&[]), "there are none";
    "max_tool_calls": Hint, "it bounds calls of tools that run at their vendor; there are none";
    "client_metadata": Hint, "";
    "user": Hint, "";
    "safety_identifier": Hint, "";
    "prompt_cache_key": Hint, CACHED;
    "prompt_cache_options": Hint, CACHED;
    "prompt_cache_retention": Hint, CACHED;
    "service_tier": Refused(&[r#""auto""#, r#""default""#]), "there is one";
};
