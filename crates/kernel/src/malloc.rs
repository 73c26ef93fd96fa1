//! How the allocator of the C library keeps large blocks.

/// From now on gives every block of a quarter of a megabyte or more a mapping of its own, so that
/// its memory is the kernel's again as soon as it is freed. Idempotent.
///
/// glibc does so for blocks of 128 KiB and more, but raises that limit to the size of each such
/// block that is freed, up to 32 MiB, and keeps twice as much at the end of its heap
/// (`man 3 mallopt`, M_MMAP_THRESHOLD). A service that needs a long list for a moment would then
/// keep room for two of them. A limit that is set stays. With another C library this does nothing.
pub fn return_large_blocks() {
    #[cfg(target_env = "gnu")]
    {
        const LARGE: libc::c_int = 256 * 1024;
        // SAFETY: it takes two numbers, and changes the allocator's settings under its own lock.
        let _ = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE) };
    }
}
