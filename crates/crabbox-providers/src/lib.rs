//! The registry: all providers, one line each. The rest of the program knows a provider only through it.

mod agent_sandbox;
mod docker_sandbox;
mod opensandbox;

use crabbox_core::provider::{HostContext, Provider, Spec};
use crabbox_core::settings::Settings;

/// A provider, as the registry has it.
#[derive(Debug)]
pub struct Registration {
    pub spec: &'static Spec,
    /// Starts no process and fails for nothing: what is wrong is found by [`Provider::validate`], or by the first operation
    /// that cannot do without it.
    pub open: fn(&Settings, &HostContext) -> Box<dyn Provider>,
}

const fn register(
    spec: &'static Spec,
    open: fn(&Settings, &HostContext) -> Box<dyn Provider>,
) -> Registration {
    Registration { spec, open }
}

/// In the order in which they are listed.
pub const PROVIDERS: &[Registration] = &[
    register(&docker_sandbox::SPEC, docker_sandbox::open),
    register(&agent_sandbox::SPEC, agent_sandbox::open),
    register(&opensandbox::SPEC, opensandbox::open),
];

/// The provider that is used when no source chooses one.
pub const DEFAULT: &str = docker_sandbox::SPEC.name;

/// Sections of files for providers that other builds have.
pub const OTHER_SECTIONS: &[&str] = &[];

/// Names that users try and that are no providers, and what to tell them.
pub const NOT_PROVIDERS: &[(&str, &str)] = &[
    ("docker", NO_LOCAL_CONTAINER),
    ("container", NO_LOCAL_CONTAINER),
    ("local-docker", NO_LOCAL_CONTAINER),
];

const NO_LOCAL_CONTAINER: &str = "local-container is not part of this build; use docker-sandbox";

/// The descriptions of all providers.
pub fn specs() -> impl Iterator<Item = &'static Spec> + Clone {
    PROVIDERS.iter().map(|registration| registration.spec)
}
