//! From `create` to `rm`: identity, what is shown, what persists, what stops by itself.

pub mod after;
pub mod auto_stop;
pub mod ending;
pub mod failing;
pub mod full_disk;
pub mod identity;
pub mod moved;
pub mod prune;
pub mod reading;
pub mod trash;
pub mod trouble;
