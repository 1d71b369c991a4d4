//! The names of agents that a sandbox can be made for.

/// The agent of this version: it needs nothing but a shell.
pub const SHELL: &str = "shell";

/// Agents of Docker's own `sbx` that come with a later version.
pub const LATER: [&str; 10] = [
    "claude",
    "codex",
    "copilot",
    "cursor",
    "docker-agent",
    "cagent",
    "droid",
    "gemini",
    "kiro",
    "opencode",
];
