//! What this crate promises to readers of the docs.

mod docs;
