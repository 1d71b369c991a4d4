//! Requests to `sandboxd`. Commands that change something start the daemon when it is not running; read-only commands
//! do not.
//!
//! A slow request is not given up while the daemon still answers a version probe. A request whose connection breaks is sent
//! again only when that is idempotent: the daemon may have been restarted in between.

use std::cell::Cell;
use std::io;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use sbx_api::policy::{
    CheckAnswer, CheckRequest, PolicyInit, ProxyConfigChange, ProxyConfigState, RuleList,
    RuleRemoval, RuleRequest,
};
use sbx_api::{
    ClearCaches, ClearedCaches, CreateRequest, Created, DaemonInfo, ErrorBody, KeepRequest,
    LogLevels, MountChange, PortChange, PortChanges, RemoveTemplate, Removed, RemovedTemplate,
    Sandbox, SandboxList, SaveTemplate, SavedNow, SettingsState, ShutdownRequest, Started, Summary,
    SummaryList, UnmountRequest, Usage, WorkspaceRequest,
};
use sbx_engine::state::daemon_lock::Holder;
use sbx_engine::state::socket::{connect_unix, is_unserved};
use sbx_engine::state::{EXEC_SOCKET, SOCKET, place_hint};
use sbx_engine::{SandboxName, StateDir};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::autostart;
use crate::context::Context;
use crate::failure::{Failure, Kind};
use crate::http::{self, Response, Timeout, timed_out};
use crate::similar;

/// For the version, which even a busy daemon answers immediately.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// For requests that are answered from memory.
const QUERY_TIMEOUT: Duration = Duration::from_secs(30);
/// For requests that create, boot or remove something.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(600);

/// While a killed daemon may still accept connections, until the kernel has closed its socket.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const RECONNECT_INTERVAL: Duration = Duration::from_millis(20);

/// What to do when no daemon is running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Absent {
    Start,
    Report,
}

#[derive(Debug)]
pub(crate) struct Client<'a> {
    context: &'a Context,
    state: StateDir,
    absent: Absent,
}

impl<'a> Client<'a> {
    pub(crate) fn new(context: &'a Context, absent: Absent) -> Result<Self, Failure> {
        Ok(Self {
            context,
            state: context.state()?,
            absent,
        })
    }

    pub(crate) fn state(&self) -> &StateDir {
        &self.state
    }

    pub(crate) fn version(&self) -> Result<DaemonInfo, Failure> {
        self.call("GET", VERSION, &NOTHING, PROBE_TIMEOUT)
    }

    /// Whether a daemon accepts connections but does not answer a version probe.
    pub(crate) fn is_silent(&self) -> bool {
        let waiting = Timeout::fixed(PROBE_TIMEOUT);
        connect_unix(self.state.root(), SOCKET)
            .and_then(|stream| http::exchange(&stream, "GET", VERSION, &[], &waiting))
            .is_err_and(|error| timed_out(&error))
    }

    pub(crate) fn list(&self) -> Result<Vec<Sandbox>, Failure> {
        let list: SandboxList = self.call("GET", SANDBOXES, &NOTHING, QUERY_TIMEOUT)?;
        Ok(list.sandboxes)
    }

    pub(crate) fn summaries(&self) -> Result<Vec<Summary>, Failure> {
        let list: SummaryList = self.call("GET", "/v1/summaries", &NOTHING, QUERY_TIMEOUT)?;
        Ok(list.sandboxes)
    }

    pub(crate) fn create(&self, request: &CreateRequest) -> Result<Created, Failure> {
        self.call("POST", SANDBOXES, &Some(request), OPERATION_TIMEOUT)
    }

    /// `None` when no sandbox has the name.
    pub(crate) fn find(&self, name: &str) -> Result<Option<Sandbox>, Failure> {
        match self.call("GET", &route(name, ""), &NOTHING, QUERY_TIMEOUT) {
            Ok(sandbox) => Ok(Some(sandbox)),
            Err(failure) if failure.kind == Kind::NotFound => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// The exec socket of a sandbox that may be running. `None` without a daemon: nothing would stop the sandbox when it
    /// is idle, so the daemon has to be started first.
    pub(crate) fn socket_of_running(&self, name: &str) -> Result<Option<String>, Failure> {
        let Ok(name) = SandboxName::parse(name) else {
            return Ok(None);
        };
        let socket = format!("vm/{name}/{EXEC_SOCKET}");
        Ok(self.state.has_daemon()?.then_some(socket))
    }

    pub(crate) fn start(&self, name: &str) -> Result<Started, Failure> {
        self.named(name, |client| {
            client.call("POST", &route(name, "/start"), &NOTHING, OPERATION_TIMEOUT)
        })
    }

    /// With what its own files take on disk, if that is asked for.
    pub(crate) fn usage(&self, name: &str, with_disk: bool) -> Result<Usage, Failure> {
        let (rest, timeout) = match with_disk {
            true => ("/usage?disk=true", OPERATION_TIMEOUT),
            false => ("/usage", QUERY_TIMEOUT),
        };
        self.call("GET", &route(name, rest), &NOTHING, timeout)
    }

    pub(crate) fn stop(&self, name: &str) -> Result<Sandbox, Failure> {
        let path = route(name, "/stop");
        self.named(name, |client| {
            client.call("POST", &path, &NOTHING, OPERATION_TIMEOUT)
        })
    }

    pub(crate) fn remove(&self, name: &str, force: bool) -> Result<Removed, Failure> {
        let path = route(name, if force { "?force=true" } else { "" });
        self.named(name, |client| {
            client.call("DELETE", &path, &NOTHING, OPERATION_TIMEOUT)
        })
    }

    /// Removes exactly this sandbox (by id, as the name may have been reused), unless commands run in it.
    pub(crate) fn remove_idle(&self, sandbox: &Sandbox) -> Result<Removed, Failure> {
        let path = route(&sandbox.name, &format!("?id={}", sandbox.id));
        self.call("DELETE", &path, &NOTHING, OPERATION_TIMEOUT)
    }

    /// Removes exactly this sandbox, if it has been stopped since the time it shows.
    pub(crate) fn remove_stopped(&self, sandbox: &Sandbox) -> Result<Removed, Failure> {
        let Some(stopped_at) = sandbox.stopped_at else {
            let message = format!("it is not known since when `{}` is stopped", sandbox.name);
            return Err(Failure::new(Kind::Conflict, message));
        };
        let query = format!("?id={}&stopped_at={stopped_at}", sandbox.id);
        let path = route(&sandbox.name, &query);
        self.call("DELETE", &path, &NOTHING, OPERATION_TIMEOUT)
    }

    pub(crate) fn keep(&self, name: &str, request: &KeepRequest) -> Result<(), Failure> {
        self.named(name, |client| {
            client
                .send(
                    "POST",
                    &route(name, "/keep"),
                    &Some(request.clone()),
                    QUERY_TIMEOUT,
                )
                .map(drop)
        })
    }

    pub(crate) fn change_ports(
        &self,
        name: &str,
        change: &PortChange,
    ) -> Result<PortChanges, Failure> {
        let path = route(name, "/ports");
        self.named(name, |client| {
            client.call("POST", &path, &Some(change), OPERATION_TIMEOUT)
        })
    }

    pub(crate) fn mount(
        &self,
        name: &str,
        request: &WorkspaceRequest,
    ) -> Result<MountChange, Failure> {
        let path = route(name, "/mount");
        self.named(name, |client| {
            client.call("POST", &path, &Some(request), OPERATION_TIMEOUT)
        })
    }

    pub(crate) fn unmount(&self, name: &str, path: &str) -> Result<MountChange, Failure> {
        let request = UnmountRequest { path: path.into() };
        let path = route(name, "/unmount");
        self.named(name, |client| {
            client.call("POST", &path, &Some(&request), OPERATION_TIMEOUT)
        })
    }

    pub(crate) fn shutdown(&self, stop_sandboxes: bool) -> Result<(), Failure> {
        let request = ShutdownRequest { stop_sandboxes };
        self.send(
            "POST",
            "/v1/daemon/shutdown",
            &Some(request),
            OPERATION_TIMEOUT,
        )
        .map(drop)
    }

    pub(crate) fn log_levels(&self) -> Result<LogLevels, Failure> {
        self.call("GET", "/v1/daemon/log-level", &NOTHING, QUERY_TIMEOUT)
    }

    pub(crate) fn set_log_levels(&self, levels: &LogLevels) -> Result<(), Failure> {
        self.send("PUT", "/v1/daemon/log-level", &Some(levels), QUERY_TIMEOUT)
            .map(drop)
    }

    pub(crate) fn settings(&self) -> Result<SettingsState, Failure> {
        self.call("GET", "/v1/settings", &NOTHING, QUERY_TIMEOUT)
    }

    pub(crate) fn reload_settings(&self) -> Result<SettingsState, Failure> {
        self.call("POST", "/v1/settings/reload", &NOTHING, QUERY_TIMEOUT)
    }

    pub(crate) fn init_policy(&self, request: &PolicyInit) -> Result<(), Failure> {
        self.send("POST", "/v1/policy/init", &Some(request), QUERY_TIMEOUT)
            .map(drop)
    }

    pub(crate) fn add_rule(&self, request: &RuleRequest) -> Result<RuleList, Failure> {
        let add =
            |client: &Self| client.call("POST", "/v1/policy/rules", &Some(request), QUERY_TIMEOUT);
        match &request.sandbox {
            Some(name) => self.named(name, add),
            None => add(self),
        }
    }

    pub(crate) fn remove_rules(&self, request: &RuleRemoval) -> Result<RuleList, Failure> {
        self.call(
            "POST",
            "/v1/policy/rules/remove",
            &Some(request),
            QUERY_TIMEOUT,
        )
    }

    pub(crate) fn clear_caches(&self, request: &ClearCaches) -> Result<ClearedCaches, Failure> {
        self.call(
            "POST",
            "/v1/caches/clear",
            &Some(request),
            OPERATION_TIMEOUT,
        )
    }

    pub(crate) fn save_template(&self, request: &SaveTemplate) -> Result<SavedNow, Failure> {
        self.call("POST", "/v1/templates", &Some(request), OPERATION_TIMEOUT)
    }

    pub(crate) fn remove_template(&self, template: &str) -> Result<RemovedTemplate, Failure> {
        let template = template.to_owned();
        self.call(
            "POST",
            "/v1/templates/remove",
            &Some(&RemoveTemplate { template }),
            OPERATION_TIMEOUT,
        )
    }

    pub(crate) fn reset_policy(&self) -> Result<(), Failure> {
        self.send("POST", "/v1/policy/reset", &NOTHING, OPERATION_TIMEOUT)
            .map(drop)
    }

    pub(crate) fn check_policy(&self, request: &CheckRequest) -> Result<CheckAnswer, Failure> {
        let check =
            |client: &Self| client.call("POST", "/v1/policy/check", &Some(request), QUERY_TIMEOUT);
        match &request.sandbox {
            Some(name) => self.named(name, check),
            None => check(self),
        }
    }

    pub(crate) fn change_proxy_config(
        &self,
        name: &str,
        change: &ProxyConfigChange,
    ) -> Result<ProxyConfigState, Failure> {
        self.named(name, |client| {
            client.call(
                "POST",
                &route(name, "/proxy-config"),
                &Some(change),
                QUERY_TIMEOUT,
            )
        })
    }

    /// A connection to the daemon, which is started if necessary and [`Absent::Start`].
    pub(crate) fn connect(&self) -> Result<UnixStream, Failure> {
        let socket = self.state.socket();
        match connect_unix(self.state.root(), SOCKET) {
            Ok(stream) => self.check_peer(stream),
            Err(error) if is_unserved(&error) => {
                self.state.check_own()?;
                if let Some(daemon) = self.state.cut_off_daemon() {
                    return Err(self.unreachable(daemon));
                }
                match self.absent {
                    Absent::Start => autostart::start(self.context, &self.state),
                    Absent::Report => Err(Failure::new(Kind::NoDaemon, "sandboxd is not running")
                        .hint("sbx daemon start -d")),
                }
            }
            Err(error) => {
                self.state.check_own()?;
                let message = format!("cannot reach the daemon at `{}`: {error}", socket.display());
                Err(Failure::new(Kind::Engine, message).hint(place_hint(&error)))
            }
        }
    }

    /// A daemon that holds the lock without a socket: no other can start, and it cannot be asked to stop.
    fn unreachable(&self, daemon: Holder) -> Failure {
        let pid = daemon
            .pid
            .map_or_else(String::new, |pid| format!(" (pid {})", pid.as_raw_pid()));
        let socket = self.state.socket();
        let message = format!(
            "cannot reach sandboxd{pid}: it is running but does not listen on `{}`",
            socket.display()
        );
        Failure::new(Kind::Unreachable, message).hint("sbx daemon restart")
    }

    /// Another user's daemon would close the connection without an answer: SO_PEERCRED gives a better error.
    fn check_peer(&self, stream: UnixStream) -> Result<UnixStream, Failure> {
        if let Ok(peer) = rustix::net::sockopt::socket_peercred(&stream) {
            self.state.check_owner(peer.uid.as_raw())?;
        }
        Ok(stream)
    }

    /// Adds similar names to the error for an unknown sandbox.
    fn named<T>(
        &self,
        name: &str,
        call: impl FnOnce(&Self) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        call(self).map_err(|failure| match failure.kind {
            Kind::NotFound => unknown(name, &self.list().unwrap_or_default()),
            _ => failure,
        })
    }

    fn call<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        body: &Option<impl Serialize>,
        timeout: Duration,
    ) -> Result<T, Failure> {
        let response = self.send(method, path, body, timeout)?;
        serde_json::from_slice(&response.body).map_err(|error| {
            Failure::new(
                Kind::Engine,
                format!("invalid answer from the daemon: {error}"),
            )
            .hint("sbx daemon restart")
        })
    }

    fn send(
        &self,
        method: &str,
        path: &str,
        body: &Option<impl Serialize>,
        timeout: Duration,
    ) -> Result<Response, Failure> {
        let body = match body {
            Some(body) => serde_json::to_vec(body)
                .map_err(|error| Failure::failed(format!("cannot write JSON: {error}")))?,
            None => Vec::new(),
        };
        // A long operation and a hanging daemon look alike from here; the probe tells them apart.
        let silent = Cell::new(false);
        let waiting = Timeout {
            limit: timeout,
            keep_waiting: &|| {
                silent.set(timeout > PROBE_TIMEOUT && self.is_silent());
                !silent.get()
            },
        };
        let ask = |stream: UnixStream| http::exchange(&stream, method, path, &body, &waiting);
        let mut answer = ask(self.connect()?);
        // The daemon exited during the request, and another one may be serving by now.
        let deadline = Instant::now() + RECONNECT_TIMEOUT;
        while answer.as_ref().is_err_and(hung_up)
            && is_idempotent(method, path)
            && Instant::now() < deadline
        {
            std::thread::sleep(RECONNECT_INTERVAL);
            answer = ask(self.connect()?);
        }
        let response = answer.map_err(|error| {
            let what = format!("the daemon did not answer `{method} {path}`");
            if timed_out(&error) && (silent.get() || path == VERSION) {
                let seconds = PROBE_TIMEOUT.as_secs();
                let message = format!("sandboxd does not answer: no version within {seconds} s");
                return Failure::new(Kind::Unreachable, message).hint("sbx daemon restart");
            }
            if timed_out(&error) {
                let message = format!("{what} within {} s", timeout.as_secs());
                return Failure::new(Kind::Engine, message).hint("sbx daemon restart");
            }
            let hint = if hung_up(&error) {
                "the daemon has exited; try again".to_owned()
            } else {
                format!("see the log `{}`", self.state.log().display())
            };
            Failure::new(Kind::Engine, format!("{what}: {error}")).hint(hint)
        })?;
        self.context
            .ui
            .debug(|| format!("{method} {path}: {}", response.status));
        match response.status {
            200..=299 => Ok(response),
            status => Err(refusal(status, &response.body)),
        }
    }
}

const NOTHING: Option<()> = None;
const VERSION: &str = "/v1/version";
const SANDBOXES: &str = "/v1/sandboxes";

/// Whether a request may be repeated although it may have been carried out: a half-created sandbox is cleaned up, and a
/// finished one has the name.
fn is_idempotent(method: &str, path: &str) -> bool {
    let of_sandbox = path.starts_with(SANDBOXES);
    let starts_or_ends = path.ends_with("/start") || path.ends_with("/stop");
    match method {
        "GET" => true,
        "DELETE" => of_sandbox,
        "POST" => of_sandbox && (path == SANDBOXES || starts_or_ends),
        _ => false,
    }
}

/// The daemon closed the connection without an answer.
fn hung_up(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof
    )
}

/// No sandbox has that name.
pub(crate) fn unknown(name: &str, known: &[Sandbox]) -> Failure {
    let message = format!("no sandbox named `{}`", name.escape_debug());
    unknown_as(message, name, known)
}

/// The same in the words of a command that has its own.
pub(crate) fn unknown_as(mut message: String, name: &str, known: &[Sandbox]) -> Failure {
    let close = similar::similar_names(name, known.iter().map(|sandbox| sandbox.name.as_str()));
    if !close.is_empty() {
        message.push_str(&format!("; did you mean `{}`?", close.join("` or `")));
    }
    Failure::new(Kind::NotFound, message).hint("sbx ls")
}

fn refusal(status: u16, body: &[u8]) -> Failure {
    match serde_json::from_slice::<ErrorBody>(body) {
        Ok(body) => body.into(),
        Err(_) => Failure::new(
            Kind::Engine,
            format!("the daemon answered with status {status}"),
        ),
    }
}

fn route(name: &str, rest: &str) -> String {
    format!("{SANDBOXES}/{}{rest}", http::segment(name))
}
