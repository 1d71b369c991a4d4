//! Sources against tables: whose word counts, what is refused, and what is shown.

mod errors;
mod fuzz;
mod jobs;
mod partial;
mod repository;
mod shown;
mod sources;

use std::collections::BTreeMap;

use super::*;
use crate::failure::{Code, Failure};

const SECTION: Option<&str> = Some("madeUp");

const MADE_UP: &[Setting] = &[
    Setting::new(SECTION, "cliPath", Kind::Text, "made", "Program to run")
        .env(&["CRABBOX_MADE_UP_CLI"])
        .flag("made-up-cli")
        .trust(Trust::User)
        .label("cli"),
    Setting::new(SECTION, "template", Kind::OptionalText, "", "Template")
        .env(&["CRABBOX_MADE_UP_TEMPLATE"])
        .flag("made-up-template")
        .creation_only(),
    Setting::new(SECTION, "cpus", Kind::Count, "0", "Processors")
        .env(&["CRABBOX_MADE_UP_CPUS"])
        .flag("made-up-cpus"),
    Setting::new(SECTION, "clone", Kind::Bool, "false", "Clone").env(&["CRABBOX_MADE_UP_CLONE"]),
    Setting::new(
        SECTION,
        "mcp",
        Kind::List(Merge::Replace),
        "",
        "Servers | names",
    )
    .env(&["CRABBOX_MADE_UP_MCP"])
    .flag("made-up-mcp"),
    Setting::new(
        SECTION,
        "readyTimeout",
        Kind::Duration,
        "180s",
        "How long to wait",
    )
    .env(&["CRABBOX_MADE_UP_READY_TIMEOUT"])
    .trust(Trust::ShorterThanUser),
    Setting::new(SECTION, "apiURL", Kind::Url, "", "Where the server is")
        .env(&["CRABBOX_MADE_UP_API_URL", "MADE_UP_API_URL"])
        .flag("made-up-api-url")
        .trust(Trust::OutsideFiles),
    Setting::new(
        SECTION,
        "forgetMissing",
        Kind::Bool,
        "false",
        "Forget leases",
    )
    .flag("made-up-forget-missing")
    .trust(Trust::FlagOnly),
];

fn built_in() -> Vec<String> {
    crate::sync::built_in().collect()
}

fn shown(settings: &Settings) -> serde_json::Value {
    serde_json::to_value(show_json(settings, &[])).unwrap()
}

const TABLE: ProviderTable = ProviderTable {
    name: "made-up",
    section: "madeUp",
    settings: MADE_UP,
};
const OTHER: ProviderTable = ProviderTable {
    name: "other",
    section: "other",
    settings: &[],
};

/// A set of sources to which a test adds what it is about.
#[derive(Default)]
struct Case {
    user: Option<SourceFile>,
    repository: Vec<SourceFile>,
    environment: BTreeMap<String, String>,
    flags: Vec<FlagValue>,
    trust: TrustStore,
    configured: Vec<String>,
    untrusted: Option<Untrusted>,
}

impl Case {
    fn user(mut self, text: &str) -> Self {
        self.user = Some(file("/home/u/.config/crabbox/config.yaml", text));
        self
    }

    fn repository(mut self, text: &str) -> Self {
        let name = ["/r/crabbox.yaml", "/r/.crabbox.yaml"][self.repository.len()];
        self.repository.push(file(name, text));
        self
    }

    fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.insert(name.to_owned(), value.to_owned());
        self
    }

    fn flag(mut self, flag: &str, value: &str) -> Self {
        self.flags.push(FlagValue {
            flag: flag.to_owned(),
            value: value.to_owned(),
        });
        self
    }

    fn sources(&self) -> Sources<'_> {
        Sources {
            user: self.user.as_ref(),
            repository: &self.repository,
            environment: &self.environment,
            flags: &self.flags,
            trust: &self.trust,
            default_provider: "fallback",
            configured: &self.configured,
            foreign_sections: &["laterProvider"],
            untrusted: self.untrusted.unwrap_or(Untrusted::Refuse),
            targets: &["linux"],
        }
    }

    fn load(&self) -> Result<Settings, Failure> {
        load(CORE, &[TABLE, OTHER], &self.sources())
    }

    /// With "made-up" as the only other provider that is of use.
    fn load_partial(&self) -> Result<PartialSettings, Failure> {
        load_partial(
            CORE,
            &[TABLE, OTHER],
            &self.sources(),
            &|settings| match settings.provider() {
                "fallback" | "made-up" => Ok(()),
                name => Err(failure(Code::UnknownProvider, name)),
            },
        )
    }

    fn settings(&self) -> Settings {
        self.load().unwrap()
    }

    fn failure(&self) -> Failure {
        self.load().unwrap_err()
    }
}

fn file(path: &str, text: &str) -> SourceFile {
    SourceFile {
        path: path.into(),
        canonical: path.into(),
        bytes: text.into(),
    }
}

/// What follows the first line of `text` is the snippet.
fn failure(code: Code, text: &str) -> Failure {
    let (message, snippet) = match text.split_once('\n') {
        Some((message, snippet)) => (message, Some(snippet.into())),
        None => (text, None),
    };
    let mut failure = Failure::new(code, message);
    failure.snippet = snippet;
    failure
}

fn untrusted(message: &str) -> Failure {
    failure(Code::Untrusted, message).hint("review the file, then accept it with `crabbox trust`")
}
