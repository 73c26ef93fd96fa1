//! Addresses of links.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

use super::{IpFamily, Scope, af, ip_bytes, ip_from};
use crate::wire::{self, Message, Writer};

/// `linux include/uapi/linux/rtnetlink.h`.
pub(crate) const RTM_NEWADDR: u16 = 20;
pub(crate) const RTM_DELADDR: u16 = 21;
pub(crate) const RTM_GETADDR: u16 = 22;
/// Size of `struct ifaddrmsg`.
const IFADDRMSG: usize = 8;

/// `linux include/uapi/linux/if_addr.h`.
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_LABEL: u16 = 3;
const IFA_BROADCAST: u16 = 4;
const IFA_FLAGS: u16 = 8;
const IFA_F_NODAD: u32 = 0x02;
const IFA_F_DADFAILED: u32 = 0x08;
const IFA_F_TENTATIVE: u32 = 0x40;
const IFA_F_PERMANENT: u32 = 0x80;
const IFA_F_NOPREFIXROUTE: u32 = 0x200;

/// An address of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Address {
    /// The link.
    pub ifindex: u32,
    /// The address with its prefix length.
    pub address: IpNet,
    /// The other end, on a point-to-point link.
    pub peer: Option<IpAddr>,
    /// The broadcast address.
    pub broadcast: Option<Ipv4Addr>,
    /// Its scope.
    pub scope: Scope,
    /// IFA_F_* as the kernel sends them.
    pub flags: u32,
    /// The label of an IPv4 address.
    pub label: Option<String>,
}

/// What may be said about a new address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AddressOptions {
    /// IPv6: usable at once, without looking for duplicates (IFA_F_NODAD).
    pub nodad: bool,
    /// No route to its prefix (IFA_F_NOPREFIXROUTE).
    pub noprefixroute: bool,
    /// Its scope; `None`: universe.
    pub scope: Option<Scope>,
    /// IPv4: the broadcast address; `None`: none.
    pub broadcast: Option<Ipv4Addr>,
}

impl Address {
    /// Whether the kernel still looks for a duplicate (IFA_F_TENTATIVE).
    #[must_use]
    pub fn tentative(&self) -> bool {
        self.flags & IFA_F_TENTATIVE != 0
    }

    /// Whether a duplicate was found (IFA_F_DADFAILED).
    #[must_use]
    pub fn dad_failed(&self) -> bool {
        self.flags & IFA_F_DADFAILED != 0
    }

    /// Whether it was not learnt from router advertisements or DHCP (IFA_F_PERMANENT).
    #[must_use]
    pub fn permanent(&self) -> bool {
        self.flags & IFA_F_PERMANENT != 0
    }

    /// Reads RTM_NEWADDR; `None` if the message is another, or of another family.
    pub(crate) fn decode(message: &Message<'_>) -> Option<Self> {
        if message.kind != RTM_NEWADDR {
            return None;
        }
        let &[_, prefix, flags, scope, ..] = message.body else { return None };
        let ifindex = wire::u32_at(message.body, 4)?;
        let (mut address, mut local, mut broadcast, mut label) = (None, None, None, None);
        let mut flags = u32::from(flags);
        for attribute in message.attributes(IFADDRMSG) {
            match attribute.kind {
                IFA_ADDRESS => address = ip_from(attribute.value),
                IFA_LOCAL => local = ip_from(attribute.value),
                IFA_BROADCAST => broadcast = attribute.value.try_into().ok().map(<[u8; 4]>::into),
                IFA_LABEL => label = Some(attribute.text()),
                IFA_FLAGS => flags = attribute.u32().unwrap_or(flags),
                _ => {}
            }
        }
        let own = local.or(address)?;
        Some(Self {
            ifindex,
            address: IpNet::new(own, prefix).ok()?,
            peer: address.filter(|&address| address != own),
            broadcast,
            scope: Scope(scope),
            flags,
            label,
        })
    }
}

/// Writes `struct ifaddrmsg` and the attributes of one address.
pub(crate) fn encode(writer: &mut Writer, ifindex: u32, address: IpNet, options: &AddressOptions) {
    let scope = options.scope.unwrap_or(Scope::UNIVERSE);
    writer.raw(&header(af(IpFamily::of(address.addr())), address.prefix_len(), scope, ifindex));
    let own = ip_bytes(address.addr());
    writer.put(IFA_LOCAL, &own);
    writer.put(IFA_ADDRESS, &own);
    if let (Some(broadcast), IpNet::V4(_)) = (options.broadcast, address) {
        writer.put(IFA_BROADCAST, &broadcast.octets());
    }
    let nodad = if options.nodad { IFA_F_NODAD } else { 0 };
    let noprefixroute = if options.noprefixroute { IFA_F_NOPREFIXROUTE } else { 0 };
    if nodad | noprefixroute != 0 {
        writer.put_u32(IFA_FLAGS, nodad | noprefixroute);
    }
}

/// Writes what identifies an address to remove.
pub(crate) fn encode_key(writer: &mut Writer, ifindex: u32, address: IpNet) {
    encode(writer, ifindex, address, &AddressOptions::default());
}

/// `struct ifaddrmsg`.
pub(crate) fn header(family: u8, prefix: u8, scope: Scope, ifindex: u32) -> [u8; IFADDRMSG] {
    let [a, b, c, d] = ifindex.to_ne_bytes();
    [family, prefix, 0, scope.0, a, b, c, d]
}
