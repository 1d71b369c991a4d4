//! What kind of thing is wrong with a provider, and what to do about it, in the words that programs know.

use crate::{Code, Failure};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    Timeout,
    Tool,
    Config,
    Auth,
    Network,
    Provider,
}

/// What failures say of themselves, the first that fits. Every phrase is the beginning of a word, and all of it with a
/// blank at the end. A login that is "required" is no setting that is.
const PHRASES: [(Class, &[&str]); 6] = [
    (Class::Timeout, &["timeout", "timed out"]),
    (Class::Auth, &["not logged in", "login required"]),
    (
        Class::Tool,
        &[
            "executable not found",
            "executable file not found",
            "no such file",
        ],
    ),
    (Class::Config, &["missing", "required", "not configured"]),
    (
        Class::Auth,
        &[
            "unauthorized",
            "authentication",
            "forbidden",
            "permission",
            "denied",
            "credential",
            "api key",
            "token",
            "401 ",
            "403 ",
        ],
    ),
    (
        Class::Network,
        &["refused", "no such host ", "dial ", "tls "],
    ),
];

impl Class {
    /// By what it is, where that is known, and else by what it says.
    pub fn of(failure: &Failure) -> Self {
        match failure.code {
            Code::Timeout => Self::Timeout,
            Code::Denied => Self::Auth,
            Code::ProviderMissing => Self::Tool,
            Code::Usage
            | Code::Config
            | Code::Untrusted
            | Code::Unsupported
            | Code::UnknownProvider => Self::Config,
            Code::ProviderMalformed => Self::Provider,
            Code::State
            | Code::ClaimChanged
            | Code::OtherRepository
            | Code::NotFound
            | Code::NotOwned
            | Code::Expired
            | Code::Provider
            | Code::Sync
            | Code::Local
            | Code::Unhealthy
            | Code::Canceled
            | Code::CommandExit => Self::said(&failure.to_string()),
        }
    }

    fn said(text: &str) -> Self {
        let plain = |c: char| {
            if c.is_alphanumeric() {
                c.to_ascii_lowercase()
            } else {
                ' '
            }
        };
        let words: String = text.chars().map(plain).collect();
        let words: Vec<_> = words.split_whitespace().collect();
        let text = format!(" {} ", words.join(" "));
        let says = |phrase: &&str| text.contains(&format!(" {phrase}"));
        PHRASES
            .iter()
            .find(|(_, phrases)| phrases.iter().any(says))
            .map_or(Self::Provider, |(class, _)| *class)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Tool => "tool",
            Self::Config => "config",
            Self::Auth => "auth",
            Self::Network => "network",
            Self::Provider => "provider",
        }
    }

    /// The next thing to try.
    pub fn hint(self) -> &'static str {
        match self {
            Self::Timeout => "retry_or_check_provider_status",
            Self::Tool => "install_provider_cli",
            Self::Network => "check_network_and_provider_endpoint",
            Self::Config => "check_crabbox_provider_config",
            Self::Auth | Self::Provider => "check_provider_auth_and_config",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_decides_and_else_what_is_said() {
        for (code, class) in [
            (Code::Timeout, "timeout"),
            (Code::ProviderMissing, "tool"),
            (Code::Config, "config"),
            (Code::Unsupported, "config"),
            (Code::ProviderMalformed, "provider"),
        ] {
            // Whatever the words are.
            let failure = Failure::new(code, "connection refused");
            assert_eq!(Class::of(&failure).as_str(), class, "{code:?}");
        }
        for (said, class) in [
            ("the control plane timed out", "timeout"),
            ("i/o timeout", "timeout"),
            ("ERROR: not logged in", "auth"),
            ("Login required", "auth"),
            ("exec: \"x\": executable file not found in $PATH", "tool"),
            ("open /x: no such file or directory", "tool"),
            ("API key is missing", "config"),
            ("a name is required", "config"),
            ("the region is not configured", "config"),
            ("Unauthorized", "auth"),
            ("authentication failed", "auth"),
            ("403 Forbidden", "auth"),
            ("got 401", "auth"),
            ("Permission denied", "auth"),
            ("no credentials for it", "auth"),
            ("bad API-key", "auth"),
            ("the token expired", "auth"),
            ("connection refused", "network"),
            ("lookup h: no such host", "network"),
            ("dial tcp: it failed", "network"),
            ("TLS handshake failed", "network"),
            // A word within another one is not that word.
            ("the dialog of titles 4010 is out of date", "provider"),
            ("quota exceeded", "provider"),
            ("", "provider"),
        ] {
            let failure =
                Failure::new(Code::Provider, "`x` exited 1").because(&Failure::usage(said));
            assert_eq!(Class::of(&failure).as_str(), class, "{said}");
        }
    }

    #[test]
    fn what_to_do() {
        for (class, hint) in [
            (Class::Timeout, "retry_or_check_provider_status"),
            (Class::Tool, "install_provider_cli"),
            (Class::Network, "check_network_and_provider_endpoint"),
            (Class::Config, "check_crabbox_provider_config"),
            (Class::Auth, "check_provider_auth_and_config"),
            (Class::Provider, "check_provider_auth_and_config"),
        ] {
            assert_eq!(class.hint(), hint);
        }
    }
}
