//! The real program, with real and stand-in engines.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests: one that panics has failed"
)]

mod architecture;
mod bugs;
mod checks;
mod config;
mod crowd;
mod discovery;
mod docker;
mod doctor;
mod edges;
mod elsewhere;
mod ends;
mod engine;
mod engines;
mod environment;
mod facts;
mod gaps;
mod leases;
mod lifecycle;
mod mistakes;
mod no_effect;
mod plans;
mod proof_matrix;
mod records;
mod refusals;
mod run;
mod snapshots;
mod snapshots_of_checks;
mod variables;
mod words;
mod world;
