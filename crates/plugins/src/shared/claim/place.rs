//! Where addresses must differ: on a segment, and among those that the host routes to.

use std::fmt::Write as _;
use std::net::IpAddr;

use cni::{AttachmentKey, Error};
use kernel::route::{Link, RouteSocket, VlanProtocol};

use crate::shared::kernel_error as kernel;

/// How many links may stand on each other before we stop looking.
const DEPTH: usize = 8;

/// Where addresses must differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A bridge, a parent or a device, and a VLAN of it.
    Segment(Segment),
    /// The host's table of routes, or the one with this number, which a VRF has.
    Routes(Option<u32>),
}

/// What frames without a router reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    base: Base,
    /// The name of the link that everything on it is met by.
    ifname: String,
    /// The VLANs on that link, the innermost first.
    vlans: Vec<String>,
    /// The container that the link is in; `None`: it is the host's.
    container: Option<String>,
}

/// What tells the link that everything on a segment is met by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Base {
    /// Its number: the name may be given to another link.
    Number(u32),
    /// Its name. A switch of Open vSwitch makes its links anew when it starts, and goes by their names itself.
    Name,
}

/// What the kernel calls links that Open vSwitch may have made, by itself or in user space.
const OF_SWITCHES: [&str; 2] = ["openvswitch", "tun"];

/// What stands before a link's number in a claim's name.
const NUMBER: &str = "link ";

impl Segment {
    /// A link of the host, and a VLAN of it.
    #[must_use]
    pub fn of_link(link: &Link, vlan: Option<u16>) -> Self {
        let vlans = vlan.iter().map(ToString::to_string).collect();
        Segment::at(link, vlans, None)
    }

    /// A bridge of Open vSwitch, and a VLAN of it.
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
}

impl Place {
    /// Names an address in this place, as it is claimed.
    pub(super) fn object(&self, address: IpAddr) -> String {
        // An IPv4 address may be written as one of IPv6.
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

    /// Says it in words.
    pub(super) fn told(&self) -> String {
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

/// Says what is claimed in words: a link of the host's by the name that it has by now.
pub(super) fn told(object: &str) -> String {
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
pub struct Met {
    /// The segment.
    pub segment: Segment,
    /// The links by which the host itself is on it, where that is known.
    pub host: Vec<Link>,
}

/// Follows a container's link to the segment it is on: to its parent, to the bridge that its other end is a port of, and on
/// from there. `device` is the link as the host had it, if it is a device that was lent: what leads nowhere else is a segment by itself. `None` where
/// nothing is known of what the link leads to.
///
/// # Errors
/// Code 100 when the kernel does not answer.
pub fn follow(
    key: &AttachmentKey,
    start: &Link,
    device: Option<&Link>,
    host: &mut RouteSocket,
    inside: &mut RouteSocket,
) -> Result<Option<Met>, Error> {
    let mut at = Step { link: start.clone(), in_container: true, vlan: None };
    let mut vlans = Vec::new();
    let mut own = Vec::new();
    for step in 0..DEPTH {
        let Some(next) = next(&at, host, inside)? else {
            if step == 0 {
                let segment = device.map(|link| Segment::of_link(link, None));
                return Ok(segment.map(|segment| Met { segment, host: own }));
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
    Ok(Some(Met { segment, host: own }))
}

/// Finds the host's own link in the VLAN of a segment, by the name that ours and most have.
///
/// # Errors
/// Code 100 when the kernel does not answer.
pub fn vlan_link(host: &mut RouteSocket, segment: &Segment) -> Result<Option<Link>, Error> {
    let ([vlan], None) = (segment.vlans.as_slice(), &segment.container) else { return Ok(None) };
    let name = format!("{}.{vlan}", segment.ifname);
    // The kernel's longest (linux include/uapi/linux/if.h, IFNAMSIZ).
    if name.len() < 16 { host.link_by_name(&name).map_err(kernel) } else { Ok(None) }
}

/// A link on the way to the segment.
#[derive(Debug)]
struct Step {
    link: Link,
    in_container: bool,
    /// The VLAN of this link by which the one before reaches it.
    vlan: Option<String>,
}

fn next(
    at: &Step,
    host: &mut RouteSocket,
    inside: &mut RouteSocket,
) -> Result<Option<Step>, Error> {
    let link = &at.link;
    let is_pair = link.is_kind("veth");
    let stands = ["vlan", "macvlan", "macvtap", "ipvlan", "ipvtap"];
    let Some(index) =
        link.peer_index.filter(|_| is_pair || stands.iter().any(|kind| link.is_kind(kind)))
    else {
        return Ok(None);
    };
    let crosses = link.link_netnsid.is_some();
    if crosses && !at.in_container {
        // It is in a namespace that is not looked into.
        return Ok(None);
    }
    let in_container = at.in_container && !crosses;
    let socket = if in_container { inside } else { host };
    let Some(other) = socket.link_by_index(index).map_err(kernel)? else { return Ok(None) };
    if !is_pair {
        let vlan = link.vlan.filter(|vlan| vlan.id != 0).map(|vlan| {
            let dot1q = vlan.protocol == VlanProtocol::Dot1Q.number();
            if dot1q { vlan.id.to_string() } else { format!("{} (802.1ad)", vlan.id) }
        });
        return Ok(Some(Step { link: other, in_container, vlan }));
    }
    // A link with that number in another namespace is none.
    if crosses && other.peer_index != Some(link.index) {
        return Ok(None);
    }
    let Some(master) = other.master.filter(|_| other.port_kind.as_deref() == Some("bridge")) else {
        return Ok(None);
    };
    let Some(bridge) = socket.link_by_index(master).map_err(kernel)? else { return Ok(None) };
    let filters = bridge.bridge.as_ref().is_some_and(|bridge| bridge.vlan_filtering);
    let vlans = if filters { socket.bridge_vlans(other.index).map_err(kernel)? } else { vec![] };
    // As with ports of ours: the bridge's own VLAN is none.
    let own = vlans.iter().find(|vlan| vlan.pvid).filter(|vlan| vlan.first != 1);
    let vlan = own.map(|vlan| vlan.first.to_string());
    Ok(Some(Step { link: bridge, in_container, vlan }))
}
