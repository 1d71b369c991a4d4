//! From a request to the record of a sandbox that does not exist yet: everything is checked, nothing is made.

use std::collections::BTreeMap;
use std::path::Path;

use jiff::Timestamp;
use sbx_api::{CreateRequest, Status};

use super::ports::parse_publish;
use crate::engine::Shared;
use crate::error::EngineError;
use crate::sandbox::agents;
use crate::sandbox::name::SandboxName;
use crate::sandbox::record::{CacheUse, Record, TemplateRecord, VERSION, WorkspaceRecord};
use crate::state::{StateDir, is_state};
use crate::workspace::{self, hints, worktree};

/// Which interface a sandbox is asked for through: they differ in what an agent and a name may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interface {
    Current,
    /// `/vm`: any agent, and a name that is taken gets a number.
    Vm,
}

/// The longest name of an agent, in bytes. Ours; the older interface states none.
const MAX_AGENT: usize = 255;

impl Shared {
    /// Everything about a new sandbox but its ids, checked.
    pub(crate) fn draft(
        &self,
        request: CreateRequest,
        interface: Interface,
    ) -> Result<Record, EngineError> {
        match interface {
            Interface::Current => check_agent(&request.agent)?,
            Interface::Vm => check_any_agent(&request.agent)?,
        }
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
        let id = uuid::Uuid::new_v4().to_string();
        let name = match (name, workspaces.first()) {
            (Some(name), _) => name,
            (None, _) if interface == Interface::Vm => SandboxName::of_vm(&request.agent, 1)?,
            (None, Some(primary)) => SandboxName::derive(&request.agent, primary.path.as_path())?,
            (None, None) => SandboxName::without_workspace(&request.agent, &id)?,
        };
        let git = worktree::find(&workspaces, state, request.git_write)?;
        if request.cache && workspaces.is_empty() {
            return Err(EngineError::CacheOfNothing);
        }
        let machines = &self.config.machines;
        let backend = machines.default_backend();
        let of_backend =
            |workspace: &WorkspaceRecord| machines.workspace_warnings(backend, workspace);
        let mut warnings = Vec::from_iter(machines.warnings(backend));
        warnings.extend(hints::warnings(&workspaces, &of_backend));
        warnings.extend(git.warnings);
        let (template, told) = self.template(request.template.as_deref(), &request.agent)?;
        warnings.extend(told);
        let limited = machines.limits(backend, &request.limits, &request.limits_preferred)?;
        warnings.extend(limited.warnings);
        Ok(Record {
            version: VERSION,
            name,
            id,
            agent: request.agent,
            status: Status::Creating,
            warnings,
            workspaces,
            git: git.shares,
            env: request.env,
            caller: request.caller,
            sources: Vec::new(),
            backend,
            ids: machines.no_ids(backend),
            template: TemplateRecord {
                name: template,
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
            limits: limited.limits,
            limits_required: limited.required,
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

/// It is shown on terminals and is a part of file names; no program is looked for by it.
fn check_any_agent(name: &str) -> Result<(), EngineError> {
    if name.is_empty() || name.len() > MAX_AGENT || name.contains(char::is_control) {
        return Err(EngineError::AgentName);
    }
    Ok(())
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
