//! Programs of classic BPF that the kernel runs on what a socket would receive (`man 7 socket`,
//! SO_ATTACH_FILTER).

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::ptr;

use rustix::io::Errno;

/// `linux include/uapi/linux/bpf_common.h`: BPF_LD|BPF_H|BPF_ABS and so on. Numbers are read in
/// network byte order.
pub(crate) const LOAD_WORD: u16 = 0x20;
pub(crate) const LOAD_HALF: u16 = 0x28;
pub(crate) const LOAD_BYTE: u16 = 0x30;
pub(crate) const LOAD_HALF_INDEXED: u16 = 0x48;
pub(crate) const LOAD_SCRATCH: u16 = 0x60;
pub(crate) const STORE_SCRATCH: u16 = 0x02;
pub(crate) const X_IS: u16 = 0x01;
pub(crate) const X_IS_IP_HEADER_LENGTH: u16 = 0xb1;
pub(crate) const AND: u16 = 0x54;
pub(crate) const JUMP: u16 = 0x05;
pub(crate) const JUMP_IF_EQUAL: u16 = 0x15;
pub(crate) const JUMP_IF_ANY_BIT: u16 = 0x45;
pub(crate) const RETURN: u16 = 0x06;

/// One instruction (`linux include/uapi/linux/filter.h` `struct sock_filter`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Instruction {
    code: u16,
    jump_true: u8,
    jump_false: u8,
    operand: u32,
}

/// `struct sock_fprog`.
#[repr(C)]
struct Program {
    length: u16,
    instructions: *const Instruction,
}

pub(crate) fn step(code: u16, operand: u32) -> Instruction {
    jump(code, operand, 0, 0)
}

pub(crate) fn jump(code: u16, operand: u32, jump_true: u8, jump_false: u8) -> Instruction {
    Instruction { code, jump_true, jump_false, operand }
}

/// Attaches a program, in place of another; the kernel copies it.
pub(crate) fn attach(fd: BorrowedFd<'_>, program: &[Instruction]) -> Result<(), Errno> {
    let length = u16::try_from(program.len()).map_err(|_| Errno::INVAL)?;
    let program = Program { length, instructions: program.as_ptr() };
    set_option(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

/// Sets a socket option that rustix has no function for. `T` must be the option's own type, in C's
/// layout.
pub(crate) fn set_option<T>(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: &T,
) -> Result<(), Errno> {
    let length = libc::socklen_t::try_from(size_of::<T>()).map_err(|_| Errno::INVAL)?;
    // SAFETY: the kernel reads `length` bytes at `value`, which is that large and lives until the
    // call returns. Of the two types this is called with, `c_int` contains no pointer, and
    // `Program`'s pointer leads to a slice that its caller borrows for the call. The descriptor is
    // open, since it is borrowed.
    let done = unsafe {
        libc::setsockopt(fd.as_raw_fd(), level, name, ptr::from_ref(value).cast(), length)
    };
    if done == 0 {
        return Ok(());
    }
    let errno = io::Error::last_os_error().raw_os_error();
    Err(errno.map_or(Errno::IO, Errno::from_raw_os_error))
}

#[cfg(test)]
impl Instruction {
    /// The code, where to jump if a comparison holds and if it does not, and the operand.
    pub(crate) fn parts(self) -> (u16, u8, u8, u32) {
        (self.code, self.jump_true, self.jump_false, self.operand)
    }
}
