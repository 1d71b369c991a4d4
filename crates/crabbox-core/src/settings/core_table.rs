//! The settings that every provider has.

use super::table::{Effect, Kind, Merge, Setting, Trust};

const SYNC: Option<&str> = Some("sync");
const ENV: Option<&str> = Some("env");

/// The rows, in the order in which `config show` and the reference list them.
pub const CORE: &[Setting] = &[
    Setting::new(
        None,
        "profile",
        Kind::Text,
        "default",
        "Profile whose variables are passed to commands",
    )
    .env(&["CRABBOX_PROFILE"])
    .flag("profile")
    .trust(Trust::OwnProfile),
    // Its default is not in the table: which provider it is, the program says.
    Setting::new(
        None,
        PROVIDER,
        Kind::Name,
        "",
        "Provider that runs commands",
    )
    .env(&["CRABBOX_PROVIDER"])
    .flag("provider")
    .trust(Trust::ConfiguredProvider),
    Setting::new(
        None,
        TARGET,
        Kind::Name,
        "linux",
        "Operating system of the sandbox",
    )
    .aliases(&["targetOS"])
    .env(&["CRABBOX_TARGET", "CRABBOX_TARGET_OS"])
    .flag("target"),
    Setting::new(
        None,
        "ttl",
        Kind::Lifetime("ttl"),
        "90m",
        "Maximum lifetime of a lease",
    )
    .aliases(&["lease.ttl"])
    .env(&["CRABBOX_TTL"])
    .flag("ttl")
    .trust(Trust::ShorterThanUser)
    .creation_only(),
    Setting::new(
        None,
        "idleTimeout",
        Kind::Lifetime("idle timeout"),
        "30m",
        "Idle time after which a lease expires",
    )
    .aliases(&["lease.idleTimeout"])
    .env(&["CRABBOX_IDLE_TIMEOUT"])
    .flag("idle-timeout")
    .trust(Trust::ShorterThanUser)
    .renewed_by_runs(),
    Setting::new(
        None,
        CACHE,
        Kind::Bool,
        "false",
        "Keep what tools in sandboxes download or compile for later sandboxes of the repository",
    )
    .flag("cache")
    .trust(Trust::NeverRepository)
    .effect(Effect::BuildCache)
    .creation_only(),
    Setting::new(
        SYNC,
        "exclude",
        Kind::List(Merge::Append),
        "",
        "Patterns to exclude from sync, added to the built-in ones and merged across files",
    )
    .aliases(&["sync.excludes"]),
    Setting::new(
        SYNC,
        "include",
        Kind::List(Merge::AppendUnique),
        "",
        "If not empty, sync only these paths; merged across files",
    )
    .aliases(&["sync.includes"]),
    Setting::new(
        SYNC,
        "delete",
        Kind::Bool,
        "true",
        "Delete remote files that no longer exist locally",
    )
    .env(&["CRABBOX_SYNC_DELETE"])
    .effect(Effect::ArchiveSync),
    Setting::new(
        SYNC,
        "checksum",
        Kind::Bool,
        "false",
        "Compare files by content",
    )
    .env(&["CRABBOX_SYNC_CHECKSUM"])
    .effect(Effect::NoProvider),
    Setting::new(
        SYNC,
        "gitSeed",
        Kind::Bool,
        "true",
        "Start from the remote's Git history if the provider supports it",
    )
    .env(&["CRABBOX_SYNC_GIT_SEED"])
    .effect(Effect::NoProvider),
    Setting::new(
        SYNC,
        "fingerprint",
        Kind::Bool,
        "true",
        "Skip a sync that would change nothing",
    )
    .env(&["CRABBOX_SYNC_FINGERPRINT"])
    .effect(Effect::ArchiveSync),
    Setting::new(
        SYNC,
        "baseRef",
        Kind::Text,
        "",
        "Git reference to compare changes with",
    )
    .env(&["CRABBOX_SYNC_BASE_REF"])
    .effect(Effect::NoProvider),
    Setting::new(
        SYNC,
        "timeout",
        Kind::Duration,
        "15m",
        "Maximum duration of a sync",
    )
    .env(&["CRABBOX_SYNC_TIMEOUT"])
    .effect(Effect::ArchiveSync),
    Setting::new(
        SYNC,
        "warnFiles",
        Kind::Count,
        "50000",
        "Warn at this number of files",
    )
    .env(&["CRABBOX_SYNC_WARN_FILES"]),
    Setting::new(
        SYNC,
        "warnBytes",
        Kind::Count,
        "5368709120",
        "Warn at this number of bytes",
    )
    .env(&["CRABBOX_SYNC_WARN_BYTES"]),
    Setting::new(
        SYNC,
        "failFiles",
        Kind::Count,
        "150000",
        "Refuse to sync at this number of files",
    )
    .env(&["CRABBOX_SYNC_FAIL_FILES"]),
    Setting::new(
        SYNC,
        "failBytes",
        Kind::Count,
        "21474836480",
        "Refuse to sync at this number of bytes",
    )
    .env(&["CRABBOX_SYNC_FAIL_BYTES"]),
    Setting::new(
        SYNC,
        "allowLarge",
        Kind::Bool,
        "false",
        "Sync even if the limits are exceeded",
    )
    .env(&["CRABBOX_SYNC_ALLOW_LARGE"])
    .flag("force-sync-large"),
    Setting::new(
        ENV,
        "allow",
        Kind::List(Merge::Replace),
        "CI,NODE_OPTIONS",
        "Variables to pass to commands; `NAME*` matches a prefix",
    )
    .env(&["CRABBOX_ENV_ALLOW"])
    .variables()
    .trust(Trust::WithinUser),
];

/// The row whose default the program supplies.
pub(super) const PROVIDER: &str = "provider";
pub(super) const TARGET: &str = "target";
/// Off unless the user asks: what one sandbox writes there, the next one may execute.
pub const CACHE: &str = "cache";

/// The row whose list comes after the built-in one.
pub(super) const EXCLUDE: &str = "sync.exclude";

/// Keys of other programs that read the same files: known, and of no effect here. A whole section is named by its key.
/// `cache` is one as a mapping, and a setting of ours as a value.
const FOREIGN_KEYS: &[&str] = &[
    "actions",
    "anthropicSandboxRuntime",
    "appleContainer",
    "appleVM",
    "appleVZ",
    "architecture",
    "asciiBox",
    "aws",
    "awsLambdaMicroVM",
    "azure",
    "azureDynamicSessions",
    "blacksmith",
    "blaxel",
    "boxd",
    "broker",
    "browser",
    "cache",
    "capacity",
    "class",
    "cloudRunSandbox",
    "cloudflare",
    "cloudflareDynamicWorkers",
    "cloudflareSandbox",
    "code",
    "codeSandbox",
    "coder",
    "coordinator",
    "coordinatorToken",
    "crownest",
    "cua",
    "cubeSandbox",
    "daytona",
    "desktop",
    "desktopEnv",
    "digitalocean",
    "e2b",
    "exeDev",
    "external",
    "fastapiCloud",
    "firecracker",
    "freestyle",
    "gcp",
    "githubCodespaces",
    "hetzner",
    "hostId",
    "hostinger",
    "hyperv",
    "incus",
    "islo",
    "kubevirt",
    "lambda",
    "linode",
    "localContainer",
    "lume",
    "machine0",
    "modal",
    "morph",
    "multipass",
    "mxc",
    "namespace",
    "namespaceInstance",
    "nebius",
    "network",
    "nomad",
    "nvidiaBrev",
    "openComputer",
    "orgo",
    "os",
    "ovh",
    "parallels",
    "phala",
    "proofTemplates",
    "proxmox",
    "railway",
    "results",
    "run",
    "runpod",
    "scaleway",
    "sealosDevbox",
    "semaphore",
    "serverType",
    "shard",
    "smolvm",
    "sprites",
    "static",
    "superserve",
    "tailscale",
    "tart",
    "tencentcloud",
    "tenki",
    "tensorlake",
    "unikraftCloud",
    "upstashBox",
    "vast",
    "vercelSandbox",
    "vultr",
    "wandb",
    "windows",
    "windowsSandbox",
    "workRoot",
    "xcpNg",
];

pub(super) fn is_foreign_key(path: &str) -> bool {
    FOREIGN_KEYS.contains(&path) || path.starts_with("ssh")
}

/// What a profile may hold besides its variables.
pub(super) const FOREIGN_PROFILE_KEYS: [&str; 3] = ["artifactGlobs", "doctor", "proofTemplates"];

/// What a preset may hold besides its command.
pub(super) const FOREIGN_PRESET_KEYS: [&str; 2] = ["artifactGlobs", "proofTemplate"];

/// What a job may hold that only leases over SSH can do.
pub(super) const FOREIGN_JOB_KEYS: [&str; 17] = [
    "actions",
    "architecture",
    "artifactGlobs",
    "browser",
    "checksum",
    "class",
    "code",
    "desktop",
    "downloads",
    "hydrate",
    "junit",
    "market",
    "network",
    "requiredArtifacts",
    "serverType",
    "type",
    "windowsMode",
];
