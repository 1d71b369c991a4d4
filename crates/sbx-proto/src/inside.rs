//! What is the same in every sandbox, and known on both sides.

/// The agent's uid and gid.
pub const AGENT: u32 = 1000;
pub const AGENT_NAME: &str = "agent";
/// The group `tty`, to which Debian's and Red Hat's programs expect terminals to belong.
pub const TTY_GROUP: u32 = 5;
/// Made by our `sudo`: root may have made files in a workspace. Init looks for it when a command ends.
pub const ROOT_WAS_USED: &str = "/run/.sbx-root-was-used";
