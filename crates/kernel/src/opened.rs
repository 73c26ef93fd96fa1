//! Decides whether another process has a file open.
//!
//! The kernel keeps a script open from the moment it reads the `#!` line until it has opened the
//! executable that the line names (linux fs/binfmt_script.c, `load_script`). So an executable is needed
//! by calls that have begun as long as one of its scripts is open somewhere, whatever has its name now.

use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _};

use rustix::io::Errno;

/// Chooses the signal that tells of a broken lease (linux include/uapi/asm-generic/fcntl.h).
const F_SETSIG: libc::c_int = 10;

/// Says whether this file is open elsewhere, here or in another process. This process must have it
/// open for reading only, and own it or have CAP_LEASE (`man 2 fcntl`, "Leases"). It is an error
/// where the file system has no leases.
pub fn is_elsewhere(file: &File) -> Result<bool, Errno> {
    // Whoever opens the file while the lease is held has this process told. The usual signal would end
    // it; this one is ignored unless somebody wants it (`man 7 signal`).
    control(file, F_SETSIG, libc::SIGURG)?;
    match control(file, libc::F_SETLEASE, libc::F_WRLCK) {
        Ok(()) => control(file, libc::F_SETLEASE, libc::F_UNLCK).map(|()| false),
        Err(Errno::AGAIN) => Ok(true),
        Err(errno) => Err(errno),
    }
}

fn control(file: &File, command: libc::c_int, value: libc::c_int) -> Result<(), Errno> {
    // SAFETY: the descriptor is open, and both commands take a number.
    let done = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), command, value) };
    match done {
        -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_open_elsewhere_until_it_is_closed_there() {
        let dir = std::env::temp_dir().join(format!("netwright-opened-{}", std::process::id()));
        std::fs::write(&dir, "#!/x\n").unwrap();
        let file = File::open(&dir).unwrap();
        assert_eq!(is_elsewhere(&file), Ok(false));
        let other = File::open(&dir).unwrap();
        assert_eq!(is_elsewhere(&file), Ok(true));
        // A name more or less changes nothing.
        std::fs::remove_file(&dir).unwrap();
        assert_eq!(is_elsewhere(&file), Ok(true));
        drop(other);
        assert_eq!(is_elsewhere(&file), Ok(false));
    }
}
