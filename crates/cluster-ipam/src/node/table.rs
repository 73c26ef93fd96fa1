//! The node's knowledge, in memory: its blocks, and the holder of each address. It decides and does
//! no I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use node_api::Refusal;
use node_api::ipam::Owner;

use super::LostAddress;
use super::claim::Lists;
use crate::local::{HeldFile, HeldName};
use crate::network::{BLOCKS_A_NODE, Range, address_of, bounds, number};
use crate::record::{BlockId, Holder, SpaceRecord};
use crate::store::Revision;

/// How long the number of nodes stays valid.
pub(super) const NODES_KNOWN: Duration = Duration::from_secs(300);
/// How long a want counts after it was first seen.
const WANT_TIME: Duration = Duration::from_secs(30);

/// A block of this node.
#[derive(Debug, Clone, Default)]
pub(super) struct Block {
    pub(super) epoch: u64,
    pub(super) returning: bool,
    /// Of its record; `None` when it is not known.
    pub(super) revision: Option<Revision>,
    /// Whether the record is outdated.
    pub(super) dirty: bool,
    /// How many of its addresses are in use.
    pub(super) used: u128,
    /// Since when none is in use.
    pub(super) empty_since: Duration,
    /// The number after the last one assigned: an address rests as long as possible.
    pub(super) next: u128,
    pub(super) kept: BTreeMap<IpAddr, String>,
}

impl Block {
    pub(super) fn new(now: Duration) -> Self {
        Block { empty_since: now, ..Block::default() }
    }
}

/// The holder of an address.
#[derive(Debug, Clone)]
pub(super) struct AddressHolder {
    pub(super) network: String,
    pub(super) owner: Owner,
    /// Whether it is on the disk.
    pub(super) written: bool,
    pub(super) lost: bool,
    /// The record by which its pod keeps it.
    pub(super) sticky: Option<String>,
}

impl AddressHolder {
    pub(super) fn new(network: &str, owner: &Owner) -> Self {
        let (network, owner) = (network.to_owned(), owner.clone());
        AddressHolder { network, owner, written: false, lost: false, sticky: None }
    }

    pub(super) fn read(file: HeldFile) -> Self {
        let HeldFile { network, owner, lost, sticky, .. } = file;
        AddressHolder { network, owner, written: true, lost, sticky }
    }

    pub(super) fn holder(&self) -> Holder {
        Holder {
            network: self.network.clone(),
            container: self.owner.container.clone(),
            ifname: self.owner.ifname.clone(),
            pod: self.owner.pod.clone(),
        }
    }
}

impl fmt::Display for AddressHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Owner { container, ifname, pod, .. } = &self.owner;
        match pod {
            Some(pod) => write!(f, "pod {}/{} ({ifname})", pod.namespace, pod.name),
            None if container.is_empty() => f.write_str("a container whose file is garbled"),
            None => write!(f, "container {container} ({ifname})"),
        }
    }
}

/// Why no address is assigned.
#[derive(Debug)]
pub(super) enum Lack {
    /// The lease does not hold, or the disk's contents were not compared yet.
    Lease,
    /// No block of this node has a free one.
    Block,
    /// The requested one has an owner.
    Taken(String),
}

/// Running claims of blocks of one range.
#[derive(Debug, Default)]
pub(super) struct Claims {
    pub(super) running: u128,
    pub(super) waiting: u128,
    /// How many have ended.
    pub(super) ended: u64,
    /// Which of them failed last, and why.
    pub(super) failed: Option<(u64, Refusal)>,
}

/// Everything.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) identity: String,
    pub(super) epoch: u64,
    pub(super) beat: u64,
    /// Whether what is known of our blocks is valid.
    pub(super) trusted: bool,
    /// Until when the lease holds.
    pub(super) until: Option<Duration>,
    /// Of the node's record.
    pub(super) revision: Option<Revision>,
    pub(super) blocks: BTreeMap<BlockId, Block>,
    /// The addresses by which other nodes reach this one.
    pub(super) addresses: Vec<IpAddr>,
    held: BTreeMap<String, BTreeMap<IpAddr, (String, AddressHolder)>>,
    owners: BTreeMap<String, BTreeSet<(String, IpAddr)>>,
    pub(super) busy: BTreeSet<String>,
    pub(super) spaces: BTreeMap<String, SpaceRecord>,
    pub(super) claims: BTreeMap<(String, Range), Claims>,
    pub(super) claiming: BTreeSet<BlockId>,
    /// The lists of blocks that run, by space.
    pub(super) lists: BTreeMap<String, Lists>,
    /// The empty blocks that other nodes did not give back when this one needed one of a range.
    pub(super) kept_back: BTreeMap<(String, Range), BTreeSet<(IpNet, String)>>,
    /// Whether a claim was not answered: the block may be ours.
    pub(super) unsure: bool,
    pub(super) notices: Vec<String>,
    /// The owners that were detached before our blocks were compared.
    pub(super) released: BTreeSet<String>,
    /// Whether an address that a pod keeps was freed.
    pub(super) freed: bool,
    /// Kept addresses whose keepers' records are gone, and since when.
    pub(super) unkept: BTreeMap<(String, IpAddr), Duration>,
    /// Another machine with our name: its revision, and since when it is seen unchanged.
    pub(super) stranger: Option<(Revision, Duration)>,
    /// The processes that wrote the record before this one, on this disk and in this boot.
    pub(super) runs_before: Vec<String>,
    /// The process whose record this one found before it wrote its own for the first time.
    pub(super) run_found: Option<String>,
    /// Whether this process wrote the node's record; `tried` is the last beat whose outcome is
    /// unknown.
    pub(super) renewed: bool,
    pub(super) tried: u64,
    /// Our claim in the node's record to be the node, and since when.
    pub(super) claimed: Option<(Revision, Duration)>,
    /// When the node's record was last checked.
    pub(super) watched: Option<Duration>,
    /// How often the store had gone back when this was last noticed.
    pub(super) went_back: u64,
    /// Until when no blocks are taken: other nodes must announce theirs first.
    pub(super) settling: Option<Duration>,
    /// Whether the store was restored and our blocks were not compared since.
    pub(super) restored: bool,
    /// The number of nodes, and when it was counted.
    pub(super) nodes: Option<(usize, Duration)>,
    /// How many addresses networks may assign, by space and subnet.
    capacity: BTreeMap<(String, IpNet), u128>,
    /// When a space was last checked for wants.
    pub(super) looked: BTreeMap<String, Duration>,
    /// The wants seen: the node, its turn, and since when.
    wants: BTreeMap<(String, IpNet), (String, u64, Duration)>,
}

impl Table {
    pub(super) fn new(identity: &str) -> Self {
        Table { identity: identity.to_owned(), ..Table::default() }
    }

    pub(super) fn lease_holds(&self, now: Duration) -> bool {
        self.trusted && self.until.is_some_and(|until| now < until)
    }

    /// Makes sure that nothing is assigned before our blocks are compared.
    pub(super) fn distrust(&mut self) {
        (self.trusted, self.until, self.revision) = (false, None, None);
    }

    pub(super) fn nodes_or_one(&self) -> usize {
        self.nodes.map_or(1, |(nodes, _)| nodes)
    }

    /// Records how many addresses a range may assign.
    pub(super) fn note_capacity(&mut self, space: &str, range: &Range) {
        self.capacity.insert((space.to_owned(), range.subnet()), range.capacity());
    }

    /// Whether a block's subnet has fewer addresses than each node needs to keep an empty block.
    pub(super) fn is_scarce(&self, id: &BlockId, nodes: usize) -> bool {
        let enough = nodes.saturating_mul(BLOCKS_A_NODE);
        let here = |(space, subnet): &(String, IpNet)| {
            *space == id.space && subnet.contains(&id.block.addr())
        };
        let known = self.capacity.iter().filter(|(of, _)| here(of)).map(|(_, count)| *count).max();
        let count = known.or_else(|| {
            let part = self.spaces.get(&id.space)?.part_of(id.block.addr())?;
            let (low, high) = bounds(&part);
            Some((high - low).saturating_add(1))
        });
        // A daemon that has just started, and was not asked yet, does not know.
        count.is_some_and(|count| count < u128::try_from(enough).unwrap_or(u128::MAX))
    }

    /// Whether another node wants a block.
    pub(super) fn is_wanted(&self, id: &BlockId, now: Duration) -> bool {
        self.wants.iter().any(|((space, subnet), (_, _, since))| {
            *space == id.space
                && (subnet.contains(&id.block) || id.block.contains(subnet))
                && now.saturating_sub(*since) < WANT_TIME
        })
    }

    /// Records the wants in a space's record.
    pub(super) fn note_wants(&mut self, space: &str, record: &SpaceRecord, now: Duration) {
        self.looked.insert(space.to_owned(), now);
        for want in &record.wanted {
            let of = (space.to_owned(), want.subnet);
            let seen = self.wants.get(&of);
            if seen.is_none_or(|(node, turn, _)| (node, *turn) != (&want.node, want.turn)) {
                self.wants.insert(of, (want.node.clone(), want.turn, now));
            }
        }
    }

    /// Returns the spaces in which this node has empty blocks.
    pub(super) fn spaces_with_empty(&self) -> BTreeSet<String> {
        let empty = self.blocks.iter().filter(|(_, block)| self.is_empty(block));
        empty.map(|(id, _)| id.space.clone()).collect()
    }

    /// Whether no address of a block that could be returned is in use or kept.
    pub(super) fn is_empty(&self, block: &Block) -> bool {
        block.used == 0 && block.kept.is_empty() && self.usable(block)
    }

    fn usable(&self, block: &Block) -> bool {
        block.epoch == self.epoch && !block.returning
    }

    /// Says whether a taken address may be returned to the caller.
    pub(super) fn may_give(&self, name: &HeldName, now: Duration) -> bool {
        let of = self.held.get(&name.space).and_then(|held| held.get(&name.address));
        if of.is_some_and(|(_, held)| held.sticky.is_some() && !held.lost) {
            return self.lease_holds(now);
        }
        let block = self.block_of(&name.space, name.address).and_then(|id| self.blocks.get(&id));
        self.lease_holds(now) && block.is_some_and(|block| self.usable(block))
    }

    /// Returns the block of this node that contains an address.
    pub(super) fn block_of(&self, space: &str, address: IpAddr) -> Option<BlockId> {
        // Blocks of a space do not overlap: it is the last one, of any length, that begins before
        // the address.
        let most = IpNet::from(address);
        let upto = BlockId { space: space.to_owned(), block: most };
        let before = self.blocks.range(..=upto).next_back().map(|(id, _)| id);
        before.filter(|id| id.space == space && id.block.contains(&address)).cloned()
    }

    fn blocks_of<'t>(
        &'t self,
        space: &'t str,
        range: &'t Range,
    ) -> impl Iterator<Item = (&'t BlockId, &'t Block)> + 't {
        let (first, last) = range.bounds();
        self.blocks.iter().filter(move |(id, block)| {
            let (low, high) = id.bounds();
            id.space == space
                && range.subnet().addr().is_ipv4() == id.block.addr().is_ipv4()
                && low <= last
                && first <= high
                && self.usable(block)
        })
    }

    /// Finds a free address of a block, starting after the last one assigned.
    fn free(&self, id: &BlockId, block: &Block, range: &Range) -> Option<IpAddr> {
        let (low, high) = id.bounds();
        if high - low < block.used {
            return None;
        }
        let held = self.held.get(&id.space);
        let look = |from: u128, to: u128| {
            let mut at = from;
            loop {
                let number = range.next(at).filter(|number| *number <= to)?;
                let address = address_of(range.family(), number);
                let taken = held.is_some_and(|held| held.contains_key(&address))
                    || block.kept.contains_key(&address);
                if !taken {
                    return Some(address);
                }
                at = number.checked_add(1)?;
            }
        };
        let begin = block.next.clamp(low, high);
        look(begin, high).or_else(|| look(low, begin))
    }

    /// Says whether an address could be assigned.
    pub(super) fn has_room(&self, space: &str, range: &Range, now: Duration) -> bool {
        self.lease_holds(now)
            && self.blocks_of(space, range).any(|(id, block)| self.free(id, block, range).is_some())
    }

    /// Takes an address.
    pub(super) fn take(
        &mut self,
        space: &str,
        range: &Range,
        wanted: Option<IpAddr>,
        hash: &str,
        held: AddressHolder,
        now: Duration,
    ) -> Result<IpAddr, Lack> {
        if let Some(wanted) = wanted
            && let Some((_, other)) = self.held.get(space).and_then(|held| held.get(&wanted))
        {
            return Err(Lack::Taken(other.to_string()));
        }
        if !self.lease_holds(now) {
            return Err(Lack::Lease);
        }
        let found = match wanted {
            None => {
                let mut of = self.blocks_of(space, range);
                of.find_map(|(id, block)| {
                    self.free(id, block, range).map(|address| (id.clone(), address))
                })
            }
            Some(wanted) => {
                let id = self.block_of(space, wanted);
                let id =
                    id.filter(|id| self.blocks.get(id).is_some_and(|block| self.usable(block)));
                if let Some(keeper) = id
                    .as_ref()
                    .and_then(|id| self.blocks.get(id))
                    .and_then(|block| block.kept.get(&wanted))
                {
                    return Err(Lack::Taken(format!("a pod that keeps it ({keeper})")));
                }
                id.map(|id| (id, wanted))
            }
        };
        let Some((id, address)) = found else { return Err(Lack::Block) };
        let name = HeldName { space: id.space.clone(), address, hash: hash.to_owned() };
        self.insert(&name, held);
        if let Some(block) = self.blocks.get_mut(&id) {
            block.next = number(address).saturating_add(1);
        }
        Ok(address)
    }

    /// Records the holder of an address.
    pub(super) fn insert(&mut self, name: &HeldName, held: AddressHolder) {
        let of = self.held.entry(name.space.clone()).or_default();
        let before = of.insert(name.address, (name.hash.clone(), held));
        let id = self.block_of(&name.space, name.address);
        if let Some(block) = id.and_then(|id| self.blocks.get_mut(&id)) {
            block.dirty = true;
            if before.is_none() {
                block.used += 1;
            }
        }
        let address = (name.space.clone(), name.address);
        self.owners.entry(name.hash.clone()).or_default().insert(address);
    }

    /// Records that an address is on the disk.
    pub(super) fn written(&mut self, name: &HeldName) {
        let of = self.held.get_mut(&name.space).and_then(|held| held.get_mut(&name.address));
        if let Some((_, held)) = of {
            held.written = true;
        }
    }

    /// Frees an address.
    pub(super) fn remove(&mut self, name: &HeldName, now: Duration) {
        if let Some(addresses) = self.owners.get_mut(&name.hash) {
            addresses.remove(&(name.space.clone(), name.address));
            if addresses.is_empty() {
                self.owners.remove(&name.hash);
            }
        }
        let Some(of) = self.held.get_mut(&name.space) else { return };
        if of.get(&name.address).is_none_or(|(hash, _)| *hash != name.hash) {
            return;
        }
        let gone = of.remove(&name.address);
        self.freed |= gone.is_some_and(|(_, held)| held.sticky.is_some());
        let id = self.block_of(&name.space, name.address);
        if let Some(block) = id.and_then(|id| self.blocks.get_mut(&id)) {
            block.dirty = true;
            block.used = block.used.saturating_sub(1);
            block.empty_since = now;
        }
    }

    /// Counts again after blocks were added.
    pub(super) fn recount(&mut self, id: &BlockId) {
        let used = self.held_in(id).count();
        if let Some(block) = self.blocks.get_mut(id) {
            block.used = u128::try_from(used).unwrap_or(u128::MAX);
            block.dirty = true;
        }
    }

    pub(super) fn dirty_all(&mut self) {
        for id in self.blocks.keys().cloned().collect::<Vec<_>>() {
            self.recount(&id);
        }
    }

    /// Returns the addresses of a block that are held, each with its holder.
    pub(super) fn held_in(
        &self,
        id: &BlockId,
    ) -> impl Iterator<Item = (IpAddr, &(String, AddressHolder))> + '_ {
        let (low, high) = (id.block.network(), id.block.broadcast());
        let of = self.held.get(&id.space);
        of.into_iter().flat_map(move |held| held.range(low..=high)).map(|(a, held)| (*a, held))
    }

    /// Returns the holders to write into a block's record.
    pub(super) fn holders_in(&self, id: &BlockId) -> BTreeMap<IpAddr, Holder> {
        self.held_in(id).map(|(address, (_, held))| (address, held.holder())).collect()
    }

    /// Records whether the addresses of a block may have another owner as well.
    pub(super) fn set_lost(&mut self, id: &BlockId, lost: bool) -> Vec<(HeldName, AddressHolder)> {
        let names: Vec<IpAddr> = self.held_in(id).map(|(address, _)| address).collect();
        let Some(of) = self.held.get_mut(&id.space) else { return Vec::new() };
        let mut changed = Vec::new();
        for address in names {
            let Some((hash, held)) = of.get_mut(&address) else { continue };
            // What a pod keeps belongs to it by a record of its own.
            if held.sticky.is_none() && held.lost != lost {
                held.lost = lost;
                let name = HeldName { space: id.space.clone(), address, hash: hash.clone() };
                changed.push((name, held.clone()));
            }
        }
        changed
    }

    /// Records it for one address.
    pub(super) fn set_lost_one(
        &mut self,
        name: &HeldName,
        lost: bool,
    ) -> Vec<(HeldName, AddressHolder)> {
        let of = self.held.get_mut(&name.space).and_then(|held| held.get_mut(&name.address));
        let Some((_, held)) = of else { return Vec::new() };
        if held.lost == lost {
            return Vec::new();
        }
        held.lost = lost;
        let changed = vec![(name.clone(), held.clone())];
        if lost {
            self.notices.push(format!(
                "the address {} that a pod keeps now belongs to another: this node was given up while it was away",
                name.address
            ));
        }
        changed
    }

    /// Returns the addresses that pods keep and that are here, with their records.
    pub(super) fn sticky(&self) -> Vec<(HeldName, AddressHolder, String)> {
        let all = self.held.iter().flat_map(|(space, held)| {
            held.iter().map(move |(address, (hash, held))| {
                let name = HeldName { space: space.clone(), address: *address, hash: hash.clone() };
                (name, held)
            })
        });
        all.filter_map(|(name, held)| held.sticky.clone().map(|key| (name, held.clone(), key)))
            .collect()
    }

    pub(super) fn is_lost(&self, name: &HeldName) -> bool {
        let of = self.held.get(&name.space).and_then(|held| held.get(&name.address));
        of.is_some_and(|(_, held)| held.lost)
    }

    pub(super) fn lost(&self) -> Vec<LostAddress> {
        let all = self.held.iter().flat_map(|(space, held)| {
            held.iter().map(move |(address, (_, held))| (space, *address, held))
        });
        all.filter(|(_, _, held)| held.lost)
            .map(|(space, address, held)| LostAddress {
                space: space.clone(),
                address,
                owner: held.owner.clone(),
            })
            .collect()
    }

    /// Whether an address has a holder.
    pub(super) fn is_held(&self, space: &str, address: IpAddr) -> bool {
        self.held.get(space).is_some_and(|held| held.contains_key(&address))
    }

    /// The addresses of an owner.
    pub(super) fn of_owner(&self, hash: &str) -> Vec<HeldName> {
        let of = self.owners.get(hash);
        of.into_iter()
            .flatten()
            .map(|(space, address)| HeldName {
                space: space.clone(),
                address: *address,
                hash: hash.to_owned(),
            })
            .collect()
    }

    /// Returns the owners of a network's addresses. Owners with a garbled file may belong to
    /// another network.
    pub(super) fn owners_of(&self, network: &str) -> BTreeSet<String> {
        let all = self.held.values().flat_map(BTreeMap::values);
        all.filter(|(_, held)| held.network == network && held.written)
            .map(|(hash, _)| hash.clone())
            .collect()
    }
}
