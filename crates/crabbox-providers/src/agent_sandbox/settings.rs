//! What the user may say about agent-sandbox.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crabbox_core::provider::HostContext;
use crabbox_core::settings::{Kind, ProviderTable, Setting, Settings, Trust, normalize_lexically};

const SECTION: &str = "agentSandbox";

pub(super) const TABLE: ProviderTable = ProviderTable {
    name: "agent-sandbox",
    section: SECTION,
    settings: ROWS,
};

/// The variable that kubectl reads.
pub(super) const KUBECONFIG: &str = "KUBECONFIG";

/// A directory that other programs use is refused as workdir: a sync empties it.
const BROAD: [&str; 15] = [
    "/", "/bin", "/dev", "/etc", "/home", "/lib", "/lib64", "/opt", "/proc", "/root", "/sbin",
    "/sys", "/tmp", "/usr", "/var",
];
/// Longer than any command may want, and short enough to be added to any time.
const MAX_TIMEOUT: Duration = Duration::from_secs(366 * 24 * 3600);

const fn row(key: &'static str, kind: Kind, default: &'static str, help: &'static str) -> Setting {
    Setting::new(Some(SECTION), key, kind, default, help)
}

const ROWS: &[Setting] = &[
    row(
        "kubectl",
        Kind::Text,
        "kubectl",
        "The kubectl program: a name in PATH or an absolute path",
    )
    .env(&["CRABBOX_AGENT_SANDBOX_KUBECTL"])
    .flag("agent-sandbox-kubectl")
    .trust(Trust::User),
    row(
        "kubeconfig",
        Kind::OptionalText,
        "",
        "Absolute path of the kubeconfig; empty means KUBECONFIG or the default one",
    )
    .env(&["CRABBOX_AGENT_SANDBOX_KUBECONFIG"])
    .flag("agent-sandbox-kubeconfig")
    .trust(Trust::User),
    row("context", Kind::Text, "", "Kubernetes context; required")
        .env(&["CRABBOX_AGENT_SANDBOX_CONTEXT"])
        .flag("agent-sandbox-context")
        .trust(Trust::User),
    row(
        "namespace",
        Kind::Text,
        "default",
        "Namespace of the warm pool",
    )
    .env(&["CRABBOX_AGENT_SANDBOX_NAMESPACE"])
    .flag("agent-sandbox-namespace")
    .trust(Trust::User),
    row(
        "warmPool",
        Kind::Text,
        "",
        "SandboxWarmPool that claims point at; required",
    )
    .env(&["CRABBOX_AGENT_SANDBOX_WARM_POOL"])
    .flag("agent-sandbox-warm-pool")
    .trust(Trust::User)
    .label("warm_pool"),
    row(
        "container",
        Kind::OptionalText,
        "",
        "Container of the pod; empty means the pod's default one",
    )
    .env(&["CRABBOX_AGENT_SANDBOX_CONTAINER"])
    .flag("agent-sandbox-container")
    .trust(Trust::User),
    row(
        "workdir",
        Kind::Text,
        "/workspace/crabbox",
        "Directory that the repository is synced to and commands run in",
    )
    .env(&["CRABBOX_AGENT_SANDBOX_WORKDIR"])
    .flag("agent-sandbox-workdir")
    .trust(Trust::User),
    row(
        "sandboxReadyTimeout",
        Kind::Duration,
        "180s",
        "How long the Sandbox may take to become ready; 0 means no limit",
    )
    .env(&["CRABBOX_AGENT_SANDBOX_SANDBOX_READY_TIMEOUT"])
    .flag("agent-sandbox-sandbox-ready-timeout")
    .trust(Trust::ShorterThanUser),
    row(
        "podReadyTimeout",
        Kind::Duration,
        "180s",
        "How long its pod may take after that; 0 means no limit",
    )
    .env(&["CRABBOX_AGENT_SANDBOX_POD_READY_TIMEOUT"])
    .flag("agent-sandbox-pod-ready-timeout")
    .trust(Trust::ShorterThanUser),
    row(
        "execTimeoutSecs",
        Kind::Count,
        "600",
        "How many seconds a command may take; 0 means no limit",
    )
    .env(&["CRABBOX_AGENT_SANDBOX_EXEC_TIMEOUT_SECS"])
    .flag("agent-sandbox-exec-timeout-secs")
    .trust(Trust::ShorterThanUser),
    row(
        "deleteOnRelease",
        Kind::Bool,
        "true",
        "Whether a run deletes the claim that it created",
    )
    .env(&["CRABBOX_AGENT_SANDBOX_DELETE_ON_RELEASE"])
    .flag("agent-sandbox-delete-on-release"),
    row(
        "forgetMissing",
        Kind::Bool,
        "false",
        "Whether a claim that Kubernetes does not know is taken for deleted",
    )
    .env(&["CRABBOX_AGENT_SANDBOX_FORGET_MISSING"])
    .flag("agent-sandbox-forget-missing")
    .trust(Trust::User),
];

/// The settings, typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Config {
    pub(super) kubectl: String,
    /// With `~` expanded.
    pub(super) kubeconfig: Option<PathBuf>,
    /// What kubectl reads where no kubeconfig is set, with `~` expanded in each entry: kubectl takes it for a name.
    pub(super) variable: Option<OsString>,
    pub(super) home: Option<PathBuf>,
    pub(super) context: String,
    pub(super) namespace: String,
    pub(super) warm_pool: String,
    /// Empty: the pod's default one.
    pub(super) container: String,
    pub(super) workdir: PathBuf,
    pub(super) sandbox_timeout: Option<Duration>,
    pub(super) pod_timeout: Option<Duration>,
    pub(super) exec_timeout: Option<Duration>,
    pub(super) delete_on_release: bool,
    pub(super) forget_missing: bool,
}

impl Config {
    pub(super) fn from(settings: &Settings, host: &HostContext) -> Self {
        let text = |key| settings.text(SECTION, key).trim().to_owned();
        let limit = |key| Some(settings.duration(SECTION, key)).filter(|limit| !limit.is_zero());
        let variable = |name: &str| {
            let value = host.env.get(OsStr::new(name));
            value.filter(|value| !value.is_empty()).cloned()
        };
        let home = variable("HOME").map(PathBuf::from);
        let exec = settings.count(SECTION, "execTimeoutSecs");
        Self {
            kubectl: text("kubectl"),
            kubeconfig: Some(text("kubeconfig"))
                .filter(|path| !path.is_empty())
                .map(|path| expand_home(&path, home.as_deref())),
            variable: variable(KUBECONFIG).map(|paths| expand_each(&paths, home.as_deref())),
            home,
            context: text("context"),
            namespace: text("namespace"),
            warm_pool: text("warmPool"),
            container: text("container"),
            workdir: normalize_lexically(Path::new(&text("workdir"))),
            sandbox_timeout: limit("sandboxReadyTimeout"),
            pod_timeout: limit("podReadyTimeout"),
            exec_timeout: (exec > 0).then(|| Duration::from_secs(exec)),
            delete_on_release: settings.flag(SECTION, "deleteOnRelease"),
            forget_missing: settings.flag(SECTION, "forgetMissing"),
        }
    }

    /// What must not be empty.
    fn required(&self) -> [(&'static str, &String); 4] {
        [
            ("kubectl", &self.kubectl),
            ("context", &self.context),
            ("namespace", &self.namespace),
            ("warmPool", &self.warm_pool),
        ]
    }

    /// How to set the value of this key, if it is required and empty.
    pub(super) fn remedy(&self, key: &str) -> Option<String> {
        let mut required = self.required().into_iter();
        required.find(|(name, value)| *name == key && value.is_empty())?;
        let flag = ROWS.iter().find(|row| row.key == key)?.flag?;
        Some(format!(
            "--{flag} VALUE, or {SECTION}.{key} in your own config"
        ))
    }

    /// The first key whose value will not do, and why.
    pub(super) fn validate(&self) -> Result<(), (&'static str, String)> {
        for (key, value) in self.required() {
            if value.is_empty() {
                return Err((key, format!("agent-sandbox {key} is required")));
            }
            if value.starts_with('-') {
                let message = format!("agent-sandbox {key} {value:?} begins with a hyphen");
                return Err((key, message));
            }
        }
        let program = Path::new(&self.kubectl);
        if self.kubectl.contains('/') && !program.is_absolute() {
            let message = format!(
                "agent-sandbox kubectl {:?} must be a name in PATH or an absolute path",
                self.kubectl
            );
            return Err(("kubectl", message));
        }
        self.check_kubeconfig()?;
        for (key, value) in [
            ("namespace", &self.namespace),
            ("warmPool", &self.warm_pool),
            ("container", &self.container),
        ] {
            if !value.is_empty() && !is_dns_name(value) {
                let message = format!("agent-sandbox {key} {value:?} is not a Kubernetes name");
                return Err((key, message));
            }
        }
        self.check_workdir()?;
        for (key, limit) in [
            ("sandboxReadyTimeout", self.sandbox_timeout),
            ("podReadyTimeout", self.pod_timeout),
            ("execTimeoutSecs", self.exec_timeout),
        ] {
            if limit.is_some_and(|limit| limit > MAX_TIMEOUT) {
                return Err((key, format!("agent-sandbox {key} is too long")));
            }
        }
        Ok(())
    }

    /// A relative one would be read from the checkout, and may run programs.
    fn check_kubeconfig(&self) -> Result<(), (&'static str, String)> {
        if let Some(path) = &self.kubeconfig {
            if !path.is_absolute() {
                let shown = path.display();
                let message = format!("agent-sandbox kubeconfig `{shown}` must be absolute");
                return Err(("kubeconfig", message));
            }
            return Ok(());
        }
        for path in self.variable.iter().flat_map(std::env::split_paths) {
            if !path.as_os_str().is_empty() && !path.is_absolute() {
                let shown = path.display();
                let message = format!("entry `{shown}` of KUBECONFIG must be absolute");
                return Err(("kubeconfig", message));
            }
        }
        Ok(())
    }

    fn check_workdir(&self) -> Result<(), (&'static str, String)> {
        let shown = self.workdir.display();
        if !self.workdir.is_absolute() {
            let message = format!("agent-sandbox workdir `{shown}` must be absolute");
            return Err(("workdir", message));
        }
        if BROAD.iter().any(|broad| self.workdir == Path::new(broad)) {
            let message = format!(
                "agent-sandbox workdir `{shown}` is too broad; choose a dedicated workspace path"
            );
            return Err(("workdir", message));
        }
        Ok(())
    }

    /// KUBECONFIG, where it is what counts and is what a flag could say as well.
    pub(super) fn only_kubeconfig(&self) -> Option<String> {
        let list = self.kubeconfigs()?;
        let is_one = std::env::split_paths(list).count() == 1;
        is_one.then(|| list.to_owned())
    }

    /// KUBECONFIG, where it is what counts and is more than one path.
    pub(super) fn kubeconfig_list(&self) -> Option<String> {
        let list = self.kubeconfigs()?;
        let is_one = std::env::split_paths(list).count() == 1;
        (!is_one).then(|| list.to_owned())
    }

    fn kubeconfigs(&self) -> Option<&str> {
        match &self.kubeconfig {
            Some(_) => None,
            None => self.variable.as_deref().and_then(OsStr::to_str),
        }
    }

    /// Which kubeconfig, cluster, pool and container: two that differ have nothing in common.
    pub(super) fn scope(&self) -> String {
        let kubeconfig = match (&self.kubeconfig, &self.variable, &self.home) {
            (Some(path), _, _) => path.display().to_string(),
            (None, Some(variable), _) => variable.to_string_lossy().into_owned(),
            (None, None, Some(home)) => home.join(".kube/config").display().to_string(),
            (None, None, None) => "~/.kube/config".to_owned(),
        };
        let mode = match self.container.is_empty() {
            true => "implicit",
            false => "explicit",
        };
        format!(
            "kubeconfig:{kubeconfig}|context:{}|namespace:{}|warmPool:{}|containerMode:{mode}|container:{}",
            self.context, self.namespace, self.warm_pool, self.container
        )
    }
}

/// What Kubernetes takes as a name: nothing of it can be an option or a path.
pub(super) fn is_dns_name(name: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let edge = |byte: Option<u8>| byte.is_some_and(good);
    let inner = name
        .bytes()
        .all(|byte| good(byte) || matches!(byte, b'-' | b'.'));
    inner && name.len() <= 253 && edge(name.bytes().next()) && edge(name.bytes().next_back())
}

fn expand_home(text: &str, home: Option<&Path>) -> PathBuf {
    match (text.strip_prefix('~'), home) {
        (Some(""), Some(home)) => home.to_path_buf(),
        (Some(rest), Some(home)) if rest.starts_with('/') => {
            home.join(rest.trim_start_matches('/'))
        }
        _ => PathBuf::from(text),
    }
}

/// Each entry of a list of paths. A list that cannot be put together again stays as it was, with the `~` that is refused.
fn expand_each(paths: &OsStr, home: Option<&Path>) -> OsString {
    let expand = |path: PathBuf| match (path.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) if rest.as_os_str().is_empty() => home.to_path_buf(),
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path,
    };
    std::env::join_paths(std::env::split_paths(paths).map(expand))
        .unwrap_or_else(|_| paths.to_owned())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// What a repository's file may set: nothing that decides where source and variables go.
    #[test]
    fn a_repository_sets_timeouts_and_nothing_that_routes() {
        for setting in ROWS {
            let expected = match setting.key {
                "kubectl" | "kubeconfig" | "context" | "namespace" | "warmPool" | "container"
                | "workdir" | "forgetMissing" => Trust::User,
                "sandboxReadyTimeout" | "podReadyTimeout" | "execTimeoutSecs" => {
                    Trust::ShorterThanUser
                }
                "deleteOnRelease" => Trust::Anyone,
                other => panic!("{other}: who may set it?"),
            };
            assert_eq!(setting.trust, expected, "{}", setting.key);
        }
    }

    pub(in crate::agent_sandbox) fn config() -> Config {
        Config {
            kubectl: "kubectl".into(),
            kubeconfig: Some("/home/u/.kube/config".into()),
            variable: None,
            home: Some("/home/u".into()),
            context: "agent-cluster".into(),
            namespace: "sandboxes".into(),
            warm_pool: "linux-pool".into(),
            container: String::new(),
            workdir: "/workspace/crabbox".into(),
            sandbox_timeout: Some(Duration::from_secs(180)),
            pod_timeout: Some(Duration::from_secs(180)),
            exec_timeout: Some(Duration::from_secs(600)),
            delete_on_release: true,
            forget_missing: false,
        }
    }

    fn refused(change: impl FnOnce(&mut Config)) -> String {
        let mut changed = config();
        change(&mut changed);
        changed.validate().unwrap_err().1
    }

    #[test]
    fn what_is_missing_or_wrong_is_refused_by_name() {
        config().validate().unwrap();
        assert_eq!(
            refused(|c| c.context.clear()),
            "agent-sandbox context is required"
        );
        assert_eq!(
            refused(|c| c.warm_pool.clear()),
            "agent-sandbox warmPool is required"
        );
        let mut changed = config();
        assert_eq!(changed.remedy("context"), None);
        changed.context.clear();
        assert_eq!(
            changed.remedy("context").unwrap(),
            "--agent-sandbox-context VALUE, or agentSandbox.context in your own config"
        );
        for kubectl in ["./kubectl", "bin/kubectl"] {
            let said = refused(|c| c.kubectl = kubectl.into());
            assert!(
                said.ends_with("must be a name in PATH or an absolute path"),
                "{said}"
            );
        }
        for name in ["a b", "a/b", "-a", "A", "a_", ""] {
            assert!(!is_dns_name(name), "{name}");
        }
        let said = refused(|c| c.namespace = "a/b".into());
        assert_eq!(
            said,
            "agent-sandbox namespace \"a/b\" is not a Kubernetes name"
        );
        for dir in ["/", "/tmp", "/usr", "/var", "/home"] {
            let said = refused(|c| c.workdir = dir.into());
            assert!(said.contains("too broad"), "{said}");
        }
        assert!(refused(|c| c.workdir = "work".into()).contains("must be absolute"));
        let too_long = [
            (
                "sandboxReadyTimeout",
                refused(|c| c.sandbox_timeout = Some(Duration::MAX)),
            ),
            (
                "podReadyTimeout",
                refused(|c| c.pod_timeout = Some(Duration::MAX)),
            ),
            (
                "execTimeoutSecs",
                refused(|c| c.exec_timeout = Some(Duration::MAX)),
            ),
        ];
        for (key, said) in too_long {
            assert_eq!(said, format!("agent-sandbox {key} is too long"));
        }
    }

    #[test]
    fn credentials_never_come_from_the_checkout() {
        assert!(refused(|c| c.kubeconfig = Some("k/config".into())).contains("must be absolute"));
        let by_variable = |value: &str| {
            let mut config = config();
            config.kubeconfig = None;
            config.variable = Some(value.into());
            config.validate()
        };
        by_variable("/a:/b").unwrap();
        by_variable("/a::/b").unwrap();
        for bad in ["/a:b", "~/a:/b", "/a:~other/b", "a:~/b"] {
            assert!(by_variable(bad).is_err(), "{bad}");
        }
        assert_eq!(
            expand_home("~/.kube/config", Some(Path::new("/h"))),
            Path::new("/h/.kube/config")
        );
    }

    #[test]
    fn each_entry_of_kubeconfig_may_begin_with_the_home_directory() {
        let expand = |paths: &str, home: Option<&str>| {
            expand_each(OsStr::new(paths), home.map(Path::new))
                .into_string()
                .unwrap()
        };
        for (paths, expanded) in [
            ("~/a:/b:~/c/d", "/h/a:/b:/h/c/d"),
            ("~", "/h"),
            ("/a::~/b", "/a::/h/b"),
            ("/a/~:~other/b:b~", "/a/~:~other/b:b~"),
        ] {
            assert_eq!(expand(paths, Some("/h")), expanded);
            assert_eq!(expand(paths, None), paths);
        }
        // No list can have this home in it: the entry stays, and is refused as it is.
        assert_eq!(expand("~/a:/b", Some("/h:h")), "~/a:/b");
    }

    #[test]
    fn the_scope_tells_clusters_and_containers_apart() {
        assert_eq!(
            config().scope(),
            "kubeconfig:/home/u/.kube/config|context:agent-cluster|namespace:sandboxes|warmPool:linux-pool|containerMode:implicit|container:"
        );
        let mut explicit = config();
        explicit.container = "worker".into();
        assert_ne!(explicit.scope(), config().scope());
    }
}
