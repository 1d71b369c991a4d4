//! Futures that wait for something rare beside one that wakes the same task for every message.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// Polls a future only when it asked for it, whatever else woke the task.
pub(crate) struct WakeFilter<F> {
    future: F,
    bell: Arc<Bell>,
    waker: Waker,
}

struct Bell {
    rung: AtomicBool,
    task: Mutex<Waker>,
}

impl<F: Future + Unpin> WakeFilter<F> {
    pub(crate) fn new(future: F) -> Self {
        let bell = Arc::new(Bell {
            rung: AtomicBool::new(true),
            task: Mutex::new(Waker::noop().clone()),
        });
        Self {
            future,
            waker: Waker::from(Arc::clone(&bell)),
            bell,
        }
    }
}

impl<F: Future + Unpin> Future for WakeFilter<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        // Who rings after this wakes the task, and who rang before is seen below.
        this.bell.task().clone_from(cx.waker());
        if !this.bell.rung.swap(false, Ordering::AcqRel) {
            return Poll::Pending;
        }
        Pin::new(&mut this.future).poll(&mut Context::from_waker(&this.waker))
    }
}

impl Bell {
    fn task(&self) -> std::sync::MutexGuard<'_, Waker> {
        self.task.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.rung.store(true, Ordering::Release);
        self.task().wake_by_ref();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn only_who_rings_is_asked() {
        let (ring, rung) = oneshot::channel();
        let mut rung = rung;
        let mut asked = 0;
        let future = poll_fn(|cx| {
            asked += 1;
            Pin::new(&mut rung).poll(cx)
        });
        let mut seldom = WakeFilter::new(future);
        for _ in 0..10 {
            let once = poll_fn(|cx| Poll::Ready(Pin::new(&mut seldom).poll(cx)));
            assert!(once.await.is_pending());
        }
        let waiting = async { (&mut seldom).await.unwrap() };
        let ringing = async {
            tokio::task::yield_now().await;
            ring.send(7).unwrap();
        };
        assert_eq!(tokio::join!(waiting, ringing).0, 7);
        drop(seldom);
        assert_eq!(asked, 2);
    }
}
