//! Places within which addresses must differ: a segment, or everything that the host routes to.

use std::fmt::Write as _;
use std::net::IpAddr;

use cni::AttachmentKey;
use kernel::route::{Link, RouteSocket, VlanProtocol};

use crate::shared::failure::Failure;

/// How many links may be stacked before the search stops.
const DEPTH: usize = 8;

/// A place within which addresses must differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A bridge, a parent or a device, and a VLAN of it.
    Segment(Segment),
    /// The host's routing table, or the table with this number, which belongs to a VRF.
    Routes(Option<u32>),
}

/// What frames reach without a router.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    base: Base,
    /// The name of the link by which everything on it is reachable.
    ifname: String,
    /// The VLANs on that link, the innermost first.
    vlans: Vec<String>,
    /// The container that the link is in; `None` if it is the host's.
    container: Option<String>,
}

/// What identifies the link by which everything on a segment is reachable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Base {
    /// Its ifindex: the name may be given to another link.
    Number(u32),
    /// Its name. An Open vSwitch switch creates its links anew when it starts, and identifies them
    /// by name itself.
    Name,
}

/// The kinds of links that Open vSwitch may have created, in the kernel or in user space.
const OF_SWITCHES: [&str; 2] = ["openvswitch", "tun"];

/// The prefix of a link's ifindex in a claim's name.
const NUMBER: &str = "link ";

impl Segment {
    /// A link of the host, and optionally a VLAN of it.
    #[must_use]
    pub fn of_link(link: &Link, vlan: Option<u16>) -> Self {
        let vlans = vlan.iter().map(ToString::to_string).collect();
        Segment::at(link, vlans, None)
    }

    /// An Open vSwitch bridge, and optionally a VLAN of it.
    #[must_use]
    pub fn of_switch(bridge: &str, vlan: Option<u16>) -> Self {
        let vlans = vlan.iter().map(ToString::to_string).collect();
        Segment { base: Base::Name, ifname: bridge.to_owned(), vlans, container: None }
    }

    fn at(link: &Link, vlans: Vec<String>, container: Option<String>) -> Self {
        let of_switch = OF_SWITCHES.iter().any(|kind| link.is_kind(kind));
        let base = if of_switch { Base::Name } else { Base::Number(link.index) };
        Segment { base, ifname: link.name.clone(), vlans, container }
    }

    /// Reports whether these VLANs of a link of the host are the segment.
    fn is_at(&self, link: &Link, vlans: &[String]) -> bool {
        let there = Segment::at(link, vlans.to_vec(), None);
        let same_link =
            self.base == there.base && (self.base != Base::Name || self.ifname == there.ifname);
        same_link && self.container.is_none() && self.vlans == there.vlans
    }
}

impl Place {
    /// Returns the name under which an address is claimed in this place.
    pub(super) fn object(&self, address: IpAddr) -> String {
        // An IPv4 address may be written as an IPv6 address.
        let address = address.to_canonical();
        match self {
            Place::Segment(Segment { base, ifname, vlans, container }) => {
                let mut text = match base {
                    Base::Number(number) => format!("{address} on {NUMBER}{number}"),
                    Base::Name => format!("{address} on switch {ifname}"),
                };
                for vlan in vlans {
                    write!(text, " {vlan}").expect("writing to a String cannot fail");
                }
                if let Some(container) = container {
                    write!(text, " in {container}").expect("writing to a String cannot fail");
                }
                text
            }
            Place::Routes(None) => format!("{address} routed"),
            Place::Routes(Some(table)) => format!("{address} routed {table}"),
        }
    }

    /// Describes it in words.
    pub(super) fn describe(&self) -> String {
        match self {
            Place::Segment(Segment { ifname, vlans, container, .. }) => {
                let mut text = String::from("on ");
                for vlan in vlans {
                    write!(text, "VLAN {vlan} of ").expect("writing to a String cannot fail");
                }
                write!(text, "{ifname:?}").expect("writing to a String cannot fail");
                if let Some(container) = container {
                    write!(text, " in container {container}")
                        .expect("writing to a String cannot fail");
                }
                text
            }
            Place::Routes(None) => "among those that the host routes to".to_owned(),
            Place::Routes(Some(table)) => {
                format!("among those that the host routes to by table {table}")
            }
        }
    }
}

/// Describes a claim in words: a link of the host by its present name.
pub(super) fn describe(object: &str) -> String {
    let named = || {
        let (before, rest) = object.split_once(NUMBER)?;
        let (number, after) = rest.split_once(' ').unwrap_or((rest, ""));
        if after.contains("in ") {
            return None;
        }
        let link = RouteSocket::open().ok()?.link_by_index(number.parse().ok()?).ok()??;
        Some(format!("{before}{} {after}", link.name).trim_end().to_owned())
    };
    named().unwrap_or_else(|| object.to_owned())
}

/// A segment, and the host's own links on it.
#[derive(Debug)]
pub struct SegmentLinks {
    /// The segment.
    pub segment: Segment,
    /// The links by which the host itself is on it, as far as they are known.
    pub host: Vec<Link>,
}

/// Follows a container's link to its segment: to its parent, to the bridge that its other end is a
/// port of, and on from there. `device` is the link as it was on the host, if it is a device that
/// was lent to the container: if it leads nowhere else, it is a segment by itself. `None` if it is
/// unknown where the link leads.
///
/// # Errors
/// Code 100 when the kernel does not answer.
pub fn follow(
    key: &AttachmentKey,
    start: &Link,
    device: Option<&Link>,
    host: &mut RouteSocket,
    inside: &mut RouteSocket,
) -> Result<Option<SegmentLinks>, Failure> {
    let mut at = Step { link: start.clone(), in_container: true, vlan: None };
    let mut vlans = Vec::new();
    let mut own = Vec::new();
    for step in 0..DEPTH {
        let Some(next) = next(&at, host, Some(&mut *inside))? else {
            if step == 0 {
                let segment = device.map(|link| Segment::of_link(link, None));
                return Ok(segment.map(|segment| SegmentLinks { segment, host: own }));
            }
            break;
        };
        vlans.extend(next.vlan.clone());
        if !next.in_container && vlans.is_empty() {
            own.push(next.link.clone());
        }
        at = next;
    }
    let container = at.in_container.then(|| key.container_id.to_string());
    let segment = Segment::at(&at.link, vlans, container);
    if let Some(link) = vlan_link(host, &segment)?
        && own.iter().all(|known| known.index != link.index)
    {
        own.push(link);
    }
    Ok(Some(SegmentLinks { segment, host: own }))
}

/// Finds the host's own link in the VLAN of a segment, by the name that our links and most others
/// have.
///
/// # Errors
/// Code 100 when the kernel does not answer.
pub fn vlan_link(host: &mut RouteSocket, segment: &Segment) -> Result<Option<Link>, Failure> {
    let ([vlan], None) = (segment.vlans.as_slice(), &segment.container) else { return Ok(None) };
    let name = format!("{}.{vlan}", segment.ifname);
    // The kernel's limit (linux include/uapi/linux/if.h, IFNAMSIZ).
    if name.len() < 16 { Ok(host.link_by_name(&name)?) } else { Ok(None) }
}

/// Reports whether a link of the host leads to a segment, by the same steps as a container's
/// ([`follow`]).
///
/// # Errors
/// Code 100 when the kernel does not answer.
pub(super) fn is_on(
    host: &mut RouteSocket,
    link: &Link,
    segment: &Segment,
) -> Result<bool, Failure> {
    let mut at = Step { link: link.clone(), in_container: false, vlan: None };
    let mut vlans = Vec::new();
    for _ in 0..DEPTH {
        if segment.is_at(&at.link, &vlans) {
            return Ok(true);
        }
        let Some(next) = next(&at, host, None)? else { return Ok(false) };
        vlans.extend(next.vlan.clone());
        at = next;
    }
    Ok(false)
}

/// A link on the way to the segment.
#[derive(Debug)]
struct Step {
    link: Link,
    in_container: bool,
    /// The VLAN of this link by which the previous one reaches it.
    vlan: Option<String>,
}

fn next(
    at: &Step,
    host: &mut RouteSocket,
    inside: Option<&mut RouteSocket>,
) -> Result<Option<Step>, Failure> {
    let link = &at.link;
    let is_pair = link.is_kind("veth");
    let Some(index) = link.peer_index.filter(|_| is_pair || link.is_on_parent()) else {
        return Ok(None);
    };
    let crosses = link.link_netnsid.is_some();
    if crosses && !at.in_container {
        // It is in a namespace that this search does not enter.
        return Ok(None);
    }
    let in_container = at.in_container && !crosses;
    let socket = match inside {
        Some(inside) if in_container => inside,
        _ => host,
    };
    let Some(other) = socket.link_by_index(index)? else { return Ok(None) };
    if !is_pair {
        let vlan = link.vlan.filter(|vlan| vlan.id != 0).map(|vlan| {
            let dot1q = vlan.protocol == VlanProtocol::Dot1Q.number();
            if dot1q { vlan.id.to_string() } else { format!("{} (802.1ad)", vlan.id) }
        });
        return Ok(Some(Step { link: other, in_container, vlan }));
    }
    // A link with that ifindex in another namespace is not the peer.
    if crosses && other.peer_index != Some(link.index) {
        return Ok(None);
    }
    let Some(master) = other.master.filter(|_| other.port_kind.as_deref() == Some("bridge")) else {
        return Ok(None);
    };
    let Some(bridge) = socket.link_by_index(master)? else { return Ok(None) };
    let filters = bridge.bridge.as_ref().is_some_and(|bridge| bridge.vlan_filtering);
    let vlans = if filters { socket.bridge_vlans(other.index)? } else { vec![] };
    // As with our own ports: the bridge's own VLAN does not count.
    let default = bridge.default_vlan();
    let own = vlans.iter().find(|vlan| vlan.pvid).filter(|vlan| vlan.first != default);
    let vlan = own.map(|vlan| vlan.first.to_string());
    Ok(Some(Step { link: bridge, in_container, vlan }))
}
