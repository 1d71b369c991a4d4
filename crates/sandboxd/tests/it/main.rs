//! The daemon on a socket of its own. Nothing here starts a sandbox: that is for the tests of the program.

mod api;
mod harness;
mod openapi;
