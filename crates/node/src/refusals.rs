//! Refusals of a part of a request.

use exo_api::{GenerateError, RequestPart};
use exo_constraint::{Compiler, Schema};
use serde_json::Value;

/// A part of the request does not go with the model.
pub fn invalid(part: RequestPart, message: String) -> GenerateError {
    GenerateError::Invalid { part, message }
}

/// What it asks of the answer cannot be kept to.
pub fn refused(part: RequestPart, reason: &str) -> GenerateError {
    invalid(part, format!("it cannot be kept to while the answer is made: {reason}"))
}

/// The same with the place, where it is a pattern that the engine does not take, alone or with what stands
/// beside it.
pub fn refused_schema(compiler: &Compiler, part: RequestPart, schema: &Value, reason: &str) -> GenerateError {
    let mut takes = |texts: &Value| compiler.try_texts(texts);
    match Schema::drop_patterns(&mut schema.clone(), &mut takes).into_iter().next() {
        Some(error) => refused(part, &error.to_string()),
        None => refused(part, reason),
    }
}
