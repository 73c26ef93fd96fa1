//! Policies of IPsec (`man 8 ip-xfrm`), as far as they drop packets. They are only read.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::netlink::{Errno, NetlinkError, Request, Socket, nothing_if};
use crate::wire::Writer;

/// `linux include/uapi/linux/netlink.h` NETLINK_XFRM.
const NETLINK_XFRM: isize = 6;
/// `linux include/uapi/linux/xfrm.h`: XFRM_MSG_NEWPOLICY, XFRM_MSG_GETPOLICY.
const NEW_POLICY: u16 = 0x13;
const GET_POLICY: u16 = 0x15;
/// Size of `struct xfrm_userpolicy_id`: a selector, an index, a direction.
const POLICY_ID: usize = 64;
/// Places in `struct xfrm_userpolicy_info`. It begins with `struct xfrm_selector`: destination,
/// source, ports, family, prefix lengths, protocol, link.
const DESTINATION: usize = 0;
const SOURCE: usize = 16;
const PORTS: usize = 32;
const FAMILY: usize = 40;
const DESTINATION_LENGTH: usize = 42;
const SOURCE_LENGTH: usize = 43;
const PROTOCOL: usize = 44;
const LINK: usize = 48;
const PRIORITY: usize = 152;
const DIRECTION: usize = 160;
const ACTION: usize = 161;
/// `linux include/linux/socket.h`.
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
/// XFRM_POLICY_BLOCK.
const BLOCK: u8 = 1;

/// About which packets a policy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Packets that come in for this host.
    In,
    /// Packets that leave, also those that are forwarded.
    Out,
    /// Packets that are forwarded.
    Forward,
}

/// A policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Policy {
    /// About which packets it is.
    pub direction: Direction,
    /// From where.
    pub from: IpNet,
    /// To where.
    pub to: IpNet,
    /// It is about some protocols, ports or links only.
    pub of_some: bool,
    /// Of several the one with the smallest number counts.
    pub priority: u32,
    /// It drops the packets.
    pub blocks: bool,
}

/// Lists the policies of the calling thread's namespace; none if the kernel has no IPsec.
///
/// # Errors
/// Those of [`NetlinkError`].
///
/// # Privileges
/// CAP_NET_ADMIN in the user namespace that owns the network namespace.
pub fn policies() -> Result<Vec<Policy>, NetlinkError> {
    let mut socket = match Socket::open(NETLINK_XFRM) {
        Ok(socket) => socket,
        Err(error) if is_missing(&error) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let body = |writer: &mut Writer| writer.raw(&[0; POLICY_ID]);
    let request =
        Request { operation: &"list policies of IPsec", kind: GET_POLICY, flags: 0, body: &body };
    let found = socket.dump(&request, |message| {
        (message.kind == NEW_POLICY).then(|| decode(message.body)).flatten()
    });
    nothing_if(found, &[Errno::OPNOTSUPP])
}

/// EPROTONOSUPPORT: the kernel has no such netlink.
fn is_missing(error: &NetlinkError) -> bool {
    matches!(error, NetlinkError::Open { source, .. } if source.raw_os_error() == Some(93))
}

/// Reads a policy; `None` for one of a socket.
pub(crate) fn decode(body: &[u8]) -> Option<Policy> {
    let direction = match body.get(DIRECTION)? {
        0 => Direction::In,
        1 => Direction::Out,
        2 => Direction::Forward,
        _ => return None,
    };
    let two = |at: usize| Some(u16::from_ne_bytes(body.get(at..at + 2)?.try_into().ok()?));
    let four = |at: usize| Some(u32::from_ne_bytes(body.get(at..at + 4)?.try_into().ok()?));
    let family = two(FAMILY)?;
    let net = |at: usize, length: usize| {
        let bytes = body.get(at..at + 16)?;
        let address: IpAddr = match family {
            AF_INET => Ipv4Addr::from(<[u8; 4]>::try_from(bytes.get(..4)?).ok()?).into(),
            AF_INET6 => Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into(),
            _ => return None,
        };
        IpNet::new(address, *body.get(length)?).ok().map(|net| net.trunc())
    };
    let is_of_ports = body.get(PORTS..FAMILY)?.iter().any(|byte| *byte != 0);
    Some(Policy {
        direction,
        from: net(SOURCE, SOURCE_LENGTH)?,
        to: net(DESTINATION, DESTINATION_LENGTH)?,
        of_some: is_of_ports || *body.get(PROTOCOL)? != 0 || four(LINK)? != 0,
        priority: four(PRIORITY)?,
        blocks: *body.get(ACTION)? == BLOCK,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `ip xfrm policy add src 10.22.0.0/16 dst 198.51.100.0/24 dir fwd action block priority 7`.
    fn body() -> Vec<u8> {
        let mut body = vec![0; 168];
        body[..4].copy_from_slice(&[198, 51, 100, 0]);
        body[16..20].copy_from_slice(&[10, 22, 0, 0]);
        body[40..42].copy_from_slice(&2_u16.to_ne_bytes());
        (body[42], body[43]) = (24, 16);
        body[152..156].copy_from_slice(&7_u32.to_ne_bytes());
        (body[160], body[161]) = (2, 1);
        body
    }

    #[test]
    fn a_policy_is_read() {
        let policy = decode(&body()).unwrap();
        assert_eq!(
            (policy.direction, policy.blocks, policy.of_some),
            (Direction::Forward, true, false)
        );
        assert_eq!(policy.from, "10.22.0.0/16".parse().unwrap());
        assert_eq!(policy.to, "198.51.100.0/24".parse().unwrap());
        assert_eq!(policy.priority, 7);
        let mut of_tcp = body();
        of_tcp[44] = 6;
        assert!(decode(&of_tcp).unwrap().of_some);
        let mut of_socket = body();
        of_socket[160] = 4;
        assert_eq!(decode(&of_socket), None);
        assert_eq!(decode(&body()[..160]), None);
    }
}
