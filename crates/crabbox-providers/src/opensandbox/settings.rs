//! What the user may say about opensandbox.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crabbox_core::settings::{Kind, ProviderTable, Setting, Settings, Trust, normalize_lexically};

use super::url::ApiUrl;

pub(super) const SECTION: &str = "openSandbox";

pub(super) const TABLE: ProviderTable = ProviderTable {
    name: "opensandbox",
    section: SECTION,
    settings: ROWS,
};

const fn row(key: &'static str, kind: Kind, default: &'static str, help: &'static str) -> Setting {
    Setting::new(Some(SECTION), key, kind, default, help)
}

const ROWS: &[Setting] = &[
    row("apiURL", Kind::Url, "", "Address of the OpenSandbox server")
        .env(&["CRABBOX_OPENSANDBOX_API_URL", "OPEN_SANDBOX_API_URL"])
        .flag("opensandbox-api-url")
        .trust(Trust::OutsideFiles)
        .label("api_url"),
    row(
        "image",
        Kind::Text,
        "ubuntu:24.04",
        "Image of new sandboxes",
    )
    .env(&["CRABBOX_OPENSANDBOX_IMAGE"])
    .flag("opensandbox-image")
    .creation_only(),
    row(
        "workdir",
        Kind::Text,
        "/workspace/crabbox",
        "Where the repository is sent and commands run",
    )
    .env(&["CRABBOX_OPENSANDBOX_WORKDIR"])
    .flag("opensandbox-workdir")
    .trust(Trust::User),
    row(
        "cpu",
        Kind::OptionalText,
        "1",
        "Processors, such as 500m; empty leaves it to the server",
    )
    .env(&["CRABBOX_OPENSANDBOX_CPU"])
    .flag("opensandbox-cpu")
    .creation_only(),
    row(
        "memory",
        Kind::OptionalText,
        "2Gi",
        "Memory, such as 512Mi; empty leaves it to the server",
    )
    .env(&["CRABBOX_OPENSANDBOX_MEMORY"])
    .flag("opensandbox-memory")
    .creation_only(),
    row(
        "timeoutSecs",
        Kind::Count,
        "0",
        "Lifetime of a sandbox at most, in seconds; 0 is `ttl` alone",
    )
    .env(&["CRABBOX_OPENSANDBOX_TIMEOUT_SECS"])
    .flag("opensandbox-timeout-secs")
    .trust(Trust::ShorterThanUser)
    .creation_only(),
    row(
        "execTimeoutSecs",
        Kind::Count,
        "600",
        "How long a command may take, in seconds",
    )
    .env(&["CRABBOX_OPENSANDBOX_EXEC_TIMEOUT_SECS"])
    .flag("opensandbox-exec-timeout-secs")
    .trust(Trust::ShorterThanUser),
    row(
        "platformOS",
        Kind::OptionalText,
        "linux",
        "Operating system; set with platformArch, both empty leave it to the server",
    )
    .env(&["CRABBOX_OPENSANDBOX_PLATFORM_OS"])
    .flag("opensandbox-platform-os")
    .label("platform_os")
    .creation_only(),
    row(
        "platformArch",
        Kind::OptionalText,
        "amd64",
        "Processor architecture; set with platformOS",
    )
    .env(&["CRABBOX_OPENSANDBOX_PLATFORM_ARCH"])
    .flag("opensandbox-platform-arch")
    .label("platform_arch")
    .creation_only(),
    row(
        "secureAccess",
        Kind::Bool,
        "false",
        "Ask for endpoints that need a token",
    )
    .env(&["CRABBOX_OPENSANDBOX_SECURE_ACCESS"])
    .flag("opensandbox-secure-access")
    .trust(Trust::User)
    .creation_only(),
    row(
        "useServerProxy",
        Kind::Bool,
        "false",
        "Reach sandboxes through the server instead of directly",
    )
    .env(&["CRABBOX_OPENSANDBOX_USE_SERVER_PROXY"])
    .flag("opensandbox-use-server-proxy")
    .trust(Trust::User),
    row(
        "forgetMissing",
        Kind::Bool,
        "false",
        "Remove the claim of a sandbox that the server does not know",
    )
    .flag("opensandbox-forget-missing")
    .trust(Trust::FlagOnly),
];

/// What Go can hold in nanoseconds, in seconds: no reader of either language overflows.
const MAX_SECONDS: u64 = 9_223_372_036;
const DEFAULT_EXEC_TIMEOUT: u64 = 600;
/// Directories that a replacement would empty for more than one repository, or for the system.
const BROAD: [&str; 24] = [
    "/",
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/home",
    "/lib",
    "/lib64",
    "/media",
    "/mnt",
    "/opt",
    "/proc",
    "/root",
    "/run",
    "/sbin",
    "/srv",
    "/sys",
    "/tmp",
    "/usr",
    "/usr/local",
    "/var",
    "/var/tmp",
    "/workspace",
    "/workspaces",
];

/// The settings, typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Config {
    /// As it was given.
    pub(super) api_url: String,
    pub(super) image: String,
    pub(super) workdir: PathBuf,
    pub(super) cpu: String,
    pub(super) memory: String,
    pub(super) timeout_secs: u64,
    pub(super) exec_timeout_secs: u64,
    pub(super) platform_os: String,
    pub(super) platform_arch: String,
    pub(super) secure_access: bool,
    pub(super) use_server_proxy: bool,
    pub(super) forget_missing: bool,
    /// `sync.timeout`; `None` means unlimited.
    pub(super) sync_timeout: Option<Duration>,
}

impl Config {
    pub(super) fn from(settings: &Settings) -> Self {
        let text = |key| settings.text(SECTION, key).trim().to_owned();
        let sync_timeout = settings.duration("sync", "timeout");
        Self {
            api_url: text("apiURL"),
            image: text("image"),
            workdir: normalize_lexically(Path::new(settings.text(SECTION, "workdir").trim())),
            cpu: text("cpu"),
            memory: text("memory"),
            timeout_secs: settings.count(SECTION, "timeoutSecs"),
            exec_timeout_secs: match settings.count(SECTION, "execTimeoutSecs") {
                0 => DEFAULT_EXEC_TIMEOUT,
                seconds => seconds,
            },
            platform_os: text("platformOS"),
            platform_arch: text("platformArch"),
            secure_access: settings.flag(SECTION, "secureAccess"),
            use_server_proxy: settings.flag(SECTION, "useServerProxy"),
            forget_missing: settings.flag(SECTION, "forgetMissing"),
            sync_timeout: Some(sync_timeout).filter(|timeout| !timeout.is_zero()),
        }
    }

    pub(super) fn exec_timeout(&self) -> Duration {
        Duration::from_secs(self.exec_timeout_secs)
    }

    pub(super) fn url(&self) -> Result<ApiUrl, String> {
        if self.api_url.is_empty() {
            return Err(
                "provider=opensandbox needs a trusted API URL; set --opensandbox-api-url, CRABBOX_OPENSANDBOX_API_URL, or OPEN_SANDBOX_API_URL".to_owned(),
            );
        }
        ApiUrl::parse(&self.api_url)
    }

    /// The first key whose value will not do, and why.
    pub(super) fn validate(&self) -> Result<(), (&'static str, String)> {
        self.url().map_err(|message| ("apiURL", message))?;
        if self.image.is_empty() {
            return Err(("image", "opensandbox image is empty".to_owned()));
        }
        self.check_workdir().map_err(|why| ("workdir", why))?;
        for (key, seconds) in [
            ("timeoutSecs", self.timeout_secs),
            ("execTimeoutSecs", self.exec_timeout_secs),
        ] {
            if seconds > MAX_SECONDS {
                let message =
                    format!("opensandbox {key} {seconds} is too large: at most {MAX_SECONDS}");
                return Err((key, message));
            }
        }
        self.check_platform()
    }

    fn check_workdir(&self) -> Result<(), String> {
        let shown = self.workdir.display();
        if !self.workdir.is_absolute() {
            return Err(format!("opensandbox workdir `{shown}` must be absolute"));
        }
        if BROAD.iter().any(|broad| self.workdir == Path::new(broad)) {
            return Err(format!(
                "opensandbox workdir `{shown}` is too broad; choose a dedicated workspace path"
            ));
        }
        Ok(())
    }

    fn check_platform(&self) -> Result<(), (&'static str, String)> {
        match (self.platform_os.as_str(), self.platform_arch.as_str()) {
            ("", "") => Ok(()),
            ("", _) | (_, "") => Err((
                "platformOS",
                "opensandbox platformOS and platformArch must be set together, or both be empty"
                    .to_owned(),
            )),
            ("linux", _) => Ok(()),
            (other, _) => Err((
                "platformOS",
                format!("opensandbox platformOS {other:?} is not supported; use linux"),
            )),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::opensandbox) fn config() -> Config {
        Config {
            api_url: "http://localhost:8080".into(),
            image: "ubuntu:24.04".into(),
            workdir: "/workspace/crabbox".into(),
            cpu: "1".into(),
            memory: "2Gi".into(),
            timeout_secs: 0,
            exec_timeout_secs: 600,
            platform_os: "linux".into(),
            platform_arch: "amd64".into(),
            secure_access: false,
            use_server_proxy: false,
            forget_missing: false,
            sync_timeout: Some(Duration::from_secs(900)),
        }
    }

    #[test]
    fn invalid_settings_are_refused_before_any_request() {
        config().validate().unwrap();
        let refused = |change: &dyn Fn(&mut Config)| {
            let mut changed = config();
            change(&mut changed);
            changed.validate().unwrap_err()
        };
        for broad in ["/", "/tmp", "/workspace", "/usr/../etc", "/home/"] {
            let (key, message) = refused(&|c| c.workdir = normalize_lexically(Path::new(broad)));
            assert_eq!(key, "workdir");
            assert!(message.contains("is too broad"), "{message}");
        }
        assert_eq!(refused(&|c| c.workdir = "work".into()).0, "workdir");
        assert_eq!(refused(&|c| c.platform_arch.clear()).0, "platformOS");
        assert_eq!(
            refused(&|c| c.platform_os = "windows".into()).1,
            "opensandbox platformOS \"windows\" is not supported; use linux"
        );
        assert_eq!(refused(&|c| c.timeout_secs = u64::MAX).0, "timeoutSecs");
        assert_eq!(
            refused(&|c| c.exec_timeout_secs = MAX_SECONDS + 1).0,
            "execTimeoutSecs"
        );
        assert!(
            refused(&|c| c.api_url.clear())
                .1
                .contains("trusted API URL")
        );
        let both = Config {
            platform_os: String::new(),
            platform_arch: String::new(),
            ..config()
        };
        both.validate().unwrap();
    }
}
