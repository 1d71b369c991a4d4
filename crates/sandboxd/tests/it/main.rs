//! The daemon on a socket of its own. Nothing here starts a sandbox: that is for the tests of the program.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on fails"
)]

mod api;
mod harness;
mod openapi;
mod policy;
