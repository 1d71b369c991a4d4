//! What the API needs of whatever enforces the network policy.

use std::fmt::Debug;
use std::pin::Pin;

use sbx_policy::Target;
use sbx_proxy::Judged;

pub type Judging<'a> = Pin<Box<dyn Future<Output = Judged> + Send + 'a>>;

pub trait PolicyReload: Debug + Send + Sync {
    /// The rules changed: they hold from now on, for open connections as well.
    fn reload(&self);

    /// What a connection would be told.
    fn check<'a>(&'a self, sandbox: Option<&'a str>, target: &'a Target) -> Judging<'a>;
}
