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

/// One arena for all threads, for programs whose few threads hardly allocate. An arena per thread maps and unmaps a
/// hundred megabytes of address space, and each unmap interrupts every processor that runs the program (TLB shootdown).
#[cfg(target_env = "gnu")]
pub fn use_one_arena() {
    // SAFETY: it sets a tunable. Memory that is allocated already stays where it is.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
}

#[cfg(not(target_env = "gnu"))]
pub fn use_one_arena() {}
