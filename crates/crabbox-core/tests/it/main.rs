//! The lifecycle with a provider that lives in memory and can fail at every call.

mod fake;
mod leases;
mod runs;
