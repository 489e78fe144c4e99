//! What one rendering may use up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use super::numbers::spelling;
use crate::TemplateError;

/// Longest prompt text a template may write; the tokenizer takes half of it.
pub(crate) const OUTPUT_BYTES_MAX: usize = 4 << 20;
/// Largest value an operation may take or make: about twice the output, in bytes of text and 16 for each
/// item.
const VALUE_BYTES_MAX: usize = 8 << 20;
/// Everything written, into captured blocks and macros too.
const WRITTEN_BYTES_MAX: u64 = 32 << 20;
/// Deepest nesting of lists and maps. JSON from a request has at most 128 levels.
const DEPTH_MAX: usize = 130;
/// Longest time of one rendering. Real templates take milliseconds.
pub(crate) const RENDER_TIME_MAX: Duration = Duration::from_secs(5);

/// Shared by everything one rendering calls.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    deadline: Instant,
    written: Arc<AtomicU64>,
}

impl Budget {
    pub(crate) fn start() -> Self {
        Self { deadline: Instant::now() + RENDER_TIME_MAX, written: Arc::default() }
    }

    /// Ends a rendering that took too long. Called by every operation that can be slow.
    pub(crate) fn check_time(&self) -> Result<(), Error> {
        if Instant::now() > self.deadline {
            return Err(stop(TemplateError::TooSlow { limit: format!("{} s", RENDER_TIME_MAX.as_secs()) }));
        }
        Ok(())
    }

    /// Notes that the template writes so many bytes.
    pub(crate) fn write(&self, bytes: usize) -> Result<(), Error> {
        let written = self.written.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        if written > WRITTEN_BYTES_MAX { Err(too_much()) } else { Ok(()) }
    }

    /// Checks values before they are worked on: their size with everything inside, and their depth, which
    /// guards against cycles (a namespace that holds itself) and against recursion without end.
    pub(crate) fn weigh<'v>(&self, values: impl IntoIterator<Item = &'v Value>) -> Result<usize, Error> {
        self.check_time()?;
        let mut weight = 0;
        for value in values {
            weigh(value, 0, &mut weight)?;
        }
        Ok(weight)
    }

    /// Checks the size of something before it is made.
    pub(crate) fn check_size(&self, bytes: usize) -> Result<(), Error> {
        if bytes > VALUE_BYTES_MAX { Err(too_much()) } else { Ok(()) }
    }

    /// A result as a plain value of acceptable size. Lazy sequences are written out: a chain of them would be
    /// walked by recursion, and could hide any number of items.
    pub(crate) fn settle(&self, value: Value) -> Result<Value, Error> {
        let value = if value.kind() == ValueKind::Iterable {
            let mut items = Vec::new();
            for item in value.try_iter()? {
                items.push(item);
                self.check_size(items.len() * ITEM_BYTES)?;
            }
            Value::from(items)
        } else {
            value
        };
        self.weigh([&value])?;
        Ok(value)
    }
}

const ITEM_BYTES: usize = 16;

fn weigh(value: &Value, depth: usize, weight: &mut usize) -> Result<(), Error> {
    *weight = weight.saturating_add(ITEM_BYTES + value.as_str().or(spelling(value)).map_or(0, str::len));
    if *weight > VALUE_BYTES_MAX || depth > DEPTH_MAX {
        return Err(too_much());
    }
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            for item in value.try_iter()? {
                weigh(&item, depth + 1, weight)?;
            }
        }
        ValueKind::Map => {
            for key in value.try_iter()? {
                weigh(&key, depth + 1, weight)?;
                weigh(&value.get_item(&key)?, depth + 1, weight)?;
            }
        }
        _ => {}
    }
    Ok(())
}

pub(crate) fn too_much() -> Error {
    stop(TemplateError::TooMuchOutput { limit: OUTPUT_BYTES_MAX })
}

/// Our error inside the engine's, to be found again by [`found`].
pub(crate) fn stop(error: TemplateError) -> Error {
    Error::new(ErrorKind::InvalidOperation, "stopped").with_source(error)
}

/// Our error, if it was one that stopped the engine.
pub(crate) fn found(error: &Error) -> Option<TemplateError> {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(one) = next {
        if let Some(ours) = one.downcast_ref::<TemplateError>() {
            return Some(ours.clone());
        }
        next = one.source();
    }
    None
}
