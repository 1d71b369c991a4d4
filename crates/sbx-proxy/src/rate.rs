//! How often something may happen.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// A token bucket: so many at once, then so many per second.
#[derive(Debug)]
pub(crate) struct Rate {
    burst: f64,
    per_second: f64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    tokens: f64,
    at: Instant,
}

impl Rate {
    pub(crate) fn new(burst: u32, per_second: u32) -> Self {
        Self {
            burst: burst.into(),
            per_second: per_second.into(),
            state: Mutex::new(State {
                tokens: burst.into(),
                at: Instant::now(),
            }),
        }
    }

    /// Until it may happen once more.
    pub(crate) async fn wait(&self) {
        while let Some(delay) = self.take(Instant::now()) {
            tokio::time::sleep(delay).await;
        }
    }

    /// Takes a token, or says when there will be one.
    fn take(&self, now: Instant) -> Option<Duration> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = now.saturating_duration_since(state.at).as_secs_f64();
        state.tokens = (state.tokens + passed * self.per_second).min(self.burst);
        state.at = now;
        if state.tokens >= 1.0 {
            state.tokens -= 1.0;
            return None;
        }
        let missing = (1.0 - state.tokens) / self.per_second;
        // Timers have a grain: less than that would be asked again at once.
        Some(Duration::from_secs_f64(missing).max(Duration::from_millis(1)))
    }
}
