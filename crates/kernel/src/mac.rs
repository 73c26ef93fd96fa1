//! Hardware addresses that the kernel's random bytes make.

pub use net::{MacAddr, MacAddrError};

/// Generates an address: unicast, locally administered (IEEE 802 §8.4), the rest random.
///
/// # Panics
/// When the kernel returns no random bytes, which `man 2 getrandom` excludes for so few after
/// boot.
#[must_use]
pub fn random() -> MacAddr {
    let mut octets = [0; 6];
    let filled = rustix::rand::getrandom(&mut octets, rustix::rand::GetRandomFlags::empty());
    assert_eq!(filled, Ok(octets.len()), "the kernel gives random bytes");
    MacAddr::local(octets)
}
