//! The bodies of the fuzz targets: what must hold for all bytes that come from outside.
//!
//! They are plain functions, so that the fuzzers in `fuzz/` and the ordinary tests, which replay `fuzz/corpus`, run
//! the same checks. A function that panics has found a fault.

mod dns;
mod exec_frames;
mod h2;
mod http1;
mod policy;
mod prefixes;
mod socks;
mod ssh;
mod tar_stream;
mod tls;

pub use dns::fuzz_dns_message;
pub use exec_frames::fuzz_exec_frames;
pub use h2::fuzz_h2_opening;
pub use http1::fuzz_http1_head;
pub use policy::{fuzz_host_pattern, fuzz_policy_file, fuzz_proxy_config};
pub use socks::fuzz_socks;
pub use ssh::{fuzz_sftp_request, fuzz_ssh_messages, fuzz_ssh_opening};
pub use tar_stream::fuzz_tar_stream;
pub use tls::fuzz_client_hello;

/// A target's name, which is also that of its corpus, and its body.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: &[Target] = &[
    ("client_hello", fuzz_client_hello),
    ("dns_message", fuzz_dns_message),
    ("exec_frames", fuzz_exec_frames),
    ("h2_opening", fuzz_h2_opening),
    ("host_pattern", fuzz_host_pattern),
    ("http1_head", fuzz_http1_head),
    ("policy_file", fuzz_policy_file),
    ("proxy_config", fuzz_proxy_config),
    ("sftp_request", fuzz_sftp_request),
    ("socks", fuzz_socks),
    ("ssh_messages", fuzz_ssh_messages),
    ("ssh_opening", fuzz_ssh_opening),
    ("tar_stream", fuzz_tar_stream),
];
