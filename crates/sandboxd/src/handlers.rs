//! One function per route: takes the request apart, calls the engine on a thread of its own, and answers.

use std::sync::atomic::Ordering;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use jiff::Timestamp;
use sbx_api::{
    ClearCaches, ClearedCaches, CreateRequest, Created, DaemonInfo, ErrorBody, ErrorCode,
    KeepRequest, LogLevels, PortChange, PortChanges, Removed, Sandbox, SandboxList,
    ShutdownRequest, Started,
};
use sbx_engine::EngineError;
use sbx_engine::engine::{Engine, Removal};
use sbx_engine::error::chain;
use sbx_engine::policy::PolicyBook;

use crate::extract::{Body, Name, NoBody, RemoveQuery};
use crate::reply::Failure;
use crate::routes::App;

pub(crate) const VERSION_PATH: &str = "/v1/version";
pub(crate) const SHUTDOWN: &str = "/v1/daemon/shutdown";

pub(crate) type Answer<T> = Result<Json<T>, Failure>;

/// What this daemon is
#[utoipa::path(get, path = VERSION_PATH, responses((status = 200, body = DaemonInfo)))]
pub(crate) async fn version(State(app): State<App>, _: NoBody) -> Json<DaemonInfo> {
    Json(app.info)
}

/// All sandboxes
#[utoipa::path(get, path = "/v1/sandboxes", responses((status = 200, body = SandboxList)))]
pub(crate) async fn list(State(app): State<App>, _: NoBody) -> Answer<SandboxList> {
    let sandboxes = blocking(&app, |engine| Ok(engine.list())).await?;
    Ok(Json(SandboxList { sandboxes }))
}

/// Make a sandbox and start it
#[utoipa::path(
    post, path = "/v1/sandboxes", request_body = CreateRequest,
    responses(
        (status = 200, body = Created),
        (status = 400, description = "name, workspace or environment is refused", body = ErrorBody),
        (status = 409, description = "the name is taken", body = ErrorBody),
        (status = 413, description = "the body is too large", body = ErrorBody),
        (status = 501, description = "the agent comes with a later version", body = ErrorBody),
    )
)]
pub(crate) async fn create(
    State(app): State<App>,
    Body(request): Body<CreateRequest>,
) -> Answer<Created> {
    refuse_when_closing(&app)?;
    let book = app.book.clone();
    let created = blocking(&app, move |engine| {
        let sandbox = engine.create(request)?;
        // Only now: a notice in an answer that is an error would not be read.
        let notices = choose(&book);
        Ok(Created { sandbox, notices })
    })
    .await?;
    Ok(Json(created))
}

/// One sandbox
#[utoipa::path(
    get, path = "/v1/sandboxes/{name}", params(("name" = String, Path)),
    responses((status = 200, body = Sandbox), (status = 404, body = ErrorBody))
)]
pub(crate) async fn inspect(
    State(app): State<App>,
    Name(name): Name,
    _: NoBody,
) -> Answer<Sandbox> {
    let done = blocking(&app, move |engine| engine.inspect(&name)).await?;
    Ok(Json(done))
}

/// Remove a sandbox and everything in it but the workspaces
#[utoipa::path(
    delete, path = "/v1/sandboxes/{name}",
    params(
        ("name" = String, Path),
        ("force" = Option<bool>, Query, description = "also while commands run in it"),
        ("id" = Option<String>, Query, description = "of the sandbox that is meant; 404 when another one has the name"),
    ),
    responses(
        (status = 200, body = Removed),
        (status = 404, body = ErrorBody),
        (status = 409, description = "commands run in it", body = ErrorBody),
    )
)]
pub(crate) async fn remove(
    State(app): State<App>,
    Name(name): Name,
    RemoveQuery { force, id }: RemoveQuery,
    _: NoBody,
) -> Answer<Removed> {
    let removal = if force {
        Removal::Forced
    } else {
        Removal::WhenIdle
    };
    let warnings = blocking(&app, move |engine| {
        engine.remove(&name, id.as_deref(), removal)
    })
    .await?;
    Ok(Json(Removed { warnings }))
}

/// Start a sandbox that may be running already
#[utoipa::path(
    post, path = "/v1/sandboxes/{name}/start", params(("name" = String, Path)),
    responses((status = 200, body = Started), (status = 404, body = ErrorBody))
)]
pub(crate) async fn start(State(app): State<App>, Name(name): Name, _: NoBody) -> Answer<Started> {
    refuse_when_closing(&app)?;
    // What every `exec` asks for first: answered without a thread.
    if let Some(started) = app.engine.running(&name) {
        return Ok(Json(started));
    }
    let book = app.book.clone();
    let done = blocking(&app, move |engine| {
        let started = engine.start(&name)?;
        // The choice may have been taken back since it was made.
        let notices = choose(&book);
        Ok(Started { notices, ..started })
    })
    .await?;
    Ok(Json(done))
}

/// Takes the usual preset if none was chosen, and returns the notice for the user.
fn choose(book: &PolicyBook) -> Vec<String> {
    let notice = book
        .ensure_chosen(Timestamp::now())
        .unwrap_or_else(|error| {
            tracing::error!(error = chain(&error), "cannot write the network policy");
            None
        });
    notice.into_iter().map(str::to_owned).collect()
}

/// Remove build caches that no sandbox writes to
#[utoipa::path(
    post, path = "/v1/caches/clear", request_body = ClearCaches,
    responses((status = 200, body = ClearedCaches), (status = 400, body = ErrorBody))
)]
pub(crate) async fn clear_caches(
    State(app): State<App>,
    Body(request): Body<ClearCaches>,
) -> Answer<ClearedCaches> {
    let done = blocking(&app, move |engine| engine.clear_caches(&request)).await?;
    Ok(Json(done))
}

/// Stop a sandbox and keep its files
#[utoipa::path(
    post, path = "/v1/sandboxes/{name}/stop", params(("name" = String, Path)),
    responses((status = 200, body = Sandbox), (status = 404, body = ErrorBody))
)]
pub(crate) async fn stop(State(app): State<App>, Name(name): Name, _: NoBody) -> Answer<Sandbox> {
    let done = blocking(&app, move |engine| engine.stop(&name)).await?;
    Ok(Json(done))
}

/// Decide whether a sandbox stays up without a command, and whether it is removed when it stops
#[utoipa::path(
    post, path = "/v1/sandboxes/{name}/keep", params(("name" = String, Path)),
    request_body = KeepRequest,
    responses((status = 200, body = Sandbox), (status = 404, body = ErrorBody))
)]
pub(crate) async fn keep(
    State(app): State<App>,
    Name(name): Name,
    Body(request): Body<KeepRequest>,
) -> Answer<Sandbox> {
    let done = blocking(&app, move |engine| engine.keep(&name, &request)).await?;
    Ok(Json(done))
}

/// Publish and unpublish ports of a sandbox
#[utoipa::path(
    post, path = "/v1/sandboxes/{name}/ports", params(("name" = String, Path)),
    request_body = PortChange,
    responses(
        (status = 200, body = PortChanges),
        (status = 400, description = "not a port, or nothing of that kind is published", body = ErrorBody),
        (status = 404, body = ErrorBody),
        (status = 409, description = "the port is in use", body = ErrorBody),
    )
)]
pub(crate) async fn change_ports(
    State(app): State<App>,
    Name(name): Name,
    Body(change): Body<PortChange>,
) -> Answer<PortChanges> {
    refuse_when_closing(&app)?;
    let done = blocking(&app, move |engine| engine.change_ports(&name, &change)).await?;
    Ok(Json(done))
}

/// How much is logged
#[utoipa::path(get, path = "/v1/daemon/log-level", responses((status = 200, body = LogLevels)))]
pub(crate) async fn log_levels(State(app): State<App>, _: NoBody) -> Json<LogLevels> {
    Json(app.levels.get())
}

/// Log more or less, until the daemon ends
#[utoipa::path(
    put, path = "/v1/daemon/log-level", request_body = LogLevels,
    responses((status = 200, body = LogLevels), (status = 400, body = ErrorBody))
)]
pub(crate) async fn set_log_levels(
    State(app): State<App>,
    Body(levels): Body<LogLevels>,
) -> Answer<LogLevels> {
    app.levels
        .set(levels)
        .map_err(|message| Failure::new(ErrorCode::BadRequest, message))?;
    Ok(Json(app.levels.get()))
}

/// End the daemon, with or without the sandboxes
#[utoipa::path(post, path = SHUTDOWN, request_body = ShutdownRequest, responses((status = 204)))]
pub(crate) async fn shutdown(
    State(app): State<App>,
    Body(request): Body<ShutdownRequest>,
) -> Result<StatusCode, Failure> {
    app.closing.store(true, Ordering::Relaxed);
    // Not in this connection's own task, which ends when the client is interrupted: what refuses everything has to end.
    let ending = tokio::spawn(async move {
        let stopped = if request.stop_sandboxes {
            blocking(&app, |engine| {
                engine.stop_for_good();
                Ok(())
            })
            .await
        } else {
            Ok(())
        };
        app.end.notify_one();
        stopped
    });
    match ending.await {
        Ok(stopped) => stopped.map(|()| StatusCode::NO_CONTENT),
        Err(error) => Err(Failure::new(ErrorCode::Engine, error.to_string())),
    }
}

fn refuse_when_closing(app: &App) -> Result<(), Failure> {
    if app.closing.load(Ordering::Relaxed) {
        return Err(Failure::new(ErrorCode::Conflict, "the daemon is stopping"));
    }
    Ok(())
}

/// Calls the engine where it may take its time.
pub(crate) async fn blocking<T: Send + 'static>(
    app: &App,
    call: impl FnOnce(Engine) -> Result<T, EngineError> + Send + 'static,
) -> Result<T, Failure> {
    let engine = app.engine.clone();
    match app.workers.run(move || call(engine)).await {
        Ok(done) => Ok(done?),
        Err(error) => {
            tracing::error!(%error, "a request failed");
            Err(Failure::new(
                ErrorCode::Engine,
                "the daemon failed at this request; its log says more",
            ))
        }
    }
}
