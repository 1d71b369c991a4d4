//! The variables that go with a command.

use std::collections::BTreeMap;

use crabbox_core::claims::Claim;
use crabbox_core::env::{
    AllowList, AllowSources, Forwarded, Named, ProfileFile, Request, Reserved, parse_env_file,
    parse_env_flag,
};
use crabbox_core::settings::{Origin, Settings};
use crabbox_core::{Code, Failure, small_file};

use crate::app::App;

/// What the command line says about variables.
#[derive(Debug, clap::Args)]
pub(super) struct EnvArgs {
    /// Variables to pass on; `NAME*` matches a prefix (can be repeated)
    #[arg(long, value_name = "NAME,...")]
    pub(super) allow_env: Vec<String>,
    /// File with variables; those that are allowed are passed on (can be repeated)
    #[arg(long, value_name = "FILE")]
    pub(super) env_from_profile: Vec<String>,
    /// Variable to pass on, or to set if it is not secret (can be repeated)
    #[arg(short = 'e', long, value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// File with variables, all of which are passed on (can be repeated)
    #[arg(long, value_name = "FILE")]
    env_file: Vec<String>,
}

impl EnvArgs {
    /// The flags again, for the same command in the same lease.
    pub(super) fn flags(&self) -> Vec<String> {
        let flags = [
            ("--allow-env", &self.allow_env),
            ("--env-from-profile", &self.env_from_profile),
            ("-e", &self.env),
            ("--env-file", &self.env_file),
        ];
        let pairs = flags.into_iter().flat_map(|(flag, values)| {
            values
                .iter()
                .flat_map(move |value| [flag.to_owned(), value.clone()])
        });
        pairs.collect()
    }

    fn is_used(&self) -> bool {
        !self.flags().is_empty()
    }

    /// What `-e` and `--env-file` say; `-e` wins.
    fn explicit(&self, app: &App<'_>) -> Result<BTreeMap<String, String>, Failure> {
        let mut all = BTreeMap::new();
        for path in &self.env_file {
            let bytes = read(app, "--env-file", path)?;
            let unreadable = |why: String| Failure::usage(format!("--env-file `{path}`: {why}"));
            for named in parse_env_file(&bytes).map_err(unreadable)? {
                all.extend(resolve(app, "--env-file", named)?);
            }
        }
        for text in &self.env {
            all.extend(resolve(app, "-e", parse_env_flag(text)?)?);
        }
        Ok(all)
    }
}

/// The variable itself. `None` for one that the caller does not have.
fn resolve(app: &App<'_>, by: &str, named: Named) -> Result<Option<(String, String)>, Failure> {
    let name = match named {
        Named::Value(name, value) => return Ok(Some((name, value))),
        Named::OfCaller(name) => name,
    };
    let Some(value) = app.host.get(&name) else {
        app.ui.say(&format!(
            "warning: {by} {name}: not set here, not passed on"
        ));
        return Ok(None);
    };
    match value.to_str() {
        Some(value) => Ok(Some((name, value.to_owned()))),
        None => Err(Failure::usage(format!("{by} {name}: value is not UTF-8"))),
    }
}

fn read(app: &App<'_>, flag: &str, path: &str) -> Result<Vec<u8>, Failure> {
    small_file::read(&app.host.cwd.join(path)).map_err(|error| {
        Failure::new(Code::Usage, format!("cannot read {flag} `{path}`")).because(&error)
    })
}

/// Decided before anything is created; only the lease's name is missing.
pub(super) struct Forwarding {
    allow: AllowList,
    files: Vec<ProfileFile>,
    literals: BTreeMap<String, String>,
    never: &'static [&'static str],
    /// Whether the user asked about variables at all.
    pub(super) asked: bool,
}

impl Forwarding {
    pub(super) fn new(
        app: &App<'_>,
        settings: &Settings,
        args: &EnvArgs,
        preset: Option<&BTreeMap<String, String>>,
        never: &'static [&'static str],
    ) -> Result<Self, Failure> {
        let profile = settings.profile_env(settings.text(None, "profile"));
        let variable = app
            .host
            .get("CRABBOX_ENV_ALLOW")
            .and_then(|value| value.to_str());
        let allow_list = AllowList::resolve(&AllowSources {
            config: Some(settings.list("env", "allow")),
            variable: None, // the settings have it
            profile: match (variable, profile) {
                (None, Some(profile)) => &profile.allow,
                (Some(_), _) | (None, None) => &[],
            },
            flags: &args.allow_env,
        })?;
        warn_of_bare_star(app, settings, &allow_list);
        let mut files = Vec::new();
        for path in &args.env_from_profile {
            let bytes = read(app, "--env-from-profile", path)?;
            let file = ProfileFile::parse(&bytes);
            for skipped in &file.skipped {
                let what = match &skipped.name {
                    Some(name) => format!("skipped `{name}`"),
                    None => "skipped".to_owned(),
                };
                let (line, reason) = (skipped.line, skipped.reason);
                app.ui
                    .say(&format!("warning: {path}:{line}: {what}: {reason}"));
            }
            files.push(file);
        }
        let forwarding = Self {
            asked: args.is_used() || variable.is_some(),
            allow: allow_list,
            files,
            // Those of a preset are on top of those of the profile, and what the command line says is on top of both.
            literals: profile
                .map(|profile| &profile.env)
                .into_iter()
                .chain(preset)
                .flatten()
                .map(|(name, value)| (name.clone(), value.clone()))
                .chain(args.explicit(app)?)
                .collect(),
            never,
        };
        // Bad values are found before anything exists.
        forwarding.select(app, "run", "lease", "slug")?;
        Ok(forwarding)
    }

    pub(super) fn for_lease(
        &self,
        app: &App<'_>,
        run_id: &str,
        claim: &Claim,
    ) -> Result<Forwarded, Failure> {
        let slug = claim.slug_str().unwrap_or("");
        self.select(app, run_id, claim.lease_id.as_str(), slug)
    }

    fn select(
        &self,
        app: &App<'_>,
        run_id: &str,
        lease_id: &str,
        slug: &str,
    ) -> Result<Forwarded, Failure> {
        Forwarded::select(&Request {
            local: &app.host.env,
            allow: &self.allow,
            files: &self.files,
            literals: &self.literals,
            never: self.never,
            reserved: Reserved {
                run_id,
                lease_id,
                slug,
            },
        })
    }

    /// What no log and no message may show.
    pub(super) fn secrets(&self, app: &App<'_>) -> Vec<String> {
        self.select(app, "run", "lease", "slug")
            .map(|forwarded| forwarded.secrets().map(str::to_owned).collect())
            .unwrap_or_default()
    }
}

/// A bare `*` forwards no variable; the user is told.
fn warn_of_bare_star(app: &App<'_>, settings: &Settings, allow: &AllowList) {
    for source in &allow.ignored {
        let name = match (*source, settings.origin("env", "allow")) {
            ("env.allow", Some(Origin::Environment { name })) => name,
            (source, _) => source,
        };
        app.ui.say(&format!(
            "warning: {name}: ignoring bare `*`; use names or prefixes such as `NPM_*`"
        ));
    }
}
