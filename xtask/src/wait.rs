//! Waits that look for what they wait for, and end.

use std::time::{Duration, Instant};

use anyhow::bail;

/// Looks again and again until there is a value or the time is over; errors end it at once.
pub fn wait_for<T>(
    what: &str,
    (at_most, poll): (Duration, Duration),
    mut look: impl FnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let began = Instant::now();
    loop {
        if let Some(value) = look()? {
            return Ok(value);
        }
        if began.elapsed() > at_most {
            bail!("{what} took more than {} s", at_most.as_secs());
        }
        std::thread::park_timeout(poll);
    }
}

/// Waits for so long. Threads that end wake up who has waited for them, which ends no such wait.
pub fn rest(time: Duration) {
    let began = Instant::now();
    while began.elapsed() < time {
        std::thread::park_timeout(time.saturating_sub(began.elapsed()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rest_is_as_long_as_it_is_to_be_whoever_wakes() {
        std::thread::current().unpark();
        let began = Instant::now();
        rest(Duration::from_millis(20));
        assert!(began.elapsed() >= Duration::from_millis(20), "{:?}", began.elapsed());
    }

    #[test]
    fn waiting_ends_with_a_value_an_error_or_the_time() {
        let (long, poll) = (Duration::from_secs(20), Duration::from_millis(1));
        let mut looks = 0;
        let third = wait_for("it", (long, poll), || {
            looks += 1;
            Ok((looks == 3).then_some(looks))
        });
        assert_eq!(third.unwrap(), 3);
        let error = wait_for::<()>("it", (long, poll), || bail!("broken")).unwrap_err().to_string();
        assert_eq!(error, "broken");
        let error = wait_for::<()>("it", (poll, poll), || Ok(None)).unwrap_err().to_string();
        assert_eq!(error, "it took more than 0 s");
    }
}
