//! The faults that can be injected at a system call.

use nix::libc;

/// What happens at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blow {
    /// Does nothing.
    Spare,
    /// Kills the process that is about to make the call; other processes that it started continue.
    Kill,
    /// Kills every process of the program.
    KillAll,
    /// Makes the call fail with this error number. The kernel does not execute the call, unless it
    /// is `close`.
    Fail(i32),
}

impl std::fmt::Display for Blow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Blow::Spare => f.write_str("spared"),
            Blow::Kill => f.write_str("killed"),
            Blow::KillAll => f.write_str("killed with all it started"),
            Blow::Fail(errno) => write!(f, "failed with {}", nix::errno::Errno::from_raw(*errno)),
        }
    }
}

/// The errors with which a system call may be made to fail: those that its manual page names and
/// that a machine in trouble returns. Calls that a program may assume to succeed have none.
#[must_use]
pub fn failures(call: i64) -> &'static [i32] {
    match call {
        libc::SYS_open | libc::SYS_openat | libc::SYS_openat2 => {
            &[libc::EMFILE, libc::EACCES, libc::EIO, libc::ENOMEM, libc::ENOSPC, libc::EINTR]
        }
        libc::SYS_read | libc::SYS_pread64 | libc::SYS_readv => &[libc::EIO, libc::EINTR],
        libc::SYS_recvfrom | libc::SYS_recvmsg => {
            &[libc::ENOBUFS, libc::EINTR, libc::ENOMEM, libc::EAGAIN]
        }
        libc::SYS_write | libc::SYS_pwrite64 | libc::SYS_writev => {
            &[libc::ENOSPC, libc::EIO, libc::EINTR]
        }
        libc::SYS_sendto | libc::SYS_sendmsg => {
            &[libc::ENOBUFS, libc::EPERM, libc::EINTR, libc::ENOMEM]
        }
        libc::SYS_link
        | libc::SYS_linkat
        | libc::SYS_symlink
        | libc::SYS_symlinkat
        | libc::SYS_rename
        | libc::SYS_renameat
        | libc::SYS_renameat2
        | libc::SYS_mkdir
        | libc::SYS_mkdirat
        | libc::SYS_ftruncate => &[libc::ENOSPC, libc::EIO, libc::EROFS, libc::EACCES],
        libc::SYS_unlink | libc::SYS_unlinkat | libc::SYS_rmdir => {
            &[libc::EIO, libc::EROFS, libc::EACCES]
        }
        libc::SYS_chmod | libc::SYS_fchmod | libc::SYS_fchmodat | libc::SYS_utimensat => {
            &[libc::EIO, libc::EPERM]
        }
        libc::SYS_fsync | libc::SYS_fdatasync => &[libc::EIO, libc::ENOSPC],
        libc::SYS_flock => &[libc::EINTR, libc::ENOLCK],
        libc::SYS_socket => &[libc::EMFILE, libc::ENOBUFS, libc::EPERM],
        libc::SYS_bind | libc::SYS_connect => &[libc::ENOMEM, libc::EPERM],
        libc::SYS_setsockopt | libc::SYS_getsockopt => &[libc::ENOBUFS, libc::EPERM],
        libc::SYS_ioctl => &[libc::EPERM, libc::ENOMEM, libc::EIO, libc::EINTR],
        libc::SYS_setns | libc::SYS_unshare => &[libc::EPERM, libc::ENOMEM],
        libc::SYS_clone | libc::SYS_clone3 | libc::SYS_fork | libc::SYS_vfork => {
            &[libc::EAGAIN, libc::ENOMEM]
        }
        libc::SYS_stat
        | libc::SYS_lstat
        | libc::SYS_fstat
        | libc::SYS_newfstatat
        | libc::SYS_statx
        | libc::SYS_statfs
        | libc::SYS_fstatfs => &[libc::EIO, libc::ENOMEM, libc::EACCES],
        libc::SYS_getdents64 | libc::SYS_readlink | libc::SYS_readlinkat | libc::SYS_lseek => {
            &[libc::EIO, libc::ENOMEM]
        }
        libc::SYS_fcntl | libc::SYS_dup => &[libc::EMFILE],
        libc::SYS_mmap | libc::SYS_mremap | libc::SYS_brk => &[libc::ENOMEM],
        libc::SYS_close | libc::SYS_poll | libc::SYS_ppoll | libc::SYS_nanosleep => &[libc::EINTR],
        libc::SYS_clock_nanosleep => &[libc::EINTR],
        libc::SYS_pipe2 | libc::SYS_eventfd2 | libc::SYS_epoll_create1 => &[libc::EMFILE],
        libc::SYS_execve => &[libc::ENOMEM, libc::ENOENT],
        _ => &[],
    }
}
