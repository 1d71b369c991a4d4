//! The real program, with real and stand-in engines.
