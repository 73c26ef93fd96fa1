//! Hardware addresses in configurations.

use cni::code;
use kernel::mac::MacAddr;

use super::failure::Failure;

/// Reads a hardware address in any of the forms that configurations use.
///
/// # Errors
/// Code 7, in the words of Go's parser, for text that is not a hardware address, and for addresses
/// that a container cannot have: multicast and all zero.
pub fn parse_mac(text: &str) -> Result<MacAddr, Failure> {
    let invalid = |why: &str| {
        Failure::new(code::INVALID_CONFIG, format!("address {text}: invalid MAC address"))
            .with_details(why)
    };
    let mac: MacAddr = text.parse().map_err(|_| invalid("write it like 02:00:5e:00:53:01"))?;
    if !mac.is_unicast() {
        return Err(invalid("it is a multicast address or all zero"));
    }
    Ok(mac)
}
