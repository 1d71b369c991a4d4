//! Threads for what blocks. Some are there from the beginning: at the limit of a user's processes, which a sandbox can
//! reach, no other can be started, and then work waits for those.
//!
//! Not the runtime's own: it starts all of them when they are needed, and panics where it cannot.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use thiserror::Error;
use tokio::sync::oneshot;

/// How long a thread beyond those that are kept waits for more work.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

type Job = Box<dyn FnOnce() + Send>;
type Start = Box<dyn Fn(Job) -> io::Result<()> + Send + Sync>;

/// How many threads there are.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Started at once, and never ended.
    pub kept: usize,
    pub most: usize,
    /// Bytes of stack.
    pub stack: usize,
}

/// The work panicked, or the workers end.
#[derive(Debug, Error)]
#[error("the worker thread did not finish the task")]
pub struct WorkerLost;

/// Threads for what blocks. Dropping it ends those that have nothing to do; the others are not waited for.
pub struct Workers {
    shared: Arc<Shared>,
}

struct Shared {
    kept: usize,
    most: usize,
    start: Start,
    state: Mutex<State>,
    /// There is work, or there will be none.
    work: Condvar,
    /// A thread has finished what it did.
    rest: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    threads: usize,
    /// Of them, those that wait for work.
    idle: usize,
    closed: bool,
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workers").finish_non_exhaustive()
    }
}

impl Workers {
    pub fn start(name: &'static str, size: Size) -> io::Result<Self> {
        let start = move |work| {
            let builder = std::thread::Builder::new();
            let builder = builder.name(name.into()).stack_size(size.stack);
            builder.spawn(work).map(drop)
        };
        Self::start_by(size, Box::new(start))
    }

    fn start_by(size: Size, start: Start) -> io::Result<Self> {
        let workers = Self {
            shared: Arc::new(Shared {
                kept: size.kept,
                most: size.most,
                start,
                state: Mutex::default(),
                work: Condvar::new(),
                rest: Condvar::new(),
            }),
        };
        for _ in 0..size.kept {
            workers.shared.grow(&mut workers.shared.state())?;
        }
        Ok(workers)
    }

    /// Does it on one of the threads. Work whose caller has stopped waiting by the time its turn comes is not done.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, WorkerLost> {
        let (done, result) = oneshot::channel();
        self.shared.add(Box::new(move || {
            if !done.is_closed() {
                // Who asked may have gone meanwhile.
                drop(done.send(work()));
            }
        }));
        result.await.map_err(|_| WorkerLost)
    }

    /// Takes no more work, and waits that long for what is under way. False if that was not enough.
    pub fn finish(&self, timeout: Duration) -> bool {
        let state = self.shared.close();
        let waited = self
            .shared
            .rest
            .wait_timeout_while(state, timeout, |state| state.idle < state.threads);
        let (_state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        !waited.timed_out()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        drop(self.shared.close());
    }
}

impl Shared {
    fn add(self: &Arc<Self>, job: Job) {
        let mut state = self.state();
        if state.closed {
            return;
        }
        state.queue.push_back(job);
        // Those that were woken for what is in the queue already count as idle until they have it.
        if state.queue.len() > state.idle
            && state.threads < self.most
            && let Err(error) = self.grow(&mut state)
        {
            tracing::debug!(%error, "cannot start a thread; the work waits for another");
        }
        self.work.notify_one();
    }

    fn grow(self: &Arc<Self>, state: &mut State) -> io::Result<()> {
        let shared = Arc::clone(self);
        (self.start)(Box::new(move || shared.serve()))?;
        state.threads += 1;
        Ok(())
    }

    /// What each thread does.
    fn serve(&self) {
        while let Some(job) = self.next() {
            // The release build aborts instead; elsewhere the others go on, and who waits for it is told.
            drop(catch_unwind(AssertUnwindSafe(job)));
        }
    }

    /// None when the thread is to end.
    fn next(&self) -> Option<Job> {
        let mut state = self.state();
        state.idle += 1;
        self.rest.notify_all();
        loop {
            if let Some(job) = state.queue.pop_front() {
                state.idle -= 1;
                return Some(job);
            }
            if state.closed {
                break;
            }
            if state.threads <= self.kept {
                state = self
                    .work
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let waited = self.work.wait_timeout(state, IDLE_TIMEOUT);
            let (guard, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            state = guard;
            if waited.timed_out() && state.queue.is_empty() && state.threads > self.kept {
                break;
            }
        }
        state.idle -= 1;
        state.threads -= 1;
        None
    }

    /// What has not begun is given up.
    fn close(&self) -> MutexGuard<'_, State> {
        let mut state = self.state();
        state.closed = true;
        state.queue.clear();
        self.work.notify_all();
        state
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    const SIZE: Size = Size {
        kept: 1,
        most: 3,
        stack: 128 << 10,
    };
    const TEST_TIMEOUT: Duration = Duration::from_secs(20);

    /// At a limit of processes that leaves it so many threads.
    fn limited(left: usize, size: Size) -> io::Result<Workers> {
        let left = AtomicUsize::new(left);
        let start = move |work: Job| {
            let taken = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(1)
            });
            taken.map_err(|_| io::Error::from(io::ErrorKind::WouldBlock))?;
            std::thread::Builder::new().spawn(work).map(drop)
        };
        Workers::start_by(size, Box::new(start))
    }

    /// Work that lasts until it is told to end, once it has begun.
    async fn begin(workers: &Arc<Workers>) -> (mpsc::Sender<()>, tokio::task::JoinHandle<()>) {
        let (end, ended) = mpsc::channel::<()>();
        let (begun, begins) = oneshot::channel();
        let workers = Arc::clone(workers);
        let task = tokio::spawn(async move {
            let work = move || {
                begun.send(()).unwrap();
                let _ = ended.recv();
            };
            workers.run(work).await.unwrap();
        });
        begins.await.unwrap();
        (end, task)
    }

    #[tokio::test]
    async fn slow_work_does_not_delay_other_work() {
        let workers = Arc::new(Workers::start("test", SIZE).unwrap());
        let (one, first) = begin(&workers).await;
        let (two, second) = begin(&workers).await;
        assert_eq!(workers.run(|| 7).await.unwrap(), 7);
        drop((one, two));
        first.await.unwrap();
        second.await.unwrap();
    }

    #[tokio::test]
    async fn where_no_thread_can_be_started_work_waits_for_one() {
        let workers = Arc::new(limited(1, SIZE).unwrap());
        let (end, slow) = begin(&workers).await;
        let mut waiting = Box::pin(workers.run(|| 7));
        let early = tokio::time::timeout(Duration::ZERO, &mut waiting).await;
        assert!(early.is_err());
        drop(end);
        assert_eq!(waiting.await.unwrap(), 7);
        slow.await.unwrap();
    }

    #[test]
    fn without_the_threads_that_are_kept_there_are_no_workers() {
        let size = Size { kept: 2, ..SIZE };
        assert!(limited(1, size).is_err());
        assert!(limited(2, size).is_ok());
    }

    #[tokio::test]
    async fn work_whose_caller_has_gone_is_not_done() {
        let workers = Arc::new(limited(1, SIZE).unwrap());
        let (end, slow) = begin(&workers).await;
        let (done, was_done) = mpsc::channel();
        let given_up = workers.run(move || done.send(()));
        let given_up = tokio::time::timeout(Duration::ZERO, given_up).await;
        assert!(given_up.is_err());
        drop(end);
        slow.await.unwrap();
        workers.run(|| ()).await.unwrap();
        assert!(was_done.try_recv().is_err());
    }

    #[tokio::test]
    async fn a_panic_is_told_and_costs_no_thread() {
        let workers = limited(1, SIZE).unwrap();
        workers.run(|| panic!("on purpose")).await.unwrap_err();
        assert_eq!(workers.run(|| 7).await.unwrap(), 7);
    }

    #[tokio::test]
    async fn the_end_waits_for_what_is_under_way() {
        let workers = Arc::new(limited(1, SIZE).unwrap());
        let (end, slow) = begin(&workers).await;
        let waiting = tokio::spawn({
            let workers = Arc::clone(&workers);
            async move { workers.run(|| 7).await }
        });
        tokio::task::yield_now().await;
        assert!(!workers.finish(Duration::ZERO));
        waiting.await.unwrap().unwrap_err();
        drop(end);
        assert!(workers.finish(TEST_TIMEOUT));
        slow.await.unwrap();
        workers.run(|| 7).await.unwrap_err();
    }
}
