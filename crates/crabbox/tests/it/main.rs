//! The real program, with real and stand-in engines.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests: one that panics has failed"
)]

mod agent_sandbox;
mod agent_sandbox_ends;
mod agent_sandbox_faults;
mod agent_sandbox_leases;
mod agent_sandbox_route;
mod architecture;
mod background;
mod build_cache;
mod bundled_engine;
mod command_details;
mod command_line;
mod concurrency;
mod doctor;
mod doctor_and_config_snapshots;
mod doctor_checks;
mod engine_lookup;
mod env_forwarding;
mod env_settings;
mod error_messages;
mod first_run;
mod help_and_discovery;
mod leases;
mod lifecycle;
mod multiple_engines;
mod no_effect;
mod original_commands;
mod original_gaps;
mod original_readers;
mod output_snapshots;
mod people;
mod proof_matrix;
mod regressions;
mod run;
mod run_outcomes;
mod run_records;
mod sbx_contract;
mod settings;
mod sync_plan;
mod terminal_and_recovery;
mod tutorial;
mod unseen_leases;
mod unsupported_commands;
mod unsupported_flags;
mod world;
