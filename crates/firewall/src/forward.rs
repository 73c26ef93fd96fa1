//! Finds out which packet filters drop forwarded packets.
//!
//! In netfilter a packet passes only if no chain drops it: an accept in our table cannot overrule a
//! drop in another table. So if no other program drops forwarded packets, we need no rule. If one
//! does, our accept must be where its dropping rules are: into `DOCKER-USER` where Docker has made
//! it, else the `FORWARD` chain of iptables ([`crate::iptables::filter`]), or into a zone if it is
//! firewalld ([`crate::firewalld`]). Tables that an administrator wrote have no place for foreign
//! rules; there we can only report the drop.

use std::fmt;

use kernel::netlink::NetlinkError;
use kernel::nft::{
    ChainInfo, Expr, Family, HookInfo, HookPoint, NftSocket, Policy, RuleInfo, TableRef, Verdict,
};
use state::Index;

use crate::element::Table;
use crate::error::FirewallError;
use crate::iptables::{Family as IpVersion, Observed, Tool};
use crate::layout::table_ref;
use crate::reference::legacy_uses;
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
        family: IpVersion,
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
                    IpVersion::V4 => "iptables",
                    IpVersion::V6 => "ip6tables",
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

/// Lists what drops forwarded packets in the caller's network namespace. Reads only base chains,
/// and legacy iptables only if the kernel says that it is in use.
///
/// # Errors
/// When the kernel cannot be asked.
pub fn blockers(index: &Index) -> Result<Vec<Blocker>, FirewallError> {
    let mut socket = NftSocket::open().map_err(|error| FirewallError::Open(Box::new(error)))?;
    let mut found = Vec::new();
    for hook in forward_hooks(&mut socket, index).map_err(failed)? {
        let Some((table, chain)) = hook.chain else { continue };
        if table == table_ref(Table::Inet) {
            continue;
        }
        // The kernel lists the hook of an inet chain once for each family.
        let Some(info) = socket.get_chain(&table, &chain).map_err(failed)? else { continue };
        let drops = has_drop_policy(&info) || {
            let rules = socket.rules(&table, &chain).map_err(failed)?;
            rules.last().is_some_and(is_final_drop)
        };
        let blocker = classify(&table, &chain);
        if drops && !found.contains(&blocker) {
            found.push(blocker);
        }
    }
    if legacy_uses("filter") {
        for family in IpVersion::ALL {
            // Not installed: then no program has written rules with it, and we could not add any.
            if let Ok(observed) = Tool::legacy(*family).observe("filter")
                && drops_forward(&observed)
            {
                found.push(Blocker::Iptables { family: *family, legacy: true });
            }
        }
    }
    cni::order::sort(&mut found);
    Ok(found)
}

/// The module that lists hooks. Not every kernel has it, and it is not always loaded.
const HOOKS_MODULE: &str = "nfnetlink_hook";

/// Lists the hooks for forwarded packets. A kernel that cannot list them is not asked again in this
/// boot: it would start `modprobe` at every call.
fn forward_hooks(socket: &mut NftSocket, index: &Index) -> Result<Vec<HookInfo>, NetlinkError> {
    let (family, point) = (Family::Inet, HookPoint::Forward);
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
        Family::Ip => Some(IpVersion::V4),
        Family::Ip6 => Some(IpVersion::V6),
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

fn drops_forward(observed: &Observed) -> bool {
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
        let drops = |text| drops_forward(&Observed::parse(text));
        assert!(drops("-P INPUT ACCEPT\n-P FORWARD DROP\n"));
        assert!(drops(
            "-P FORWARD ACCEPT\n-A FORWARD -j REJECT --reject-with icmp-host-prohibited\n"
        ));
        assert!(!drops("-P INPUT DROP\n-P FORWARD ACCEPT\n-A FORWARD -s 192.0.2.1/32 -j DROP\n"));
    }
}
