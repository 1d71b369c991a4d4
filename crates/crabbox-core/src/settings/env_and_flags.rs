//! What variables and flags say.

use std::collections::BTreeMap;

use super::layers::Catalogue;
use super::origin::Origin;
use super::resolve::{FlagValue, Sources};
use super::table::{Kind, Setting, Trust};
use super::value::{self, Problem, Value};
use crate::failure::{Code, Failure};

/// The values that do not come from files, weaker ones first.
#[derive(Debug, Default)]
pub(super) struct EnvAndFlags(Vec<(&'static Setting, Value, Origin)>);

impl EnvAndFlags {
    pub(super) fn of(&self, setting: &Setting) -> impl Iterator<Item = (&Value, &Origin)> {
        (self.0.iter())
            .filter(move |(row, _, _)| *row == setting)
            .map(|(_, value, origin)| (value, origin))
    }
}

pub(super) fn read(
    catalogue: &Catalogue<'_>,
    sources: &Sources<'_>,
) -> Result<EnvAndFlags, Failure> {
    let mut values = Vec::new();
    for setting in catalogue.settings() {
        if let Some((value, name)) = variable(setting, sources.environment)? {
            values.push((setting, value, Origin::Environment { name }));
        }
        if let Some((value, name)) = flag(setting, sources.flags)? {
            values.push((setting, value, Origin::Flag { name }));
        }
    }
    for given in sources.flags {
        let name = bare(&given.flag);
        if !(catalogue.settings()).any(|setting| setting.flag == Some(name)) {
            return Err(Failure::usage(format!("unknown flag --{name}")));
        }
    }
    Ok(EnvAndFlags(values))
}

/// The first variable that is set. An empty one is not set, except that it empties a list.
fn variable(
    setting: &Setting,
    environment: &BTreeMap<String, String>,
) -> Result<Option<(Value, &'static str)>, Failure> {
    if setting.trust == Trust::FlagOnly {
        return Ok(None);
    }
    for name in setting.env {
        let Some(text) = environment.get(*name) else {
            continue;
        };
        if let Kind::List(_) = setting.kind {
            let entries = value::comma_list(text).into_iter();
            let read = entries.map(|entry| value::entry(setting.entries, &entry));
            let read = read
                .collect::<Result<_, _>>()
                .map_err(|problem| Failure::new(Code::Config, problem.about(name)))?;
            return Ok(Some((Value::List(read), name)));
        }
        if text.trim().is_empty() {
            continue;
        }
        let read = value::scalar(setting.kind, text).map_err(|problem| {
            let mut message = problem.about(name);
            if problem.subject.is_some() {
                message = format!("{name}: {message}");
            }
            Failure::new(Code::Config, message)
        })?;
        if let Some(value) = read {
            return Ok(Some((value, name)));
        }
    }
    Ok(None)
}

/// The last of a flag's values, or all of them for a list.
fn flag(setting: &Setting, flags: &[FlagValue]) -> Result<Option<(Value, &'static str)>, Failure> {
    let Some(name) = setting.flag else {
        return Ok(None);
    };
    let given = || (flags.iter()).filter(|given| bare(&given.flag) == name);
    let wrong = |problem: Problem| Failure::usage(problem.about(&format!("--{name}")));
    let read = match (setting.kind, given().next_back()) {
        (_, None) => return Ok(None),
        (Kind::List(_), Some(_)) => given()
            .map(|given| value::entry(setting.entries, &given.value))
            .collect::<Result<_, _>>()
            .map(Value::List),
        (kind, Some(last)) => value::scalar(kind, &last.value)
            .and_then(|value| value.ok_or_else(|| Problem::new("must not be empty"))),
    };
    Ok(Some((read.map_err(wrong)?, name)))
}

fn bare(flag: &str) -> &str {
    flag.trim_start_matches('-')
}
