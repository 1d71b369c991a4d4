//! The real daemon, driven over HTTP and WebSockets.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    unreachable_pub,
    reason = "tests: one that panics has failed"
)]

mod commands;
mod daemon;
mod files;
mod sessions;
mod terminals;
