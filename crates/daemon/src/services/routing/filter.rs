//! The packet filter's table of routing, as the crate `firewall` has it.

use firewall::FirewallError;
use firewall::cluster::{Change, ClusterFilter, ClusterTable, Member, Rules, Vxlan};
use ipnet::IpNet;
use routing::object::{Key, Set};
use routing::plan;
use routing::settings::{Own, Settings};

/// The table, and what it is to be.
#[derive(Debug)]
pub(super) struct Filter {
    table: ClusterTable,
    wanted: ClusterFilter,
    /// What of it follows from this node: the rest are elements that routing plans.
    of_node: Vec<Member>,
}

impl Filter {
    pub(super) fn open(settings: &Settings, masquerade: bool) -> Result<Self, FirewallError> {
        let vxlan = settings.offers().vxlan.map(|of| Vxlan { port: of.port, vni: of.vni });
        let rules = Rules { masquerade, vxlan: vxlan.into_iter().collect() };
        let wanted = ClusterFilter::new(rules, []);
        Ok(Filter { table: ClusterTable::open()?, wanted, of_node: Vec::new() })
    }

    /// Takes note of what follows from this node; [`Filter::bring`] makes it.
    pub(super) fn set_own(&mut self, own: &Own) {
        let node = &own.node;
        let prefixes = node.prefixes.iter().chain(&node.kept).copied().map(Member::Own);
        let tunnels = own.tunnels.iter().map(|(_, link)| Member::Tunnel(link.to_string()));
        let has_tunnels = node.offers.vxlan.is_some();
        let of_node: Vec<Member> = prefixes.chain(tunnels.filter(|_| has_tunnels)).collect();
        let remove = std::mem::replace(&mut self.of_node, of_node.clone());
        let _ = self.wanted.change(&Change { add: of_node, remove });
    }

    /// Takes note of changes of elements; [`Filter::bring`] makes them.
    pub(super) fn note(&mut self, changes: &[&plan::Change]) {
        let _ = self.wanted.change(&change(changes));
    }

    /// Makes changes of elements in one transaction.
    pub(super) fn change(&mut self, changes: &[&plan::Change]) -> Result<(), FirewallError> {
        self.table.change(&mut self.wanted, &change(changes)).map(drop)
    }

    /// Brings the table to what it is to be. Returns what was otherwise, in lines.
    pub(super) fn bring(&mut self) -> Result<Vec<String>, FirewallError> {
        Ok(self.table.bring(&self.wanted)?.lines().to_vec())
    }

    /// Removes the table.
    pub(super) fn remove(&mut self) -> Result<(), FirewallError> {
        self.table.remove()
    }
}

fn change(changes: &[&plan::Change]) -> Change {
    let mut all = Change::default();
    for change in changes {
        match change {
            plan::Change::Create(Key::Element { set, prefix }, _) => {
                all.add.push(member(*set, *prefix));
            }
            plan::Change::Remove(Key::Element { set, prefix }, _) => {
                all.remove.push(member(*set, *prefix));
            }
            _ => {}
        }
    }
    all
}

fn member(set: Set, prefix: IpNet) -> Member {
    match set {
        Set::Cluster => Member::Cluster(prefix),
        Set::Exempt => Member::Exempt(prefix),
        Set::Nodes => Member::Node(prefix.addr()),
    }
}
