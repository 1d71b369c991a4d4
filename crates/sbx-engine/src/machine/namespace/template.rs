//! The `host` template: this machine's own operating system as the lowest layers of a sandbox.
//!
//! What is shown is an allow-list. System directories are used live and read-only; `/etc`, the package
//! database, our own accounts and the layers between are built once per host version by [`build`].
//! [`ensure`] decides and caches; mounting, and who runs [`build`], is left to the engine.

mod access_rules;
mod accounts;
mod build;
mod caches;
mod copy;
mod ensure;
mod env;
mod error;
mod etc;
mod fingerprint;
mod git;
mod hidden;
mod host_dir;
mod layers;
mod layout;
mod managers;
mod sanitize;
mod scripts;
mod secrets;
mod spec;
mod toolchain;
mod var;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_layout;

pub use build::build;
pub use ensure::{LayoutRequest, ensure, retire_unused};
pub use error::TemplateError;
pub use etc::etc_files;
pub use layout::{HostBind, HostLayout, OverlayDir, SavedLayers};
