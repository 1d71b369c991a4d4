//! From `create` to `rm`: identity, what is shown, what persists, what stops by itself.

pub mod auto_stop;
pub mod ending;
pub mod failing;
pub mod identity;
pub mod reading;
pub mod trouble;
