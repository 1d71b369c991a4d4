//! The gate without a sandbox behind it: what `policy check` asks when no daemon runs.

use std::io;
use std::sync::Arc;

use sbx_policy::{Policy, Protocol, Target};
use tokio::sync::watch;

use crate::gate::{Checked, Gate};
use crate::resolver::system_lookup;

pub fn check_blocking(
    policy: Arc<Policy>,
    target: &Target,
    protocol: Option<Protocol>,
) -> io::Result<Checked> {
    let (_sender, policy) = watch::channel(policy);
    let gate = Gate::new(policy, system_lookup());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let checked = runtime.block_on(gate.check(target, protocol));
    // A look-up that hangs is not waited for.
    runtime.shutdown_background();
    Ok(checked)
}
