//! The names that may be forwarded.

use crate::command::is_identifier;
use crate::{Code, Failure};

const DEFAULT: [&str; 2] = ["CI", "NODE_OPTIONS"];

/// Where names come from. Lists may hold several names separated by commas.
#[derive(Debug, Clone, Copy, Default)]
pub struct AllowSources<'a> {
    /// `env.allow`, which replaces the default.
    pub config: Option<&'a [String]>,
    /// `CRABBOX_ENV_ALLOW`, which replaces everything but the flags.
    pub variable: Option<&'a str>,
    /// The profile's additions.
    pub profile: &'a [String],
    /// `--allow-env`.
    pub flags: &'a [String],
}

/// Exact names, and prefixes written with a `*` at the end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowList {
    patterns: Vec<String>,
    /// Where a bare `*` was written, which is ignored: forwarding every variable is never intended.
    pub ignored: Vec<&'static str>,
}

impl AllowList {
    pub fn resolve(sources: &AllowSources<'_>) -> Result<Self, Failure> {
        let mut list = Self::default();
        match (sources.variable, sources.config) {
            (Some(variable), _) => list.add("CRABBOX_ENV_ALLOW", Code::Config, [variable])?,
            (None, Some(config)) => list.add("env.allow", Code::Config, config)?,
            (None, None) => list.patterns.extend(DEFAULT.map(str::to_owned)),
        }
        if sources.variable.is_none() {
            list.add("profile envAllow", Code::Config, sources.profile)?;
        }
        list.add("--allow-env", Code::Usage, sources.flags)?;
        Ok(list)
    }

    pub fn allows(&self, name: &str) -> bool {
        is_identifier(name) && self.patterns.iter().any(|pattern| matches(pattern, name))
    }

    /// The names and prefixes, each once, as they were given.
    pub fn patterns(&self) -> &[String] {
        &self.patterns
    }

    fn add<S: AsRef<str>>(
        &mut self,
        source: &'static str,
        code: Code,
        lists: impl IntoIterator<Item = S>,
    ) -> Result<(), Failure> {
        for list in lists {
            for pattern in list.as_ref().split(',').map(str::trim) {
                match pattern {
                    "" => {}
                    "*" => self.ignored.push(source),
                    _ if !is_identifier(pattern.strip_suffix('*').unwrap_or(pattern)) => {
                        return Err(Failure::new(
                            code,
                            format!(
                                "{source}: invalid variable name `{}`",
                                crate::printable(pattern)
                            ),
                        )
                        .hint("use a name such as `CI` or a prefix such as `NPM_*`"));
                    }
                    _ if self.patterns.iter().any(|known| known == pattern) => {}
                    _ => self.patterns.push(pattern.to_owned()),
                }
            }
        }
        Ok(())
    }
}

/// Whether a name or a prefix with `*` means this name.
pub(super) fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => pattern == name,
    }
}
