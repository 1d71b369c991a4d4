//! Tests against the public interface: tables of the grammar and the decisions, and properties against a second,
//! naive implementation.

#[cfg(test)]
mod decide;
#[cfg(test)]
mod grammar;
#[cfg(test)]
mod naive;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod proxy_config;
#[cfg(test)]
mod remedy;
#[cfg(test)]
mod store;
#[cfg(test)]
mod suggest;
#[cfg(test)]
mod support;
