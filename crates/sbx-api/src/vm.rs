//! The older interface, `/vm`: what programs that were written for Docker Desktop's `sandboxd` send and receive. Its
//! words are theirs, also where they say `vm` for what is a sandbox here, and it needs no version header.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `POST /vm`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewVm {
    /// Any name: nothing is started for it.
    pub agent_name: String,
    /// An absolute path, shared at the same place inside.
    pub workspace_dir: String,
}

/// An element of `GET /vm`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Vm {
    pub vm_id: String,
    pub vm_name: String,
    pub agent_name: String,
    /// The primary workspace; empty for a sandbox without one.
    pub workspace_dir: String,
}

/// What `POST /vm` answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreatedVm {
    pub vm_id: String,
    /// `<agent>-vm`, or `<agent>-vm-2` where that is taken.
    pub vm_name: String,
    pub vm_config: VmConfig,
    /// The certificate authority that programs inside trust.
    pub ca_cert_path: String,
    /// The content of that file in base64.
    pub ca_cert_data: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct VmConfig {
    /// For a Docker client. Until sandboxes have Docker daemons of their own, every request to it is refused.
    pub socket_path: String,
    pub file_sharing_directories: Vec<String>,
    pub state_dir: String,
    /// Nothing lies there: sandboxes are made from the host's own system.
    pub asset_dir: String,
}

/// Every answer of `/vm` that is not 2xx.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VmError {
    pub message: String,
}
