//! Futures and streams that a trait object can return.

use std::pin::Pin;

use futures_util::Stream;

/// A future that may cross threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A stream that may cross threads.
pub type BoxStream<T> = Pin<Box<dyn Stream<Item = T> + Send>>;
