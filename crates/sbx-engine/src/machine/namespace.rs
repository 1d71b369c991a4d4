//! The namespace backend.

pub mod helper;
pub mod ids;
pub mod limits;
pub mod plan;
pub mod template;
