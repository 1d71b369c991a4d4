//! The engine against inits that the tests play themselves: what a daemon does when it comes back.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on fails"
)]

mod fake_init;
mod recovery;
