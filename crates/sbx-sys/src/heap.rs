//! Memory that nobody uses any more.

/// Gives back to the system what the allocator has kept after many small things were freed. Takes milliseconds where
/// there was a lot: for the end of something big, not for every day.
#[cfg(target_env = "gnu")]
pub fn give_back() {
    // SAFETY: it takes no pointer, and locks what it looks at.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators do it by themselves.
#[cfg(not(target_env = "gnu"))]
pub fn give_back() {}
