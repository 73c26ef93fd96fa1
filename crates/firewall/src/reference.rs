//! Removes what the reference plugins, and flannel, left.
//!
//! On a node that moves from the reference plugins to ours, the reference made the rules of
//! existing containers, and we get their DEL. With today's `iptables`, the reference's iptables
//! rules are in nftables' tables `ip nat` and `ip filter`. We look up the container's chain by name
//! there and remove it by handle, without starting a program. The legacy form of iptables is asked
//! only if it is in use (the kernel says so).
//!
//! Rules are found by name, by comment and, if they carry no name at all, by the container's
//! address. Nothing is listed unless the chain that would contain it exists.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use cni::AttachmentKey;
use cni::owner::sha512_hex;
use ipnet::IpNet;
use kernel::netlink::NetlinkError;
use kernel::nft::{Batch, Expr, Family, NftError, NftSocket, RuleInfo, TableRef, Value, Verdict};
use kernel::route::RouteSocket;
use net::IpFamily;
use state::Index;

use crate::close::LateSocket;
use crate::error::FirewallError;
use crate::iptables::{self, IptablesError, Tool};
use crate::owner::Owner;
use crate::tables::TablesError;

/// The families of iptables' tables.
const FAMILIES: [Family; 2] = [Family::Ip, Family::Ip6];
/// Tables of iptables, their chains, and flannel's chains that those lead to.
const FLANNEL_CHAINS: [(&str, &str, &str); 2] =
    [("nat", "POSTROUTING", "FLANNEL-POSTRTG"), ("filter", "FORWARD", "FLANNEL-FWD")];
/// How the names of the chains begin that forward ports to one container.
const HOSTPORT_CHAINS: &str = "CNI-DN-";
/// The chain of the reference's nftables masquerade.
const MASQ_CHECKS: &str = "masq_checks";

/// Removes what the reference's `bridge` and `ptp` made for an attachment: masquerade in both its
/// forms, and spoof checks.
///
/// With no `addresses`, everything of the container in that network is removed.
///
/// # Errors
/// When the kernel or legacy iptables refuses. Each of them removes all or nothing.
pub fn remove_bridge(key: &AttachmentKey, addresses: &[IpNet]) -> Result<(), FirewallError> {
    let mut found = Findings::open()?;
    let chain = iptables::masquerade::chain_name(key);
    let own: Vec<Vec<u8>> = addresses
        .iter()
        .flat_map(|address| [address.addr(), address.network()])
        .map(|address| Value::from(address).bytes())
        .collect();
    for family in FAMILIES {
        let table = TableRef::new(family, "nat");
        found.shared_chain(&table, "POSTROUTING", &chain, &own)?;
    }
    let tag = format!("{}, ", masquerade_tag(key));
    let masquerade = TableRef::new(Family::Inet, "cni_plugins_masquerade");
    found.rules_where(&masquerade, MASQ_CHECKS, |rule| {
        rule.comment.as_deref().is_some_and(|comment| comment.starts_with(&tag))
    })?;
    let bridge = TableRef::new(Family::Bridge, "nat");
    let spoof = format!("cni-br-iface-{}-{}", key.container_id, key.ifname);
    found.chain(&bridge, &spoof, &format!("{spoof}-mac"))?;
    found.chain(&bridge, "PREROUTING", &spoof)?;
    found.commit()?;
    if legacy_uses("nat") {
        iptables::masquerade::remove(key, addresses, true).map_err(legacy_failed)?;
    }
    Ok(())
}

/// Removes what the reference's `portmap` made for an attachment, in both its forms.
///
/// Its nftables form knows only the container, not the network: with `addresses`, only rules to
/// these are removed.
///
/// # Errors
/// When the kernel or legacy iptables refuses. Each of them removes all or nothing.
pub fn remove_hostports(key: &AttachmentKey, addresses: &[IpAddr]) -> Result<(), FirewallError> {
    let mut found = Findings::open()?;
    let own: Vec<Vec<u8>> = addresses.iter().map(|address| Value::from(*address).bytes()).collect();
    for family in FAMILIES {
        let nat = TableRef::new(family, "nat");
        let chain = iptables::hostport::chain_name(key);
        found.chain(&nat, "CNI-HOSTPORT-DNAT", &chain)?;
        let old = iptables::hostport::old_snat_chain_name(key);
        found.chain(&nat, "CNI-HOSTPORT-SNAT", &old)?;
        let table = TableRef::new(family, "cni_hostport");
        for chain in ["hostports", "hostip_hostports", "masquerading"] {
            found.rules_where(&table, chain, |rule| {
                rule.comment.as_deref() == Some(key.container_id.as_str())
                    && (own.is_empty() || mentions(rule, &own))
            })?;
        }
    }
    found.commit()?;
    if legacy_uses("nat") {
        iptables::hostport::remove(key, true).map_err(legacy_failed)?;
    }
    Ok(())
}

/// Says whether the reference's `portmap` forwards ports to an attachment's container, in its
/// iptables form.
///
/// # Errors
/// When the kernel does not answer.
pub fn has_hostports(key: &AttachmentKey) -> Result<bool, FirewallError> {
    let mut socket = NftSocket::open().map_err(|error| FirewallError::Open(Box::new(error)))?;
    let chain = iptables::hostport::chain_name(key);
    for family in FAMILIES {
        let nat = TableRef::new(family, "nat");
        if socket.get_chain(&nat, &chain).map_err(refused)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Says whether the reference's `portmap` forwards IPv4 ports to a container behind a link, in any of
/// its forms. Ours has the same chains where its configuration asks for iptables.
///
/// # Errors
/// When the kernel or legacy iptables does not answer.
pub(crate) fn forwards_through(ifname: &str) -> Result<bool, FirewallError> {
    let addresses = destinations()?;
    if addresses.is_empty() {
        return Ok(false);
    }
    let mut netlink = RouteSocket::open().map_err(refused)?;
    let Some(link) = netlink.link_by_name(ifname).map_err(refused)? else { return Ok(false) };
    // Where there is no route to an address, no packet goes there.
    let is_behind = |address: IpAddr| {
        let route = netlink.route_to(address).ok().flatten();
        route.is_some_and(|route| route.oif == Some(link.index))
    };
    Ok(addresses.into_iter().map(IpAddr::V4).any(is_behind))
}

/// Lists the IPv4 addresses to which the reference's `portmap` forwards ports.
fn destinations() -> Result<BTreeSet<Ipv4Addr>, FirewallError> {
    let mut socket = NftSocket::open().map_err(|error| FirewallError::Open(Box::new(error)))?;
    let mut rules_of =
        |table: &TableRef, chain: &str| match socket.get_chain(table, chain).map_err(refused)? {
            Some(_) => socket.rules(table, chain).map_err(refused),
            None => Ok(Vec::new()),
        };
    let mut addresses = BTreeSet::new();
    let nat = TableRef::new(Family::Ip, "nat");
    for jump in rules_of(&nat, "CNI-HOSTPORT-DNAT")? {
        for chain in jump.targets().filter(|target| target.starts_with(HOSTPORT_CHAINS)) {
            addresses.extend(rules_of(&nat, chain)?.iter().filter_map(destination));
        }
    }
    let own = TableRef::new(Family::Ip, "cni_hostport");
    for chain in ["hostports", "hostip_hostports"] {
        addresses.extend(rules_of(&own, chain)?.iter().filter_map(destination));
    }
    if iptables::legacy_uses(IpFamily::V4, "nat") {
        let observed = Tool::legacy(IpFamily::V4).observe("nat").map_err(legacy_failed)?;
        let chains = observed.chains().filter(|(chain, _)| chain.starts_with(HOSTPORT_CHAINS));
        for rule in chains.flat_map(|(_, rules)| rules) {
            let to = rule.split_once("--to-destination ").map_or("", |(_, rest)| rest);
            let address = to.split([':', '-', ' ']).next().unwrap_or_default();
            addresses.extend(address.parse::<Ipv4Addr>());
        }
    }
    Ok(addresses)
}

/// Returns the IPv4 address to which a rule translates the destination.
fn destination(rule: &RuleInfo) -> Option<Ipv4Addr> {
    let four = |bytes: &[u8]| <[u8; 4]>::try_from(bytes).ok().map(Ipv4Addr::from);
    rule.exprs.iter().find_map(|expr| match expr {
        Expr::Immediate { data, .. } => four(data),
        // linux/netfilter/nf_nat.h: `flags` and then the address in struct nf_nat_range2; in revision
        // 0, struct nf_nat_ipv4_multi_range_compat has a length before.
        Expr::XtTarget { name, revision, info } if name == "DNAT" => {
            let begin = if *revision == 0 { 8 } else { 4 };
            info.get(begin..begin + 4).and_then(four)
        }
        _ => None,
    })
}

/// Removes the rules for an attachment's addresses from the reference's forwarding chain. They
/// carry no other mark. Another attachment may have an equal address, on a network that never meets
/// this one, or since this one's container has ended: its rules stay.
///
/// # Errors
/// When the kernel or legacy iptables refuses. Each of them removes all or nothing.
/// [`FirewallError::Lock`].
pub fn remove_forward(
    index: &Index,
    key: &AttachmentKey,
    addresses: &[IpAddr],
) -> Result<(), FirewallError> {
    if addresses.is_empty() {
        return Ok(());
    }
    // Nearly always there are none, and then it takes no lock.
    if Findings::of_forward(addresses)?.batch.is_empty() && !legacy_uses("filter") {
        return Ok(());
    }
    let _lock = index.lock(iptables::LOCK, crate::LOCK_TIMEOUT).map_err(FirewallError::Lock)?;
    let own = iptables::filter::needed_by_no_other(index, key, addresses);
    if own.is_empty() {
        return Ok(());
    }
    Findings::of_forward(&own)?.commit()?;
    if legacy_uses("filter") {
        iptables::filter::remove(&own, true).map_err(legacy_failed)?;
    }
    Ok(())
}

/// Removes the rules that [`iptables::filter::accept`] added to foreign chains for an attachment,
/// found by its hash.
///
/// # Errors
/// When the kernel or legacy iptables refuses. Each of them removes all or nothing.
pub fn remove_accepts(key: &AttachmentKey) -> Result<(), FirewallError> {
    let hash = key.hash();
    remove_accepts_of(&|owner| owner.is(&hash))
}

/// Removes the same for all attachments of a network except those that stay. `stays` is called with
/// an attachment's hash after the rules are listed.
///
/// # Errors
/// When the kernel or legacy iptables refuses. Each of them removes all or nothing.
pub fn gc_accepts(network: &str, stays: &dyn Fn(&str) -> bool) -> Result<(), FirewallError> {
    remove_accepts_of(&|owner| match owner {
        Owner::Attachment { hash, .. } => owner.is_of_network(network) && !stays(hash),
        _ => false,
    })
}

fn remove_accepts_of(doomed: &dyn Fn(&Owner) -> bool) -> Result<(), FirewallError> {
    remove_commented_accepts(&|comment| {
        iptables::filter::owner_of_comment(comment).is_some_and(|owner| doomed(&owner))
    })?;
    if legacy_uses("filter") {
        iptables::filter::remove_accept(doomed, true).map_err(legacy_failed)?;
    }
    Ok(())
}

/// Removes the rules that [`iptables::filter::accept_ranges`] added to foreign chains.
pub(crate) fn remove_range_accepts() -> Result<(), FirewallError> {
    remove_commented_accepts(&|comment| comment == iptables::filter::RANGES_TAG)?;
    for family in IpFamily::ALL {
        if iptables::legacy_uses(family, "filter") {
            iptables::filter::remove_ranges(family, true).map_err(legacy_failed)?;
        }
    }
    Ok(())
}

/// Removes the rules of a flanneld, in all their forms. When flanneld ends, it leaves its iptables
/// rules behind; while they exist, nodes do not see pods' own addresses. A flanneld that runs makes
/// them again.
///
/// # Errors
/// When the kernel or legacy iptables refuses. Each of them removes all or nothing.
pub fn remove_flannel() -> Result<(), FirewallError> {
    let mut found = Findings::open()?;
    for family in FAMILIES {
        for (table, from, chain) in FLANNEL_CHAINS {
            found.chain(&TableRef::new(family, table), from, chain)?;
        }
    }
    for (family, table) in [(Family::Ip, "flannel-ipv4"), (Family::Ip6, "flannel-ipv6")] {
        found.table(&TableRef::new(family, table))?;
    }
    found.commit()?;
    for family in IpFamily::ALL {
        for (table, _, chain) in FLANNEL_CHAINS {
            // A table that legacy iptables does not use is empty.
            let removed = Tool::legacy(family)
                .change(table, |observed, restore| restore.delete_chain(observed, chain));
            removed.map_err(legacy_failed)?;
        }
    }
    Ok(())
}

/// Removes accepting rules from the chains that other software has for forwarded packets, by their
/// comments.
fn remove_commented_accepts(doomed: &dyn Fn(&str) -> bool) -> Result<(), FirewallError> {
    let mut found = Findings::open()?;
    for family in FAMILIES {
        let filter = TableRef::new(family, "filter");
        for chain in ["DOCKER-USER", "FORWARD"] {
            found.rules_where(&filter, chain, |rule| {
                accepts(rule) && comment_of(rule).is_some_and(|comment| doomed(&comment))
            })?;
        }
    }
    found.commit()
}

/// Removes what the reference's `bridge` and `ptp` made for containers of a network that are not
/// among `valid`.
///
/// # Errors
/// When the kernel or legacy iptables refuses. Each of them removes all or nothing.
pub fn gc_bridge(network: &str, valid: &[AttachmentKey]) -> Result<(), FirewallError> {
    let mut found = Findings::open()?;
    for family in FAMILIES {
        let nat = TableRef::new(family, "nat");
        let begin = format!("name: \"{network}\" id: \"");
        for chain in found.stale(&nat, "POSTROUTING", &begin, "CNI-", valid)? {
            found.shared_chain(&nat, "POSTROUTING", &chain, &[])?;
        }
    }
    let tags: Vec<String> = valid.iter().map(|key| format!("{}, ", masquerade_tag(key))).collect();
    let begin = format!("{}-", sha512_hex(network, 16));
    let masquerade = TableRef::new(Family::Inet, "cni_plugins_masquerade");
    found.rules_where(&masquerade, MASQ_CHECKS, |rule| {
        rule.comment.as_deref().is_some_and(|comment| {
            comment.starts_with(&begin) && !tags.iter().any(|tag| comment.starts_with(tag))
        })
    })?;
    found.commit()
}

/// Removes what the reference's `portmap` made for containers of a network that are not among
/// `valid`. Rules of its nftables form do not say which network they are for, and stay.
///
/// # Errors
/// When the kernel or legacy iptables refuses. Each of them removes all or nothing.
pub fn gc_hostports(network: &str, valid: &[AttachmentKey]) -> Result<(), FirewallError> {
    let mut found = Findings::open()?;
    for family in FAMILIES {
        let nat = TableRef::new(family, "nat");
        let begin = format!("dnat name: \"{network}\" id: \"");
        for chain in found.stale(&nat, "CNI-HOSTPORT-DNAT", &begin, "CNI-DN-", valid)? {
            found.chain(&nat, "CNI-HOSTPORT-DNAT", &chain)?;
        }
    }
    found.commit()
}

/// Returns the prefix of the comments of the reference's nftables masquerade.
fn masquerade_tag(key: &AttachmentKey) -> String {
    let attachment = format!("{}:{}", key.ifname, key.container_id);
    format!("{}-{}", sha512_hex(key.network.as_str(), 16), sha512_hex(&attachment, 16))
}

/// Says whether legacy iptables uses a table in the caller's namespace, in either family.
pub(crate) fn legacy_uses(table: &str) -> bool {
    IpFamily::ALL.iter().any(|family| iptables::legacy_uses(*family, table))
}

fn legacy_failed(error: IptablesError) -> FirewallError {
    FirewallError::Tables(TablesError {
        operation: "remove rules from legacy iptables".to_owned(),
        absent: false,
        source: Box::new(error),
    })
}

fn mentions(rule: &RuleInfo, addresses: &[Vec<u8>]) -> bool {
    rule.exprs.iter().any(|expr| match expr {
        Expr::Cmp { data, .. } | Expr::Immediate { data, .. } => addresses.contains(data),
        // `-j DNAT` of iptables: struct nf_nat_range2 holds the address.
        Expr::XtTarget { info, .. } => addresses
            .iter()
            .any(|address| info.windows(address.len()).any(|bytes| bytes == address)),
        _ => false,
    })
}

/// Says whether a rule is one of [`iptables::filter::accept`], for one attachment.
pub(crate) fn is_attachments(rule: &RuleInfo) -> bool {
    let of_attachment = |comment: String| iptables::filter::names_attachment(&comment);
    accepts(rule) && comment_of(rule).is_some_and(of_attachment)
}

fn accepts(rule: &RuleInfo) -> bool {
    rule.exprs.iter().any(|expr| matches!(expr, Expr::Verdict(Verdict::Accept)))
}

/// Returns a rule's comment, whether nft's or iptables'.
fn comment_of(rule: &RuleInfo) -> Option<String> {
    rule.comment.clone().or_else(|| rule.iptables_comment())
}

/// What was found, to be removed in one transaction.
struct Findings {
    socket: LateSocket,
    batch: Batch,
}

impl Findings {
    fn open() -> Result<Self, FirewallError> {
        let socket = LateSocket::open()?;
        Ok(Findings { socket, batch: Batch::new() })
    }

    /// Picks the rules of the reference's forwarding chain that accept one of these addresses.
    fn of_forward(addresses: &[IpAddr]) -> Result<Self, FirewallError> {
        let mut found = Self::open()?;
        let own: Vec<Vec<u8>> = addresses.iter().map(|at| Value::from(*at).bytes()).collect();
        for family in FAMILIES {
            let filter = TableRef::new(family, "filter");
            let doomed = |rule: &RuleInfo| accepts(rule) && mentions(rule, &own);
            found.rules_where(&filter, "CNI-FORWARD", doomed)?;
        }
        Ok(found)
    }

    /// Picks a chain that belongs to one container, and the rules of `from` that lead to it.
    fn chain(&mut self, table: &TableRef, from: &str, chain: &str) -> Result<(), FirewallError> {
        self.shared_chain(table, from, chain, &[])
    }

    /// Picks the rules of `from` that lead to a chain and mention one of `addresses`, or all if
    /// there are none. Picks the chain too, unless other rules lead to it.
    fn shared_chain(
        &mut self,
        table: &TableRef,
        from: &str,
        chain: &str,
        addresses: &[Vec<u8>],
    ) -> Result<(), FirewallError> {
        if self.socket.ask().get_chain(table, chain).map_err(refused)?.is_none() {
            return Ok(());
        }
        let rules = self.socket.ask().rules(table, from).map_err(refused)?;
        let jumps = |rule: &&RuleInfo| rule.targets().any(|target| target == chain);
        let (own, others): (Vec<&RuleInfo>, Vec<&RuleInfo>) = rules
            .iter()
            .filter(jumps)
            .partition(|rule| addresses.is_empty() || mentions(rule, addresses));
        for rule in own {
            self.batch.delete_rule(table, from, rule.handle);
        }
        if others.is_empty() {
            self.batch.flush_chain(table, chain);
            self.batch.delete_chain(table, chain);
        }
        Ok(())
    }

    /// Picks a table that may be missing.
    fn table(&mut self, table: &TableRef) -> Result<(), FirewallError> {
        if self.socket.ask().get_table(table).map_err(refused)?.is_some() {
            self.batch.delete_table(table);
        }
        Ok(())
    }

    /// Picks rules of a chain that may be missing.
    fn rules_where(
        &mut self,
        table: &TableRef,
        chain: &str,
        doomed: impl Fn(&RuleInfo) -> bool,
    ) -> Result<(), FirewallError> {
        if self.socket.ask().get_chain(table, chain).map_err(refused)?.is_none() {
            return Ok(());
        }
        for rule in self.socket.ask().rules(table, chain).map_err(refused)? {
            if doomed(&rule) {
                self.batch.delete_rule(table, chain, rule.handle);
            }
        }
        Ok(())
    }

    /// Lists chains whose name begins with `prefix`, to which rules of `from` lead whose comment
    /// names a container not among `valid`.
    fn stale(
        &mut self,
        table: &TableRef,
        from: &str,
        comment_begin: &str,
        prefix: &str,
        valid: &[AttachmentKey],
    ) -> Result<Vec<String>, FirewallError> {
        if self.socket.ask().get_chain(table, from).map_err(refused)?.is_none() {
            return Ok(Vec::new());
        }
        let mut chains = Vec::new();
        for rule in self.socket.ask().rules(table, from).map_err(refused)? {
            let Some(comment) = comment_of(&rule) else { continue };
            let Some(rest) = comment.strip_prefix(comment_begin) else { continue };
            // A comment that was cut does not say whose it is.
            let Some(id) = rest.strip_suffix('"') else { continue };
            if valid.iter().any(|key| key.container_id.as_str() == id) {
                continue;
            }
            chains.extend(
                rule.targets().filter(|target| target.starts_with(prefix)).map(str::to_owned),
            );
        }
        chains.sort_unstable();
        chains.dedup();
        Ok(chains)
    }

    fn commit(mut self) -> Result<(), FirewallError> {
        match self.socket.commit(&self.batch) {
            Ok(()) => Ok(()),
            // Another process removed it meanwhile: that is what we want.
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(failed(error)),
        }
    }
}

fn refused(error: NetlinkError) -> FirewallError {
    FirewallError::Tables(TablesError {
        operation: "look for rules of other software".to_owned(),
        absent: false,
        source: Box::new(error),
    })
}

fn failed(error: NftError) -> FirewallError {
    FirewallError::Tables(TablesError {
        operation: "remove rules of other software".to_owned(),
        absent: false,
        source: Box::new(error),
    })
}
