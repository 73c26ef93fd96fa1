//! flanneld's network configuration: `net-conf.json`, or etcd's `config`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::reader::{self, Fault, KeyedValue};
use crate::refused::Cause;
use crate::settings::{Backend, FlannelSettings, Settings, Tunnels, VNI, VXLAN_PORT};
use net::{IpFamily, PerFamily};

/// The longest configuration that is read, in bytes.
pub(super) const LONGEST: usize = 64 << 10;

/// The configuration, with flanneld's defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The networks that all nodes' prefixes are in.
    pub networks: PerFamily<Option<IpNet>>,
    /// The backend.
    pub backend: Backend,
    /// The network identifier of its tunnels.
    pub vni: u32,
    /// Their port.
    pub port: u16,
    /// No tunnel within a segment.
    pub direct_routing: bool,
    /// What the network between the nodes carries, in bytes, where it is not what the links do.
    pub mtu: Option<u32>,
    /// What is configured of the window in which nodes lease prefixes.
    windows: PerFamily<Window>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Window {
    length: Option<u8>,
    first: Option<IpAddr>,
    last: Option<IpAddr>,
}

/// The prefixes of a family that nodes lease from etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseRange {
    /// The length of each.
    pub length: u8,
    /// The first one's address.
    pub first: IpAddr,
    /// The last one's address.
    pub last: IpAddr,
}

impl LeaseRange {
    /// Returns how many addresses each has.
    pub(super) fn size(self) -> u128 {
        let bits = if self.first.is_ipv4() { 32 } else { 128 };
        1 << (bits - self.length)
    }

    /// Reports whether a prefix is one of them.
    pub(super) fn has(self, prefix: IpNet) -> bool {
        let address = prefix.network();
        prefix.prefix_len() == self.length && (self.first..=self.last).contains(&address)
    }
}

/// The keys of a family.
struct Keys {
    enable: &'static str,
    network: &'static str,
    length: &'static str,
    first: &'static str,
    last: &'static str,
}

fn keys(family: IpFamily) -> Keys {
    match family {
        IpFamily::V4 => Keys {
            enable: "EnableIPv4",
            network: "Network",
            length: "SubnetLen",
            first: "SubnetMin",
            last: "SubnetMax",
        },
        IpFamily::V6 => Keys {
            enable: "EnableIPv6",
            network: "IPv6Network",
            length: "IPv6SubnetLen",
            first: "IPv6SubnetMin",
            last: "IPv6SubnetMax",
        },
    }
}

impl Config {
    /// Reads it.
    ///
    /// # Errors
    /// What is wrong, after its key.
    pub fn read(text: &str) -> Result<Self, (String, Cause)> {
        let whole = || "the whole".to_owned();
        let json = reader::json(text.as_bytes(), LONGEST).map_err(|cause| (whole(), cause))?;
        if !json.is_object() {
            return Err((whole(), Cause::not_a(text, "an object")));
        }
        let root = KeyedValue::root(&json).like_go();
        let v4 = family_of(&root, IpFamily::V4)?;
        let v6 = family_of(&root, IpFamily::V6)?;
        let networks = PerFamily { v4: v4.0, v6: v6.0 };
        if networks == PerFamily::default() {
            return Err(("Network".to_owned(), Cause::Missing));
        }
        // For a configuration without a backend, flanneld takes udp.
        let udp = || ("Backend".to_owned(), super::other_backend("udp"));
        let at = root.get("Backend")?.ok_or_else(udp)?;
        let kind = at.required("Type")?;
        let name = kind.text()?;
        let backend =
            Backend::of_name(name).ok_or_else(|| kind.fault(super::other_backend(name)))?;
        let direct_routing = at.get("DirectRouting")?.map(|flag| flag.flag()).transpose()?;
        // A tunnel with it says more in each packet, which one without it drops.
        if let Some(policy) = at.get("GBP")?
            && policy.flag()?
        {
            let why = "VXLAN's group policy is not supported".to_owned();
            return Err(policy.fault(Cause::Invalid { why }));
        }
        // The other backend has no such key.
        let mtu = at.get("MTU")?.filter(|_| backend == Backend::Vxlan);
        let port: Option<u16> =
            at.get("Port")?.map(|port| port.number((0, u64::from(u16::MAX)))).transpose()?;
        Ok(Config {
            networks,
            backend,
            vni: at.get("VNI")?.map(|vni| vni.vni()).transpose()?.unwrap_or(VNI),
            port: port.filter(|port| *port != 0).unwrap_or(VXLAN_PORT),
            direct_routing: direct_routing.unwrap_or(false),
            mtu: mtu.map(|mtu| mtu.mtu()).transpose()?,
            windows: PerFamily { v4: v4.1, v6: v6.1 },
        })
    }

    /// Returns the settings of a node in such a cluster; annotations begin with `prefix`.
    #[must_use]
    pub fn settings(&self, prefix: &str) -> Settings {
        let ranges = self.networks.iter().filter_map(|(_, network)| *network).collect();
        Settings {
            vxlan: Tunnels { vni: self.vni, port: self.port },
            flannel: Some(FlannelSettings {
                prefix: annotation_prefix(prefix),
                backend: self.backend,
                direct_routing: self.direct_routing,
                mtu: self.mtu,
            }),
            ..Settings::new(ranges)
        }
    }

    /// Returns which prefixes nodes lease from etcd, for each family that has a network.
    ///
    /// # Errors
    /// What is wrong, after its key.
    pub fn windows(&self) -> Result<PerFamily<Option<LeaseRange>>, (String, Cause)> {
        let v4 = self.leased(IpFamily::V4)?;
        if v4.is_none() {
            let why = "keys of leases in etcd begin with an IPv4 prefix, and there are none";
            return Err(("EnableIPv4".to_owned(), Cause::Invalid { why: why.to_owned() }));
        }
        Ok(PerFamily { v4, v6: self.leased(IpFamily::V6)? })
    }

    /// Returns which prefixes of a family nodes lease from etcd, checked as flanneld does; `None`
    /// without a network of the family.
    ///
    /// # Errors
    /// What is wrong, after its key.
    pub fn leased(&self, family: IpFamily) -> Result<Option<LeaseRange>, (String, Cause)> {
        let Some(network) = *self.networks.get(family) else { return Ok(None) };
        let (keys, window) = (keys(family), self.windows.get(family));
        let bits = network.max_prefix_len();
        let of = network.prefix_len();
        // Each node's prefix needs four addresses, and four prefixes have to fit.
        let (longest, usual) = if bits == 32 { (30, 24) } else { (126, 64) };
        let length = match window.length {
            Some(length) if longest < length || length < of + 2 => {
                let range = (u64::from(of) + 2, u64::from(longest));
                let (least, most) = range;
                let cause = Cause::OutOfRange { value: u64::from(length), least, most };
                return Err((keys.length.to_owned(), cause));
            }
            Some(length) => length,
            None if longest < of + 2 => {
                let why = format!("{network} has no room for four prefixes of nodes");
                return Err((keys.network.to_owned(), Cause::Invalid { why }));
            }
            None => usual.max(of + 2),
        };
        let size = 1_u128 << (bits - length);
        let end = number(network.broadcast());
        let place = |key: &str, address: Option<IpAddr>, default: u128| {
            let Some(address) = address else { return Ok(default) };
            let wrong =
                |why: &str| (key.to_owned(), Cause::Invalid { why: format!("{address} {why}") });
            if !network.contains(&address) {
                return Err(wrong(&format!("is not in {network}")));
            }
            if !number(address).is_multiple_of(size) {
                return Err(wrong(&format!("is not where a prefix of length {length} begins")));
            }
            Ok(number(address))
        };
        // The first prefix is skipped: its address is the network's.
        let first = place(keys.first, window.first, number(network.network()) + size)?;
        let last = place(keys.last, window.last, end - (size - 1))?;
        let address = |number| address_of(number, family);
        Ok(Some(LeaseRange { length, first: address(first), last: address(last) }))
    }
}

/// Reads what concerns a family: its network, and the window of leases.
fn family_of(root: &KeyedValue<'_>, family: IpFamily) -> Result<(Option<IpNet>, Window), Fault> {
    let keys = keys(family);
    let enabled = root.get(keys.enable)?.map(|flag| flag.flag()).transpose()?;
    if !enabled.unwrap_or(family == IpFamily::V4) {
        return Ok((None, Window::default()));
    }
    let at = root.required(keys.network)?;
    let text = at.text()?;
    let network = cni::text::parse_cidr(text)
        .ok_or_else(|| at.fault(Cause::not_a(text, "a range such as 10.244.0.0/16")))?;
    if IpFamily::of_prefix(network) != family {
        return Err(at.fault(Cause::WrongFamily { value: text.to_owned(), family }));
    }
    let address = |key: &str| {
        let Some(at) = root.get(key)? else { return Ok(None) };
        let text = at.text()?;
        let address =
            cni::text::parse_ip(text).ok_or_else(|| at.fault(Cause::not_a(text, "an address")))?;
        if IpFamily::of(address) != family {
            return Err(at.fault(Cause::WrongFamily { value: text.to_owned(), family }));
        }
        // flanneld takes zero for none.
        Ok(Some(address).filter(|address| !address.is_unspecified()))
    };
    let length: Option<u8> =
        root.get(keys.length)?.map(|length| length.number((0, 128))).transpose()?;
    let window = Window {
        length: length.filter(|length| *length != 0),
        first: address(keys.first)?,
        last: address(keys.last)?,
    };
    Ok((Some(network.trunc()), window))
}

/// Returns what annotations begin with, as flanneld makes it of its flag.
fn annotation_prefix(flag: &str) -> String {
    let mut prefix = flag.to_owned();
    if !prefix.contains('/') {
        prefix.push('/');
    }
    if !prefix.ends_with(['/', '-']) {
        prefix.push('-');
    }
    prefix
}

pub(super) fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(u32::from(v4)),
        IpAddr::V6(v6) => u128::from(v6),
    }
}

pub(super) fn address_of(number: u128, family: IpFamily) -> IpAddr {
    match family {
        IpFamily::V4 => {
            let number = u32::try_from(number).expect("it is within a range of IPv4");
            IpAddr::V4(Ipv4Addr::from(number))
        }
        IpFamily::V6 => IpAddr::V6(Ipv6Addr::from(number)),
    }
}
