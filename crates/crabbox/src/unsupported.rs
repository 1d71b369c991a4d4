//! Flags of the original that providers which run commands themselves cannot honour. They are known, so that they are
//! refused by name instead of being mistaken for a slip.

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use crabbox_core::provider::{Spec, WorkspaceKind};
use crabbox_core::settings::{Applies, Settings};
use crabbox_core::{Code, Failure};

use crate::app::flagged;

/// Which words a flag is refused with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    /// The provider has its own way to bring the files.
    Sync,
    /// The same, but not for providers that we send an archive to.
    SyncUnlessArchive,
    /// The provider runs the command.
    Execution,
    Desktop(&'static str),
    Tailscale,
    Class,
    Type,
    Arch,
    CacheVolume,
    BuildCache,
    Pool,
    ArtifactSchema,
    ActionsRunner,
    LeaseId,
    /// Another issue brings it.
    Planned,
    /// For leases over SSH alone.
    Ssh,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Takes {
    Nothing,
    Value,
}

use Refusal::{
    ActionsRunner, Arch, ArtifactSchema, BuildCache, CacheVolume, Class, Desktop, Execution,
    LeaseId, Planned, Pool, Ssh, Sync, SyncUnlessArchive, Tailscale, Type,
};
use Takes::{Nothing, Value};

type Row = (&'static str, Takes, Refusal);

/// What a machine over SSH could be told: every command that asks a provider knows these.
const MACHINE: &[Row] = &[
    ("windows-mode", Value, Ssh),
    ("static-host", Value, Ssh),
    ("static-user", Value, Ssh),
    ("static-port", Value, Ssh),
    ("static-work-root", Value, Ssh),
];

/// What a new lease could be told.
const LEASE: &[Row] = &[
    ("class", Value, Class),
    ("type", Value, Type),
    ("arch", Value, Arch),
    ("os", Value, Ssh),
    ("ssh-port", Value, Ssh),
    ("market", Value, Ssh),
    ("expose", Value, Ssh),
    ("cache-volume", Value, CacheVolume),
    ("image-min-os", Value, Ssh),
    ("image-sdk", Value, Ssh),
    ("image-runtime", Value, Ssh),
    ("image-require-browser", Nothing, Ssh),
    ("image-require-webview2", Nothing, Ssh),
    ("image-require-desktop", Nothing, Ssh),
    ("desktop", Nothing, Desktop("desktop/VNC is not supported")),
    (
        "desktop-env",
        Value,
        Desktop("desktop/VNC is not supported"),
    ),
    (
        "browser",
        Nothing,
        Desktop("browser provisioning is not supported"),
    ),
    ("code", Nothing, Desktop("web code is not supported")),
    ("network", Value, Ssh),
    ("tailscale", Nothing, Tailscale),
    ("tailscale-tags", Value, Tailscale),
    ("tailscale-hostname-template", Value, Tailscale),
    ("tailscale-auth-key-env", Value, Tailscale),
    ("tailscale-exit-node", Value, Tailscale),
    ("tailscale-exit-node-allow-lan-access", Nothing, Tailscale),
];

const RUN: &[Row] = &[
    ("sync-only", Nothing, SyncUnlessArchive),
    ("checksum", Nothing, Sync),
    ("full-resync", Nothing, SyncUnlessArchive),
    ("fresh-sync", Nothing, SyncUnlessArchive),
    ("fresh-pr", Value, Sync),
    ("apply-local-patch", Nothing, Sync),
    ("env-helper", Value, Execution),
    ("capture-stdout", Value, Execution),
    ("capture-stderr", Value, Execution),
    ("capture-on-fail", Nothing, Execution),
    ("download", Value, Execution),
    ("artifact-glob", Value, Execution),
    ("require-artifact", Value, Execution),
    ("require-artifact-schema", Value, ArtifactSchema),
    ("emit-proof", Value, Execution),
    ("proof-template", Value, Execution),
    ("stop-after", Value, Execution),
    ("script", Value, Execution),
    ("script-stdin", Nothing, Execution),
    ("junit", Value, Execution),
    ("results-auto", Nothing, Execution),
    ("fail-on-test-failures", Nothing, Execution),
    ("preflight-tools", Value, Execution),
    ("pool", Value, Pool),
    ("pool-compatibility-key", Value, Pool),
    ("pool-return", Value, Pool),
    ("attest", Value, Planned),
    ("attest-key", Value, Planned),
];

const WARMUP: &[Row] = &[
    ("actions-runner", Nothing, ActionsRunner),
    ("lease-id", Value, LeaseId),
];

/// Which commands know which of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommandKind {
    Run,
    Warmup,
    /// One that makes no lease.
    Other,
}

impl CommandKind {
    fn rows(self) -> impl Iterator<Item = &'static Row> {
        let (lease, own) = match self {
            Self::Run => (LEASE, RUN),
            Self::Warmup => (LEASE, WARMUP),
            Self::Other => (&[][..], &[][..]),
        };
        MACHINE.iter().chain(lease).chain(own)
    }
}

/// Known to the parser, and in no help text.
pub(crate) fn add(command: Command, of: CommandKind) -> Command {
    of.rows().fold(command, |command, (flag, takes, _)| {
        let arg = Arg::new(*flag).long(*flag).hide(true);
        command.arg(match takes {
            Nothing => arg
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true")
                .action(ArgAction::Append),
            Value => arg.num_args(1).action(ArgAction::Append),
        })
    })
}

/// A setting's flag that means nothing where nothing is sent.
const LARGE: &str = "force-sync-large";

/// Flags of settings that not every provider takes.
const SETTINGS: &[(&str, Refusal)] = &[(LARGE, SyncUnlessArchive), ("cache", BuildCache)];

/// Flags that mean something only with another one. That is wrong with any provider.
const REQUIRES: &[(&str, &str)] = &[("attest-key", "attest"), ("apply-local-patch", "fresh-pr")];

/// The first of them that was used, as a failure.
pub(crate) fn check(matches: &ArgMatches, of: CommandKind, spec: &Spec) -> Result<(), Failure> {
    let given = |flag: &str| {
        matches.try_contains_id(flag).is_ok()
            && matches.value_source(flag) == Some(ValueSource::CommandLine)
    };
    if let Some((flag, other)) = REQUIRES
        .iter()
        .find(|(flag, other)| given(flag) && !given(other))
    {
        return Err(Failure::usage(format!("--{flag} requires --{other}")));
    }
    let settings = SETTINGS.iter().filter(|_| of != CommandKind::Other);
    for (flag, refusal) in settings.filter(|(flag, _)| given(flag)) {
        if let Some(value) = matches.get_one::<String>(flag)
            && let Some(failure) = refusal.failure(flag, value, spec)
        {
            return Err(failure);
        }
    }
    for (flag, _, refusal) in of.rows() {
        let Some(value) = matches
            .get_many::<String>(flag)
            .and_then(|mut values| values.next_back())
        else {
            continue;
        };
        if let Some(failure) = refusal.failure(flag, value, spec) {
            return Err(failure);
        }
    }
    Ok(())
}

/// Whether a flag of a setting is refused by `command` with this provider, and so is not worth showing.
fn is_refused(flag: &str, command: &str, spec: &Spec) -> bool {
    let Some((_, refusal)) = SETTINGS.iter().find(|(name, _)| *name == flag) else {
        return false;
    };
    match command {
        "run" | "warmup" => refusal.failure(flag, "true", spec).is_some(),
        // They send nothing, whatever the provider is.
        "list" | "status" | "inspect" | "stop" | "cleanup" | "ports" | "cp" => true,
        _ => false,
    }
}

/// Flags that some providers take, and help shows with those: command, flag, and what it says.
const SHOWN: &[(&str, &str, &str)] = &[
    ("run", "no-sync", "Send no files; run in what is there"),
    ("run", "sync-only", "Send the files and run no command"),
    (
        "run",
        "full-resync",
        "Send every file again, not only what differs",
    ),
    (
        "warmup",
        "lease-id",
        "Id of the new lease: `cbx_` and 12 hex digits, never used again",
    ),
];

/// What help says of a flag that this provider takes.
fn shown_help(flag: &str, command: &str, spec: &Spec) -> Option<&'static str> {
    let (_, _, help) = SHOWN
        .iter()
        .find(|(of, name, _)| *of == command && *name == flag)?;
    let accepts = match flag {
        "lease-id" => spec.fixed_lease_id,
        _ => spec.workspace == WorkspaceKind::Archive,
    };
    accepts.then_some(*help)
}

/// As the help of `command` has an argument with this provider: what it refuses is known and not shown.
pub(crate) fn shown(arg: Arg, command: &str, spec: &Spec) -> Arg {
    let Some(flag) = arg.get_long() else {
        return arg;
    };
    if is_refused(flag, command, spec) {
        return arg.hide(true);
    }
    let Some(help) = shown_help(flag, command, spec) else {
        return arg;
    };
    let value = match flag {
        "lease-id" => Some("ID"),
        "no-sync" => None,
        _ => Some("BOOL"),
    };
    let arg = arg.hide(false).help(help);
    match value {
        Some(value) => arg.value_name(value),
        None => arg,
    }
}

/// What could only be said of a sandbox that is yet to be made.
pub(crate) fn check_reuse(matches: &ArgMatches) -> Result<(), Failure> {
    let settings = flagged().filter(|setting| setting.applies == Applies::ToNewSandboxes);
    let flags = settings.filter_map(|setting| setting.flag);
    for flag in ["slug", "pond"].into_iter().chain(flags) {
        if matches.value_source(flag) == Some(ValueSource::CommandLine) {
            return Err(Failure::usage(format!(
                "--{flag} only applies when creating a new lease; omit it with --id"
            )));
        }
    }
    Ok(())
}

/// A profile may want checks that only leases over SSH can make.
pub(crate) fn check_profile(settings: &Settings, spec: &Spec) -> Result<(), Failure> {
    let profile = settings.profile_env(settings.text(None, "profile"));
    if profile.is_some_and(|profile| profile.doctor) {
        let message = format!(
            "{} delegates run execution; profile doctor is not supported",
            spec.name
        );
        return Err(Failure::new(Code::Unsupported, message));
    }
    Ok(())
}

impl Refusal {
    fn failure(self, flag: &str, value: &str, spec: &Spec) -> Option<Failure> {
        let name = spec.name;
        let unsupported = |message: String| Some(Failure::new(Code::Unsupported, message));
        // `--desktop=false` asks for nothing.
        if value == "false" {
            return None;
        }
        match self {
            Self::Sync => unsupported(format!("{name} delegates sync; --{flag} is not supported")),
            Self::SyncUnlessArchive => match spec.workspace {
                WorkspaceKind::Archive => None,
                WorkspaceKind::Mounted => {
                    unsupported(format!("{name} delegates sync; --{flag} is not supported"))
                }
            },
            Self::Execution => unsupported(format!(
                "{name} delegates run execution; --{flag} is not supported"
            )),
            Self::Desktop(what) => unsupported(format!("{what} for provider={name}")),
            Self::Tailscale => unsupported(format!(
                "provider={name} is delegated-run only and does not support Tailscale options"
            )),
            Self::Class => unsupported(format!(
                "--class is not supported for provider={name}; use {}",
                spec.instead_of_class
            )),
            Self::Type => unsupported(format!(
                "--type is not supported for provider={name}; use {}",
                spec.instead_of_type
            )),
            Self::Arch => match value {
                "amd64" | "x86_64" => None,
                _ => unsupported(format!("provider={name} does not support --arch {value}")),
            },
            Self::CacheVolume => unsupported(format!(
                "provider={name} does not support required cache volume {value:?}"
            )),
            Self::BuildCache if spec.build_cache => None,
            Self::BuildCache => unsupported(format!(
                "provider={name} does not support --{flag}: it keeps no build cache"
            )),
            Self::Pool => unsupported("--pool requires a brokered SSH lease provider".to_owned()),
            Self::ArtifactSchema => unsupported(format!(
                "--require-artifact-schema is not supported for provider={name} yet; use an SSH-backed provider"
            )),
            Self::ActionsRunner => unsupported(format!(
                "--actions-runner is not supported for provider={name}"
            )),
            Self::LeaseId if spec.fixed_lease_id => None,
            Self::LeaseId => unsupported(format!(
                "provider={name} does not support fixed idempotent lease IDs"
            )),
            Self::Planned => unsupported(format!("--{flag} is not available in this version")),
            Self::Ssh => unsupported(format!(
                "provider={name} has no SSH lease; --{flag} is not supported"
            )),
        }
    }
}
