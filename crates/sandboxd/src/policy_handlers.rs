//! The routes of the network policy. Whatever changes a rule makes it hold before it is answered.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use jiff::Timestamp;
use sbx_api::policy::{
    CheckAnswer, CheckRequest, ExistingResource, PolicyInit, ProxyConfigChange, ProxyConfigState,
    RuleList, RuleRemoval, RuleRequest,
};
use sbx_api::{ErrorBody, ErrorCode, Status};
use sbx_engine::policy::{Changed, PolicyBook, PolicyBookError};
use sbx_engine::{EngineError, SandboxName};
use sbx_policy::ProxyConfig;

use crate::check;
use crate::extract::{Body, Name, NoBody};
use crate::handlers::{Answer, blocking};
use crate::reply::Failure;
use crate::routes::App;

/// Choose a preset, once
#[utoipa::path(
    post, path = "/v1/policy/init", request_body = PolicyInit,
    responses(
        (status = 204),
        (status = 400, description = "no such preset", body = ErrorBody),
        (status = 409, description = "one has been chosen", body = ErrorBody),
    )
)]
pub(crate) async fn init(
    State(app): State<App>,
    Body(request): Body<PolicyInit>,
) -> Result<StatusCode, Failure> {
    change(&app, move |book| {
        book.init(&request.preset, Timestamp::now())
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Allow or deny something, for all sandboxes, for those of a repository or for one
#[utoipa::path(
    post, path = "/v1/policy/rules", request_body = RuleRequest,
    responses(
        (status = 200, body = RuleList),
        (status = 400, description = "a resource is refused", body = ErrorBody),
        (status = 404, description = "no such sandbox", body = ErrorBody),
        (status = 409, description = "a rule of this scope says the opposite", body = ErrorBody),
    )
)]
pub(crate) async fn add(
    State(app): State<App>,
    Body(request): Body<RuleRequest>,
) -> Answer<RuleList> {
    let sandbox = request.sandbox.clone();
    exists(&app, sandbox.as_deref())?;
    let changed = change(&app, move |book| book.add(&request, Timestamp::now())).await?;
    if let Err(gone) = stays(&app, sandbox.as_deref()) {
        // Its removal may have forgotten its rules before this one was there. By its id: those of the next sandbox of that
        // name are not meant.
        for rule in changed.rules {
            let removal = RuleRemoval {
                sandbox: sandbox.clone(),
                repo: None,
                id: Some(rule.id),
                resources: Vec::new(),
            };
            drop(change(&app, move |book| book.remove(&removal, Timestamp::now())).await);
        }
        return Err(gone);
    }
    let Changed {
        rules,
        existing,
        notice,
    } = changed;
    let existing = existing.into_iter().map(|existing| ExistingResource {
        resource: existing.resource.to_string(),
        rule_id: existing.rule_id,
        expires_at: existing.expires,
    });
    Ok(Json(RuleList {
        rules,
        notice: notice.map(str::to_owned),
        existing: existing.collect(),
        remaining: Vec::new(),
    }))
}

/// Remove rules, or resources of rules
#[utoipa::path(
    post, path = "/v1/policy/rules/remove", request_body = RuleRemoval,
    responses(
        (status = 200, description = "what was removed", body = RuleList),
        (status = 400, body = ErrorBody),
        (status = 404, description = "no such rule", body = ErrorBody),
        (status = 409, description = "it cannot be removed", body = ErrorBody),
    )
)]
pub(crate) async fn remove(
    State(app): State<App>,
    Body(request): Body<RuleRemoval>,
) -> Answer<RuleList> {
    let taken = change(&app, move |book| book.remove(&request, Timestamp::now())).await?;
    Ok(Json(RuleList {
        rules: taken.rules,
        notice: None,
        existing: Vec::new(),
        remaining: taken.remaining,
    }))
}

/// Stop all sandboxes, forget the preset and all rules
#[utoipa::path(post, path = "/v1/policy/reset", responses((status = 204)))]
pub(crate) async fn reset(State(app): State<App>, _: NoBody) -> Result<StatusCode, Failure> {
    // First: no sandbox is to run under rules that were not meant for it.
    blocking(&app, |engine| {
        engine.stop_all("policy reset");
        Ok(())
    })
    .await?;
    change(&app, PolicyBook::reset).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Tell what enforcement would say
#[utoipa::path(
    post, path = "/v1/policy/check", request_body = CheckRequest,
    responses(
        (status = 200, body = CheckAnswer),
        (status = 400, description = "invalid target", body = ErrorBody),
        (status = 404, description = "no such sandbox", body = ErrorBody),
    )
)]
pub(crate) async fn check(
    State(app): State<App>,
    Body(request): Body<CheckRequest>,
) -> Answer<CheckAnswer> {
    exists(&app, request.sandbox.as_deref())?;
    let (book, egress) = (app.book.clone(), app.egress.clone());
    let scope = check::scope(&request)?;
    let (gate, narrowed) = blocking(&app, move |_| {
        Ok((egress.gate(&scope), check::narrowed(&book, &scope)))
    })
    .await?;
    let answer = check::answer(&gate, narrowed.as_deref(), &request).await?;
    Ok(Json(answer))
}

/// The older network settings of a sandbox
#[utoipa::path(
    get, path = "/v1/sandboxes/{name}/proxy-config", params(("name" = String, Path)),
    responses((status = 200, body = ProxyConfigState), (status = 404, body = ErrorBody))
)]
pub(crate) async fn proxy_config(
    State(app): State<App>,
    Name(name): Name,
    _: NoBody,
) -> Answer<ProxyConfigState> {
    let name = existing(&app, &name)?;
    let book = app.book.clone();
    let config = blocking(&app, move |_| Ok(book.proxy_config(&name)?)).await?;
    Ok(Json(state(config)?))
}

/// Change the older network settings of a sandbox
#[utoipa::path(
    post, path = "/v1/sandboxes/{name}/proxy-config", params(("name" = String, Path)),
    request_body = ProxyConfigChange,
    responses(
        (status = 200, body = ProxyConfigState),
        (status = 400, description = "a value is refused", body = ErrorBody),
        (status = 404, body = ErrorBody),
    )
)]
pub(crate) async fn change_proxy_config(
    State(app): State<App>,
    Name(name): Name,
    Body(request): Body<ProxyConfigChange>,
) -> Answer<ProxyConfigState> {
    let name = existing(&app, &name)?;
    let config = change(&app, move |book| book.change_proxy_config(&name, &request)).await?;
    Ok(Json(state(Some(config))?))
}

fn state(config: Option<ProxyConfig>) -> Result<ProxyConfigState, Failure> {
    let config = config.map(serde_json::to_value).transpose();
    config
        .map(|config| ProxyConfigState { config })
        .map_err(|error| Failure::new(ErrorCode::Engine, error.to_string()))
}

/// Changes the rules where that may take its time, and makes them hold.
async fn change<T: Send + 'static>(
    app: &App,
    call: impl FnOnce(&PolicyBook) -> Result<T, PolicyBookError> + Send + 'static,
) -> Result<T, Failure> {
    let (book, egress) = (app.book.clone(), app.egress.clone());
    blocking(app, move |_| {
        let done = call(&book)?;
        egress.reload();
        Ok(done)
    })
    .await
}

fn exists(app: &App, name: Option<&str>) -> Result<(), Failure> {
    match name {
        Some(name) => existing(app, name).map(drop),
        None => Ok(()),
    }
}

/// A removal that is under way forgets the rules of the sandbox at some time.
fn stays(app: &App, name: Option<&str>) -> Result<(), Failure> {
    let Some(name) = name else { return Ok(()) };
    match app.engine.inspect(name)?.status {
        Status::Removing => Err(EngineError::NotFound(name.to_owned()).into()),
        Status::Creating | Status::Running | Status::Stopped => Ok(()),
    }
}

fn existing(app: &App, name: &str) -> Result<SandboxName, Failure> {
    app.engine.inspect(name)?;
    Ok(SandboxName::parse(name).map_err(EngineError::from)?)
}
