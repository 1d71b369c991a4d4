//! TODO

use crate::ModeTest;

pub const TESTS: &[ModeTest] = &[];
