//! The lifecycle with a provider that lives in memory and can fail at every call.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fake;
mod leases;
mod runs;
