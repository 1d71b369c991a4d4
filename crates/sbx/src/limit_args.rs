//! Parsing of limits that users type: `--cpus 1.5 --memory 4g --pids 500 --disk 10g`.

use sbx_api::{LimitKind, Limits};

use crate::failure::{Failure, Kind};

/// Limits of a new sandbox.
#[derive(Debug, Default, Clone, clap::Args)]
pub(crate) struct LimitFlags {
    /// Number of CPUs it may use, such as 2 or 1.5; 0 means all
    #[arg(long, value_name = "N")]
    cpus: Option<String>,
    /// Memory it may use, such as 512m or 8g [default: half of the machine's, at most 32g]
    #[arg(short = 'm', long, value_name = "SIZE")]
    memory: Option<String>,
    /// Number of processes and threads it may have [default: half of the machine's, at most 16384]
    #[arg(long, value_name = "N")]
    pids: Option<String>,
    /// Size of its own disk, such as 10g: for what it installs and writes outside the workspaces, which have no limit
    #[arg(long, value_name = "SIZE")]
    disk: Option<String>,
    /// Names of limits to ignore, with a warning, where they cannot be enforced
    #[arg(long, value_name = "LIMITS", value_delimiter = ',', hide = true)]
    prefer_limits: Vec<String>,
}

impl LimitFlags {
    pub(crate) fn limits(&self) -> Result<Limits, Failure> {
        Ok(Limits {
            cpu_millis: asked(self.cpus.as_deref(), cpu_millis)?,
            memory_bytes: asked(self.memory.as_deref(), bytes)?,
            processes: asked(self.pids.as_deref(), count)?,
            disk_bytes: asked(self.disk.as_deref(), bytes)?,
        })
    }

    /// Those that are enforced only where that is possible.
    pub(crate) fn preferred(&self) -> Result<Vec<LimitKind>, Failure> {
        let all = [
            LimitKind::Cpus,
            LimitKind::Memory,
            LimitKind::Pids,
            LimitKind::Disk,
        ];
        let parse = |name: &String| {
            let known = all.into_iter().find(|limit| limit.as_str() == name);
            known.ok_or_else(|| invalid("limit", name, "use cpus, memory, pids or disk"))
        };
        self.prefer_limits.iter().map(parse).collect()
    }
}

/// An empty value and 0 ask for the default.
fn asked<T: Default + PartialEq>(
    text: Option<&str>,
    parse: impl Fn(&str) -> Result<T, Failure>,
) -> Result<Option<T>, Failure> {
    let value = text.filter(|text| !text.is_empty()).map(parse);
    Ok(value.transpose()?.filter(|value| *value != T::default()))
}

fn cpu_millis(text: &str) -> Result<u32, Failure> {
    let refused = || invalid("number of CPUs", text, "use a number such as 2 or 1.5");
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    if !is_number(whole) || !is_number(part) || part.len() > 3 {
        return Err(refused());
    }
    let whole: u32 = whole.parse().map_err(|_| refused())?;
    let part: u32 = format!("{part:0<3}").parse().map_err(|_| refused())?;
    let millis = whole.checked_mul(1000).and_then(|m| m.checked_add(part));
    millis.ok_or_else(refused)
}

/// Binary units, as Docker reads them: `512m`, `8g`, `8GiB`; a number alone is bytes.
pub(crate) fn bytes(text: &str) -> Result<u64, Failure> {
    let refused = || invalid("size", text, "use a size such as 512m or 8g");
    let lower = text.to_ascii_lowercase();
    let end = lower
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(lower.len());
    let (number, unit) = lower.split_at(end);
    let shift = match unit {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(refused()),
    };
    let number: u64 = number.parse().map_err(|_| refused())?;
    number.checked_mul(1 << shift).ok_or_else(refused)
}

fn count(text: &str) -> Result<u64, Failure> {
    let refused = |_| invalid("number of processes", text, "use a number such as 500");
    text.parse().map_err(refused)
}

fn invalid(what: &str, text: &str, hint: &str) -> Failure {
    let message = format!("invalid {what} `{}`", text.escape_debug());
    Failure::new(Kind::BadRequest, message).hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus() {
        for (text, millis) in [
            ("2", 2000),
            ("1.5", 1500),
            ("0.25", 250),
            ("0", 0),
            ("1.125", 1125),
        ] {
            assert_eq!(cpu_millis(text), Ok(millis), "{text}");
        }
        for bad in [
            "",
            "-1",
            "abc",
            "1.",
            ".5",
            "1.2345",
            "1e3",
            "99999999999",
            " 1",
        ] {
            let failure = cpu_millis(bad).unwrap_err();
            assert_eq!(failure.kind, Kind::BadRequest, "{bad}");
        }
    }

    #[test]
    fn sizes() {
        for (text, expected) in [
            ("1024", 1024),
            ("1024m", 1 << 30),
            ("8g", 8 << 30),
            ("8GiB", 8 << 30),
            ("4k", 4096),
        ] {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for bad in ["", "g", "-1g", "1.5g", "8x", "99999999999999t", "1 g"] {
            assert_eq!(bytes(bad).unwrap_err().kind, Kind::BadRequest, "{bad}");
        }
    }

    #[test]
    fn the_default_can_be_asked_for() {
        let flags = LimitFlags {
            cpus: Some("0".into()),
            memory: Some(String::new()),
            ..LimitFlags::default()
        };
        assert_eq!(flags.limits(), Ok(Limits::default()));
    }

    #[test]
    fn preferences() {
        let of = |names: &[&str]| {
            LimitFlags {
                prefer_limits: names.iter().map(|name| (*name).to_owned()).collect(),
                ..LimitFlags::default()
            }
            .preferred()
        };
        assert_eq!(
            of(&["disk", "cpus"]),
            Ok(vec![LimitKind::Disk, LimitKind::Cpus])
        );
        assert_eq!(of(&["swap"]).unwrap_err().kind, Kind::BadRequest);
    }
}
