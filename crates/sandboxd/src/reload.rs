//! What the API needs of whatever enforces the network policy.

use std::fmt::Debug;
use std::sync::Arc;

use sbx_policy::Scope;
use sbx_proxy::Gate;

pub trait PolicyReload: Debug + Send + Sync {
    /// The rules changed: they hold from now on, for open connections as well.
    fn reload(&self);

    /// Who decides for a sandbox while it runs; else one that would decide the same. May read files.
    fn gate(&self, scope: &Scope) -> Arc<Gate>;
}
