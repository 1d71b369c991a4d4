//! How long one waits: to a limit, to the user's cancellation, to a silence.

use std::time::Duration;

use crabbox_core::process::{Cancel, Reason};

use super::HttpError;

/// How often a wait looks whether the user canceled it.
const CANCEL_INTERVAL: Duration = Duration::from_millis(20);

/// The limits of [`super::Http::wait`], for work that runs beside other work.
pub(in crate::opensandbox) async fn within<T>(
    limit: Duration,
    cancel: &Cancel,
    work: impl Future<Output = Result<T, HttpError>>,
) -> Result<T, HttpError> {
    tokio::select! {
        biased;
        done = work => done,
        reason = canceled(cancel) => Err(match reason {
            Reason::Late => HttpError::Timeout(limit),
            reason => HttpError::Canceled(reason),
        }),
        () = tokio::time::sleep(limit) => Err(HttpError::Timeout(limit)),
    }
}

/// What `work` gives, unless it is silent for that long. Counted in small waits: as long as this thread itself waits for
/// a slow reader of our output, it notices no answer, and no more than one of them passes.
pub(in crate::opensandbox) async fn unless_silent<T>(
    limit: Duration,
    work: impl Future<Output = T>,
) -> Result<T, HttpError> {
    const WAITS: u32 = 12;
    let mut work = std::pin::pin!(work);
    for _ in 0..WAITS {
        if let Ok(done) = tokio::time::timeout(limit / WAITS, &mut work).await {
            return Ok(done);
        }
    }
    let seconds = limit.as_secs();
    Err(HttpError::Lost(format!("it was silent for {seconds} s")))
}

/// Until the user cancels.
pub(in crate::opensandbox) async fn canceled(cancel: &Cancel) -> Reason {
    loop {
        if let Some(reason) = cancel.reason() {
            return reason;
        }
        tokio::time::sleep(CANCEL_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT_TIMEOUT: Duration = Duration::from_millis(240);

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(work)
    }

    #[test]
    fn silence_is_an_error() {
        let ended = block_on(unless_silent(SHORT_TIMEOUT, std::future::pending::<()>()));
        assert!(matches!(ended, Err(HttpError::Lost(_))), "{ended:?}");
    }

    /// What came while this thread waited for a reader of its output is heard, however long that was.
    #[test]
    fn time_that_this_thread_was_blocked_does_not_count() {
        let ended = block_on(async {
            let (said, heard) = tokio::sync::oneshot::channel();
            tokio::spawn(async move {
                tokio::task::yield_now().await;
                said.send(7).unwrap();
            });
            let work = async {
                std::thread::sleep(SHORT_TIMEOUT * 2);
                heard.await
            };
            unless_silent(SHORT_TIMEOUT, work).await
        });
        assert!(matches!(ended, Ok(Ok(7))), "{ended:?}");
    }
}
