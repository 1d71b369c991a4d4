//! The routes of the API, and what holds for all of them.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use sbx_api::{DaemonInfo, ErrorCode, VERSION, VERSION_HEADER};
use sbx_engine::Engine;
use sbx_engine::policy::PolicyBook;
use sbx_proxy::workers::Workers;
use tokio::sync::Notify;
use utoipa::openapi::{Info, OpenApi, OpenApiBuilder};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::extract::NoBody;
use crate::handlers::{self, SHUTDOWN, VERSION_PATH};
use crate::logging::Levels;
use crate::policy_handlers as policy;
use crate::reload::PolicyReload;
use crate::reply::Failure;
use crate::settings::LiveSettings;
use crate::vm_handlers::{self as vm, VmHost};

const OPENAPI_PATH: &str = "/v1/openapi.json";

/// What the handlers work with.
#[derive(Debug, Clone)]
pub struct App {
    pub engine: Engine,
    /// Where the engine is called.
    pub workers: Arc<Workers>,
    pub levels: Arc<Levels>,
    pub settings: LiveSettings,
    pub info: DaemonInfo,
    pub vm: Arc<VmHost>,
    /// The network rules.
    pub book: Arc<PolicyBook>,
    /// What enforces them.
    pub egress: Arc<dyn PolicyReload>,
    /// Told when the daemon is to end.
    pub end: Arc<Notify>,
    /// Nothing new is started any more.
    pub closing: Arc<AtomicBool>,
}

pub fn router(app: App) -> Router {
    let (router, document) = documented().split_for_parts();
    router
        .route(
            OPENAPI_PATH,
            axum::routing::get(async |_: NoBody| axum::Json(document)),
        )
        .route_layer(from_fn(check_version))
        .fallback(unknown_route)
        .method_not_allowed_fallback(wrong_method)
        .with_state(app)
}

/// The description of the API, generated from the routes.
pub fn openapi() -> OpenApi {
    documented().into_openapi()
}

fn documented() -> OpenApiRouter<App> {
    let mut info = Info::new("sandboxd", VERSION);
    info.description = Some(format!(
        "The daemon of sbx, on the Unix socket `sandboxd.sock` of the state directory. Every request but \
         `GET {VERSION_PATH}`, `POST {SHUTDOWN}`, `GET {OPENAPI_PATH}` and those of the older interface, `{older}`, \
         carries the client's version in the header `{VERSION_HEADER}`.",
        older = vm::PATH,
    ));
    OpenApiRouter::with_openapi(OpenApiBuilder::new().info(info).build())
        .routes(routes!(handlers::version))
        .routes(routes!(handlers::list, handlers::create))
        .routes(routes!(handlers::summaries))
        .routes(routes!(handlers::inspect, handlers::remove))
        .routes(routes!(handlers::usage))
        .routes(routes!(handlers::start))
        .routes(routes!(handlers::stop))
        .routes(routes!(handlers::keep))
        .routes(routes!(handlers::change_ports))
        .routes(routes!(handlers::mount))
        .routes(routes!(handlers::unmount))
        .routes(routes!(handlers::clear_caches))
        .routes(routes!(handlers::templates, handlers::save_template))
        .routes(routes!(handlers::remove_template))
        .routes(routes!(handlers::log_levels, handlers::set_log_levels))
        .routes(routes!(handlers::settings))
        .routes(routes!(handlers::reload_settings))
        .routes(routes!(handlers::shutdown))
        .routes(routes!(policy::init))
        .routes(routes!(policy::add))
        .routes(routes!(policy::remove))
        .routes(routes!(policy::reset))
        .routes(routes!(policy::check))
        .routes(routes!(policy::proxy_config, policy::change_proxy_config))
        .routes(routes!(vm::list, vm::create))
        .routes(routes!(vm::remove))
}

/// Client and daemon come from one program; another version may mean something else by the same words.
async fn check_version(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let older = path.strip_prefix(vm::PATH);
    let is_older = older.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    if is_older || [VERSION_PATH, SHUTDOWN, OPENAPI_PATH].contains(&path) {
        return next.run(request).await;
    }
    match request.headers().get(VERSION_HEADER).map(|v| v.as_bytes()) {
        Some(version) if version == VERSION.as_bytes() => next.run(request).await,
        Some(version) => Failure::new(
            ErrorCode::VersionMismatch,
            format!(
                "this is sbx {}, the daemon is {VERSION}",
                String::from_utf8_lossy(version)
            ),
        )
        .hint("sbx daemon restart")
        .into_response(),
        None => Failure::new(
            ErrorCode::BadRequest,
            format!("the header `{VERSION_HEADER}` is missing"),
        )
        .hint(format!("send `{VERSION_HEADER}: {VERSION}`"))
        .into_response(),
    }
}

async fn unknown_route(request: Request) -> Failure {
    let path = request.uri().path();
    Failure::new(ErrorCode::NotFound, format!("no route `{path}`"))
        .hint(format!("GET {OPENAPI_PATH}"))
}

async fn wrong_method(request: Request) -> Failure {
    let (method, path) = (request.method(), request.uri().path());
    Failure::new(
        ErrorCode::BadRequest,
        format!("`{path}` does not take {method}"),
    )
    .status(StatusCode::METHOD_NOT_ALLOWED)
    .hint(format!("GET {OPENAPI_PATH}"))
}
