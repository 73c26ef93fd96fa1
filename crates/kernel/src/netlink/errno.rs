//! Error numbers by name.

use std::fmt;

/// An error number of the kernel, printed with its message and its name: `file exists (EEXIST)`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

impl Errno {
    /// EPERM.
    pub const PERM: Self = Self(1);
    /// ENOENT.
    pub const NOENT: Self = Self(2);
    /// ESRCH: no such route, among others.
    pub const SRCH: Self = Self(3);
    /// EAGAIN.
    pub const AGAIN: Self = Self(11);
    /// ENOMEM.
    pub const NOMEM: Self = Self(12);
    /// EACCES.
    pub const ACCES: Self = Self(13);
    /// EBUSY.
    pub const BUSY: Self = Self(16);
    /// EEXIST.
    pub const EXIST: Self = Self(17);
    /// ENODEV: no such link.
    pub const NODEV: Self = Self(19);
    /// EINVAL.
    pub const INVAL: Self = Self(22);
    /// ERANGE; in nf_tables: another generation than the required one.
    pub const RANGE: Self = Self(34);
    /// EOPNOTSUPP.
    pub const OPNOTSUPP: Self = Self(95);
    /// EAFNOSUPPORT: a family, such as IPv6, that the kernel does not support.
    pub const AFNOSUPPORT: Self = Self(97);
    /// ENETUNREACH: no route.
    pub const NETUNREACH: Self = Self(101);
    /// Another socket has the address.
    pub const ADDRINUSE: Self = Self(98);
    /// EADDRNOTAVAIL: no such address.
    pub const ADDRNOTAVAIL: Self = Self(99);
    /// ENOBUFS.
    pub const NOBUFS: Self = Self(105);
    /// EHOSTUNREACH: an unreachable route.
    pub const HOSTUNREACH: Self = Self(113);
    /// ERESTART (85), which nf_tables uses for "another generation than the required one".
    pub const RESTART: Self = Self(85);

    /// The constant's name, if it is one that netlink families use.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        self.entry().map(|&(_, name, _)| name)
    }

    fn entry(self) -> Option<&'static (i32, &'static str, &'static str)> {
        NAMES.iter().find(|&&(number, ..)| number == self.0)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.entry() {
            Some((_, name, words)) => write!(f, "{words} ({name})"),
            None => write!(f, "error number {}", self.0),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "Errno({})", self.0),
        }
    }
}

/// `linux include/uapi/asm-generic/errno-base.h` and `errno.h`, the ones that netlink replies
/// carry.
const NAMES: &[(i32, &str, &str)] = &[
    (1, "EPERM", "operation not permitted"),
    (2, "ENOENT", "no such file or directory"),
    (3, "ESRCH", "no such process"),
    (4, "EINTR", "interrupted system call"),
    (5, "EIO", "input/output error"),
    (6, "ENXIO", "no such device or address"),
    (7, "E2BIG", "argument list too long"),
    (9, "EBADF", "bad file descriptor"),
    (11, "EAGAIN", "resource temporarily unavailable"),
    (12, "ENOMEM", "cannot allocate memory"),
    (13, "EACCES", "permission denied"),
    (16, "EBUSY", "device or resource busy"),
    (17, "EEXIST", "file exists"),
    (19, "ENODEV", "no such device"),
    (22, "EINVAL", "invalid argument"),
    (23, "ENFILE", "too many open files in system"),
    (24, "EMFILE", "too many open files"),
    (28, "ENOSPC", "no space left on device"),
    (31, "EMLINK", "too many links"),
    (34, "ERANGE", "numerical result out of range"),
    (36, "ENAMETOOLONG", "file name too long"),
    (38, "ENOSYS", "function not implemented"),
    (40, "ELOOP", "too many levels of symbolic links"),
    (54, "EXFULL", "exchange full"),
    (61, "ENODATA", "no data available"),
    (74, "EBADMSG", "bad message"),
    (75, "EOVERFLOW", "value too large for defined data type"),
    (76, "ENOTUNIQ", "name not unique on network"),
    (85, "ERESTART", "interrupted system call should be restarted"),
    (90, "EMSGSIZE", "message too long"),
    (92, "ENOPROTOOPT", "protocol not available"),
    (93, "EPROTONOSUPPORT", "protocol not supported"),
    (95, "EOPNOTSUPP", "operation not supported"),
    (96, "EPFNOSUPPORT", "protocol family not supported"),
    (97, "EAFNOSUPPORT", "address family not supported by protocol"),
    (98, "EADDRINUSE", "address already in use"),
    (99, "EADDRNOTAVAIL", "cannot assign requested address"),
    (100, "ENETDOWN", "network is down"),
    (101, "ENETUNREACH", "network is unreachable"),
    (105, "ENOBUFS", "no buffer space available"),
    (106, "EISCONN", "transport endpoint is already connected"),
    (110, "ETIMEDOUT", "connection timed out"),
    (113, "EHOSTUNREACH", "no route to host"),
    (114, "EALREADY", "operation already in progress"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_words_and_name() {
        assert_eq!(Errno::EXIST.to_string(), "file exists (EEXIST)");
        assert_eq!(format!("{:?}", Errno::NOENT), "ENOENT");
        assert_eq!(Errno(4095).to_string(), "error number 4095");
    }

    fn is_glibc() -> bool {
        std::io::Error::from_raw_os_error(5).to_string().starts_with("Input/output error")
    }

    #[test]
    fn the_table_is_sorted_and_agrees_with_the_system() {
        assert!(NAMES.windows(2).all(|pair| pair[0].0 < pair[1].0));
        for &(number, _, words) in NAMES.iter().filter(|entry| entry.0 != 96) {
            let system = std::io::Error::from_raw_os_error(number).to_string().to_lowercase();
            // The messages are glibc's; other C libraries have their own.
            if !is_glibc() {
                continue;
            }
            assert_eq!(system, format!("{words} (os error {number})"));
        }
    }
}
