//! The peers of a WireGuard tunnel, over generic netlink (`man 8 wg`).
//!
//! They are only read, and no key but the public ones is kept. A packet that is to leave by the
//! tunnel goes to the peer whose allowed addresses contain its destination; without such a peer the
//! kernel drops it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;

use crate::netlink::{Errno, NetlinkError, Request, Socket, nothing_if};
use crate::wire::{Attribute, Message, Writer};

/// `linux include/uapi/linux/netlink.h` NETLINK_GENERIC.
const NETLINK_GENERIC: isize = 16;
/// `linux include/uapi/linux/genetlink.h`: the family by which others are found.
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
/// Size of `struct genlmsghdr`.
const GENLMSGHDR: usize = 4;
/// `linux include/uapi/linux/wireguard.h`.
const WG_CMD_GET_DEVICE: u8 = 0;
const WGDEVICE_A_IFINDEX: u16 = 1;
const WGDEVICE_A_LISTEN_PORT: u16 = 6;
const WGDEVICE_A_PEERS: u16 = 8;
const WGPEER_A_PUBLIC_KEY: u16 = 1;
const WGPEER_A_ENDPOINT: u16 = 4;
const WGPEER_A_ALLOWEDIPS: u16 = 9;
const WGALLOWEDIP_A_IPADDR: u16 = 2;
const WGALLOWEDIP_A_CIDR_MASK: u16 = 3;
/// The version of both families.
const VERSION: u8 = 1;

/// The digits of base 64 (RFC 4648 §4), in which WireGuard's programs write keys.
const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// A public key. It is written as WireGuard's programs do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey(pub [u8; 32]);

/// A peer of a tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Peer {
    /// Its public key.
    pub key: PublicKey,
    /// Where it is, as far as that is known.
    pub endpoint: Option<SocketAddr>,
    /// The addresses whose packets go to it, and from which packets of it are accepted.
    pub allowed: Vec<IpNet>,
}

/// A tunnel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tunnel {
    /// The UDP port at which it receives; `None` while it is down and none was chosen.
    pub port: Option<u16>,
    /// Its peers.
    pub peers: Vec<Peer>,
}

/// Reads a tunnel of the calling thread's namespace; one without peers if the kernel has no
/// WireGuard.
///
/// # Errors
/// Those of [`NetlinkError`].
///
/// # Privileges
/// CAP_NET_ADMIN in the user namespace that owns the network namespace.
pub fn tunnel(ifindex: u32) -> Result<Tunnel, NetlinkError> {
    let mut socket = Socket::open(NETLINK_GENERIC)?;
    let Some(family) = family(&mut socket)? else { return Ok(Tunnel::default()) };
    let body = |writer: &mut Writer| {
        writer.raw(&[WG_CMD_GET_DEVICE, VERSION, 0, 0]);
        writer.put_u32(WGDEVICE_A_IFINDEX, ifindex);
    };
    let operation = format_args!("list the WireGuard peers of link {ifindex}");
    let request = Request { operation: &operation, kind: family, flags: 0, body: &body };
    let of_family =
        |message: &Message<'_>| (message.kind == family).then(|| (port(message), decode(message)));
    let mut tunnel = Tunnel::default();
    for (port, parts) in socket.dump(&request, of_family)? {
        tunnel.port = tunnel.port.or(port);
        for part in parts {
            // A peer that does not fit into one message goes on in the next.
            match tunnel.peers.last_mut() {
                Some(last) if last.key == part.key => last.allowed.extend(part.allowed),
                _ => tunnel.peers.push(part),
            }
        }
    }
    Ok(tunnel)
}

/// Reads the port of one message: only the first of several has it.
fn port(message: &Message<'_>) -> Option<u16> {
    let port = message.attributes(GENLMSGHDR).find(|one| one.kind == WGDEVICE_A_LISTEN_PORT)?;
    port.u16().filter(|port| *port != 0)
}

/// Returns the number of WireGuard's family.
fn family(socket: &mut Socket) -> Result<Option<u16>, NetlinkError> {
    let body = |writer: &mut Writer| {
        writer.raw(&[CTRL_CMD_GETFAMILY, VERSION, 0, 0]);
        writer.put_text(CTRL_ATTR_FAMILY_NAME, "wireguard");
    };
    let request =
        Request { operation: &"look up WireGuard", kind: GENL_ID_CTRL, flags: 0, body: &body };
    let id = |message: &Message<'_>| {
        message.attributes(GENLMSGHDR).find(|one| one.kind == CTRL_ATTR_FAMILY_ID)?.u16()
    };
    nothing_if(socket.get(&request, id), &[Errno::NOENT])
}

/// Reads the peers of one message.
pub(crate) fn decode(message: &Message<'_>) -> Vec<Peer> {
    let lists = message.attributes(GENLMSGHDR).filter(|one| one.kind == WGDEVICE_A_PEERS);
    lists.flat_map(|list| list.nested()).filter_map(|one| peer(&one)).collect()
}

fn peer(attributes: &Attribute<'_>) -> Option<Peer> {
    let key = attributes.find(WGPEER_A_PUBLIC_KEY)?.value.try_into().ok()?;
    let endpoint = attributes.find(WGPEER_A_ENDPOINT).and_then(|one| endpoint(one.value));
    let allowed = attributes.find(WGPEER_A_ALLOWEDIPS).map(|list| {
        let nets = list.nested().filter_map(|one| net(&one));
        nets.collect()
    });
    Some(Peer { key: PublicKey(key), endpoint, allowed: allowed.unwrap_or_default() })
}

fn net(attributes: &Attribute<'_>) -> Option<IpNet> {
    let address = address(attributes.find(WGALLOWEDIP_A_IPADDR)?.value)?;
    let length = attributes.find(WGALLOWEDIP_A_CIDR_MASK)?.u8()?;
    IpNet::new(address, length).ok()
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        return Some(Ipv4Addr::from(v4).into());
    }
    <[u8; 16]>::try_from(bytes).ok().map(|v6| Ipv6Addr::from(v6).into())
}

/// Reads a `struct sockaddr_in` or `struct sockaddr_in6`, which its length tells.
fn endpoint(bytes: &[u8]) -> Option<SocketAddr> {
    let [high, low]: [u8; 2] = bytes.get(2..4)?.try_into().ok()?;
    let port = u16::from_be_bytes([high, low]);
    let at = if bytes.len() < 28 { 4..8 } else { 8..24 };
    Some(SocketAddr::new(address(bytes.get(at)?)?, port))
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in self.0.chunks(3) {
            let byte = |at: usize| u32::from(part.get(at).copied().unwrap_or_default());
            let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
            for digit in 0..4_u8 {
                let number = usize::try_from(bits >> (18 - 6 * digit) & 0x3f).unwrap_or_default();
                let text = if usize::from(digit) <= part.len() { DIGITS[number] } else { b'=' };
                write!(f, "{}", char::from(text))?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_written_as_wg_does() {
        let zeros = format!("{}=", "A".repeat(43));
        assert_eq!(PublicKey([0; 32]).to_string(), zeros);
        let bytes: [u8; 32] = std::array::from_fn(|at| u8::try_from(at).unwrap());
        // printf of the 32 bytes | base64
        assert_eq!(PublicKey(bytes).to_string(), "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=");
    }

    #[test]
    fn peers_are_read_with_what_is_allowed() {
        let mut writer = Writer::new();
        writer.raw(&[WG_CMD_GET_DEVICE, VERSION, 0, 0]);
        writer.nest(WGDEVICE_A_PEERS, |writer| {
            writer.nest(0, |writer| {
                writer.put(WGPEER_A_PUBLIC_KEY, &[7; 32]);
                // AF_INET, port 51820, 192.0.2.1.
                let endpoint = [[2, 0, 0xca, 0x6c], [192, 0, 2, 1], [0; 4], [0; 4]].concat();
                writer.put(WGPEER_A_ENDPOINT, &endpoint);
                writer.nest(WGPEER_A_ALLOWEDIPS, |writer| {
                    writer.nest(0, |writer| {
                        writer.put(WGALLOWEDIP_A_IPADDR, &[10, 0, 0, 0]);
                        writer.put_u8(WGALLOWEDIP_A_CIDR_MASK, 8);
                    });
                });
            });
            writer.nest(0, |writer| writer.put(WGPEER_A_PUBLIC_KEY, &[8; 32]));
        });
        let message = Message { kind: 30, flags: 0, seq: 0, body: writer.bytes() };
        let peers = decode(&message);
        assert_eq!(peers.len(), 2);
        assert_eq!(peers[0].endpoint, Some("192.0.2.1:51820".parse().unwrap()));
        assert_eq!(peers[0].allowed, ["10.0.0.0/8".parse().unwrap()]);
        assert_eq!((peers[1].endpoint, peers[1].allowed.len()), (None, 0));
        assert_eq!(crate::wire::u32_at(&peers[0].key.0, 0), Some(0x0707_0707));
    }
}
