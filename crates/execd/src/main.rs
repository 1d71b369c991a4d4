//! `execd`: runs commands inside a sandbox for an OpenSandbox server.
//!
//! The protocol is in `execd-proto`. This program is one static file, copied into any image, so it needs nothing there but
//! a shell.

mod auth;
mod commands;
mod extract;
mod files;
mod metrics;
mod output;
mod process;
mod proxy;
mod reply;
mod sessions;
mod terminal;

use std::ffi::OsString;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use axum::extract::DefaultBodyLimit;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use axum::{Json, Router, middleware};
use execd_proto::error::{Code, ErrorBody};

use crate::reply::Failure;

const DEFAULT_PORT: u16 = 44772;
const USAGE: &str = "\
Run commands inside a sandbox for an OpenSandbox server

Usage: execd [--host ADDRESS] [--port PORT]

Options:
  --host ADDRESS  Address to listen on [default: 0.0.0.0]
  --port PORT     Port to listen on; 0 chooses a free one and prints it [default: 44772]
  --version       Print version
  --help          Print help

Environment:
  EXECD_ACCESS_TOKEN  Token that clients must send as X-EXECD-ACCESS-TOKEN
  EXECD_ENVS          File with variables for every command
";

/// What all requests share.
#[derive(Debug)]
pub(crate) struct App {
    token: Option<String>,
    env_file: Option<PathBuf>,
    /// Logs of background commands and states of sessions; private, removed at exit.
    directory: PathBuf,
    commands: commands::Registry,
    sessions: sessions::Sessions,
    terminals: terminal::Terminals,
}

#[expect(clippy::print_stderr, reason = "this is the program's edge")]
fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let outcome = match words.split_first() {
        Some((first, rest)) if first == terminal::TERMINAL_CHILD => {
            Err(terminal::become_terminal_child(rest))
        }
        Some(_) | None => run(&words),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            eprintln!("error: {error}\n\n{USAGE}");
            ExitCode::from(2)
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

#[expect(
    clippy::print_stdout,
    reason = "help and version are this program's data"
)]
fn run(words: &[OsString]) -> io::Result<()> {
    let mut address = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), DEFAULT_PORT);
    let mut words = words.iter().map(|word| word.to_string_lossy());
    while let Some(word) = words.next() {
        let (name, mut value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (word.as_ref(), None),
        };
        let mut argument = || {
            let value = value.take().or_else(|| words.next().map(Into::into));
            value.ok_or_else(|| usage(&format!("{name} needs a value")))
        };
        match name.trim_start_matches('-') {
            "port" => {
                let text = argument()?;
                let port = text
                    .parse()
                    .map_err(|_| usage(&format!("invalid port `{text}`")))?;
                address.set_port(port);
            }
            "host" => {
                let text = argument()?;
                let host = text
                    .parse()
                    .map_err(|_| usage(&format!("invalid address `{text}`")))?;
                address.set_ip(host);
            }
            "version" => {
                println!("execd {}", env!("CARGO_PKG_VERSION"));
                return Ok(());
            }
            "help" | "h" => {
                print!("{USAGE}");
                return Ok(());
            }
            _ => return Err(usage(&format!("unknown argument `{word}`"))),
        }
    }
    serve(address)
}

fn usage(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

#[expect(
    clippy::disallowed_methods,
    reason = "main reads the environment once and passes values on"
)]
fn serve(address: SocketAddr) -> io::Result<()> {
    let directory = std::env::temp_dir().join(format!("execd-{}", uuid::Uuid::new_v4()));
    std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700)
        .create(&directory)?;
    let app = Arc::new(App {
        token: std::env::var("EXECD_ACCESS_TOKEN")
            .ok()
            .filter(|token| !token.is_empty()),
        env_file: std::env::var_os("EXECD_ENVS").map(PathBuf::from),
        directory: directory.clone(),
        commands: commands::Registry::default(),
        sessions: sessions::Sessions::default(),
        terminals: terminal::Terminals::default(),
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let served = runtime.block_on(listen(address, app));
    let removed = std::fs::remove_dir_all(directory);
    served.and(removed)
}

#[expect(
    clippy::print_stdout,
    reason = "a caller that asks for a free port needs its number"
)]
async fn listen(address: SocketAddr, app: Arc<App>) -> io::Result<()> {
    let listener = tokio::net::TcpListener::bind(address).await?;
    if address.port() == 0 {
        println!("{}", listener.local_addr()?);
    }
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        served = axum::serve(listener, router(app).into_make_service()).into_future() => served,
        _ = terminate.recv() => Ok(()),
        interrupted = tokio::signal::ctrl_c() => interrupted,
    }
}

async fn no_interpreter() -> Failure {
    Failure::new(
        Code::NotSupported,
        "this execd has no code interpreter; run the language's program with /command",
    )
}

async fn no_isolation() -> Failure {
    Failure::new(
        Code::NotSupported,
        "this execd has no isolated sessions; use /session or /command",
    )
}

async fn no_operations() -> Failure {
    Failure::new(
        Code::NotSupported,
        "this execd has no operation ids; use /command",
    )
}

async fn no_route(method: Method, uri: Uri) -> Response {
    let message = format!("no route {method} {}", uri.path());
    let body = ErrorBody::new(Code::Unknown, message);
    (StatusCode::NOT_FOUND, Json(body)).into_response()
}

fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/command", post(commands::run).delete(commands::interrupt))
        .route("/command/status/{id}", get(commands::status))
        .route("/command/{id}/logs", get(commands::logs))
        .route("/session", post(sessions::create))
        .route("/session/{id}", axum::routing::delete(sessions::delete))
        .route("/session/{id}/run", post(sessions::run))
        .route("/pty", post(terminal::create))
        .route("/pty/{id}", get(terminal::status).delete(terminal::delete))
        .route("/pty/{id}/ws", get(terminal::connect))
        .route("/files", axum::routing::delete(files::remove))
        .route("/files/info", get(files::describe))
        .route("/files/upload", post(files::upload))
        .route("/files/download", get(files::download))
        .route("/files/permissions", post(files::change_permissions))
        .route("/files/mv", post(files::rename))
        .route("/files/search", get(files::search))
        .route("/files/replace", post(files::replace))
        .route(
            "/directories",
            post(files::make_directories).delete(files::remove_directories),
        )
        .route("/directories/list", get(files::list))
        .route("/metrics", get(metrics::read))
        .route("/metrics/watch", get(metrics::watch))
        // The code interpreter needs a Jupyter server, which no sandbox of ours has.
        .route("/code", any(no_interpreter))
        .route("/code/{*path}", any(no_interpreter))
        .route("/v1/isolated/{*path}", any(no_isolation))
        .route("/command/operations", any(no_operations))
        .route("/execution/{*path}", any(no_operations))
        .route("/proxy/{port}", any(proxy::root))
        .route("/proxy/{port}/", any(proxy::root))
        .route("/proxy/{port}/{*path}", any(proxy::path))
        .fallback(no_route)
        .layer(middleware::from_fn_with_state(
            Arc::clone(&app),
            auth::check,
        ))
        // Readiness probes carry no token.
        .route("/ping", get(|| async {}))
        // Uploads are as large as the disk allows; JSON bodies are bounded by the memory of the sandbox.
        .layer(DefaultBodyLimit::disable())
        .with_state(app)
}
