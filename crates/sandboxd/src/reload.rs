//! What the API needs of whatever enforces the network policy.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use sbx_policy::Scope;
use sbx_proxy::Gate;

pub trait PolicyReload: Debug + Send + Sync {
    /// The rules changed: they hold from now on, for open connections as well.
    fn reload(&self);

    /// Writes down which rules have ended by themselves. Gives the time until the next one does.
    fn end_rules(&self) -> Option<Duration>;

    /// Who decides for a sandbox while it runs; else one that would decide the same. May read files.
    fn gate(&self, scope: &Scope) -> Arc<Gate>;
}
