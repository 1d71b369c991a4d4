//! The variables that go with a command.

use std::collections::BTreeMap;

use crabbox_core::claims::Claim;
use crabbox_core::env::{AllowList, AllowSources, Forwarded, ProfileFile, Request, Reserved};
use crabbox_core::settings::{Origin, Settings};
use crabbox_core::{Code, Failure, small_file};

use crate::app::App;

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
        allow: &[String],
        profiles: &[String],
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
            flags: allow,
        })?;
        warn_of_bare_star(app, settings, &allow_list);
        let mut files = Vec::new();
        for path in profiles {
            let bytes = small_file::read(&app.host.cwd.join(path)).map_err(|error| {
                Failure::new(
                    Code::Usage,
                    format!("cannot read --env-from-profile `{path}`"),
                )
                .because(&error)
            })?;
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
            asked: !allow.is_empty() || !profiles.is_empty() || variable.is_some(),
            allow: allow_list,
            files,
            literals: profile
                .map(|profile| profile.env.clone())
                .unwrap_or_default(),
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
