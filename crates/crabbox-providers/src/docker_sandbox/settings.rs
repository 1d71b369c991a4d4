//! What the user may say about docker-sandbox.

use std::path::{Path, PathBuf};

use crabbox_core::provider::HostContext;
use crabbox_core::settings::{
    CACHE, Kind, Merge, Origin, ProviderTable, Setting, Settings, Trust, normalize_lexically,
};

const SECTION: &str = "dockerSandbox";

pub(super) const TABLE: ProviderTable = ProviderTable {
    name: "docker-sandbox",
    section: SECTION,
    settings: ROWS,
};

const fn row(key: &'static str, kind: Kind, default: &'static str, help: &'static str) -> Setting {
    Setting::new(Some(SECTION), key, kind, default, help)
}

const ROWS: &[Setting] = &[
    row(
        "cliPath",
        Kind::Text,
        "sbx",
        "The sbx program: a name in PATH or a path",
    )
    .env(&["CRABBOX_DOCKER_SANDBOX_CLI"])
    .flag("docker-sandbox-cli")
    .trust(Trust::User)
    .label("cli"),
    row(
        "agent",
        Kind::Text,
        "shell",
        "Agent of the sandbox; only shell is supported",
    )
    .env(&["CRABBOX_DOCKER_SANDBOX_AGENT"])
    .flag("docker-sandbox-agent")
    .for_other_engines()
    .creation_only(),
    row(
        "template",
        Kind::OptionalText,
        "",
        "Template to create the sandbox from",
    )
    .env(&["CRABBOX_DOCKER_SANDBOX_TEMPLATE"])
    .flag("docker-sandbox-template")
    .for_other_engines()
    .creation_only(),
    row("cpus", Kind::Count, "0", "Processors; 0 leaves it to sbx")
        .env(&["CRABBOX_DOCKER_SANDBOX_CPUS"])
        .flag("docker-sandbox-cpus")
        .creation_only(),
    row("memory", Kind::OptionalText, "", "Memory, such as 4g")
        .env(&["CRABBOX_DOCKER_SANDBOX_MEMORY"])
        .flag("docker-sandbox-memory")
        .creation_only(),
    row(
        "clone",
        Kind::Bool,
        "false",
        "Work on a clone of the repository instead of the directory itself",
    )
    .env(&["CRABBOX_DOCKER_SANDBOX_CLONE"])
    .flag("docker-sandbox-clone")
    .for_other_engines()
    .creation_only(),
    row(
        "gitWrite",
        Kind::Bool,
        "false",
        "Let commands commit in a linked git worktree: opens objects, refs and reflogs of its repository (bundled engine)",
    )
    .flag("git-write")
    .trust(Trust::User)
    .creation_only(),
    row(
        "workdir",
        Kind::OptionalText,
        "",
        "Where commands run; empty means the repository's own path",
    )
    .env(&["CRABBOX_DOCKER_SANDBOX_WORKDIR"])
    .flag("docker-sandbox-workdir")
    .trust(Trust::User),
    row(
        "extraWorkspaces",
        Kind::List(Merge::Replace),
        "",
        "Additional directories to share",
    )
    .env(&["CRABBOX_DOCKER_SANDBOX_EXTRA_WORKSPACES"])
    .flag("docker-sandbox-extra-workspace")
    .trust(Trust::User)
    .creation_only(),
    row(
        "mcp",
        Kind::List(Merge::Replace),
        "",
        "MCP servers to attach",
    )
    .env(&["CRABBOX_DOCKER_SANDBOX_MCP"])
    .flag("docker-sandbox-mcp")
    .for_other_engines()
    .creation_only(),
    row("kit", Kind::List(Merge::Replace), "", "Kits to add")
        .env(&["CRABBOX_DOCKER_SANDBOX_KIT"])
        .flag("docker-sandbox-kit")
        .for_other_engines()
        .creation_only(),
];

/// The settings, typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Config {
    pub(super) cli: Cli,
    pub(super) agent: String,
    pub(super) template: String,
    pub(super) cpus: u64,
    pub(super) memory: String,
    /// Limits that the repository asks for: to be enforced where that is possible.
    pub(super) preferred_limits: Vec<&'static str>,
    pub(super) clone: bool,
    pub(super) git_write: bool,
    pub(super) workdir: Option<PathBuf>,
    pub(super) extra_workspaces: Vec<String>,
    pub(super) mcp: Vec<String>,
    pub(super) kit: Vec<String>,
    /// The setting of all providers.
    pub(super) cache: bool,
}

/// Which program. Only the default is searched for; what the user names is that or nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cli {
    Default(First),
    Named(PathBuf),
}

/// Where the default is searched for first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum First {
    /// The user chose the provider: then it is the `sbx` of the user's PATH.
    Path,
    /// The provider is only the default. The engine that came with us was tested with us; what is called `sbx` in PATH may
    /// be anything.
    Bundled,
}

/// A repository chooses no program, so its choice of the provider does not count.
fn first(settings: &Settings) -> First {
    match settings.origin(None, "provider") {
        Some(Origin::User { .. } | Origin::Environment { .. } | Origin::Flag { .. }) => First::Path,
        Some(Origin::Default | Origin::Repository { .. }) | None => First::Bundled,
    }
}

impl Config {
    pub(super) fn from(settings: &Settings, host: &HostContext) -> Self {
        let text = |key| settings.text(SECTION, key).to_owned();
        let list = |key| settings.list(SECTION, key).to_vec();
        let cli = match settings.origin(SECTION, "cliPath") {
            None | Some(Origin::Default) => Cli::Default(first(settings)),
            Some(origin) => Cli::Named(program(&text("cliPath"), origin, host)),
        };
        let extra_workspaces = match settings.origin(SECTION, "extraWorkspaces") {
            Some(origin) => list("extraWorkspaces")
                .iter()
                .map(|path| directory(path, origin, host))
                .collect(),
            None => Vec::new(),
        };
        Self {
            cli,
            agent: text("agent"),
            template: text("template"),
            cpus: settings.count(SECTION, "cpus"),
            memory: text("memory"),
            preferred_limits: ["cpus", "memory"]
                .into_iter()
                .filter(|key| {
                    let origin = settings.origin(SECTION, key);
                    matches!(origin, Some(Origin::Repository { .. }))
                })
                .collect(),
            clone: settings.flag(SECTION, "clone"),
            git_write: settings.flag(SECTION, "gitWrite"),
            workdir: Some(text("workdir"))
                .filter(|path| !path.is_empty())
                .map(PathBuf::from),
            extra_workspaces,
            mcp: list("mcp"),
            kit: list("kit"),
            cache: settings.flag(None, CACHE),
        }
    }

    /// The first key whose value will not do, and why. `called`: how the message begins.
    pub(super) fn validate(&self, called: &str) -> Result<(), (&'static str, String)> {
        let refuse = |key, message| Err((key, message));
        if self.agent != "shell" {
            let agent = &self.agent;
            let message =
                format!("{called} agent {agent:?} is not supported yet; v1 supports shell only");
            return refuse("agent", message);
        }
        if let Some(workdir) = &self.workdir {
            let shown = workdir.display();
            if !workdir.is_absolute() {
                let message = format!("{called} workdir `{shown}` must be absolute");
                return refuse("workdir", message);
            }
            if normalize_lexically(workdir) == Path::new("/") {
                let message = format!(
                    "{called} workdir `{shown}` is too broad; choose a dedicated workspace path"
                );
                return refuse("workdir", message);
            }
        }
        for (key, entries) in [
            ("extraWorkspaces", &self.extra_workspaces),
            ("mcp", &self.mcp),
            ("kit", &self.kit),
        ] {
            for entry in entries {
                if entry.trim().is_empty() {
                    return refuse(key, format!("{called} {key} has an empty entry"));
                }
                // It would be taken for a flag of sbx.
                if entry.starts_with('-') {
                    let message = format!("{called} {key} entry {entry:?} begins with a hyphen");
                    return refuse(key, message);
                }
            }
        }
        for (key, value) in [("template", &self.template), ("memory", &self.memory)] {
            if value.starts_with('-') {
                let message = format!("{called} {key} {value:?} begins with a hyphen");
                return refuse(key, message);
            }
        }
        Ok(())
    }
}

/// A name is looked for in PATH; a path is one from wherever it was written.
fn program(text: &str, origin: &Origin, host: &HostContext) -> PathBuf {
    match text.contains('/') {
        true => written(text, origin, host),
        false => text.into(),
    }
}

/// An invalid path is left unchanged, so that it is refused as such.
fn directory(text: &str, origin: &Origin, host: &HostContext) -> String {
    if text.trim().is_empty() || text.starts_with('-') {
        return text.to_owned();
    }
    let path = written(text, origin, host);
    path.to_string_lossy().into_owned()
}

/// A repository means the same wherever in it one is.
fn written(text: &str, origin: &Origin, host: &HostContext) -> PathBuf {
    let base = match origin {
        Origin::Repository { .. } => &host.root,
        Origin::Default
        | Origin::User { .. }
        | Origin::Environment { .. }
        | Origin::Flag { .. } => &host.cwd,
    };
    base.join(text).components().collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// With nothing set.
    pub(in crate::docker_sandbox) fn config() -> Config {
        Config {
            cli: Cli::Default(First::Bundled),
            agent: "shell".into(),
            template: String::new(),
            cpus: 0,
            memory: String::new(),
            preferred_limits: Vec::new(),
            clone: false,
            git_write: false,
            workdir: None,
            extra_workspaces: vec![],
            mcp: vec![],
            kit: vec![],
            cache: false,
        }
    }

    #[test]
    fn a_relative_path_begins_where_it_was_written() {
        let host = HostContext {
            root: "/repo".into(),
            cwd: "/repo/sub".into(),
            ..super::super::engine::tests::host()
        };
        let repository = Origin::Repository {
            path: "/repo/.crabbox.yaml".into(),
            line: 1,
        };
        let flag = Origin::Flag { name: "x" };
        for (text, origin, expected) in [
            ("tools/sbx", &repository, "/repo/tools/sbx"),
            ("tools/sbx", &flag, "/repo/sub/tools/sbx"),
            ("./sbx", &flag, "/repo/sub/sbx"),
            ("/opt/sbx", &repository, "/opt/sbx"),
            ("my-sbx", &repository, "my-sbx"),
        ] {
            assert_eq!(program(text, origin, &host).to_str(), Some(expected));
        }
        for (text, origin, expected) in [
            ("../lib:ro", &repository, "/repo/../lib:ro"),
            ("lib", &flag, "/repo/sub/lib"),
            ("--privileged", &flag, "--privileged"),
            (" ", &flag, " "),
        ] {
            assert_eq!(directory(text, origin, &host), expected);
        }
    }

    #[test]
    fn a_path_is_cleaned_by_its_letters() {
        for (path, expected) in [
            ("/usr/", "/usr"),
            ("/a//b/./c/../d", "/a/b/d"),
            ("/../a", "/a"),
            ("/a/..", "/"),
        ] {
            // Paths are equal whatever their slashes: the letters count.
            let cleaned = normalize_lexically(Path::new(path));
            assert_eq!(cleaned.to_str(), Some(expected));
        }
    }

    #[test]
    fn what_sbx_cannot_be_told_is_refused_before_it_is_asked() {
        config().validate("engine:").unwrap();
        let with = |change: fn(&mut Config)| {
            let mut changed = config();
            change(&mut changed);
            changed.validate("engine:").unwrap_err().1
        };
        assert_eq!(
            with(|c| c.agent = "claude".into()),
            "engine: agent \"claude\" is not supported yet; v1 supports shell only"
        );
        assert_eq!(
            with(|c| c.workdir = Some("/a/..".into())),
            "engine: workdir `/a/..` is too broad; choose a dedicated workspace path"
        );
        assert_eq!(
            with(|c| c.workdir = Some("work".into())),
            "engine: workdir `work` must be absolute"
        );
        assert_eq!(
            with(|c| c.mcp = vec![" ".into()]),
            "engine: mcp has an empty entry"
        );
        assert_eq!(
            with(|c| c.kit = vec!["--privileged".into()]),
            "engine: kit entry \"--privileged\" begins with a hyphen"
        );
    }
}
