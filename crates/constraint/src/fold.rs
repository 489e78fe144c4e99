//! The tokens of one answer against its grammar.

use std::fmt;
use std::sync::Arc;

use exo_sampler::{ConstraintError, TokenConstraint};
use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;

use crate::errors::{says_no_token, shorten};
use crate::scout::Scout;

/// Where an answer stands in its grammar. A function of the grammar and the tokens alone.
pub struct Fold {
    /// None where the grammar could not be compiled: `failed` says why.
    matcher: Option<Matcher>,
    mask: SimpleVob,
    end_ids: Arc<[u32]>,
    /// The first token that did not belong, or what the engine gave up with.
    failed: Option<ConstraintError>,
    /// An end token has come.
    is_over: bool,
    /// Where somebody can say how text is spelled.
    scout: Option<Scout>,
}

impl Fold {
    pub(crate) fn new(matcher: Matcher, end_ids: Arc<[u32]>, scout: Option<Scout>) -> Self {
        Self { matcher: Some(matcher), mask: SimpleVob::new(), end_ids, failed: None, is_over: false, scout }
    }

    /// An answer that ends at once: what takes the place of a grammar that could not be compiled where tokens
    /// are sampled.
    pub(crate) fn dead(error: String, end_ids: Arc<[u32]>) -> Self {
        let failed = Some(ConstraintError::Engine { reason: shorten(&error) });
        Self { matcher: None, mask: SimpleVob::new(), end_ids, failed, is_over: false, scout: None }
    }

    /// Whether the answer is complete, or would be if it ended here.
    pub fn may_end(&mut self) -> Result<bool, ConstraintError> {
        // Where nothing can follow, the engine has stopped by itself: complete, or out of bounds.
        self.ask(|matcher| match matcher.is_stopped() {
            true if matcher.stop_reason().is_ok() => Ok(true),
            true => Err(matcher.stop_reason().to_string()),
            false => matcher.is_accepting().map_err(|e| e.to_string()),
        })
    }

    /// Why an answer that stands here had to end, if it had to.
    pub fn why_stuck(&mut self) -> Option<ConstraintError> {
        match self.mask() {
            Ok(mask) if mask.iter().all(|word| *word == 0) => Some(ConstraintError::NoToken),
            Ok(_) => None,
            Err(error) => Some(error),
        }
    }

    /// Asks the engine. Its complaint is the answer to every later question, too.
    fn ask<T>(&mut self, ask: impl FnOnce(&mut Matcher) -> Result<T, String>) -> Result<T, ConstraintError> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        let nothing = || Err("the grammar was not compiled".to_owned());
        self.matcher.as_mut().map_or_else(nothing, ask).map_err(|reason| {
            let error = match shorten(&reason) {
                reason if says_no_token(&reason) => ConstraintError::NoToken,
                reason => ConstraintError::Engine { reason },
            };
            self.failed = Some(error.clone());
            error
        })
    }

    /// Whether the token ends an answer.
    pub fn is_end(&self, token: u32) -> bool {
        self.end_ids.binary_search(&token).is_ok()
    }

    fn take(&mut self, token: u32) -> Result<(), ConstraintError> {
        if !self.allows(token)? {
            return Err(ConstraintError::NotAllowed { token });
        }
        if self.is_end(token) {
            self.is_over = true;
            return Ok(());
        }
        self.ask(|matcher| matcher.consume_token(token).map_err(|e| e.to_string()))?;
        if let Some(scout) = &mut self.scout {
            scout.accept(token);
        }
        Ok(())
    }
}

impl TokenConstraint for Fold {
    fn allows(&mut self, token: u32) -> Result<bool, ConstraintError> {
        let (is_end, is_over) = (self.is_end(token), self.is_over);
        if is_end && !is_over {
            return self.may_end();
        }
        self.ask(|matcher| match is_over || matcher.is_stopped() {
            true => Ok(false),
            false => matcher.validate_tokens(&[token]).map(|valid| valid == 1).map_err(|e| e.to_string()),
        })
    }

    fn mask(&mut self) -> Result<&[u32], ConstraintError> {
        self.mask = self.ask(|matcher| matcher.compute_mask_or_eos().map_err(|e| e.to_string()))?;
        Ok(self.mask.as_slice())
    }

    fn accept(&mut self, token: u32) {
        if self.failed.is_none()
            && let Err(error) = self.take(token)
        {
            self.failed = Some(error);
        }
    }

    fn end_token(&self) -> u32 {
        self.end_ids[0]
    }

    fn forced(&mut self) -> Vec<u32> {
        match (&self.matcher, &mut self.scout) {
            (Some(matcher), Some(scout)) if self.failed.is_none() && !self.is_over => scout.forced(matcher),
            _ => Vec::new(),
        }
    }
}

impl fmt::Debug for Fold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fold(over: {}, failed: {:?})", self.is_over, self.failed)
    }
}
