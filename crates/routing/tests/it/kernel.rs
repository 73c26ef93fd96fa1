//! A model of the kernel that treats our objects as Linux does, as far as the order of changes
//! matters.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;
use netwright_routing::MacAddr;
use netwright_routing::object::{Key, Nexthop, Tunnel, Value};
use netwright_routing::plan::{Change, ForeignRoute, Objects, ObservedObjects};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Kernel {
    pub(crate) objects: Objects,
    pub(crate) foreign: Vec<(IpNet, ForeignRoute)>,
}

/// Where packets to a prefix arrive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// At an address on a link's segment.
    Direct(IpAddr),
    /// Encapsulated, at an underlay address, for a tunnel with this hardware address.
    Tunnel(IpAddr, MacAddr),
}

impl Kernel {
    pub(crate) fn observed(&self) -> ObservedObjects {
        let mut observed = ObservedObjects::default();
        for (key, value) in &self.objects {
            observed.insert(key.clone(), value.clone());
        }
        for (prefix, route) in &self.foreign {
            observed.foreign.entry(*prefix).or_default().push(route.clone());
        }
        observed
    }

    pub(crate) fn apply(&mut self, change: &Change) -> Result<(), String> {
        match change {
            Change::Create(key, value) => {
                if self.objects.contains_key(key) {
                    return Err("EEXIST".to_owned());
                }
                self.check(key, value)?;
                self.objects.insert(key.clone(), value.clone());
            }
            Change::Replace(key, value) => {
                let there = self.objects.get(key).ok_or("ENOENT")?.clone();
                if !value.can_replace(&there) {
                    return Err("EOPNOTSUPP".to_owned());
                }
                self.check(key, value)?;
                if let (Key::Tunnel { link }, Value::Tunnel(old), Value::Tunnel(new)) =
                    (key, &there, value)
                {
                    // neigh_changeaddr
                    if old.mac != new.mac {
                        self.objects.retain(
                            |key, _| !matches!(key, Key::Neighbour { link: on, .. } if on == link),
                        );
                    }
                    assert!(new.up, "nothing of ours is set down");
                }
                self.objects.insert(key.clone(), value.clone());
            }
            Change::Remove(key, value) => {
                match self.objects.get(key) {
                    None => return Err("ENOENT".to_owned()),
                    Some(there) if there != value => {
                        return Err(format!("what is removed is not what is there: {there}"));
                    }
                    Some(_) => {}
                }
                if let Key::Nexthop { id } = key {
                    let by = |value: &Value| matches!(value, Value::Route { nexthop: Some(by), .. } if by == id);
                    if self.objects.values().any(by) {
                        return Err("the kernel would remove routes with it".to_owned());
                    }
                }
                if let Key::Tunnel { link } = key {
                    self.remove_link(link);
                }
                self.objects.remove(key);
            }
            Change::RemoveForeign(prefix, route) => {
                let before = self.foreign.len();
                self.foreign.retain(|(to, other)| (to, other) != (prefix, route));
                if self.foreign.len() == before {
                    return Err("ESRCH".to_owned());
                }
            }
        }
        Ok(())
    }

    /// Whether an object has what it needs.
    fn check(&self, key: &Key, value: &Value) -> Result<(), String> {
        match (key, value) {
            (
                Key::Address { link, .. } | Key::Fdb { link, .. } | Key::Neighbour { link, .. },
                _,
            ) => self.tunnel(link).map(|_| ()).ok_or_else(|| "ENODEV".to_owned()),
            (_, Value::Nexthop(nexthop)) => {
                if &*nexthop.link != "eth0" && self.tunnel(&nexthop.link).is_none_or(|one| !one.up)
                {
                    return Err("ENETDOWN".to_owned());
                }
                match self.leads_elsewhere(nexthop) {
                    true => Err("EINVAL: device mismatch".to_owned()),
                    false => Ok(()),
                }
            }
            (_, Value::Route { nexthop: Some(id), .. }) => {
                let there = self.objects.contains_key(&Key::Nexthop { id: *id });
                if there { Ok(()) } else { Err("EINVAL: nexthop id does not exist".to_owned()) }
            }
            (_, Value::Route { nexthop: None, .. }) => Err("a route without a nexthop".to_owned()),
            _ => Ok(()),
        }
    }

    /// Whether a route by another link leads to an IPv6 gateway (ip6_route_check_nh_onlink).
    fn leads_elsewhere(&self, wanted: &Nexthop) -> bool {
        let link_local = |address: Ipv6Addr| address.segments()[0] & 0xffc0 == 0xfe80;
        let IpAddr::V6(gateway) = wanted.gateway else { return false };
        let leads = |prefix: &IpNet| prefix.contains(&wanted.gateway);
        let ours = self.objects.iter().filter_map(|(key, value)| match (key, value) {
            (Key::Route { prefix }, Value::Route { nexthop: Some(id), .. }) if leads(prefix) => {
                match self.objects.get(&Key::Nexthop { id: *id })? {
                    Value::Nexthop(nexthop) => Some(nexthop.link.clone()),
                    _ => None,
                }
            }
            _ => None,
        });
        let foreign = self.foreign.iter().filter(|(prefix, _)| leads(prefix));
        let mut links = ours.chain(foreign.filter_map(|(_, route)| route.link.clone()));
        !link_local(gateway) && links.any(|link| link != wanted.link)
    }

    pub(crate) fn tunnel(&self, link: &str) -> Option<&Tunnel> {
        match self.objects.get(&Key::Tunnel { link: link.into() }) {
            Some(Value::Tunnel(tunnel)) => Some(tunnel),
            _ => None,
        }
    }

    /// A link goes down: the nexthops by it, the routes by those and its neighbours are removed
    /// without an event.
    pub(crate) fn set_down(&mut self, link: &str) {
        let by_link =
            |value: &Value| matches!(value, Value::Nexthop(nexthop) if *nexthop.link == *link);
        let gone: Vec<u32> = self
            .objects
            .iter()
            .filter(|(_, value)| by_link(value))
            .filter_map(|(key, _)| match key {
                Key::Nexthop { id } => Some(*id),
                _ => None,
            })
            .collect();
        self.objects.retain(|key, value| match (key, &*value) {
            (Key::Nexthop { id }, _) => !gone.contains(id),
            (_, Value::Route { nexthop: Some(id), .. }) => !gone.contains(id),
            (Key::Neighbour { link: on, .. }, _) => **on != *link,
            // addrconf_ifdown
            (Key::Address { link: on, address }, _) => **on != *link || address.is_ipv4(),
            _ => true,
        });
        if let Some(Value::Tunnel(tunnel)) =
            self.objects.get_mut(&Key::Tunnel { link: link.into() })
        {
            tunnel.up = false;
        }
    }

    pub(crate) fn remove_link(&mut self, link: &str) {
        self.set_down(link);
        self.objects.retain(|key, _| match key {
            Key::Tunnel { link: on }
            | Key::Address { link: on, .. }
            | Key::Fdb { link: on, .. } => **on != *link,
            _ => true,
        });
    }

    /// Where packets to a prefix arrive; `None` if they are not sent.
    pub(crate) fn end(&self, prefix: IpNet) -> Option<End> {
        let Value::Route { nexthop: Some(id), .. } = self.objects.get(&Key::Route { prefix })?
        else {
            return None;
        };
        let Value::Nexthop(nexthop) = self.objects.get(&Key::Nexthop { id: *id })? else {
            return None;
        };
        if &*nexthop.link == "eth0" {
            return Some(End::Direct(nexthop.gateway));
        }
        let link = nexthop.link.clone();
        let neighbour = Key::Neighbour { link: link.clone(), address: nexthop.gateway };
        let Value::Neighbour { mac } = self.objects.get(&neighbour)? else { return None };
        let Value::Fdb { to } = self.objects.get(&Key::Fdb { link, mac: *mac })? else {
            return None;
        };
        // The peer drops packets from nodes that it does not know. This model drops packets to
        // nodes that we do not know.
        Some(End::Tunnel(*to, *mac))
    }
}
