//! Finds out which packet filters drop forwarded packets.
//!
//! In netfilter a packet passes only if no chain drops it: an accept in our table cannot overrule a
//! drop in another table. So if no other program drops forwarded packets, we need no rule. If one
//! does, our accept must be where its dropping rules are: into `DOCKER-USER` where Docker has made
//! it, else the `FORWARD` chain of iptables ([`crate::iptables::filter`]), or into a zone if it is
//! firewalld ([`crate::firewalld`]). Tables that an administrator wrote have no place for foreign
//! rules; there we can only report the drop.
//!
//! Whether a firewall drops a container's packets is computed, by [`diagnose::filter`], from the
//! rules that its base chain may ask ([`Sender`] is what is known of the container). What is not
//! certain is not reported: a node that is reported as not ready gets no more containers.

mod judge;

use std::fmt;

use kernel::netlink::NetlinkError;
use kernel::nft::{
    ChainInfo, Expr, Family, HookInfo, HookPoint, NftSocket, Policy, RuleInfo, TableRef, Verdict,
};
use net::IpFamily;
use state::Index;

use self::judge::Judge;
pub use self::judge::Sender;
use crate::element::Table;
use crate::error::FirewallError;
use crate::iptables::{self, ObservedTable, Tool};
use crate::tables::TablesError;

/// What the administrator of a firewalld that we cannot reach can do.
pub const ZONE_BY_HAND: &str = "add the containers' subnet to a zone that forwards: \
     firewall-cmd --permanent --zone=trusted --add-source=SUBNET && firewall-cmd --reload";

/// A firewall that drops forwarded packets unless one of its rules accepts them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Blocker {
    /// The chain `FORWARD` of iptables, perhaps set up by Docker or ufw.
    Iptables {
        /// The family.
        family: IpFamily,
        /// Whether it is the legacy form.
        legacy: bool,
    },
    /// firewalld.
    Firewalld,
    /// A base chain of another program or of the administrator.
    Nftables {
        /// Its table, with the family.
        table: String,
        /// Its name.
        chain: String,
    },
}

impl Blocker {
    /// Returns what the administrator can do where we cannot.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Blocker::Iptables { .. } | Blocker::Firewalld => None,
            Blocker::Nftables { .. } => {
                Some("accept the containers' subnet, from it and answers to it, in that chain")
            }
        }
    }
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Blocker::Iptables { family, legacy } => {
                let name = match family {
                    IpFamily::V4 => "iptables",
                    IpFamily::V6 => "ip6tables",
                };
                let legacy = if *legacy { " (legacy)" } else { "" };
                write!(f, "{name}{legacy} drops what no rule of chain FORWARD accepts")
            }
            Blocker::Firewalld => f.write_str("firewalld rejects what no zone forwards"),
            Blocker::Nftables { table, chain } => {
                write!(f, "chain {chain} of table {table} drops what none of its rules accepts")
            }
        }
    }
}

/// A firewall, and what it does to a container's packets.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Drops {
    /// The firewall.
    pub blocker: Blocker,
    /// It surely drops the packets that the container sends beyond the host, or the answers.
    /// Otherwise it drops what no rule of its accepts, and one may accept these.
    pub is_certain: bool,
}

/// Lists what drops forwarded packets in the caller's network namespace: what surely drops those of
/// a container, and of iptables and firewalld, where we can add an accept, also what drops by
/// default. An administrator's table that may let the container's packets through is not listed.
///
/// Reads nothing but the hooks where no other software sees forwarded packets, and legacy iptables
/// only if the kernel says that it is in use. What is read of a large rule set is bounded.
///
/// # Errors
/// When the kernel cannot be asked.
pub fn blockers(index: &Index, sender: &Sender<'_>) -> Result<Vec<Drops>, FirewallError> {
    let mut socket = NftSocket::open().map_err(|error| FirewallError::Open(Box::new(error)))?;
    let mut found = Vec::new();
    let mut judge = None;
    for (info, rules) in foreign_chains(&mut socket, index).map_err(failed)? {
        let by_default = has_drop_policy(&info) || rules.last().is_some_and(is_final_drop);
        let judge = match &mut judge {
            Some(judge) => judge,
            none => none.insert(Judge::new(sender).map_err(failed)?),
        };
        let families: &[IpFamily] = match info.table.family {
            Family::Ip => &[IpFamily::V4],
            Family::Ip6 => &[IpFamily::V6],
            _ => &IpFamily::ALL,
        };
        let is_certain = judge.chain(&mut socket, index, &info, rules, families).map_err(failed)?;
        add(&mut found, classify(&info.table, &info.name), by_default, is_certain);
    }
    for family in IpFamily::ALL {
        if !iptables::legacy_uses(family, "filter") {
            continue;
        }
        // Not installed: then no program has written rules with it, and we could not add any.
        let Ok(observed) = Tool::legacy(family).observe("filter") else { continue };
        if observed.rules("FORWARD").is_empty() && observed.policy("FORWARD") == Some("ACCEPT") {
            continue;
        }
        let judge = match &mut judge {
            Some(judge) => judge,
            none => none.insert(Judge::new(sender).map_err(failed)?),
        };
        let by_default = drops_forward(&observed);
        let is_certain = judge.legacy(&mut socket, index, family, &observed).map_err(failed)?;
        let blocker = Blocker::Iptables { family, legacy: true };
        add(&mut found, blocker, by_default, is_certain);
    }
    cni::order::sort(&mut found);
    Ok(found)
}

/// Says whether a table is ours: what its rules do is said elsewhere.
fn is_ours(table: &TableRef) -> bool {
    let rest = table.name.strip_prefix(Table::Inet.name());
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

fn add(found: &mut Vec<Drops>, blocker: Blocker, by_default: bool, is_certain: bool) {
    let has_place = !matches!(blocker, Blocker::Nftables { .. });
    if is_certain || (by_default && has_place) {
        note(found, blocker, is_certain);
    }
}

fn note(found: &mut Vec<Drops>, blocker: Blocker, is_certain: bool) {
    match found.iter_mut().find(|drops| drops.blocker == blocker) {
        Some(drops) => drops.is_certain |= is_certain,
        None => found.push(Drops { blocker, is_certain }),
    }
}

/// Lists the base chains of others that see forwarded packets, with their rules. One that has no
/// rules and accepts is left out.
fn foreign_chains(
    socket: &mut NftSocket,
    index: &Index,
) -> Result<Vec<(ChainInfo, Vec<RuleInfo>)>, NetlinkError> {
    let mut found: Vec<(ChainInfo, Vec<RuleInfo>)> = Vec::new();
    for hook in hooks(socket, index, HookPoint::Forward)? {
        let Some((table, chain)) = hook.chain else { continue };
        // The kernel lists the hook of an inet chain once for each family.
        let is_known = found.iter().any(|(info, _)| info.table == table && info.name == chain);
        if is_known || is_ours(&table) {
            continue;
        }
        let Some(info) = socket.get_chain(&table, &chain)? else { continue };
        // Where the kernel does not list hooks, chains that are off are among them.
        if socket.get_table(&table)?.is_none_or(|table| table.is_dormant()) {
            continue;
        }
        let rules = socket.rules(&table, &chain)?;
        if has_drop_policy(&info) || !rules.is_empty() {
            found.push((info, rules));
        }
    }
    Ok(found)
}

/// The module that lists hooks. Not every kernel has it, and it is not always loaded.
const HOOKS_MODULE: &str = "nfnetlink_hook";

/// Lists what sees packets of IP at a point. A kernel that cannot list that is not asked again in
/// this boot: it would start `modprobe` at every call.
pub(crate) fn hooks(
    socket: &mut NftSocket,
    index: &Index,
    point: HookPoint,
) -> Result<Vec<HookInfo>, NetlinkError> {
    let family = Family::Inet;
    if !index.is_lacking(HOOKS_MODULE) {
        if let Some(hooks) = socket.hooks_if_told(family, point)? {
            return Ok(hooks);
        }
        index.note_lacking(HOOKS_MODULE);
    }
    socket.hooks_of_chains(family, point)
}

fn classify(table: &TableRef, chain: &str) -> Blocker {
    let family = match table.family {
        Family::Ip => Some(IpFamily::V4),
        Family::Ip6 => Some(IpFamily::V6),
        _ => None,
    };
    match family {
        Some(family) if table.name == "filter" && chain == "FORWARD" => {
            Blocker::Iptables { family, legacy: false }
        }
        _ if table.name == "firewalld" => Blocker::Firewalld,
        _ => Blocker::Nftables { table: table.to_string(), chain: chain.to_owned() },
    }
}

fn has_drop_policy(chain: &ChainInfo) -> bool {
    chain.hook.as_ref().is_some_and(|hook| hook.policy == Some(Policy::Drop))
}

/// Says whether a rule drops or rejects everything that reaches it.
fn is_final_drop(rule: &RuleInfo) -> bool {
    let mut drops = false;
    for expr in &rule.exprs {
        match expr {
            Expr::Counter { .. } | Expr::Log { .. } => {}
            Expr::XtMatch { name, .. } if name == "comment" => {}
            Expr::Verdict(Verdict::Drop) | Expr::Reject { .. } => drops = true,
            Expr::XtTarget { name, .. } if name == "REJECT" => drops = true,
            _ => return false,
        }
    }
    drops
}

fn drops_forward(observed: &ObservedTable) -> bool {
    let last = observed.rules("FORWARD").last().map(String::as_str);
    observed.policy("FORWARD").is_some_and(|policy| policy != "ACCEPT")
        || last.is_some_and(|rule| rule == "-j DROP" || rule.starts_with("-j REJECT"))
}

fn failed(error: NetlinkError) -> FirewallError {
    FirewallError::Tables(TablesError {
        operation: "find what drops forwarded packets".to_owned(),
        absent: error.is_not_found(),
        source: Box::new(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn legacy_policies_and_last_rules_are_seen() {
        let drops = |text| drops_forward(&ObservedTable::parse(text));
        assert!(drops("-P INPUT ACCEPT\n-P FORWARD DROP\n"));
        assert!(drops(
            "-P FORWARD ACCEPT\n-A FORWARD -j REJECT --reject-with icmp-host-prohibited\n"
        ));
        assert!(!drops("-P INPUT DROP\n-P FORWARD ACCEPT\n-A FORWARD -s 192.0.2.1/32 -j DROP\n"));
    }
}
