//! Operations on a sandbox beside its commands: published ports and copies.

use super::Context;
use crate::Failure;
use crate::provider::{CopyRequest, PortsRequest, Use};

/// What the provider prints about its ports.
pub fn ports(
    context: Context<'_>,
    identifier: &str,
    request: &PortsRequest,
) -> Result<Vec<u8>, Failure> {
    let claim = context.find(identifier)?;
    let sandbox = context.verify(&claim, Use::Attach)?;
    context.provider.ports(&sandbox, request, context.cancel)
}

pub fn copy(context: Context<'_>, identifier: &str, request: &CopyRequest) -> Result<(), Failure> {
    let claim = context.find(identifier)?;
    let sandbox = context.verify(&claim, Use::Attach)?;
    context.provider.copy(&sandbox, request, context.cancel)
}
