//! Settings for `doctor`, which has to continue although some source of them is invalid.

use std::collections::BTreeMap;

use super::resolve::{Sources, load};
use super::resolved::Settings;
use super::table::{ProviderTable, Setting};
use crate::Failure;

/// The settings without the invalid sources, and the failure of each of those.
#[derive(Debug)]
pub struct PartialSettings {
    pub settings: Settings,
    pub failures: Vec<Failure>,
}

/// Leaves out files and variables one by one, never the command line: what is wrong there is the failure. `fits` may
/// refuse what loads and is of no use all the same.
pub fn load_partial(
    core: &'static [Setting],
    providers: &[ProviderTable],
    sources: &Sources<'_>,
    fits: &dyn Fn(&Settings) -> Result<(), Failure>,
) -> Result<PartialSettings, Failure> {
    let attempt = |sources: &Sources<'_>| {
        let settings = load(core, providers, sources)?;
        fits(&settings).map(|()| settings)
    };
    if let Ok(settings) = attempt(sources) {
        let failures = Vec::new();
        return Ok(PartialSettings { settings, failures });
    }
    let (mut environment, mut repository) = (BTreeMap::new(), Vec::new());
    let mut kept = Sources {
        user: None,
        repository: &[],
        environment: &BTreeMap::new(),
        ..sources.clone()
    };
    let mut settings = attempt(&kept)?;
    let mut failures = Vec::new();
    // The repository comes last, for what it may say depends on what the user says.
    if sources.user.is_some() {
        let with = Sources {
            user: sources.user,
            ..kept.clone()
        };
        match attempt(&with) {
            Ok(better) => (settings, kept) = (better, with),
            Err(failure) => failures.push(failure),
        }
    }
    for (name, value) in variables(core, providers, sources) {
        let mut more = environment.clone();
        more.insert(name.clone(), value.clone());
        match attempt(&Sources {
            environment: &more,
            ..kept.clone()
        }) {
            Ok(better) => (settings, environment) = (better, more),
            Err(failure) => failures.push(failure),
        }
    }
    for file in sources.repository {
        let mut more = repository.clone();
        more.push(file.clone());
        match attempt(&Sources {
            environment: &environment,
            repository: &more,
            ..kept.clone()
        }) {
            Ok(better) => (settings, repository) = (better, more),
            Err(failure) => failures.push(failure),
        }
    }
    Ok(PartialSettings { settings, failures })
}

/// Those that a setting is read from.
fn variables<'a>(
    core: &'static [Setting],
    providers: &[ProviderTable],
    sources: &Sources<'a>,
) -> Vec<(&'a String, &'a String)> {
    let rows = providers.iter().flat_map(|table| table.settings);
    let rows: Vec<_> = core.iter().chain(rows).collect();
    let is_ours = |name: &str| rows.iter().any(|row| row.env.contains(&name));
    let all = sources.environment.iter();
    all.filter(|(name, _)| is_ours(name)).collect()
}
