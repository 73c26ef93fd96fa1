//! A link's kernel parameters (`net.ipv4.conf.LINK` and `net.ipv6.conf.LINK`), as the kernel's
//! description of the link has them, and whether a BPF program sees its packets. Reading them as
//! files takes three system calls for each.

use super::link::{IFINFOMSG, ifla};
use super::{AF_INET, AF_INET6};
use crate::wire::{self, Attribute, Message};

/// Indexes of IFLA_INET_CONF: `linux include/uapi/linux/ip.h` IPV4_DEVCONF_*, counted from 0.
mod v4 {
    pub(super) const FORWARDING: usize = 0;
    pub(super) const PROXY_ARP: usize = 2;
    pub(super) const RP_FILTER: usize = 7;
    pub(super) const ARP_FILTER: usize = 12;
    pub(super) const ARP_IGNORE: usize = 18;
    pub(super) const ACCEPT_LOCAL: usize = 22;
    pub(super) const ROUTE_LOCALNET: usize = 25;
}

/// Indexes of IFLA_INET6_CONF: `linux include/uapi/linux/ipv6.h` DEVCONF_*.
mod v6 {
    pub(super) const FORWARDING: usize = 0;
    pub(super) const HOP_LIMIT: usize = 1;
    pub(super) const ACCEPT_RA: usize = 3;
    pub(super) const PROXY_NDP: usize = 22;
    pub(super) const DISABLE_IPV6: usize = 26;
    pub(super) const FORCE_FORWARDING: usize = 59;
}

/// Some of a link's kernel parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct LinkSettings {
    /// Those of IPv4; `None` if the link does not speak it.
    pub ipv4: Option<Ipv4Settings>,
    /// Those of IPv6; `None` if the link or the kernel does not speak it.
    pub ipv6: Option<Ipv6Settings>,
    /// A BPF program sees its packets first (XDP).
    pub xdp: bool,
    /// It stands for a virtual function or a subfunction of its device, as the device's switch names it
    /// (linux net/core/devlink.c `pf0vf3`, `pf0sf8`): what it receives, a container may have sent.
    pub of_function: bool,
}

/// Some of `net.ipv4.conf.LINK`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Ipv4Settings {
    /// Whether what comes in by it is sent on.
    pub forwarding: u32,
    /// The check of sources: 0 none, 1 strict, 2 loose.
    pub rp_filter: u32,
    /// Whether addresses of loopback may be routed.
    pub route_localnet: u32,
    /// Which requests for its addresses are answered.
    pub arp_ignore: u32,
    /// Whether a request is answered only by the link by which packets to the asker leave.
    pub arp_filter: u32,
    /// Whether requests for addresses behind other links are answered.
    pub proxy_arp: u32,
    /// Whether packets with this host's own source addresses are accepted.
    pub accept_local: u32,
}

/// Some of `net.ipv6.conf.LINK`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Ipv6Settings {
    /// Whether what comes in by it is sent on.
    pub forwarding: u32,
    /// How many hops its packets live.
    pub hop_limit: u32,
    /// Whether router advertisements are accepted: 2 also beside forwarding.
    pub accept_ra: u32,
    /// Whether IPv6 is switched off.
    pub disable_ipv6: u32,
    /// Whether solicitations of configured addresses are answered.
    pub proxy_ndp: u32,
    /// Whether the host forwards what comes in by it even if it forwards nothing else (Linux 6.17).
    pub force_forwarding: u32,
}

impl LinkSettings {
    /// Reads those of RTM_NEWLINK.
    pub(crate) fn decode(message: &Message<'_>) -> Self {
        let find = |kind| message.attributes(IFINFOMSG).find(|attribute| attribute.kind == kind);
        let attached = find(ifla::XDP).and_then(|xdp| xdp.find(ifla::XDP_ATTACHED)?.u8());
        let xdp = attached.is_some_and(|mode| mode != 0);
        let port = find(ifla::PHYS_PORT_NAME).map(|name| name.text());
        let of_function = port.is_some_and(|name| name.contains("vf") || name.contains("sf"));
        let Some(spec) = find(ifla::AF_SPEC) else {
            return Self { xdp, of_function, ..Self::default() };
        };
        let of = |family: u8, kind| spec.find(family.into())?.find(kind);
        Self {
            xdp,
            of_function,
            ipv4: of(AF_INET, ifla::INET_CONF).map(|values| Ipv4Settings {
                forwarding: at(&values, v4::FORWARDING),
                rp_filter: at(&values, v4::RP_FILTER),
                route_localnet: at(&values, v4::ROUTE_LOCALNET),
                arp_ignore: at(&values, v4::ARP_IGNORE),
                arp_filter: at(&values, v4::ARP_FILTER),
                proxy_arp: at(&values, v4::PROXY_ARP),
                accept_local: at(&values, v4::ACCEPT_LOCAL),
            }),
            ipv6: of(AF_INET6, ifla::INET6_CONF).map(|values| Ipv6Settings {
                forwarding: at(&values, v6::FORWARDING),
                hop_limit: at(&values, v6::HOP_LIMIT),
                accept_ra: at(&values, v6::ACCEPT_RA),
                disable_ipv6: at(&values, v6::DISABLE_IPV6),
                proxy_ndp: at(&values, v6::PROXY_NDP),
                force_forwarding: at(&values, v6::FORCE_FORWARDING),
            }),
        }
    }
}

/// Returns the value at an index; 0 on a kernel that is older than it.
fn at(values: &Attribute<'_>, index: usize) -> u32 {
    wire::u32_at(values.value, index * 4).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::link::RTM_NEWLINK;
    use crate::wire::Writer;

    #[test]
    fn the_port_of_a_function_is_known_by_its_name() {
        let all = [
            ("p0", false),
            ("p0s1", false),
            ("pf0vf3", true),
            ("c1pf0vf3", true),
            ("pf0sf88", true),
        ];
        for (name, of_function) in all {
            let mut writer = Writer::new();
            writer.raw(&[0; IFINFOMSG]);
            writer.put_text(ifla::PHYS_PORT_NAME, name);
            let message = Message { kind: RTM_NEWLINK, flags: 0, seq: 0, body: writer.bytes() };
            assert_eq!(LinkSettings::decode(&message).of_function, of_function, "{name}");
        }
    }
}
