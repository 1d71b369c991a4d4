//! The whole daemon: claims the state directory, takes the sandboxes over, serves until it is told to end.
//!
//! The order of the start is what makes it safe: lock, recover, and only then bind the socket, so that a client that can
//! connect sees reconciled sandboxes. The order of the end mirrors it: requests, egress, socket, lock. The sandboxes stay,
//! and the next daemon takes them over.

use std::fs::File;
use std::future::IntoFuture;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::serve::Listener;
use jiff::Timestamp;
use sbx_api::{DaemonInfo, VERSION};
use sbx_engine::error::chain;
use sbx_engine::machine::Machines;
use sbx_engine::machine::namespace::Namespace;
use sbx_engine::machine::namespace::helper::{Companions, Helper};
use sbx_engine::machine::namespace::ids::Facts;
use sbx_engine::policy::PolicyBook;
use sbx_engine::state::daemon_lock::DaemonLock;
use sbx_engine::state::settings::Overrides;
use sbx_engine::state::socket::bind_unix;
use sbx_engine::state::{DOCKER_SOCKET, SOCKET, StateError};
use sbx_engine::{Config, Engine, EngineError, StateDir};
use sbx_proxy::workers::{Size, Workers};
use serde_json::json;
use thiserror::Error;
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use crate::docker_socket;
use crate::egress::EgressProxies;
use crate::ingress::PublishedPorts;
use crate::logfile::LogFile;
use crate::logging::{LEVELS, Levels};
use crate::peer::refuse;
use crate::routes::{App, router};
use crate::rule_files;
use crate::settings::{self, LiveSettings};
use crate::vm_handlers::VmHost;

/// How long requests that are under way may take when the daemon ends.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long another daemon may hold the lock without serving.
const LOCK_TIMEOUT: Duration = Duration::from_secs(8);

/// A slow request does not delay others as long as threads can be started. Where none can, two threads are left: one
/// slow request does not block the API yet.
const THREADS: Size = Size {
    kept: 2,
    most: 512,
    stack: 2 << 20,
};

/// What the program around the daemon knows.
pub struct ServeConfig {
    pub state: StateDir,
    /// The directories of PATH.
    pub path_dirs: Vec<PathBuf>,
    /// Settings that variables of the environment give.
    pub overrides: Overrides,
    /// `SANDBOXD_LOG_LEVEL`
    pub log_level: Option<String>,
    /// Copied to every new sandbox as its `proxy-config.json`, if it exists.
    pub default_proxy_config: PathBuf,
    /// Whether that file is made where there is none.
    pub makes_proxy_config: bool,
    /// What requests to `/vm` leave unsaid.
    pub vm: VmHost,
    /// Where the programs lie that are installed with this one.
    pub companions: Option<PathBuf>,
    /// Called once requests are answered.
    pub on_ready: Box<dyn FnOnce()>,
}

#[derive(Debug, Error)]
pub enum ServeError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("invalid log level {0:?} in SANDBOXD_LOG_LEVEL")]
    LogLevel(String),
    #[error("cannot {what}")]
    Io {
        what: &'static str,
        #[source]
        source: io::Error,
    },
}

impl ServeError {
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::State(error) => error.hint().map(str::to_owned),
            Self::Engine(error) => error.hint(),
            Self::LogLevel(_) => Some(format!("one of {}", LEVELS.join(", "))),
            Self::Io { .. } => None,
        }
    }
}

/// That a daemon could begin with what `SANDBOXD_LOG_LEVEL` says, if it is set.
pub fn check_log_level(level: Option<&str>) -> Result<(), ServeError> {
    match level {
        Some(level) if !LEVELS.contains(&level) => Err(ServeError::LogLevel(level.to_owned())),
        Some(_) | None => Ok(()),
    }
}

/// Runs the daemon until SIGTERM, SIGINT or a request ends it. The sandboxes stay unless the request says so.
pub fn serve(config: ServeConfig) -> Result<(), ServeError> {
    check_log_level(config.log_level.as_deref())?;
    let state = config.state;
    state.claim()?;
    let lock = state.lock_daemon_within(LOCK_TIMEOUT)?;
    // The process that held the lock before may have removed everything (`sbx reset`).
    state.claim()?;
    let state = state.real()?;
    let log = LogFile::open(state.log(), state.older_log()).map_err(failed("open the log"))?;
    let stderr = log.handle().map_err(failed("open the log"))?;
    let levels = Levels::install(config.log_level.as_deref(), log);
    // An init is adopted from its helper, and so is whatever a helper leaves that was killed.
    sbx_sys::process::set_child_subreaper().map_err(failed("become a subreaper"))?;
    let companions = companions(config.companions.as_deref());
    let book = Arc::new(PolicyBook::new(&state, config.default_proxy_config));
    book.sweep();
    if config.makes_proxy_config
        && let Err(error) = book.make_default_proxy_config()
    {
        let error = chain(&error);
        tracing::warn!(%error, "cannot make the default proxy configuration; nothing needs it");
    }
    let egress_proxies = Arc::new(
        EgressProxies::new(state.clone(), Arc::clone(&book), descriptors())
            .map_err(failed("start a thread"))?,
    );
    let published_ports = Arc::new(PublishedPorts::new(descriptors(), egress_proxies.budget()));
    let facts = Facts::read(&config.path_dirs);
    let helper = Helper::with(companions, Some(stderr)).map_err(failed("copy the own program"))?;
    let settings = settings::read(&state, &config.overrides)?;
    let namespace = Namespace::new(facts, helper, settings.mode);
    let engine = Engine::new(Config {
        settings,
        machines: Machines::new(namespace),
        state: state.clone(),
        book: Arc::clone(&book),
        egress: egress_proxies.clone(),
        ingress: published_ports.clone(),
    });
    let live = LiveSettings::new(state.clone(), config.overrides, engine.clone());
    let gone = Arc::new(Notify::new());
    follow_files(&egress_proxies, &live, &lock, &gone)?;
    // Before sandboxes run, which may leave no thread to start.
    let workers = Workers::start("api", THREADS).map_err(failed("start a thread"))?;
    let workers = Arc::new(workers);
    engine.recover()?;
    let app = App {
        engine: engine.clone(),
        workers: Arc::clone(&workers),
        levels: Arc::new(levels),
        settings: live,
        info: info(&state),
        vm: Arc::new(config.vm),
        egress: egress_proxies.clone(),
        book,
        end: Arc::new(Notify::new()),
        closing: Arc::default(),
    };
    announce(&state, &app.info);
    let docker = bind_unix(state.root(), DOCKER_SOCKET).map_err(failed("bind a socket"))?;
    let listener = bind_unix(state.root(), SOCKET).map_err(failed("bind the socket"))?;
    // Open until the lock is free: a client that waits for this daemon's end by connecting may then start another.
    let until_the_end = listener.try_clone().map_err(failed("bind the socket"))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed("start the runtime"))?;
    if let Err(error) = lock.serve() {
        tracing::warn!(%error, "a lost socket will go unnoticed");
    }
    let served = runtime.block_on(run(app, listener, docker, &gone, config.on_ready));
    drop(runtime);
    if !workers.finish(SHUTDOWN_TIMEOUT) {
        tracing::warn!("a request under way does not end");
    }
    published_ports.close();
    egress_proxies.close();
    engine.close();
    remove_socket(&state, &lock);
    tracing::info!("ended");
    drop(lock);
    drop(until_the_end);
    served
}

/// Rules and settings that are edited take effect; a state directory that is gone is told to `gone`.
fn follow_files(
    egress_proxies: &Arc<EgressProxies>,
    live: &LiveSettings,
    lock: &DaemonLock,
    gone: &Arc<Notify>,
) -> Result<(), ServeError> {
    let Some(files) = egress_proxies.files() else {
        return Ok(());
    };
    let (locked, gone) = (lock.file_id().clone(), Arc::clone(gone));
    let moved = move || {
        if !locked.is_ours() {
            gone.notify_one();
        }
    };
    let edited = live.clone();
    let reload = move || edited.reload_edited();
    rule_files::follow(files, egress_proxies.clone(), reload, moved)
        .map_err(failed("start a thread"))
}

/// Until it is told to end, or nothing is left to serve: the state directory is `gone`.
async fn run(
    app: App,
    listener: std::os::unix::net::UnixListener,
    docker: std::os::unix::net::UnixListener,
    gone: &Arc<Notify>,
    on_ready: Box<dyn FnOnce()>,
) -> Result<(), ServeError> {
    let listener = SameUser::of(listener).map_err(failed("listen on the socket"))?;
    let docker = SameUser::of(docker).map_err(failed("listen on a socket"))?;
    // It holds nothing that would have to be ended in order: it ends with the runtime.
    drop(tokio::spawn(
        axum::serve(docker, docker_socket::router().into_make_service()).into_future(),
    ));
    let end = Arc::clone(&app.end);
    let mut terminate = signal(SignalKind::terminate()).map_err(failed("handle signals"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed("handle signals"))?;
    // Caught and not looked at: the daemon outlives the terminal.
    let _hangup = signal(SignalKind::hangup()).map_err(failed("handle signals"))?;
    let ending = Arc::new(Notify::new());
    let ended = Arc::clone(&ending);
    let (gone, orphan) = (Arc::clone(gone), app.clone());
    let told = async move {
        tokio::select! {
            () = end.notified() => tracing::info!("told to end"),
            () = gone.notified() => abandon(orphan).await,
            _ = terminate.recv() => tracing::info!("SIGTERM"),
            _ = interrupt.recv() => tracing::info!("SIGINT"),
        }
        ending.notify_one();
    };
    let server =
        axum::serve(listener, router(app).into_make_service()).with_graceful_shutdown(told);
    tracing::info!(pid = std::process::id(), "serving");
    on_ready();
    let timeout = async move {
        ended.notified().await;
        tokio::time::sleep(SHUTDOWN_TIMEOUT).await;
    };
    tokio::select! {
        served = server => served.map_err(failed("serve")),
        () = timeout => {
            tracing::warn!("requests under way are given up");
            Ok(())
        }
    }
}

/// Ends the sandboxes of a state directory that no longer exists.
async fn abandon(app: App) {
    tracing::warn!("the state directory is gone");
    app.closing.store(true, Ordering::Relaxed);
    let engine = app.engine.clone();
    if let Err(error) = app.workers.run(move || engine.abandon()).await {
        tracing::error!(%error, "cannot end the sandboxes");
    }
}

/// Only while the lock file is in its place is the socket ours; else it is a successor's, or dead.
fn remove_socket(state: &StateDir, lock: &DaemonLock) {
    if !lock.file_id().is_ours() {
        return;
    }
    if let Err(error) = lock.stop_serving() {
        tracing::warn!(%error, "cannot mark the lock as not serving");
    }
    for socket in [state.socket(), state.root().join(DOCKER_SOCKET)] {
        match std::fs::remove_file(&socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%error, socket = %socket.display(), "cannot remove");
            }
            Ok(()) | Err(_) => {}
        }
    }
}

/// Accepts connections of the own user from outside of sandboxes; others are closed without an answer.
struct SameUser(UnixListener);

impl SameUser {
    fn of(listener: std::os::unix::net::UnixListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        UnixListener::from_std(listener).map(Self)
    }
}

impl Listener for SameUser {
    type Io = UnixStream;
    type Addr = ();

    async fn accept(&mut self) -> (UnixStream, ()) {
        loop {
            let (stream, _) = Listener::accept(&mut self.0).await;
            match refuse(&stream) {
                Ok(None) => return (stream, ()),
                Ok(Some(reason)) => tracing::warn!(?reason, "connection refused"),
                // Most often a client that only checked whether the daemon listens, and has ended.
                Err(error) => tracing::debug!(%error, "connection of an unknown process refused"),
            }
        }
    }

    fn local_addr(&self) -> io::Result<()> {
        Ok(())
    }
}

/// For people who look; a full disk must not keep the user from freeing space.
fn announce(state: &StateDir, info: &DaemonInfo) {
    let told = json!({"pid": info.pid, "started_at": info.started_at}).to_string();
    if let Err(error) = state.write_daemon_info(told.as_bytes()) {
        tracing::warn!(error = chain(&error), "cannot write daemon.json");
    }
}

/// How many descriptors this process may have.
fn descriptors() -> u64 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current.unwrap_or(u64::MAX)
}

fn info(state: &StateDir) -> DaemonInfo {
    DaemonInfo {
        version: VERSION.to_owned(),
        pid: std::process::id(),
        started_at: Timestamp::now(),
        socket: state.socket().display().to_string(),
        log: state.log().display().to_string(),
    }
}

fn companions(directory: Option<&Path>) -> Companions {
    let open = |name: &str, without: &str| {
        let path = directory?.join(name);
        let found = File::open(&path).inspect_err(|error| {
            tracing::warn!(path = %path.display(), error = chain(error), "{without}");
        });
        found.ok()
    };
    Companions {
        init: open("sbx-init", "sandboxes need more memory"),
        sudo: open("sbx-sudo", "sandboxes have no sudo"),
    }
}

fn failed(what: &'static str) -> impl Fn(io::Error) -> ServeError {
    move |source| ServeError::Io { what, source }
}
