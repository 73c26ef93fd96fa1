//! How links are marked with their owner.
//!
//! The host's end of a pair is named after its attachment: `veth` and eight digits of the
//! attachment's hash. So DEL asks the kernel for one name, even if record, cache and namespace are
//! lost, and however many links the host has. If another program's link has that name, ADD takes
//! the next of four, from four parts of the hash.
//!
//! The hardware address comes from the hash too. If ADD was killed before it set the alias, the
//! hardware address shows that the link is ours. A link whose alias would be longer than the kernel
//! allows carries the hash in its place.

use cni::{AttachmentKey, ContainerId, IfName, NetworkName};
use kernel::mac::MacAddr;
use kernel::route::Link;

/// The longest alias a link can have (linux/if.h `IFALIASZ`, less the closing NUL).
const ALIAS_MAX: usize = 255;

/// The prefix of every alias of ours.
pub const PREFIX: &str = "netwright:";

/// The mark of the tunnels of `netwrightd routing` (`routing::object::ALIAS`).
pub const ROUTING: &str = "netwright:routing";

/// Returns the alias that marks a link as created for an attachment:
/// `netwright:<network>/<container>/<ifname>`, or the key's hash after a `#` if that is too long.
#[must_use]
pub fn alias(key: &AttachmentKey) -> String {
    let plain = format!("{PREFIX}{key}");
    if plain.len() <= ALIAS_MAX { plain } else { format!("{PREFIX}#{}", key.hash()) }
}

/// Reports whether an alias is that of an attachment, not of an object that attachments share.
#[must_use]
pub fn is_of_attachment(alias: &str) -> bool {
    alias.strip_prefix(PREFIX).is_some_and(|rest| rest.contains(['/', '#']))
}

/// Returns the `attempt`th name to try for an attachment's link on the host: `veth` and eight
/// hexadecimal digits of the key's hash, so that DEL finds the link by name.
#[must_use]
pub fn host_ifname(key: &AttachmentKey, attempt: usize) -> String {
    let hash = key.hash();
    let at = (attempt % HOST_IFNAME_ATTEMPTS) * 8;
    format!("veth{}", &hash[at..at + 8])
}

/// Returns the hardware address of an attachment's link on the host: locally administered, derived
/// from the key's hash. The kernel sets a link's alias only once the link exists. If an ADD is
/// killed in between, only this address shows that the link is ours.
#[must_use]
pub fn host_mac(key: &AttachmentKey) -> MacAddr {
    let hash = u64::from_str_radix(&key.hash()[..12], 16).expect("a hash is hexadecimal digits");
    let [_, _, first, rest @ ..] = hash.to_be_bytes();
    let [a, b, c, d, e] = rest;
    MacAddr([(first & 0xfc) | 0x02, a, b, c, d, e])
}

/// Returns whose link it is, if its mark is that of an attachment, and not its hash alone.
#[must_use]
pub fn of(link: &Link) -> Option<AttachmentKey> {
    let (network, _) = link.alias.as_deref()?.strip_prefix(PREFIX)?.split_once('/')?;
    of_network(link, &NetworkName::new(network).ok()?)
}

/// Returns whose link it is, if its mark is that of an attachment of this network.
#[must_use]
pub fn of_network(link: &Link, network: &NetworkName) -> Option<AttachmentKey> {
    let mark = format!("{PREFIX}{network}/");
    let (container_id, ifname) = link.alias.as_deref()?.strip_prefix(&mark)?.split_once('/')?;
    Some(AttachmentKey {
        network: network.clone(),
        container_id: ContainerId::new(container_id).ok()?,
        ifname: IfName::new(ifname).ok()?,
    })
}

/// How many different names [`host_ifname`] has.
pub const HOST_IFNAME_ATTEMPTS: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: &str) -> AttachmentKey {
        AttachmentKey {
            network: "net".parse().unwrap(),
            container_id: id.parse().unwrap(),
            ifname: "eth0".parse().unwrap(),
        }
    }

    #[test]
    fn aliases_name_the_owner_and_fit() {
        assert_eq!(alias(&key("c1")), "netwright:net/c1/eth0");
        let long = alias(&key(&"x".repeat(300)));
        assert_eq!(long.len(), PREFIX.len() + 1 + 32);
        assert!(is_of_attachment(&alias(&key("c1"))) && is_of_attachment(&long));
        assert!(!is_of_attachment("netwright:bridge") && !is_of_attachment("n/c1/eth0"));
    }

    #[test]
    fn host_names_look_like_the_references() {
        for attempt in 0..HOST_IFNAME_ATTEMPTS {
            let name = host_ifname(&key("c1"), attempt);
            let digits = name.strip_prefix("veth").unwrap();
            assert!(digits.len() == 8 && digits.bytes().all(|b| b.is_ascii_hexdigit()), "{name}");
        }
    }
}
