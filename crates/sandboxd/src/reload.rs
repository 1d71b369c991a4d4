//! What the API needs of whatever enforces the network policy.

use std::fmt::Debug;
use std::pin::Pin;

use sbx_policy::{Protocol, Target};
use sbx_proxy::Checked;

pub type Judging<'a> = Pin<Box<dyn Future<Output = Checked> + Send + 'a>>;

pub trait PolicyReload: Debug + Send + Sync {
    /// The rules changed: they hold from now on, for open connections as well.
    fn reload(&self);

    /// What a connection would be told; `protocol` is what it would carry, if that is known.
    fn check<'a>(
        &'a self,
        sandbox: Option<&'a str>,
        target: &'a Target,
        protocol: Option<Protocol>,
    ) -> Judging<'a>;
}
