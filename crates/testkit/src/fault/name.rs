//! System calls by name, for reports of what was tried.

use nix::libc;

/// Calls that change something, or ask the kernel to change something. Between two of them it makes
/// no difference where a program is killed.
const CHANGES: [(i64, &str); 31] = [
    (libc::SYS_sendto, "sendto"),
    (libc::SYS_sendmsg, "sendmsg"),
    (libc::SYS_write, "write"),
    (libc::SYS_pwrite64, "pwrite64"),
    (libc::SYS_writev, "writev"),
    (libc::SYS_ioctl, "ioctl"),
    (libc::SYS_rename, "rename"),
    (libc::SYS_renameat, "renameat"),
    (libc::SYS_renameat2, "renameat2"),
    (libc::SYS_link, "link"),
    (libc::SYS_linkat, "linkat"),
    (libc::SYS_symlink, "symlink"),
    (libc::SYS_symlinkat, "symlinkat"),
    (libc::SYS_unlink, "unlink"),
    (libc::SYS_unlinkat, "unlinkat"),
    (libc::SYS_mkdir, "mkdir"),
    (libc::SYS_mkdirat, "mkdirat"),
    (libc::SYS_rmdir, "rmdir"),
    (libc::SYS_ftruncate, "ftruncate"),
    (libc::SYS_fchmod, "fchmod"),
    (libc::SYS_chmod, "chmod"),
    (libc::SYS_utimensat, "utimensat"),
    (libc::SYS_setns, "setns"),
    (libc::SYS_unshare, "unshare"),
    (libc::SYS_mount, "mount"),
    (libc::SYS_umount2, "umount2"),
    (libc::SYS_clone, "clone"),
    (libc::SYS_clone3, "clone3"),
    (libc::SYS_fork, "fork"),
    (libc::SYS_vfork, "vfork"),
    (libc::SYS_execve, "execve"),
];

const OTHERS: [(i64, &str); 40] = [
    (libc::SYS_open, "open"),
    (libc::SYS_openat, "openat"),
    (libc::SYS_openat2, "openat2"),
    (libc::SYS_read, "read"),
    (libc::SYS_pread64, "pread64"),
    (libc::SYS_readv, "readv"),
    (libc::SYS_recvfrom, "recvfrom"),
    (libc::SYS_recvmsg, "recvmsg"),
    (libc::SYS_fsync, "fsync"),
    (libc::SYS_fdatasync, "fdatasync"),
    (libc::SYS_flock, "flock"),
    (libc::SYS_socket, "socket"),
    (libc::SYS_bind, "bind"),
    (libc::SYS_connect, "connect"),
    (libc::SYS_setsockopt, "setsockopt"),
    (libc::SYS_getsockopt, "getsockopt"),
    (libc::SYS_getsockname, "getsockname"),
    (libc::SYS_stat, "stat"),
    (libc::SYS_lstat, "lstat"),
    (libc::SYS_fstat, "fstat"),
    (libc::SYS_newfstatat, "newfstatat"),
    (libc::SYS_statx, "statx"),
    (libc::SYS_statfs, "statfs"),
    (libc::SYS_getdents64, "getdents64"),
    (libc::SYS_readlink, "readlink"),
    (libc::SYS_readlinkat, "readlinkat"),
    (libc::SYS_lseek, "lseek"),
    (libc::SYS_fcntl, "fcntl"),
    (libc::SYS_dup, "dup"),
    (libc::SYS_mmap, "mmap"),
    (libc::SYS_mremap, "mremap"),
    (libc::SYS_munmap, "munmap"),
    (libc::SYS_brk, "brk"),
    (libc::SYS_close, "close"),
    (libc::SYS_poll, "poll"),
    (libc::SYS_getppid, "getppid"),
    (libc::SYS_nanosleep, "nanosleep"),
    (libc::SYS_clock_nanosleep, "clock_nanosleep"),
    (libc::SYS_exit, "exit"),
    (libc::SYS_exit_group, "exit_group"),
];

/// Says whether a system call may change something outside its process.
#[must_use]
pub fn changes(call: i64) -> bool {
    CHANGES.iter().any(|(number, _)| *number == call)
}

/// Returns a system call's name, or its number if it is not listed here.
#[must_use]
pub fn name(call: i64) -> String {
    let found = CHANGES.iter().chain(&OTHERS).find(|(number, _)| *number == call);
    found.map_or_else(|| format!("call {call}"), |(_, name)| (*name).to_owned())
}
