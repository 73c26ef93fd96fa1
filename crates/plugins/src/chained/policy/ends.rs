//! The keys of an attachment that lead to verdicts: its addresses, and for a further network its
//! addresses at one interface of this node.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ::firewall::FirewallError;
use ::firewall::pods::{self, Link, PodsTable};
use cni::order::gather;
use cni::{AddResult, AttachmentKey};
use kernel::conntrack::{ConntrackSocket, Flow, FlowFilter};
use kernel::linger;
use kernel::netlink::{Errno, NetlinkError};
use kernel::netns::Netns;
use kernel::route::{Change, IpFamily, NeighbourState, RouteSocket};
use node_api::policy::{StartRequest, is_further};

use super::link;

/// Addresses of attachments.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Ends {
    /// Of containers' own networks.
    addresses: BTreeSet<IpAddr>,
    /// Of further networks.
    links: BTreeSet<Link>,
}

impl Ends {
    /// Returns those of an attachment.
    pub(super) fn of(started: &StartRequest) -> Self {
        let mut ends = Ends::default();
        match &started.meets {
            // The node's table has nothing of it.
            None if started.inside => {}
            None => ends.addresses.extend(&started.addresses),
            Some(interface) => ends.links.extend(at(interface, &started.addresses)),
        }
        ends
    }

    /// Returns those that an attachment without a record may have, by its result. For a further
    /// network they are at one of the node's links that the result lists.
    pub(super) fn unrecorded(key: &AttachmentKey, result: &AddResult) -> Self {
        let addresses = link::all_addresses(result);
        if !is_further(key.ifname.as_str()) {
            return Ends { addresses: gather(addresses), ..Ends::default() };
        }
        let of_node = result.interfaces.iter().filter(|listed| listed.sandbox.is_empty());
        let links = of_node.flat_map(|listed| at(&listed.name, &addresses));
        Ends { links: gather(links), ..Ends::default() }
    }

    /// Returns those that lead to a verdict now.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub(super) fn there(table: &mut PodsTable) -> Result<Self, FirewallError> {
        Ok(Ends { addresses: pods::addresses(table)?, links: pods::links(table)? })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.links.is_empty()
    }

    /// Adds others.
    pub(super) fn add(&mut self, others: Ends) {
        self.addresses.extend(others.addresses);
        self.links.extend(others.links);
    }

    /// Returns those that are not among others.
    pub(super) fn without(&self, others: &Ends) -> Self {
        Ends {
            addresses: gather(self.addresses.difference(&others.addresses).copied()),
            links: gather(self.links.difference(&others.links).cloned()),
        }
    }

    /// Leads them to the chains that drop everything.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(super) fn close(&self, table: &mut PodsTable) -> Result<(), FirewallError> {
        if !self.addresses.is_empty() {
            pods::close(table, &Vec::from_iter(self.addresses.iter().copied()))?;
        }
        if !self.links.is_empty() {
            pods::close_links(table, &Vec::from_iter(self.links.iter().cloned()))?;
        }
        Ok(())
    }

    /// Removes their verdicts.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(super) fn forget(&self, table: &mut PodsTable) -> Result<(), FirewallError> {
        pods::forget(table, &Vec::from_iter(self.addresses.iter().copied()))?;
        pods::forget_links(table, &Vec::from_iter(self.links.iter().cloned()))
    }

    /// Deletes the tracked flows of addresses on containers' own networks. Packets of a tracked
    /// flow meet no verdict, and the next container with such an address must not continue the
    /// flow. Flows with addresses of a further network stay: they may belong to another network
    /// with the same addresses.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(super) fn end_flows(&self) -> Result<(), NetlinkError> {
        delete_flows(ConntrackSocket::open, &self.addresses, |_| true)
    }

    /// Does the same for a container that begins. Of addresses on further networks it deletes the
    /// flows that nobody has answered: another network's are answered, or begin anew without loss.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(super) fn forget_flows(&self) -> Result<(), NetlinkError> {
        self.end_flows()?;
        let further: BTreeSet<IpAddr> = gather(self.links.iter().map(|link| link.address));
        delete_flows(ConntrackSocket::open, &further, |flow| !flow.is_answered())
    }

    /// Discards the packets that wait on the host until a container answers who has its address:
    /// the filter has let them pass while the address was nobody's.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(super) fn discard_waiting(&self, host: &mut RouteSocket) -> Result<(), NetlinkError> {
        for address in self.addresses.iter().chain(self.links.iter().map(|link| &link.address)) {
            let link = host.route_to(*address)?.and_then(|route| route.oif);
            let Some(link) = link else { continue };
            let found = host.neighbour(link, *address)?;
            let Some(waiting) = found.filter(|found| found.state == NeighbourState::INCOMPLETE)
            else {
                continue;
            };
            match host.apply_one(&Change::DelNeighbour(waiting)) {
                Err(error) if error.errno() != Some(Errno::NOENT) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the addresses that have no verdict in a direction.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub(super) fn without_verdict(
        &self,
        table: &mut PodsTable,
    ) -> Result<Vec<IpAddr>, FirewallError> {
        let mut without = Vec::new();
        for address in &self.addresses {
            let found = pods::verdicts(table, *address)?;
            if found.ingress.is_none() || found.egress.is_none() {
                without.push(*address);
            }
        }
        for link in &self.links {
            let found = pods::link_verdicts(table, link)?;
            if found.ingress.is_none() || found.egress.is_none() {
                without.push(link.address);
            }
        }
        Ok(without)
    }
}

/// Deletes what the container's own namespace has tracked of its addresses.
///
/// # Errors
/// The kernel refuses.
pub(super) fn forget_flows_inside(
    netns: &Netns,
    addresses: impl Iterator<Item = IpAddr>,
) -> Result<(), NetlinkError> {
    delete_flows(|| ConntrackSocket::open_in(netns), &gather(addresses), |_| true)
}

/// Deletes flows that begin or are answered at one of these addresses. The kernel compares IPv4
/// addresses itself, and sends all flows of IPv6.
fn delete_flows(
    open: impl FnOnce() -> Result<ConntrackSocket, NetlinkError>,
    addresses: &BTreeSet<IpAddr>,
    goes: impl Fn(&Flow) -> bool,
) -> Result<(), NetlinkError> {
    if addresses.is_empty() {
        return Ok(());
    }
    let mut conntrack = open()?;
    for address in addresses.iter().filter(|address| address.is_ipv4()) {
        let all = FlowFilter::all(IpFamily::V4);
        conntrack.delete_flows_if(&FlowFilter { source: Some(*address), ..all }, &goes)?;
        conntrack.delete_flows_if(&FlowFilter { reply_source: Some(*address), ..all }, &goes)?;
    }
    if addresses.iter().any(IpAddr::is_ipv6) {
        let is_end = |end: Option<IpAddr>| end.is_some_and(|end| addresses.contains(&end));
        conntrack.delete_flows_if(&FlowFilter::all(IpFamily::V6), |flow| {
            (is_end(flow.original.source) || is_end(flow.reply.source)) && goes(flow)
        })?;
    }
    // Verdicts may just have been removed, and closing it now would wait until the kernel has
    // destroyed them.
    drop(linger::leave_open(conntrack));
    Ok(())
}

fn at(interface: &str, addresses: &[IpAddr]) -> impl Iterator<Item = Link> {
    let link = move |address: &IpAddr| Link { interface: interface.to_owned(), address: *address };
    addresses.iter().map(link)
}

#[cfg(test)]
mod tests {
    use cni::{Interface, IpConfig};

    use super::*;

    fn links(ends: &Ends) -> Vec<String> {
        ends.links.iter().map(|link| format!("{} {}", link.interface, link.address)).collect()
    }

    #[test]
    fn of_a_further_network_addresses_are_at_an_interface() {
        let addresses: Vec<IpAddr> = vec!["192.0.2.5".parse().unwrap()];
        let mut started = StartRequest { addresses: addresses.clone(), ..StartRequest::default() };
        let own = Ends::of(&started);
        assert_eq!((own.addresses.len(), own.links.len()), (1, 0));
        started.meets = Some("br0".to_owned());
        let further = Ends::of(&started);
        assert!(further.addresses.is_empty());
        assert_eq!(links(&further), ["br0 192.0.2.5"]);
        assert_eq!(own.without(&further), own);
        assert!(further.without(&further).is_empty());
    }

    #[test]
    fn without_a_record_it_may_be_any_link_of_the_node() {
        let interface = |name: &str, sandbox: &str| Interface {
            name: name.to_owned(),
            sandbox: sandbox.to_owned(),
            ..Interface::default()
        };
        let result = AddResult {
            interfaces: vec![
                interface("br0", ""),
                interface("veth1", ""),
                interface("net1", "/run/netns/c1"),
            ],
            ips: vec![IpConfig::new("192.0.2.5/24".parse().unwrap(), None)],
            ..AddResult::default()
        };
        let key = |ifname: &str| AttachmentKey {
            network: "n".parse().unwrap(),
            container_id: "c1".parse().unwrap(),
            ifname: ifname.parse().unwrap(),
        };
        let further = Ends::unrecorded(&key("net1"), &result);
        assert_eq!(links(&further), ["br0 192.0.2.5", "veth1 192.0.2.5"]);
        assert_eq!(links(&Ends::unrecorded(&key("eth0"), &result)), [""; 0]);
    }
}
