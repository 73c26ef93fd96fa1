//! Single addresses, without a program: for callers that do not know the cluster.

use std::collections::BTreeSet;
use std::net::IpAddr;

use kernel::netlink::NetlinkError;
use kernel::nft::{Batch, ElementData, Expr, KeyType, NewChain, Value, Verdict};
use policy::program::Link;
use policy::{Direction, IpFamily, Name, PerDirection, Program, program};

use super::encode::ChainEntry;
use super::layout::{self, Form};
use super::{PodsTable, encode, state};
use crate::declared::ChainState;
use crate::error::FirewallError;

/// How often addresses are looked up again when another program changed them in between.
const TRIES: usize = 5;

/// Leads addresses to the chains of pods about which not enough is known, even if they led
/// elsewhere before: nothing but their node reaches them then. Makes what that needs if it is
/// missing or damaged, and leaves everything else as it is, including how packets are logged.
///
/// For the plugin where no daemon answers, and for the daemon before it knows the cluster.
///
/// **Idempotence**: an address that is closed stays so.
///
/// # Errors
/// [`FirewallError::Tables`] when the kernel refuses; nothing has changed then.
pub fn close(table: &mut PodsTable, addresses: &[IpAddr]) -> Result<(), FirewallError> {
    move_all(table, &own(addresses), |direction| Some(program::unknown(direction)))
}

/// The same for addresses of further networks.
///
/// # Errors
/// As [`close`].
pub fn close_links(table: &mut PodsTable, links: &[Link]) -> Result<(), FirewallError> {
    move_all(table, &further(links), |direction| Some(program::unknown(direction)))
}

/// Removes the verdicts of addresses: they are no longer judged.
///
/// **Idempotence**: success where there are none, or no table.
///
/// # Errors
/// [`FirewallError::Tables`] when the kernel refuses; nothing has changed then.
pub fn forget(table: &mut PodsTable, addresses: &[IpAddr]) -> Result<(), FirewallError> {
    move_all(table, &own(addresses), |_| None)
}

/// The same for addresses of further networks.
///
/// # Errors
/// As [`forget`].
pub fn forget_links(table: &mut PodsTable, links: &[Link]) -> Result<(), FirewallError> {
    move_all(table, &further(links), |_| None)
}

/// The same for an interface of a container, in the table of its own namespace.
///
/// # Errors
/// As [`close`].
pub fn close_interface(table: &mut PodsTable, interface: &str) -> Result<(), FirewallError> {
    move_all(table, &inside(interface), |direction| Some(program::unknown(direction)))
}

/// Removes the verdicts of an interface of a container.
///
/// # Errors
/// As [`forget`].
pub fn forget_interface(table: &mut PodsTable, interface: &str) -> Result<(), FirewallError> {
    move_all(table, &inside(interface), |_| None)
}

/// Replaces the table of a container in one transaction: only these interfaces lead to a chain, and
/// are closed.
///
/// # Errors
/// [`FirewallError::Tables`] when the kernel refuses; nothing has changed then.
pub fn close_alone(table: &mut PodsTable, interfaces: &[String]) -> Result<(), FirewallError> {
    let mut program = Program::empty();
    for direction in Direction::ALL {
        for name in interfaces {
            program.interfaces.insert((direction, name.clone()), program::unknown(direction));
        }
    }
    table.put(&program)
}

/// Returns the chains to which an interface of a container leads.
///
/// # Errors
/// As [`verdicts`].
pub fn interface_verdicts(
    table: &mut PodsTable,
    interface: &str,
) -> Result<PerDirection<Option<Name>>, FirewallError> {
    verdicts_at(table, &ChainEntry::Interface(interface.to_owned()))
}

/// Lists the interfaces of a container that lead to a chain; none if there is no table.
///
/// # Errors
/// As [`addresses`].
pub fn interfaces(table: &mut PodsTable) -> Result<BTreeSet<String>, FirewallError> {
    let mut all = BTreeSet::new();
    if !table.exists()? {
        return Ok(all);
    }
    for direction in Direction::ALL {
        let map = layout::interface_map(direction);
        for element in
            table.ask().elements(&layout::table(), &map).map_err(|error| table.unread(error))?
        {
            if let Some([Value::IfName(name)]) = element.key.values(&[KeyType::IfName]).as_deref() {
                all.insert(name.clone());
            }
        }
    }
    Ok(all)
}

/// Restores what is missing or damaged of the parts that are the same for each program, if there is
/// a table.
///
/// For the daemon when IPVS gets services ([`PodsTable::look_for_services`]) before it knows the
/// cluster.
///
/// # Errors
/// [`FirewallError::Tables`] when the kernel refuses; nothing has changed then.
pub fn complete(table: &mut PodsTable) -> Result<(), FirewallError> {
    if !table.exists()? {
        return Ok(());
    }
    commit(table, |table| {
        let mut batch = Batch::new();
        skeleton(table, &mut batch).map(|()| batch)
    })
}

/// Says whether nothing is missing or damaged of these parts. A table that is not there lacks nothing.
///
/// # Errors
/// [`FirewallError::Tables`] when the kernel does not answer.
pub fn is_complete(table: &mut PodsTable) -> Result<bool, FirewallError> {
    match table.ask().get_table(&layout::table()).map_err(|error| table.unread(error))? {
        None => return Ok(true),
        Some(found) if found.is_dormant() => return Ok(false),
        Some(_) => {}
    }
    let mut batch = Batch::new();
    skeleton(table, &mut batch).map_err(|error| table.unread(error))?;
    Ok(batch.is_empty())
}

/// Returns the chains to which an address leads; `None` where it has no verdict.
///
/// # Errors
/// [`FirewallError::Tables`] when the kernel does not answer.
pub fn verdicts(
    table: &mut PodsTable,
    address: IpAddr,
) -> Result<PerDirection<Option<Name>>, FirewallError> {
    verdicts_at(table, &ChainEntry::Address(address))
}

/// The same for an address of a further network.
///
/// # Errors
/// As [`verdicts`].
pub fn link_verdicts(
    table: &mut PodsTable,
    link: &Link,
) -> Result<PerDirection<Option<Name>>, FirewallError> {
    verdicts_at(table, &ChainEntry::Link(link.clone()))
}

fn verdicts_at(
    table: &mut PodsTable,
    at: &ChainEntry,
) -> Result<PerDirection<Option<Name>>, FirewallError> {
    Ok(PerDirection {
        ingress: verdict(table, Direction::Ingress, at).map_err(|error| table.unread(error))?,
        egress: verdict(table, Direction::Egress, at).map_err(|error| table.unread(error))?,
    })
}

/// Lists the addresses that have a verdict; none if there is no table. The cost grows with their
/// number.
///
/// # Errors
/// [`FirewallError::Tables`] when the kernel does not answer.
pub fn addresses(table: &mut PodsTable) -> Result<BTreeSet<IpAddr>, FirewallError> {
    let mut all = BTreeSet::new();
    if !table.exists()? {
        return Ok(all);
    }
    for direction in Direction::ALL {
        for family in IpFamily::ALL {
            let kind = [layout::key_type(family)];
            let map = layout::map(direction, family);
            for element in
                table.ask().elements(&layout::table(), &map).map_err(|error| table.unread(error))?
            {
                match element.key.values(&kind).as_deref() {
                    Some([Value::Ipv4(address)]) => all.insert(IpAddr::V4(*address)),
                    Some([Value::Ipv6(address)]) => all.insert(IpAddr::V6(*address)),
                    _ => false,
                };
            }
        }
    }
    Ok(all)
}

/// Lists the addresses of further networks that lead to a chain, as [`addresses`] does.
///
/// # Errors
/// As [`addresses`].
pub fn links(table: &mut PodsTable) -> Result<BTreeSet<Link>, FirewallError> {
    let mut all = BTreeSet::new();
    if !table.exists()? {
        return Ok(all);
    }
    for direction in Direction::ALL {
        for family in IpFamily::ALL {
            let kind = layout::link_type(family);
            let map = layout::link_map(direction, family);
            for element in
                table.ask().elements(&layout::table(), &map).map_err(|error| table.unread(error))?
            {
                let link = |interface: &String, address: IpAddr| Link {
                    interface: interface.clone(),
                    address,
                };
                match element.key.values(&kind).as_deref() {
                    Some([Value::IfName(at), Value::Ipv4(v4)]) => {
                        all.insert(link(at, (*v4).into()))
                    }
                    Some([Value::IfName(at), Value::Ipv6(v6)]) => {
                        all.insert(link(at, (*v6).into()))
                    }
                    _ => false,
                };
            }
        }
    }
    Ok(all)
}

fn own(addresses: &[IpAddr]) -> BTreeSet<ChainEntry> {
    cni::order::gather(addresses.iter().copied().map(ChainEntry::Address))
}

fn inside(interface: &str) -> BTreeSet<ChainEntry> {
    BTreeSet::from([ChainEntry::Interface(interface.to_owned())])
}

fn further(links: &[Link]) -> BTreeSet<ChainEntry> {
    cni::order::gather(links.iter().cloned().map(ChainEntry::Link))
}

fn verdict(
    table: &mut PodsTable,
    direction: Direction,
    at: &ChainEntry,
) -> Result<Option<Name>, NetlinkError> {
    let found = table.ask().get_element(&layout::table(), &at.map(direction), &at.key())?;
    Ok(found.and_then(|element| match element.data {
        Some(ElementData::Verdict(Verdict::Goto(chain))) => Some(chain),
        // Another program's: it is there, and leads to no chain of ours.
        Some(ElementData::Verdict(other)) => Some(other.to_string()),
        _ => None,
    }))
}

fn move_all(
    table: &mut PodsTable,
    all: &BTreeSet<ChainEntry>,
    to: impl Fn(Direction) -> Option<Name>,
) -> Result<(), FirewallError> {
    commit(table, |table| moving(table, all, &to))
}

/// Commits a transaction made from what is there, and makes it again if another program has changed
/// that meanwhile.
fn commit(
    table: &mut PodsTable,
    make: impl Fn(&mut PodsTable) -> Result<Batch, NetlinkError>,
) -> Result<(), FirewallError> {
    let mut tries = 0;
    loop {
        tries += 1;
        wake(table)?;
        let batch = make(table).map_err(|error| table.unread(error))?;
        match table.commit(&batch) {
            Err(error) if tries < TRIES && (error.is_exists() || error.is_not_found()) => {}
            other => return other.map_err(|error| table.failed(error)),
        }
    }
}

/// Lets the table see packets if another program has switched it off: no verdict counts in it.
///
/// # Errors
/// [`FirewallError::Tables`] when the kernel refuses.
pub fn wake(table: &mut PodsTable) -> Result<(), FirewallError> {
    let own = layout::table();
    if table
        .ask()
        .get_table(&own)
        .map_err(|error| table.unread(error))?
        .is_some_and(|found| found.is_dormant())
    {
        let mut batch = Batch::new();
        batch.wake_table(&own);
        table.commit(&batch).map_err(|error| table.failed(error))?;
    }
    Ok(())
}

/// The transaction from what is there.
fn moving(
    table: &mut PodsTable,
    all: &BTreeSet<ChainEntry>,
    to: impl Fn(Direction) -> Option<Name>,
) -> Result<Batch, NetlinkError> {
    let mut batch = Batch::new();
    let mut changed = encode::ElementChanges::default();
    for at in all {
        for direction in Direction::ALL {
            let (before, chain) = (verdict(table, direction, at)?, to(direction));
            let keys = at.keys(direction);
            let known = table.ask().get_element(&layout::table(), &keys, &at.key())?.is_some();
            changed.lead(direction, at, before.as_ref(), chain.as_ref());
            changed.know(direction, at, known, chain.is_some());
        }
    }
    if !all.is_empty() && Direction::ALL.into_iter().any(|direction| to(direction).is_some()) {
        skeleton(table, &mut batch)?;
    }
    changed.write(&mut batch);
    Ok(batch)
}

/// Adds what is missing of two parts: the objects that are the same for each program, and the
/// chains of pods about which not enough is known. Rewrites chains that have other rules.
fn skeleton(table: &mut PodsTable, batch: &mut Batch) -> Result<(), NetlinkError> {
    let own = layout::table();
    let form = table.form();
    if table.ask().get_table(&own)?.is_none() {
        *batch = encode::whole(&Program::empty(), form);
        return Ok(());
    }
    for set in layout::sets(form.site) {
        if table.ask().get_set(&own, &set.name)?.is_none() {
            batch.add_set(set);
        }
    }
    let wanted = chains(form);
    let keys = |name: &str| {
        let mut sets = layout::sets(form.site).into_iter();
        sets.find(|set| set.name == name).map(|set| set.key).unwrap_or_default()
    };
    let mut again = Vec::new();
    for (chain, rules) in &wanted {
        let found = table.ask().get_chain(&own, &chain.name)?;
        let mut there = ChainState { hook: chain.hook.clone(), ..ChainState::default() };
        for rule in table.ask().rules(&own, &chain.name)? {
            there.add_rule(rule.exprs);
        }
        match found {
            Some(found)
                if found.hook == chain.hook && there.has_rules(&rules.rules, &own, &keys) =>
            {
                continue;
            }
            Some(_) if logs_otherwise(&chain.name, &there, rules) => continue,
            Some(found) if found.hook == chain.hook => {}
            Some(_) => {
                batch.delete_chain(&own, &chain.name);
                batch.add_chain(chain.clone());
            }
            None => batch.add_chain(chain.clone()),
        }
        again.push(chain.name.clone());
    }
    again.iter().for_each(|name| batch.flush_chain(&own, name));
    for rule in layout::rules(form) {
        if again.contains(&rule.chain) {
            batch.add_rule(rule);
        }
    }
    for (name, lines) in &Program::empty().chains {
        if again.contains(name) {
            encode::add_rules(batch, name, lines);
        }
    }
    Ok(())
}

/// Says whether a chain differs only in how it logs, or in that it does not: the program that wrote
/// it has other settings, or knows that the kernel cannot log.
fn logs_otherwise(chain: &str, there: &ChainState, wanted: &ChainState) -> bool {
    let is_deny = Direction::ALL.into_iter().any(|direction| layout::deny(direction) == chain);
    let decides = |rule: &[Expr]| {
        rule.iter().any(|expr| matches!(expr, Expr::Verdict(_) | Expr::Reject { .. }))
    };
    let without = |state: &ChainState| match state.rules.split_first() {
        Some((first, rest)) if layout::logs(first) && !decides(first) => rest.to_vec(),
        _ => state.rules.clone(),
    };
    is_deny && without(there) == without(wanted)
}

/// The chains of a table about which nothing is known, and what should be in them.
fn chains(form: Form) -> Vec<(NewChain, ChainState)> {
    let empty = Program::empty();
    let mut states = state::chains(&empty, form);
    let of_program = empty.chains.keys().map(|name| layout::chain_of_program(name));
    let all = layout::chains(form.site).into_iter().chain(of_program);
    let with_state = |chain: NewChain| {
        let state = states.remove(&chain.name).unwrap_or_default();
        (chain, state)
    };
    all.map(with_state).collect()
}
