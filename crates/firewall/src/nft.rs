//! Our tables in the kernel.

use std::collections::{BTreeMap, BTreeSet};

use kernel::netlink::NetlinkError;
use kernel::nft::{
    self, Batch, ChainInfo, ElementData, Hook, Key, NftError, NftSocket, TableRef, Verdict,
};

use crate::close::LateSocket;
use crate::declared::ChainState;
use crate::element::{Element, Field, Maps, Protocol, Set, Table, Value};
use crate::error::FirewallError;
use crate::layout::{self, LATER, MASQUERADE_RULES, Shape, table_ref};
use crate::masquerade::Outbound;
use crate::tables::{Alteration, Change, ObservedElement, ObservedValue, Tables, TablesError};

/// The prefix of masquerade chains' names.
const MASQUERADE: &str = "masquerade-";

/// Says whether nftables can be used here.
///
/// **Namespace**: the caller's.
///
/// # Errors
/// [`FirewallError::Open`] with the kernel's words.
pub fn usable() -> Result<(), FirewallError> {
    let mut socket = NftSocket::open().map_err(FirewallError::unopened)?;
    socket.get_table(&table_ref(Table::Inet)).map(drop).map_err(FirewallError::unopened)
}

/// Makes our table for frames in the caller's network namespace, as a trial: says whether the kernel
/// has what it needs.
///
/// **Namespace**: the caller's, which should be one that is deleted afterwards.
///
/// # Errors
/// [`FirewallError::Open`], and [`FirewallError::Tables`] with the kernel's words.
pub fn try_frames() -> Result<(), FirewallError> {
    let mut socket = NftSocket::open().map_err(FirewallError::unopened)?;
    let mut batch = Batch::new();
    layout::lay_out(&mut batch, Table::Bridge, &[]);
    Ok(socket.commit(&batch).map_err(not_changed)?)
}

/// The tables of the network namespace in which the caller opened them.
#[derive(Debug)]
pub(crate) struct NftTables {
    socket: LateSocket,
}

impl NftTables {
    pub(crate) fn open() -> Result<Self, FirewallError> {
        LateSocket::open().map(|socket| NftTables { socket })
    }

    /// Prepares a table for being laid out: lets it see packets, and lists its chains at other
    /// hooks.
    fn prepare(&mut self, table: Table) -> Result<Vec<String>, TablesError> {
        let own = table_ref(table);
        let Some(info) = self.socket.ask().get_table(&own).map_err(refused)? else {
            return Ok(Vec::new());
        };
        if info.is_dormant() {
            let mut batch = Batch::new();
            batch.wake_table(&own);
            self.send(&batch)?;
        }
        let shapes = layout::shapes(table);
        let is_misplaced = |found: &ChainInfo| {
            let wanted = shapes.get(&found.name);
            wanted.is_some_and(|wanted| !same_place(found.hook.as_ref(), wanted.hook.as_ref()))
        };
        let misplaced = self.chains(table, &shapes)?.into_iter().filter(is_misplaced);
        Ok(misplaced.map(|found| found.name).collect())
    }

    /// Reads those of these chains of a table that exist.
    fn chains(
        &mut self,
        table: Table,
        shapes: &BTreeMap<String, Shape>,
    ) -> Result<Vec<ChainInfo>, TablesError> {
        let names = shapes.keys().map(String::as_str);
        self.socket.ask().get_chains(&table_ref(table), names).map_err(refused)
    }

    /// Lists the chains of a table that are at a hook and are not ours.
    fn foreign(
        &mut self,
        table: &TableRef,
        is_ours: impl Fn(&str) -> bool,
    ) -> Result<BTreeSet<String>, TablesError> {
        let chains = self.socket.ask().chains(Some(table.family)).map_err(refused)?;
        let is_foreign = |found: &ChainInfo| {
            found.table == *table && found.hook.is_some() && !is_ours(&found.name)
        };
        let foreign = chains.into_iter().filter(is_foreign);
        Ok(cni::order::gather(foreign.map(|found| found.name)))
    }

    fn send(&mut self, batch: &Batch) -> Result<(), TablesError> {
        self.socket.commit(batch).map_err(not_changed)
    }
}

/// Says whether a chain with one hook can get another: the kernel changes only the policy.
fn same_place(found: Option<&Hook>, wanted: Option<&Hook>) -> bool {
    let place = |hook: &Hook| (hook.point, hook.priority, hook.kind.clone());
    found.map(place) == wanted.map(place)
}

impl Tables for NftTables {
    fn exists(&mut self, table: Table) -> Result<bool, TablesError> {
        let found = self.socket.ask().get_table(&table_ref(table)).map_err(refused)?;
        Ok(found.is_some())
    }

    fn is_laid_out(&mut self, table: Table) -> Result<bool, TablesError> {
        let own = table_ref(table);
        let found = self.socket.ask().get_table(&own).map_err(refused)?;
        if found.is_none_or(|found| found.is_dormant()) {
            return Ok(false);
        }
        let shapes = layout::shapes(table);
        let found = self.chains(table, &shapes)?;
        let is_as_wanted = |found: &ChainInfo| {
            let wanted = shapes.get(&found.name);
            wanted.is_some_and(|wanted| found.used == wanted.used && found.hook == wanted.hook)
        };
        Ok(found.len() == shapes.len() && found.iter().all(is_as_wanted))
    }

    fn altered(
        &mut self,
        table: Table,
        masquerades: &BTreeSet<Outbound>,
    ) -> Result<Option<Alteration>, TablesError> {
        let own = table_ref(table);
        let Some(info) = self.socket.ask().get_table(&own).map_err(refused)? else {
            return Ok(None);
        };
        let mut altered = Alteration { dormant: info.is_dormant(), ..Alteration::default() };
        let mut shapes = layout::shapes(table);
        // A chain without a hook sees what jumps to it: the rules tell.
        shapes.retain(|_, wanted| wanted.hook.is_some());
        let bases = self.chains(table, &shapes)?;
        for base in &bases {
            if shapes.get(&base.name).is_some_and(|wanted| wanted.hook != base.hook) {
                altered.hooks.insert(base.name.clone());
            }
        }
        let mut found: BTreeMap<String, ChainState> = BTreeMap::new();
        for rule in self.socket.ask().rules_of_table(&own).map_err(refused)? {
            found.entry(rule.chain).or_default().add_rule(rule.exprs);
        }
        let wanted = layout::chains_with_rules(table, masquerades);
        let is_ours = |chain: &str| {
            let is_known = shapes.contains_key(chain) || wanted.contains_key(chain);
            is_known || chain.starts_with(MASQUERADE) || chain.starts_with(LATER)
        };
        let without_rules = bases.iter().filter(|base| !found.contains_key(&base.name)).count();
        let chains = found.keys().filter(|chain| is_ours(chain)).count() + without_rules;
        let sets = Set::ALL.iter().filter(|set| set.table() == table).count();
        // A chain without rules is not among these, so the table says whether there is more.
        if chains + sets < usize::try_from(info.used).unwrap_or(usize::MAX) {
            altered.foreign = self.foreign(&own, is_ours)?;
        }
        let is_other = |(chain, wanted): &(String, ChainState)| {
            let agree =
                |found: &ChainState| found.has_rules(&wanted.rules, &own, &layout::set_keys);
            !found.get(chain).is_some_and(agree)
        };
        let others = wanted.into_iter().filter(is_other);
        altered.rules = cni::order::gather(others.map(|(chain, _)| chain));
        Ok(Some(altered))
    }

    fn get(&mut self, set: Set, key: &[Field]) -> Result<Option<ObservedElement>, TablesError> {
        let table = table_ref(set.table());
        let found =
            self.socket.ask().get_element(&table, set.name(), &key_of(key)).map_err(refused)?;
        Ok(found.map(|element| found_element(set, key.to_vec(), element)))
    }

    fn list(&mut self, set: Set) -> Result<Vec<ObservedElement>, TablesError> {
        let table = table_ref(set.table());
        let types = layout::key_types(set);
        let elements = self.socket.ask().elements(&table, set.name()).map_err(refused)?;
        let known = elements.into_iter().filter_map(|element| {
            let key = element.key.values(&types)?;
            let key = key.into_iter().map(field_of).collect::<Option<Vec<Field>>>()?;
            Some(found_element(set, key, element))
        });
        Ok(known.collect())
    }

    fn jumps_to(&mut self, chain: &str) -> Result<Option<usize>, TablesError> {
        let found = self.socket.ask().get_chain(&table_ref(Table::Inet), chain).map_err(refused)?;
        Ok(found.map(|chain| jumps(chain.used)))
    }

    fn masquerade_chains(&mut self) -> Result<Vec<(String, usize)>, TablesError> {
        let table = table_ref(Table::Inet);
        let chains = self.socket.ask().chains(Some(table.family)).map_err(refused)?;
        let own = chains
            .into_iter()
            .filter(|chain| chain.table == table && chain.name.starts_with(MASQUERADE));
        Ok(own.map(|chain| (chain.name, jumps(chain.used))).collect())
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), TablesError> {
        let mut misplaced = BTreeMap::new();
        for change in changes {
            if let Change::Layout(table) = change {
                misplaced.insert(*table, self.prepare(*table)?);
            }
        }
        self.send(&batch(changes, &misplaced))
    }

    fn delete_tables(&mut self) -> Result<(), TablesError> {
        let mut batch = Batch::new();
        for table in Table::ALL {
            let table = table_ref(*table);
            if self.socket.ask().get_table(&table).map_err(refused)?.is_some() {
                batch.delete_table(&table);
            }
        }
        match self.socket.commit(&batch) {
            Err(error) if !error.is_not_found() => Err(TablesError {
                operation: "delete our tables".to_owned(),
                absent: false,
                source: Box::new(error),
            }),
            _ => Ok(()),
        }
    }
}

fn not_changed(error: NftError) -> TablesError {
    TablesError::change("the packet filter", error)
}

fn refused(error: NetlinkError) -> TablesError {
    TablesError::read("the packet filter", error)
}

/// The kernel counts a chain's rules together with the jumps to it.
fn jumps(used: u32) -> usize {
    usize::try_from(used).unwrap_or(usize::MAX).saturating_sub(MASQUERADE_RULES)
}

/// Encodes changes for nftables. Consecutive elements of one set share a message. `misplaced` are
/// the chains at other hooks of tables that are laid out.
fn batch(changes: &[Change], misplaced: &BTreeMap<Table, Vec<String>>) -> Batch {
    let mut batch = Batch::new();
    let mut rest = changes;
    while let Some((first, others)) = rest.split_first() {
        rest = others;
        match first {
            Change::Layout(table) => {
                let misplaced = misplaced.get(table).map(Vec::as_slice).unwrap_or_default();
                layout::lay_out(&mut batch, *table, misplaced);
            }
            Change::AddMasquerade(outbound) => layout::add_masquerade(&mut batch, outbound),
            Change::DeleteChain { table, chain } => {
                let table = table_ref(*table);
                batch.flush_chain(&table, chain.as_str());
                batch.delete_chain(&table, chain.as_str());
            }
            Change::AddElement { element, comment } => {
                let set = element.set;
                let mut elements = vec![new_element(element, comment)];
                while let Some((Change::AddElement { element, comment }, others)) =
                    rest.split_first()
                    && element.set == set
                {
                    elements.push(new_element(element, comment));
                    rest = others;
                }
                batch.create_elements(&table_ref(set.table()), set.name(), elements);
            }
            Change::DeleteElement { set, key } => {
                let mut elements = vec![nft::Element::new(key_of(key))];
                while let Some((Change::DeleteElement { set: same, key }, others)) =
                    rest.split_first()
                    && same == set
                {
                    elements.push(nft::Element::new(key_of(key)));
                    rest = others;
                }
                batch.delete_elements(&table_ref(set.table()), set.name(), elements);
            }
        }
    }
    batch
}

fn new_element(element: &Element, comment: &str) -> nft::Element {
    let key = key_of(&element.key);
    let made = match (&element.value, element.chain()) {
        (Value::Endpoint { address, port }, _) => {
            let to = Key::of([nft::Value::from(*address), nft::Value::Port(*port)]);
            nft::Element::value(key, to)
        }
        (_, Some(chain)) => nft::Element::verdict(key, Verdict::Jump(chain)),
        (_, None) => nft::Element::new(key),
    };
    made.comment(comment)
}

fn key_of(key: &[Field]) -> Key {
    Key::of(key.iter().map(|field| match field {
        Field::Ifname(name) => nft::Value::IfName(name.clone()),
        Field::Address(address) => nft::Value::from(*address),
        Field::Protocol(protocol) => nft::Value::Protocol(protocol.number()),
        Field::Port(port) => nft::Value::Port(*port),
        Field::Mac(mac) => nft::Value::Mac(kernel::MacAddr(*mac)),
    }))
}

fn field_of(value: nft::Value) -> Option<Field> {
    Some(match value {
        nft::Value::IfName(name) => Field::Ifname(name),
        nft::Value::Ipv4(address) => Field::Address(address.into()),
        nft::Value::Ipv6(address) => Field::Address(address.into()),
        nft::Value::Protocol(number) => Field::Protocol(Protocol::from_number(number)?),
        nft::Value::Port(port) => Field::Port(port),
        nft::Value::Mac(mac) => Field::Mac(mac.0),
        _ => return None,
    })
}

fn found_element(set: Set, key: Vec<Field>, element: nft::Element) -> ObservedElement {
    let value = match (element.data, set.maps()) {
        (None, _) => ObservedValue::Nothing,
        (Some(ElementData::Verdict(Verdict::Jump(chain))), _) => ObservedValue::Jump(chain),
        (Some(ElementData::Value(to)), Maps::Endpoint(address)) => {
            let values = to.values(&layout::endpoint_types(address)).unwrap_or_default();
            match values.as_slice() {
                [nft::Value::Ipv4(address), nft::Value::Port(port)] => {
                    ObservedValue::Endpoint((*address).into(), *port)
                }
                [nft::Value::Ipv6(address), nft::Value::Port(port)] => {
                    ObservedValue::Endpoint((*address).into(), *port)
                }
                _ => ObservedValue::Foreign,
            }
        }
        (Some(_), _) => ObservedValue::Foreign,
    };
    ObservedElement { key, value, comment: element.comment.unwrap_or_default() }
}
