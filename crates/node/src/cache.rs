//! How large the cache of an instance becomes: from what was asked to whole pages.

use exo_cluster::wire::limits::CACHE_TOKENS_MAX;
use exo_engine::PAGE_TOKENS;
use exo_types::KvDType;

// The planner's advice is about the same pages.
const _: () = assert!(PAGE_TOKENS == exo_planner::PAGE_TOKENS);

/// The cache of an instance, as asked for.
#[derive(Clone, Copy, Debug)]
pub struct CacheRequest {
    pub context_tokens: u32,
    /// Whether somebody named that context: then the cache must hold it. Otherwise it follows the cache.
    pub context_named: bool,
    pub slots: u32,
    /// Tokens over all sequences; `None` for every slot at full context.
    pub cache_tokens: Option<u32>,
    pub kv: KvDType,
}

/// A cache that cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the fields are
pub enum CacheError {
    #[error(
        "a cache of {asked_tokens} tokens holds no sequence: it needs at least one page of {PAGE_TOKENS} tokens; ask for \
         {PAGE_TOKENS} or more"
    )]
    NoPage { asked_tokens: u32 },
    #[error("a context of 0 tokens holds no prompt; ask for 1 or more, or leave it out")]
    NoContext,
    #[error(
        "a cache of {asked_tokens} tokens does not hold one sequence of the context of {context_tokens} tokens: that \
         needs {needed_tokens}; ask for a cache of at least {needed_tokens} tokens, or for a smaller context"
    )]
    BelowContext { asked_tokens: u32, context_tokens: u32, needed_tokens: u32 },
    #[error(
        "the model was made for a context of {model_tokens} tokens, and {asked_tokens} are asked for; ask for at most {model_tokens}"
    )]
    BeyondModel { asked_tokens: u32, model_tokens: u32 },
    #[error(
        "a cache of {asked_tokens} tokens is more than the {CACHE_TOKENS_MAX} that one instance may hold"
    )]
    TooLarge { asked_tokens: u64 },
}

/// The whole pages of a cache of `asked_tokens`, in tokens, which must hold `context_tokens` where that is
/// given.
pub fn cache_pages(asked_tokens: u32, context_tokens: Option<u32>) -> Result<u32, CacheError> {
    let held_tokens = asked_tokens / PAGE_TOKENS * PAGE_TOKENS;
    if held_tokens == 0 {
        return Err(CacheError::NoPage { asked_tokens });
    }
    if held_tokens > CACHE_TOKENS_MAX {
        return Err(CacheError::TooLarge { asked_tokens: asked_tokens.into() });
    }
    let needed_tokens = context_tokens.map_or(0, |context| context.next_multiple_of(PAGE_TOKENS));
    match context_tokens.filter(|_| held_tokens < needed_tokens) {
        Some(context_tokens) => Err(CacheError::BelowContext { asked_tokens, context_tokens, needed_tokens }),
        None => Ok(held_tokens),
    }
}

/// Refuses a context that somebody names and that holds nothing, or for which the model was not made: with a
/// shorter one than they name their texts would end early.
pub fn check_context(named: Option<u32>, model_tokens: u32) -> Result<(), CacheError> {
    match named {
        Some(0) => Err(CacheError::NoContext),
        Some(asked_tokens) if asked_tokens > model_tokens.max(1) => {
            Err(CacheError::BeyondModel { asked_tokens, model_tokens })
        }
        Some(_) | None => Ok(()),
    }
}

impl CacheRequest {
    /// Context and cache of an instance of a model made for `context_tokens_max`.
    pub fn shape(&self, context_tokens_max: u32) -> Result<(u32, u32), CacheError> {
        if self.context_tokens == 0 {
            return Err(CacheError::NoContext);
        }
        let context_tokens = self.context_tokens.min(context_tokens_max.max(1));
        let (context_tokens, cache_tokens) = match self.cache_tokens {
            Some(asked_tokens) => {
                let held = cache_pages(asked_tokens, self.context_named.then_some(context_tokens))?;
                (context_tokens.min(held), u64::from(held))
            }
            None => {
                let each = u64::from(context_tokens).next_multiple_of(PAGE_TOKENS.into());
                (context_tokens, each * u64::from(self.slots))
            }
        };
        match u32::try_from(cache_tokens) {
            Ok(cache_tokens) if cache_tokens <= CACHE_TOKENS_MAX => Ok((context_tokens, cache_tokens)),
            _ => Err(CacheError::TooLarge { asked_tokens: cache_tokens }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Context and cache, or why not.
    fn shape(
        context: u32,
        named: bool,
        slots: u32,
        cache_tokens: Option<u32>,
    ) -> Result<(u32, u32), CacheError> {
        let kv = KvDType::default();
        let cache = CacheRequest { context_tokens: context, context_named: named, slots, cache_tokens, kv };
        cache.shape(4096)
    }

    #[test]
    fn without_a_budget_every_slot_has_its_context_in_whole_pages() {
        assert_eq!(shape(100, true, 4, None), Ok((100, 4 * 128)));
        assert_eq!(shape(9000, false, 2, None), Ok((4096, 8192)), "no longer than the model can");
    }

    #[test]
    fn a_context_that_nobody_named_follows_the_budget() {
        assert_eq!(shape(4096, false, 4, Some(1000)), Ok((992, 992)));
        assert_eq!(shape(512, false, 1, Some(2048)), Ok((512, 2048)), "the rest is for what is kept");
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_numbers() {
        let why = |result: Result<(u32, u32), CacheError>| result.unwrap_err().to_string();
        let text = why(shape(0, true, 4, None));
        assert!(text.contains("a context of 0 tokens"), "{text}");
        let text = why(shape(4096, false, 4, Some(31)));
        assert!(text.contains("a cache of 31 tokens") && text.contains("ask for 32 or more"), "{text}");
        let text = why(shape(100, true, 4, Some(127)));
        for part in ["a cache of 127 tokens", "context of 100", "at least 128"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let text = check_context(Some(9000), 4096).unwrap_err().to_string();
        assert!(text.contains("made for a context of 4096 tokens, and 9000 are asked for"), "{text}");
        assert_eq!((check_context(Some(4096), 4096), check_context(None, 0)), (Ok(()), Ok(())));
        let text = why(shape(4096, false, u32::MAX, None));
        assert!(text.contains("more than the 67108864"), "{text}");
    }
}
