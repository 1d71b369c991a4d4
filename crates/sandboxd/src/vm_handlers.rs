//! The older interface, `/vm`, in the words of Docker Desktop's `sandboxd`. It sees the same sandboxes as the current one.

use std::path::PathBuf;
use std::sync::Arc;

use axum::Json;
use axum::extract::{FromRequest, FromRequestParts, Request, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sbx_api::vm::{CreatedVm, NewVm, Vm, VmConfig, VmError};
use sbx_api::{Caller, ErrorCode, Sandbox};
use sbx_engine::engine::Removal;
use sbx_engine::{SandboxName, StateDir};

use crate::egress::certificate_path;
use crate::extract::{Body, Name, NoBody};
use crate::handlers::{blocking, refuse_when_closing};
use crate::reply::Failure;
use crate::routes::App;

pub(crate) const PATH: &str = "/vm";
/// Of `workspace_dir`, in bytes: what the kernel takes as a path (PATH_MAX).
const MAX_PATH: usize = 4096;

/// What the requests of this interface leave unsaid.
#[derive(Debug)]
pub struct VmHost {
    pub state: StateDir,
    /// In the place of the client's, which does not say who it is.
    pub caller: Caller,
    pub asset_dir: PathBuf,
}

/// An error in this interface's form: a message, with 400, 404, 409 or 500.
#[derive(Debug)]
pub(crate) struct Refused(Failure);

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Self {
        Self(failure)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let body = self.0.into_body();
        let status = match body.code {
            ErrorCode::BadRequest | ErrorCode::TooLarge | ErrorCode::NotYet => {
                StatusCode::BAD_REQUEST
            }
            ErrorCode::NotFound => StatusCode::NOT_FOUND,
            ErrorCode::Conflict | ErrorCode::VersionMismatch => StatusCode::CONFLICT,
            ErrorCode::Engine => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let message = body.message;
        (status, Json(VmError { message })).into_response()
    }
}

/// A part of the request, whose errors have this interface's form.
pub(crate) struct Checked<T>(T);

impl<S: Send + Sync> FromRequest<S> for Checked<NoBody> {
    type Rejection = Refused;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refused> {
        Ok(Self(NoBody::from_request(request, state).await?))
    }
}

impl<S: Send + Sync> FromRequest<S> for Checked<NewVm> {
    type Rejection = Refused;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refused> {
        let Body(new) = Body::from_request(request, state).await?;
        Ok(Self(new))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Checked<Name> {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refused> {
        Ok(Self(Name::from_request_parts(parts, state).await?))
    }
}

/// All sandboxes, in the older form
#[utoipa::path(get, path = PATH, responses((status = 200, body = Vec<Vm>)))]
pub(crate) async fn list(
    State(app): State<App>,
    _: Checked<NoBody>,
) -> Result<Json<Vec<Vm>>, Refused> {
    let sandboxes = blocking(&app, |engine| Ok(engine.list())).await?;
    Ok(Json(sandboxes.into_iter().map(shown).collect()))
}

/// Make a sandbox for any agent and start it
#[utoipa::path(
    post, path = PATH, request_body = NewVm,
    responses(
        (status = 200, body = CreatedVm),
        (status = 400, description = "the body, the agent's name or the workspace is refused", body = VmError),
        (status = 409, description = "the daemon is stopping", body = VmError),
        (status = 500, body = VmError),
    )
)]
pub(crate) async fn create(
    State(app): State<App>,
    Checked(new): Checked<NewVm>,
) -> Result<Json<CreatedVm>, Refused> {
    refuse_when_closing(&app)?;
    if new.workspace_dir.len() > MAX_PATH {
        let message = format!("`workspace_dir` has more than {MAX_PATH} bytes");
        return Err(Failure::new(ErrorCode::BadRequest, message).into());
    }
    let caller = app.vm.caller.clone();
    let sandbox = blocking(&app, move |engine| {
        engine.create_vm(new.agent_name, new.workspace_dir, caller)
    })
    .await?;
    Ok(Json(created(&app.vm, sandbox)?))
}

/// Remove a sandbox, also while commands run in it
#[utoipa::path(
    delete, path = "/vm/{vm_name}", params(("vm_name" = String, Path)),
    responses(
        (status = 204, description = "it is gone"),
        (status = 404, body = VmError),
        (status = 500, body = VmError),
    )
)]
pub(crate) async fn remove(
    State(app): State<App>,
    Checked(Name(name)): Checked<Name>,
    _: Checked<NoBody>,
) -> Result<StatusCode, Refused> {
    blocking(&app, move |engine| {
        engine.remove(&name, None, Removal::Forced)
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

fn shown(sandbox: Sandbox) -> Vm {
    let primary = sandbox.workspaces.into_iter().next();
    Vm {
        vm_id: sandbox.id,
        vm_name: sandbox.name,
        agent_name: sandbox.agent,
        workspace_dir: primary.map(|workspace| workspace.path).unwrap_or_default(),
    }
}

fn created(host: &Arc<VmHost>, sandbox: Sandbox) -> Result<CreatedVm, Failure> {
    let failed = |message: String| Failure::new(ErrorCode::Engine, message);
    let name = SandboxName::parse(&sandbox.name).map_err(|error| failed(error.to_string()))?;
    let dir = host.state.sandbox(&name);
    let certificate = certificate_path(&dir);
    let pem = std::fs::read(&certificate)
        .map_err(|error| failed(format!("cannot read `{}`: {error}", certificate.display())))?;
    Ok(CreatedVm {
        vm_id: sandbox.id,
        vm_name: sandbox.name,
        vm_config: VmConfig {
            socket_path: dir.docker_socket().display().to_string(),
            file_sharing_directories: sandbox.workspaces.into_iter().map(|it| it.path).collect(),
            state_dir: dir.path().display().to_string(),
            asset_dir: host.asset_dir.display().to_string(),
        },
        ca_cert_path: certificate.display().to_string(),
        ca_cert_data: STANDARD.encode(pem),
    })
}
