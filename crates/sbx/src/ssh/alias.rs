//! Which host names of SSH are sandboxes: a pattern in which one `*` stands for the sandbox's name.

use crate::failure::{Failure, Kind};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Alias {
    before: String,
    after: String,
}

impl Alias {
    pub(crate) const DEFAULT: &'static str = "*.sbx";

    pub(crate) fn parse(pattern: &str) -> Result<Self, Failure> {
        let plain = |text: &str| {
            let mut chars = text.chars();
            chars.all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
        };
        match pattern.split_once('*') {
            Some((before, after))
                if plain(before) && plain(after) && !(before.is_empty() && after.is_empty()) =>
            {
                Ok(Self {
                    before: before.to_owned(),
                    after: after.to_owned(),
                })
            }
            _ => Err(Failure::new(
                Kind::Usage,
                format!("invalid alias `{}`", pattern.escape_debug()),
            )
            .hint("use one `*` for the sandbox's name, as in `*.sbx`")),
        }
    }

    pub(crate) fn pattern(&self) -> String {
        format!("{}*{}", self.before, self.after)
    }

    pub(crate) fn is_default(&self) -> bool {
        self.pattern() == Self::DEFAULT
    }

    /// The sandbox that a host name stands for. One that does not match is the sandbox's name itself.
    pub(crate) fn sandbox<'a>(&self, host: &'a str) -> &'a str {
        let inner = host.strip_prefix(&*self.before);
        let inner = inner.and_then(|rest| rest.strip_suffix(&*self.after));
        inner.filter(|name| !name.is_empty()).unwrap_or(host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_sandboxes() {
        let usual = Alias::parse(Alias::DEFAULT).unwrap();
        assert!(usual.is_default());
        for (host, name) in [
            ("dev.sbx", "dev"),
            ("my.dev.sbx", "my.dev"),
            ("dev", "dev"),
            (".sbx", ".sbx"),
        ] {
            assert_eq!(usual.sandbox(host), name);
        }
        let other = Alias::parse("box-*").unwrap();
        assert_eq!(other.sandbox("box-dev"), "dev");
        assert_eq!(other.pattern(), "box-*");
        for bad in [
            "",
            "*",
            "sbx",
            "*.*",
            "* b",
            "*.sbx\nHost *",
            "!*.sbx",
            "%*",
        ] {
            assert!(Alias::parse(bad).is_err(), "{bad}");
        }
    }
}
