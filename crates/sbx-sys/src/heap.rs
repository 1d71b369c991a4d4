//! Settings of glibc's allocator. Other C libraries need none of this.

/// Returns free memory to the system (`malloc_trim`). Takes milliseconds where there is a lot: call it after a burst, not
/// regularly.
#[cfg(target_env = "gnu")]
pub fn trim() {
    // SAFETY: it takes no pointer, and locks each arena that it visits.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators do this by themselves.
#[cfg(not(target_env = "gnu"))]
pub fn trim() {}
