//! From a request to the record of a sandbox that does not exist yet: everything is checked, nothing is made.

use std::collections::BTreeMap;
use std::path::Path;

use jiff::Timestamp;
use sbx_api::{CreateRequest, Status};

use super::ports::parse_publish;
use crate::engine::Shared;
use crate::error::EngineError;
use crate::machine::Template;
use crate::sandbox::agents;
use crate::sandbox::name::SandboxName;
use crate::sandbox::record::{CacheUse, Record, TemplateRecord, VERSION, WorkspaceRecord};
use crate::state::{StateDir, is_state};
use crate::workspace::{self, hints};

impl Shared {
    /// Everything about a new sandbox but its ids, checked.
    pub(crate) fn draft(&self, request: CreateRequest) -> Result<Record, EngineError> {
        check_agent(&request.agent)?;
        check_platform(request.platform.as_deref())?;
        check_env(&request.env)?;
        let ports = parse_publish(&request.publish)?;
        let name = request
            .name
            .as_deref()
            .map(SandboxName::parse)
            .transpose()?;
        let state = self.config.state.root();
        let workspaces = workspace::resolve(&request.workspaces, state, &self.writable())?;
        let usual = StateDir::locate(Path::new(&request.caller.home), None);
        if let Ok(usual) = usual
            && is_state(usual.root())
        {
            workspace::keep_clear_of(&workspaces, usual.root())?;
        }
        let name = match (name, workspaces.first()) {
            (Some(name), _) => name,
            (None, Some(primary)) => SandboxName::derive(&request.agent, primary.path.as_path())?,
            (None, None) => return Err(workspace::WorkspaceError::None.into()),
        };
        let machines = &self.config.machines;
        let backend = machines.default_backend();
        let of_backend =
            |workspace: &WorkspaceRecord| machines.workspace_warnings(backend, workspace);
        let mut warnings = Vec::from_iter(machines.warnings(backend));
        warnings.extend(hints::warnings(&workspaces, &of_backend));
        Ok(Record {
            version: VERSION,
            name,
            id: uuid::Uuid::new_v4().to_string(),
            agent: request.agent,
            status: Status::Creating,
            warnings,
            workspaces,
            env: request.env,
            caller: request.caller,
            sources: Vec::new(),
            backend,
            ids: machines.no_ids(backend),
            template: TemplateRecord {
                name: Template::Host,
                fingerprint: None,
                started_with: None,
            },
            init: None,
            hand_over_due: false,
            network: None,
            created_at: Timestamp::now(),
            started_at: None,
            stopped_at: None,
            last_used_at: None,
            stop_reason: None,
            keep_alive: false,
            idle_seconds: request.idle_seconds,
            cache: request.cache.then(CacheUse::default),
            temporary: request.temporary,
            limits: machines.limits(backend, &request.limits)?,
            stop_at: None,
            mounts: Vec::new(),
            ports,
        })
    }
}

fn check_agent(name: &str) -> Result<(), EngineError> {
    match name {
        agents::SHELL => Ok(()),
        later if agents::LATER.contains(&later) => Err(EngineError::LaterAgent(later.to_owned())),
        unknown => Err(EngineError::UnknownAgent(unknown.to_owned())),
    }
}

/// Until images can run another one, the platform is this machine's.
fn check_platform(wanted: Option<&str>) -> Result<(), EngineError> {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let host = format!("linux/{architecture}");
    match wanted {
        Some(wanted) if wanted != host => Err(EngineError::Platform {
            wanted: wanted.to_owned(),
            host,
        }),
        Some(_) | None => Ok(()),
    }
}

fn check_env(env: &BTreeMap<String, String>) -> Result<(), EngineError> {
    for (name, value) in env {
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(EngineError::EnvName(name.clone()));
        }
        if value.contains('\0') {
            return Err(EngineError::EnvValue(name.clone()));
        }
    }
    Ok(())
}
