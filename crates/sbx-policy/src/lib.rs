//! What a sandbox may reach: rules, hosts, presets and the one decision. Pure: no clock, no files, no network.
//!
//! A [`Target`] is parsed once at the entrance (CONNECT line, `Host` header, SNI, DNS question), so that every
//! spelling of a host gets the same verdict. A [`Policy`] is compiled from the [`Rule`]s that concern one sandbox
//! and answers four questions: may this target be dialled ([`Policy::decide`]), may this name be resolved
//! ([`Policy::resolvable`]), may the address that it resolved to be dialled ([`Policy::decide_address`]), and is it
//! worth telling ([`Policy::may_disclose`]).
//! Time is an argument, and the addresses of the machine are given ([`Policy::with_local_addresses`]); who stores, logs and enforces is
//! left to the callers.

mod address;
mod builtin_names;
mod host;
mod index;
mod ipv4;
mod local_addresses;
mod pattern;
mod policy;
mod presets;
mod proxy_config;
mod public_suffix;
mod remedy;
mod rule;
mod store;
mod suggest;
mod target;
mod verdict;
mod wildcard;

pub use address::{RefusedRange, effective_address, refused_range};
pub use builtin_names::{GATEWAY, HOST_ALIAS, is_gateway, is_host_alias, is_localhost};
pub use host::{DomainName, Host, HostError};
pub use local_addresses::LocalAddresses;
pub use pattern::{Pattern, PatternError};
pub use policy::{Policy, Protocol};
pub use presets::{Preset, UnknownPreset, preset, preset_reason};
pub use proxy_config::{
    Edit, OlderPattern, ProxyConfig, ProxyConfigError, ProxyMode, ProxyNetwork,
};
pub use public_suffix::registrable_domain;
pub use remedy::{remedy, unreadable};
pub use rule::{BadScope, Decision, Origin, Rule, Scope, Traffic};
pub use store::{Added, Existing, NewRule, PolicyFile, Removal, Removed, StoreError};
pub use suggest::{Denied, Suggested, Suggestion, Unsolved, suggest};
pub use target::{Target, TargetError};
pub use verdict::{Kind, RuleRef, Verdict};
