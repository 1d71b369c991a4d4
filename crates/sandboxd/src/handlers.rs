//! One function per route: takes the request apart, calls the engine on a thread of its own, and answers.

use std::sync::atomic::Ordering;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use jiff::Timestamp;
use sbx_api::{
    ClearCaches, ClearedCaches, CreateRequest, Created, DaemonInfo, ErrorBody, ErrorCode,
    KeepRequest, LogLevels, MountChange, PortChange, PortChanges, RemoveTemplate, Removed,
    RemovedTemplate, Sandbox, SandboxList, SaveTemplate, SavedNow, SettingsState, ShutdownRequest,
    Started, SummaryList, TemplateList, UnmountRequest, Usage, WorkspaceRequest,
};
use sbx_engine::EngineError;
use sbx_engine::engine::{Engine, Removal};
use sbx_engine::error::chain;
use sbx_engine::policy::PolicyBook;

use crate::extract::{Body, Name, NoBody, RemoveQuery, UsageQuery};
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

/// All sandboxes, in short
#[utoipa::path(get, path = "/v1/summaries", responses((status = 200, body = SummaryList)))]
pub(crate) async fn summaries(State(app): State<App>, _: NoBody) -> Answer<SummaryList> {
    let sandboxes = blocking(&app, |engine| Ok(engine.summaries())).await?;
    Ok(Json(SummaryList { sandboxes }))
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

/// What a sandbox uses now
#[utoipa::path(
    get, path = "/v1/sandboxes/{name}/usage",
    params(
        ("name" = String, Path),
        ("disk" = Option<bool>, Query, description = "also what its own files take on disk, which takes longer"),
    ),
    responses((status = 200, body = Usage), (status = 404, body = ErrorBody))
)]
pub(crate) async fn usage(
    State(app): State<App>,
    Name(name): Name,
    UsageQuery { disk }: UsageQuery,
    _: NoBody,
) -> Answer<Usage> {
    let done = blocking(&app, move |engine| engine.usage(&name, disk)).await?;
    Ok(Json(done))
}

/// Remove a sandbox and everything in it but the workspaces
#[utoipa::path(
    delete, path = "/v1/sandboxes/{name}",
    params(
        ("name" = String, Path),
        ("force" = Option<bool>, Query, description = "also while commands run in it"),
        ("id" = Option<String>, Query, description = "of the sandbox that is meant; 404 when another one has the name"),
        ("stopped_at" = Option<String>, Query, description = "only if it has been stopped since this very time; not with force"),
    ),
    responses(
        (status = 200, body = Removed),
        (status = 404, body = ErrorBody),
        (status = 409, description = "commands run in it, or it was used since it stopped", body = ErrorBody),
    )
)]
pub(crate) async fn remove(
    State(app): State<App>,
    Name(name): Name,
    query: RemoveQuery,
    _: NoBody,
) -> Answer<Removed> {
    let removal = match (query.force, query.stopped_at) {
        (true, None) => Removal::Forced,
        (false, None) => Removal::WhenIdle,
        (false, Some(time)) => Removal::StoppedSince(time),
        (true, Some(_)) => {
            return Err(Failure::new(
                ErrorCode::BadRequest,
                "`force` and `stopped_at` exclude each other",
            ));
        }
    };
    let id = query.id;
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

/// All saved templates
#[utoipa::path(get, path = "/v1/templates", responses((status = 200, body = TemplateList)))]
pub(crate) async fn templates(State(app): State<App>, _: NoBody) -> Answer<TemplateList> {
    let images = blocking(&app, |engine| engine.templates()).await?;
    Ok(Json(TemplateList { images }))
}

/// Save a sandbox that does not run as a template
#[utoipa::path(
    post, path = "/v1/templates", request_body = SaveTemplate,
    responses(
        (status = 200, body = SavedNow),
        (status = 400, description = "not the name of a template", body = ErrorBody),
        (status = 404, body = ErrorBody),
        (status = 409, description = "the sandbox runs", body = ErrorBody),
    )
)]
pub(crate) async fn save_template(
    State(app): State<App>,
    Body(request): Body<SaveTemplate>,
) -> Answer<SavedNow> {
    refuse_when_closing(&app)?;
    let done = blocking(&app, move |engine| engine.save_template(&request)).await?;
    Ok(Json(done))
}

/// Remove a saved template; sandboxes that are made from it go on
#[utoipa::path(
    post, path = "/v1/templates/remove", request_body = RemoveTemplate,
    responses(
        (status = 200, body = RemovedTemplate),
        (status = 400, description = "it is not clear which one is meant", body = ErrorBody),
        (status = 404, body = ErrorBody),
    )
)]
pub(crate) async fn remove_template(
    State(app): State<App>,
    Body(request): Body<RemoveTemplate>,
) -> Answer<RemovedTemplate> {
    let wanted = request.template;
    let done = blocking(&app, move |engine| engine.remove_template(&wanted)).await?;
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

/// Mount a workspace into a sandbox: at once if it runs and that is possible, else from its next start on
#[utoipa::path(
    post, path = "/v1/sandboxes/{name}/mount", params(("name" = String, Path)),
    request_body = WorkspaceRequest,
    responses(
        (status = 200, body = MountChange),
        (status = 400, description = "the workspace or its place is refused", body = ErrorBody),
        (status = 404, body = ErrorBody),
        (status = 409, description = "the sandbox has it already", body = ErrorBody),
    )
)]
pub(crate) async fn mount(
    State(app): State<App>,
    Name(name): Name,
    Body(request): Body<WorkspaceRequest>,
) -> Answer<MountChange> {
    refuse_when_closing(&app)?;
    let done = blocking(&app, move |engine| engine.mount(&name, &request)).await?;
    Ok(Json(done))
}

/// Take a workspace away from a sandbox
#[utoipa::path(
    post, path = "/v1/sandboxes/{name}/unmount", params(("name" = String, Path)),
    request_body = UnmountRequest,
    responses(
        (status = 200, body = MountChange),
        (status = 400, description = "no workspace of it, or the primary one", body = ErrorBody),
        (status = 404, body = ErrorBody),
        (status = 409, description = "programs inside use it", body = ErrorBody),
    )
)]
pub(crate) async fn unmount(
    State(app): State<App>,
    Name(name): Name,
    Body(request): Body<UnmountRequest>,
) -> Answer<MountChange> {
    refuse_when_closing(&app)?;
    let done = blocking(&app, move |engine| engine.unmount(&name, &request.path)).await?;
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

/// What the environment says about the settings, and what a restart would change
#[utoipa::path(get, path = "/v1/settings", responses((status = 200, body = SettingsState)))]
pub(crate) async fn settings(State(app): State<App>, _: NoBody) -> Answer<SettingsState> {
    follow_settings(&app).await
}

/// Follow `settings.json` as it is now; a daemon also notices an edit by itself
#[utoipa::path(
    post, path = "/v1/settings/reload",
    responses((status = 200, body = SettingsState), (status = 500, description = "the file cannot be used", body = ErrorBody))
)]
pub(crate) async fn reload_settings(State(app): State<App>, _: NoBody) -> Answer<SettingsState> {
    follow_settings(&app).await
}

async fn follow_settings(app: &App) -> Answer<SettingsState> {
    let live = app.settings.clone();
    let done = blocking(app, move |_| Ok(live.reload()?)).await?;
    Ok(Json(done))
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

pub(crate) fn refuse_when_closing(app: &App) -> Result<(), Failure> {
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
