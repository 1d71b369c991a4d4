//! The real daemon, driven over HTTP by `curl` and a small WebSocket-free client.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "tests: one that panics has failed"
)]

mod commands;
mod daemon;
mod files;
mod sessions;
