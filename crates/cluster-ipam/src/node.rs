//! A node: it takes blocks of addresses from the store, and assigns the addresses of its blocks.
//!
//! # What keeps an address from being given twice
//!
//! 1. A block has one record, written by compare-and-swap: it belongs to one node or to none. All
//!    nodes cut a space alike ([`SpaceRecord`](crate::record::SpaceRecord)).
//! 2. Within a block only its node assigns addresses, under one lock, and an address is on the
//!    node's disk before the node returns it.
//! 3. A node assigns addresses only while it knows, by a clock that also counts while the machine
//!    sleeps, that its lease holds: for the lease's length from *before* it sent the renewal that
//!    was answered.
//! 4. Other nodes may take a node's blocks only if three things hold: the node is known to be gone;
//!    its lease was seen unchanged for longer than its length, by the observer's clock
//!    ([`Reclaimer`](crate::Reclaimer)); its record was fenced by compare-and-swap.
//! 5. A node whose record was fenced, or that finds none, comes back with another epoch. It uses a
//!    block only once the block's record shows that epoch too. It reports the addresses that
//!    containers have in blocks it has lost, and requests them again if the block belongs to no
//!    node.
//! 6. A block that is being returned is recorded on the disk before the store is asked to delete
//!    its record, and is not used again after any answer.
//!
//! What the node has on its disk decides. The records name the holders of addresses only for
//! administrators, and for a node that lost its disk.
//!
//! Nothing here reads a clock or the environment: [`Clock`] and [`Settings`] are passed in.
//! Messages for the operator are kept for [`Node::take_notices`].
//!
//! # Why blocks
//!
//! A store that is asked for each address makes each ADD as slow as the store, and stops ADDs while
//! the store is away. So a node leases blocks. To take one it asks the store, by compare-and-swap.
//! To give an address of it, the node only writes a file: while a block has room and the lease
//! holds, ADD asks no other machine, and DEL never does. The store has one lease for each node and
//! not for each block, so one write renews all.

mod claim;
mod lease;
mod sticky;
mod table;
mod upkeep;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cni::code;
use ipnet::IpNet;
use node_api::Refusal;
use node_api::ipam::{AssignRequest, AssignedAddress, CollectRequest, HeldRequest, Owner};
use state::FileError;
use thiserror::Error;

pub(crate) use self::lease::{lease_of, surely_over};
use self::table::{Block, Lack, Table};
use crate::local::{BlockFile, Files, HeldFile, HeldName, Hook, NodeFile};
use crate::network::{Network, Range};
use crate::record::BlockId;
use crate::store::Store;

/// The code of refusals that concern addresses (docs/errors.md).
pub const ADDRESS: u32 = 102;
/// The code of refusals because something could not be written (docs/errors.md).
pub const STATE: u32 = 105;
/// How often ADD looks for an address before it gives up: it retries only when what stood in the
/// way is gone.
const ATTEMPTS: u32 = 64;

/// A clock that never goes back and keeps counting while the machine sleeps (`CLOCK_BOOTTIME`).
pub trait Clock: Send + Sync + fmt::Debug {
    /// Returns how long it has run.
    fn now(&self) -> Duration;

    /// Waits for other nodes, which read the store now and then; the thread must be one that may
    /// block.
    fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// A node's parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Its name, unique among the nodes.
    pub node: String,
    /// The boot's identity: times of another boot's clock mean nothing.
    pub boot: String,
    /// Text that no other machine has; it is used if the disk contains none.
    pub identity: String,
    /// Text that no other process has.
    pub run: String,
    /// How long the lease holds: how long addresses can be assigned from the node's blocks while
    /// the store is unreachable.
    pub lease: Duration,
    /// How long a block stays empty before it is returned, unless addresses are scarce.
    pub idle: Duration,
}

impl Settings {
    /// Creates the default settings.
    #[must_use]
    pub fn new(node: &str, boot: &str, identity: &str) -> Self {
        Settings {
            node: node.to_owned(),
            boot: boot.to_owned(),
            identity: identity.to_owned(),
            run: format!("{boot}/{identity}"),
            lease: Duration::from_secs(3600),
            idle: Duration::from_secs(600),
        }
    }
}

/// The node cannot start.
#[derive(Debug, Error)]
#[error("use what the node has on its disk")]
pub struct OpenError(#[from] FileError);

/// An address of a container that may have another owner as well: its block was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostAddress {
    /// The space.
    pub space: String,
    /// The address.
    pub address: IpAddr,
    /// The owner here.
    pub owner: Owner,
}

/// A node. Several threads may call all its functions at once.
pub struct Node {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    files: Files,
    settings: Settings,
    table: Mutex<Table>,
    changed: Condvar,
    /// Held while the lease is renewed and our blocks are compared.
    renewing: Mutex<()>,
    /// Held while records are updated.
    tending: Mutex<()>,
    seed: u64,
    drawn: AtomicU64,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Node {
    /// Opens what the node has on its disk; does not contact the store.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(
        dir: &Path,
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        settings: Settings,
    ) -> Result<Self, OpenError> {
        Self::open_with(dir, store, clock, settings, None)
    }

    /// Does what [`Node::open`] does, and calls `hook` before each write of a file: for tests that
    /// end there.
    ///
    /// # Errors
    /// [`OpenError`].
    #[doc(hidden)]
    pub fn open_with(
        dir: &Path,
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        settings: Settings,
        hook: Option<Hook>,
    ) -> Result<Self, OpenError> {
        let files = Files::open(dir, hook)?;
        let found = files.read()?;
        let mut table = Table::new(&settings.identity);
        table.notices = found.notices;
        let now = clock.now();
        match found.node.filter(|file| !file.identity.is_empty()) {
            Some(file) => {
                if let Some(moment) = &file.moment {
                    store.remember(moment);
                }
                if file.boot == settings.boot {
                    table.runs_before = vec![file.run.clone(), file.run_before.clone()];
                    table.runs_before.retain(|run| !run.is_empty());
                }
                // What the disk says from this boot is valid: no other node could take a block
                // while the lease holds.
                if file.boot == settings.boot && now < file.until {
                    table.trusted = true;
                    // A shorter lease applies at once.
                    table.until = Some(file.until.min(now + settings.lease));
                }
                (table.identity, table.epoch) = (file.identity, file.epoch);
            }
            None => files.write_node(&NodeFile {
                identity: settings.identity.clone(),
                ..NodeFile::default()
            })?,
        }
        for (id, file) in found.blocks {
            let block = Block {
                epoch: file.epoch,
                returning: file.returning,
                kept: file.kept,
                ..Block::new(now)
            };
            table.blocks.insert(id, block);
        }
        let mut dead = 0_usize;
        for (name, file) in found.held {
            // No container outlives a boot.
            if !file.boot.is_empty() && file.boot != settings.boot {
                files.remove_held(&name)?;
                dead += 1;
                continue;
            }
            table.insert(&name, table::AddressHolder::read(file));
        }
        if 0 < dead {
            table
                .notices
                .push(format!("{dead} addresses of containers of an earlier boot are free"));
        }
        table.dirty_all();
        table.went_back = store.went_back();
        let hash = cni::owner::sha512_hex(format!("{}\0{}", settings.node, table.identity), 16);
        let seed = u64::from_str_radix(&hash, 16).unwrap_or_default();
        Ok(Node {
            store,
            clock,
            files,
            settings,
            table: Mutex::new(table),
            changed: Condvar::new(),
            renewing: Mutex::new(()),
            tending: Mutex::new(()),
            seed,
            drawn: AtomicU64::new(0),
        })
    }

    /// Returns its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.settings.node
    }

    /// Takes the addresses by which other nodes reach this one; the records of its blocks have them
    /// soon.
    pub fn set_addresses(&self, addresses: &[IpAddr]) {
        let mut table = self.lock();
        if table.addresses != addresses {
            table.addresses = addresses.to_vec();
            table.dirty_all();
        }
    }

    /// Returns the messages for the operator, each once.
    pub fn take_notices(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().notices)
    }

    /// Returns the addresses of containers whose block was lost.
    pub fn lost(&self) -> Vec<LostAddress> {
        self.lock().lost()
    }

    /// Assigns one address of each range; the same container and interface get the same addresses
    /// again.
    ///
    /// # Errors
    /// A [`Refusal`]; then nothing is assigned that was not before.
    pub fn assign(&self, ask: &AssignRequest) -> Result<Vec<AssignedAddress>, Refusal> {
        let network = Network::new(ask.network.clone()).map_err(|error| bad(&error))?;
        check_owner(&ask.owner)?;
        let wanted = wanted_of(&network, &ask.wanted)?;
        let hash = ask.owner.hash();
        let _turn = self.turn(&hash);
        let mut made = Vec::new();
        let assigned = self.assign_all(&network, &wanted, &ask.owner, &hash, &mut made);
        let assigned = assigned.and_then(|assigned| {
            // The disk may have been slow, and the store's answer may have been outdated.
            self.look_back();
            let table = self.lock();
            if made.iter().all(|name| table.may_give(name, self.clock.now())) {
                return Ok(assigned);
            }
            Err(Refusal::for_now("this node's lease ended while an address was being recorded"))
        });
        if assigned.is_err() {
            for name in made {
                // If it stays, the next ADD of the same owner gets it, and DEL removes it.
                if self.files.remove_held(&name).is_ok() {
                    self.lock().remove(&name, self.clock.now());
                }
            }
        }
        self.changed.notify_all();
        assigned
    }

    fn assign_all(
        &self,
        network: &Network,
        wanted: &[Option<IpAddr>],
        owner: &Owner,
        hash: &str,
        made: &mut Vec<HeldName>,
    ) -> Result<Vec<AssignedAddress>, Refusal> {
        let mut assigned: Vec<AssignedAddress> = Vec::new();
        for (range, wanted) in network.ranges().iter().zip(wanted) {
            let space = network.space(range);
            let used: Vec<IpAddr> = assigned.iter().map(|one| one.address.addr()).collect();
            let address = match self.kept_before(&space, range, *wanted, hash, &used)? {
                Some(address) => address,
                None if network.spec().sticky => {
                    self.assign_sticky(network, range, *wanted, owner, made)?
                }
                None => self.assign_one(network, range, *wanted, owner, hash, made)?,
            };
            let prefix = range.subnet().prefix_len();
            let address = IpNet::new(address, prefix).map_err(|error| {
                Refusal::new(code::INTERNAL, format!("{address}/{prefix}: {error}"))
            })?;
            assigned.push(AssignedAddress { address, gateway: range.gateway() });
        }
        Ok(assigned)
    }

    /// What an earlier ADD assigned.
    fn kept_before(
        &self,
        space: &str,
        range: &Range,
        wanted: Option<IpAddr>,
        hash: &str,
        used: &[IpAddr],
    ) -> Result<Option<IpAddr>, Refusal> {
        let mut table = self.lock();
        let found = table.of_owner(hash).into_iter().find(|name| {
            name.space == space
                && range.subnet().contains(&name.address)
                && !used.contains(&name.address)
        });
        let Some(name) = found else { return Ok(None) };
        if table.is_lost(&name) {
            // It is not returned again.
            self.files.remove_held(&name).map_err(|error| unwritten(&error))?;
            table.remove(&name, self.clock.now());
            return Ok(None);
        }
        match wanted {
            Some(wanted) if wanted != name.address => Err(Refusal::new(
                ADDRESS,
                format!("{wanted} is wanted by an interface that has {} already", name.address),
            )
            .with_details("DEL comes before an ADD that asks for something else")),
            _ => Ok(Some(name.address)),
        }
    }

    fn assign_one(
        &self,
        network: &Network,
        range: &Range,
        wanted: Option<IpAddr>,
        owner: &Owner,
        hash: &str,
        made: &mut Vec<HeldName>,
    ) -> Result<IpAddr, Refusal> {
        let space = network.space(range);
        self.lock().note_capacity(&space, range);
        for _ in 0..ATTEMPTS {
            let taken = {
                let mut table = self.lock();
                let held = table::AddressHolder::new(network.name(), owner);
                table.take(&space, range, wanted, hash, held, self.clock.now())
            };
            match taken {
                Ok(address) => {
                    let name = HeldName { space: space.clone(), address, hash: hash.to_owned() };
                    let file = HeldFile {
                        boot: self.settings.boot.clone(),
                        network: network.name().to_owned(),
                        owner: owner.clone(),
                        ..HeldFile::default()
                    };
                    if let Err(error) = self.files.write_held(&name, &file) {
                        // It may exist all the same.
                        if self.files.remove_held(&name).is_ok() {
                            self.lock().remove(&name, self.clock.now());
                        }
                        return Err(unwritten(&error));
                    }
                    self.lock().written(&name);
                    made.push(name);
                    return Ok(address);
                }
                Err(Lack::Lease) => self.ensure_lease()?,
                Err(Lack::Block) => self.claim(network, range, &space, wanted)?,
                Err(Lack::Taken(holder)) => {
                    let wanted = wanted.map(|address| address.to_string()).unwrap_or_default();
                    return Err(Refusal::new(
                        ADDRESS,
                        format!("the address {wanted} is taken by {holder}"),
                    ));
                }
            }
        }
        Err(Refusal::for_now(format!("found no address of {} that stayed free", range.subnet())))
    }

    /// Frees everything a container's interface has. Nothing to free is success.
    ///
    /// # Errors
    /// A [`Refusal`] when a file cannot be removed; everything else is freed.
    pub fn release(&self, owner: &Owner) -> Result<(), Refusal> {
        let hash = owner.hash();
        let _turn = self.turn(&hash);
        self.release_all(&hash)
    }

    fn release_all(&self, hash: &str) -> Result<(), Refusal> {
        let names = {
            let mut table = self.lock();
            if !table.trusted {
                // The store may list addresses that the disk does not: they must not come back.
                table.released.insert(hash.to_owned());
            }
            table.of_owner(hash)
        };
        let mut failed = None;
        for name in names {
            match self.files.remove_held(&name) {
                Ok(()) => self.lock().remove(&name, self.clock.now()),
                Err(error) => failed = Some(unwritten(&error)),
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Returns which addresses of a network an interface has, in the order of ranges.
    ///
    /// # Errors
    /// A [`Refusal`] when one of them may have another owner as well.
    pub fn held(&self, ask: &HeldRequest) -> Result<Vec<AssignedAddress>, Refusal> {
        let network = Network::new(ask.network.clone()).map_err(|error| bad(&error))?;
        let table = self.lock();
        let names = table.of_owner(&ask.owner.hash());
        let mut found: Vec<AssignedAddress> = Vec::new();
        for range in network.ranges() {
            let space = network.space(range);
            let name = names.iter().find(|name| {
                name.space == space
                    && range.subnet().contains(&name.address)
                    && !found.iter().any(|one| one.address.addr() == name.address)
            });
            let Some(name) = name else { continue };
            if table.is_lost(name) {
                let text = format!(
                    "the address {} may be given to another container: node {} was given up while this one ran on",
                    name.address, self.settings.node
                );
                return Err(Refusal::new(ADDRESS, text).with_details("start the container again"));
            }
            let prefix = range.subnet().prefix_len();
            if let Ok(address) = IpNet::new(name.address, prefix) {
                found.push(AssignedAddress { address, gateway: range.gateway() });
            }
        }
        Ok(found)
    }

    /// Frees the addresses on this node that none of a network's attachments has.
    ///
    /// # Errors
    /// A [`Refusal`] when a file cannot be removed; everything else is freed.
    pub fn collect(&self, ask: &CollectRequest) -> Result<(), Refusal> {
        let valid: Vec<String> = ask
            .valid
            .iter()
            .map(|one| {
                let (container, ifname) = (one.container_id.clone(), one.ifname.clone());
                Owner { container, ifname, ..Owner::default() }.hash()
            })
            .collect();
        let owners = self.lock().owners_of(&ask.network);
        let mut failed = None;
        for hash in owners.into_iter().filter(|hash| !valid.contains(hash)) {
            let _turn = self.turn(&hash);
            if let Err(refusal) = self.release_all(&hash) {
                failed = Some(refusal);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Says whether an ADD could be answered now. It assigns nothing.
    ///
    /// # Errors
    /// A [`Refusal`] with the reason why not.
    pub fn status(&self, network: &Network) -> Result<(), Refusal> {
        // The caller of STATUS waits less long than that of ADD.
        self.lease_within(0)?;
        for range in network.ranges() {
            let space = network.space(range);
            if self.lock().has_room(&space, range, self.clock.now()) {
                continue;
            }
            self.could_claim(network, range, &space)?;
        }
        Ok(())
    }

    /// Waits until no other thread works for an owner, and makes others wait.
    fn turn(&self, hash: &str) -> Turn<'_> {
        let mut table = self.lock();
        while !table.busy.insert(hash.to_owned()) {
            table = self.changed.wait(table).unwrap_or_else(PoisonError::into_inner);
        }
        Turn { node: self, hash: hash.to_owned() }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a number that differs each time (splitmix64).
    fn draw(&self) -> u64 {
        let count = self.drawn.fetch_add(1, Ordering::Relaxed);
        let mut z = self.seed.wrapping_add(count.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below a bound, which must not be 0.
    fn draw_below(&self, bound: u128) -> u128 {
        let wide = (u128::from(self.draw()) << 64) | u128::from(self.draw());
        wide % bound
    }

    fn write_block(&self, id: &BlockId, block: &Block) -> Result<(), FileError> {
        let (epoch, returning, kept) = (block.epoch, block.returning, block.kept.clone());
        self.files.write_block(id, &BlockFile { epoch, returning, kept, ..BlockFile::default() })
    }
}

/// While it lives, no other thread works for an owner.
#[derive(Debug)]
struct Turn<'n> {
    node: &'n Node,
    hash: String,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.node.lock().busy.remove(&self.hash);
        self.node.changed.notify_all();
    }
}

/// Assigns the requested addresses to the ranges.
fn wanted_of(network: &Network, wanted: &[IpAddr]) -> Result<Vec<Option<IpAddr>>, Refusal> {
    let mut places: BTreeMap<usize, IpAddr> = BTreeMap::new();
    for address in wanted {
        let mut of = network.ranges().iter().enumerate();
        let place = of.find(|(place, range)| range.allows(*address) && !places.contains_key(place));
        let Some((place, _)) = place else {
            let text = format!(
                "the requested address {address} is in no range of network {:?} that may give it",
                network.name()
            );
            return Err(Refusal::new(ADDRESS, text));
        };
        places.insert(place, *address);
    }
    Ok((0..network.ranges().len()).map(|place| places.get(&place).copied()).collect())
}

fn check_owner(owner: &Owner) -> Result<(), Refusal> {
    if owner.container.is_empty() || owner.ifname.is_empty() {
        let text = "the request for an address has no container ID or no interface name";
        return Err(Refusal::new(code::INVALID_ENVIRONMENT, text));
    }
    Ok(())
}

fn bad(error: &crate::network::NetworkError) -> Refusal {
    Refusal::new(code::INVALID_CONFIG, error.to_string())
}

fn unwritten(error: &FileError) -> Refusal {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
    Refusal::new(STATE, format!("cannot {error}{}", cause.unwrap_or_default()))
}
