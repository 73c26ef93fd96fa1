//! Changes of a link's settings.

use std::fmt;

use super::link::{iff, ifla};
use super::link_kind::{BridgeOptions, header, put_netns};
use super::new_link::put_name;
use super::vxlan::VxlanSet;
use super::{AF_INET, AF_INET6, AF_UNSPEC};
use crate::mac::MacAddr;
use crate::netns::Netns;
use crate::wire::Writer;

/// `linux include/uapi/linux/ip.h`.
const IPV4_DEVCONF_ARP_NOTIFY: u16 = 22;
/// `linux include/uapi/linux/if_link.h`.
const IN6_ADDR_GEN_MODE_NONE: u8 = 1;
/// `linux include/uapi/linux/if_bridge.h`.
const BR_STATE_FORWARDING: u8 = 3;

/// Settings of a link to change; a `None` leaves the setting unchanged.
///
/// ```
/// use kernel::route::LinkSet;
///
/// let set = LinkSet { mtu: Some(1400), ..LinkSet::default() }.up(true);
/// assert_eq!(set.up, Some(true));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LinkSet {
    /// Up or down (IFF_UP).
    pub up: Option<bool>,
    /// MTU in bytes.
    pub mtu: Option<u32>,
    /// Hardware address.
    pub mac: Option<MacAddr>,
    /// Name; before kernel 6.2 the link must be down.
    pub name: Option<String>,
    /// The bridge or VRF it belongs to; `Some(None)` removes it from one.
    pub master: Option<Option<u32>>,
    /// Free text; an empty one removes it.
    pub alias: Option<String>,
    /// Promiscuous (IFF_PROMISC).
    pub promiscuous: Option<bool>,
    /// All multicast (IFF_ALLMULTI).
    pub all_multicast: Option<bool>,
    /// Multicast-capable (IFF_MULTICAST).
    pub multicast: Option<bool>,
    /// Without ARP (IFF_NOARP).
    pub no_arp: Option<bool>,
    /// Length of the transmit queue in packets.
    pub tx_queue_len: Option<u32>,
    /// Device group.
    pub group: Option<u32>,
    /// The namespace it moves to. Slow: the kernel waits for grace periods (16 ms and more).
    pub netns: Option<Netns>,
    /// As port of a bridge: frames may leave by the port they came in.
    pub hairpin: Option<bool>,
    /// As port of a bridge: no frames to other isolated ports.
    pub isolated: Option<bool>,
    /// As port of a bridge: whether source addresses are learnt.
    pub learning: Option<bool>,
    /// As port of a bridge: unknown unicast is sent here.
    pub unicast_flood: Option<bool>,
    /// As port of a bridge that is up and has no STP: it forwards frames, even if another state was
    /// set before.
    pub forwarding: bool,
    /// Settings of a bridge itself.
    pub bridge: BridgeOptions,
    /// Settings of a VXLAN tunnel itself.
    pub vxlan: VxlanSet,
    /// Announces its IPv4 addresses to neighbours when it comes up (sysctl `arp_notify`).
    pub arp_notify: Option<bool>,
    /// It has only the IPv6 addresses it is given, and solicits no router (sysctl `addr_gen_mode`
    /// 1). A kernel without IPv6 ignores this.
    pub no_own_ipv6: bool,
}

impl LinkSet {
    /// Sets it up or down.
    #[must_use]
    pub fn up(self, up: bool) -> Self {
        Self { up: Some(up), ..self }
    }

    fn port(&self) -> impl Iterator<Item = (u16, u8)> {
        let switches = [
            (ifla::BRPORT_MODE, self.hairpin),
            (ifla::BRPORT_ISOLATED, self.isolated),
            (ifla::BRPORT_LEARNING, self.learning),
            (ifla::BRPORT_UNICAST_FLOOD, self.unicast_flood),
        ];
        let state = self.forwarding.then_some((ifla::BRPORT_STATE, BR_STATE_FORWARDING));
        state
            .into_iter()
            .chain(switches.into_iter().filter_map(|(kind, on)| Some((kind, on?.into()))))
    }

    fn flags(&self) -> (u32, u32) {
        [
            (iff::UP, self.up),
            (iff::PROMISC, self.promiscuous),
            (iff::ALLMULTI, self.all_multicast),
            (iff::MULTICAST, self.multicast),
            (iff::NOARP, self.no_arp),
        ]
        .into_iter()
        .filter_map(|(bit, on)| Some((bit, on?)))
        .fold((0, 0), |(flags, change), (bit, on)| {
            (if on { flags | bit } else { flags }, change | bit)
        })
    }

    /// Splits off the settings that a port accepts only once it is one: the kernel looks for the
    /// bridge before it attaches the port.
    pub(crate) fn split(&self) -> Option<(Self, Self)> {
        if !matches!(self.master, Some(Some(_))) || self.port().next().is_none() {
            return None;
        }
        let port = Self {
            hairpin: self.hairpin,
            isolated: self.isolated,
            learning: self.learning,
            unicast_flood: self.unicast_flood,
            forwarding: self.forwarding,
            ..Self::default()
        };
        let rest = Self {
            hairpin: None,
            isolated: None,
            learning: None,
            unicast_flood: None,
            forwarding: false,
            ..self.clone()
        };
        Some((rest, port))
    }

    /// Writes `struct ifinfomsg` and the attributes. Sent as RTM_NEWLINK without NLM_F_CREATE,
    /// since RTM_SETLINK ignores the contents of IFLA_LINKINFO.
    pub(crate) fn encode(&self, ifindex: u32, writer: &mut Writer) {
        let (flags, change) = self.flags();
        writer.raw(&header(AF_UNSPEC, ifindex, flags, change));
        if let Some(name) = &self.name {
            put_name(writer, name);
        }
        if let Some(mac) = self.mac {
            writer.put(ifla::ADDRESS, &mac.0);
        }
        if let Some(mtu) = self.mtu {
            writer.put_u32(ifla::MTU, mtu);
        }
        if let Some(master) = self.master {
            writer.put_u32(ifla::MASTER, master.unwrap_or(0));
        }
        if let Some(alias) = &self.alias {
            writer.put(ifla::IFALIAS, alias.as_bytes());
        }
        if let Some(length) = self.tx_queue_len {
            writer.put_u32(ifla::TXQLEN, length);
        }
        if let Some(group) = self.group {
            writer.put_u32(ifla::GROUP, group);
        }
        put_netns(writer, self.netns.as_ref());
        self.encode_info(writer);
        self.encode_families(writer);
    }

    fn encode_families(&self, writer: &mut Writer) {
        if self.arp_notify.is_none() && !self.no_own_ipv6 {
            return;
        }
        writer.nest(ifla::AF_SPEC, |writer| {
            if let Some(on) = self.arp_notify {
                writer.nest(AF_INET.into(), |writer| {
                    writer.nest(ifla::INET_CONF, |writer| {
                        writer.put_u32(IPV4_DEVCONF_ARP_NOTIFY, on.into());
                    });
                });
            }
            if self.no_own_ipv6 {
                writer.nest(AF_INET6.into(), |writer| {
                    writer.put_u8(ifla::INET6_ADDR_GEN_MODE, IN6_ADDR_GEN_MODE_NONE);
                });
            }
        });
    }

    fn encode_info(&self, writer: &mut Writer) {
        let bridge = self.bridge != BridgeOptions::default();
        let vxlan = self.vxlan != VxlanSet::default();
        let port = self.port().next().is_some();
        if !bridge && !vxlan && !port {
            return;
        }
        writer.nest_plain(ifla::LINKINFO, |writer| {
            if bridge {
                writer.put_text(ifla::INFO_KIND, "bridge");
                writer.nest_plain(ifla::INFO_DATA, |writer| self.bridge.encode(writer));
            }
            if vxlan {
                writer.put_text(ifla::INFO_KIND, "vxlan");
                writer.nest_plain(ifla::INFO_DATA, |writer| self.vxlan.encode(writer));
            }
            if port {
                writer.put_text(ifla::INFO_SLAVE_KIND, "bridge");
                writer.nest_plain(ifla::INFO_SLAVE_DATA, |writer| {
                    for (kind, value) in self.port() {
                        writer.put_u8(kind, value);
                    }
                });
            }
        });
    }
}

/// The changed settings, separated by commas: `mtu 1400, up`.
impl fmt::Display for LinkSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |text: &Option<String>| text.as_ref().map(|text| format!("{text:?}"));
        let number = |number: Option<u32>| number.map(|number| number.to_string());
        let master =
            |index: Option<u32>| index.map_or("none".to_owned(), |index| index.to_string());
        let values = [
            ("netns", self.netns.as_ref().map(ToString::to_string)),
            ("name", text(&self.name)),
            ("address", self.mac.map(|mac| mac.to_string())),
            ("mtu", number(self.mtu)),
            ("master", self.master.map(master)),
            ("alias", text(&self.alias)),
            ("txqueuelen", number(self.tx_queue_len)),
            ("group", number(self.group)),
            ("default_pvid", self.bridge.default_pvid.map(|vlan| vlan.to_string())),
            ("local", self.vxlan.local.map(|address| address.to_string())),
            ("dev", number(self.vxlan.underlay)),
            ("state", self.forwarding.then(|| "forwarding".to_owned())),
        ];
        let switches = [
            ("promisc", self.promiscuous),
            ("allmulticast", self.all_multicast),
            ("multicast", self.multicast),
            ("arp", self.no_arp.map(|off| !off)),
            ("hairpin", self.hairpin),
            ("isolated", self.isolated),
            ("learning", self.learning),
            ("flood", self.unicast_flood),
            ("vlan_filtering", self.bridge.vlan_filtering),
            ("mcast_snooping", self.bridge.multicast_snooping),
            ("stp", self.bridge.stp),
            ("linklocal_learn", self.bridge.link_local_learning),
            ("nf_call_iptables", self.bridge.shows_ipv4),
            ("nf_call_ip6tables", self.bridge.shows_ipv6),
            ("vxlan learning", self.vxlan.learning),
        ];
        let on_off = |on| if on { "on" } else { "off" };
        let values =
            values.into_iter().filter_map(|(key, value)| Some(format!("{key} {}", value?)));
        let switches =
            switches.into_iter().filter_map(|(key, on)| Some(format!("{key} {}", on_off(on?))));
        let up = self.up.map(|up| if up { "up" } else { "down" }.to_owned());
        let all: Vec<String> = values.chain(switches).chain(up).collect();
        if all.is_empty() { f.write_str("nothing") } else { f.write_str(&all.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::Change;

    /// The words are those of `ip link set`.
    #[test]
    fn a_change_says_what_is_set() {
        let says = |set: LinkSet| Change::SetLink { ifindex: 7, set }.to_string();
        assert_eq!(says(LinkSet::default().up(true)), "change link 7 (up)");
        assert_eq!(says(LinkSet::default()), "change link 7 (nothing)");
        let set = LinkSet { master: Some(None), ..LinkSet::default() };
        assert_eq!(says(set), "change link 7 (master none)");
        let set = LinkSet {
            up: Some(false),
            mtu: Some(1400),
            name: Some("eth0".to_owned()),
            master: Some(Some(3)),
            no_arp: Some(true),
            hairpin: Some(true),
            bridge: BridgeOptions { vlan_filtering: Some(true), ..BridgeOptions::default() },
            ..LinkSet::default()
        };
        assert_eq!(
            says(set),
            "change link 7 (name \"eth0\", mtu 1400, master 3, arp off, hairpin on, vlan_filtering on, down)"
        );
    }
}
