//! Applies, undoes, checks and garbage-collects plans.

mod exchange;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use cni::AttachmentKey;
use kernel::living::{Census, Life, NetnsNote};
use state::{Index, Lock, Record, Release};

use crate::element::{Element, Field, Protocol, Set, Table, Value};
use crate::error::FirewallError;
use crate::host_sysctl::{HostSysctls, SharedSysctls};
use crate::hostport;
use crate::masquerade::Outbound;
use crate::nft::NftTables;
use crate::owner::Owner;
use crate::plan::{Concern, Plan, SharedObject};
use crate::tables::{Alteration, Change, ObservedElement, ObservedValue, Tables};

/// How long to wait for the lock. Its holder keeps it for one transaction, which is milliseconds;
/// only hundreds of callers at once or a stuck holder make it longer.
pub const LOCK_TIMEOUT: Duration = Duration::from_secs(30);

/// The lock's name in the index.
const LOCK: &str = "firewall";

/// The firewall of the network namespace the caller is in, locked for one verb.
///
/// Opening it lists nothing and creates nothing. One verb should open it once, collect what it
/// wants into one [`Plan`] and drop it soon.
///
/// ```no_run
/// use netwright_firewall::{Firewall, masquerade, spoof};
/// # let roots = state::Roots::default();
/// # let key: cni::AttachmentKey = unimplemented!();
/// let index = state::Index::new(&roots);
/// let mut plan = masquerade::plan("blue", "cni0", "10.1.0.2/24".parse()?);
/// plan.join(spoof::plan("veth1234abcd", &[[2, 0, 0, 0, 0, 1]]));
/// // The plan goes into the plugin's record first, so that DEL knows it even if we die here.
/// Firewall::open(&index)?.add(&key, &plan)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Firewall<'a> {
    // Released before the socket is closed: closing waits until the kernel has destroyed what was
    // deleted.
    _lock: Option<Lock>,
    index: &'a Index,
    tables: Box<dyn Tables + 'a>,
    switches: Box<dyn SharedSysctls + 'a>,
    passed_over: bool,
    outlived: Vec<AttachmentKey>,
}

pub use self::exchange::Exchange;

/// What GC removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CollectReport {
    /// The number of elements.
    pub elements: usize,
    /// The hashes of the attachments they belonged to.
    pub owners: BTreeSet<String>,
}

/// Lists the hash and the network of each entry's attachment in the tables of the caller's network
/// namespace; entries of networks whose names were cut are left out. Creates nothing, and takes no
/// lock.
///
/// # Errors
/// When the kernel does not answer.
pub fn owners() -> Result<Vec<(String, String)>, FirewallError> {
    let mut tables = NftTables::open()?;
    let mut found = Vec::new();
    for set in Set::ALL {
        for element in tables.list(*set)? {
            let owner = Owner::parse(&element.comment);
            if let Owner::Attachment { hash, network } = &owner
                && owner.is_of_network(network)
            {
                found.push((hash.clone(), network.clone()));
            }
        }
    }
    Ok(found)
}

impl<'a> Firewall<'a> {
    /// Locks the firewall and opens a socket in the caller's network namespace.
    ///
    /// **Privileges**: `CAP_NET_ADMIN` there.
    ///
    /// # Errors
    /// [`FirewallError::Lock`], [`FirewallError::Open`].
    pub fn open(index: &'a Index) -> Result<Self, FirewallError> {
        Self::open_within(index, LOCK_TIMEOUT)
    }

    /// Does the same, and waits for the lock for `deadline` at most.
    ///
    /// # Errors
    /// As [`Firewall::open`].
    pub fn open_within(index: &'a Index, deadline: Duration) -> Result<Self, FirewallError> {
        let tables = NftTables::open()?;
        let lock = index.lock(LOCK, deadline).map_err(FirewallError::Lock)?;
        Ok(Firewall {
            _lock: Some(lock),
            index,
            tables: Box::new(tables),
            switches: Box::new(HostSysctls),
            passed_over: false,
            outlived: Vec::new(),
        })
    }

    /// Applies a plan in one transaction. Elements that are already there stay; elements that a
    /// dead attachment left under the same keys are replaced.
    ///
    /// **Idempotence**: adding the same plan again changes nothing.
    ///
    /// # Errors
    /// [`FirewallError::Held`] when a host port belongs to another container's attachment that is
    /// alive; nothing has changed then. On any other error the changes have been undone.
    pub fn add(&mut self, key: &AttachmentKey, plan: &Plan) -> Result<(), FirewallError> {
        let changes = self.plan_add(key, plan)?;
        let mut done = self.hold_and_commit(key, plan, &changes);
        if matches!(&done, Err(FirewallError::Tables(error)) if error.absent) {
            // The tables were flushed between our look and our change (`nft flush ruleset`).
            let changes = self.plan_add(key, plan)?;
            done = self.hold_and_commit(key, plan, &changes);
        }
        if done.is_err() {
            // Best effort: the first error is the one reported.
            let _ = self.remove(key, plan);
        }
        done
    }

    /// Says whether the last [`Firewall::add`] left host ports to another attachment of the same
    /// container. A caller that needs them adds the plan again once that attachment is gone.
    #[must_use]
    pub fn passed_over(&self) -> bool {
        self.passed_over
    }

    /// Lists the attachments whose ports the last [`Firewall::add`] took over because their
    /// namespaces are gone. iptables may still forward those ports to them.
    #[must_use]
    pub fn outlived(&self) -> &[AttachmentKey] {
        &self.outlived
    }

    /// Removes a plan in one transaction. Elements that belong to another attachment by now stay.
    ///
    /// **Idempotence**: what is gone already is success.
    ///
    /// # Errors
    /// The first failure; the other steps are tried all the same.
    pub fn remove(&mut self, key: &AttachmentKey, plan: &Plan) -> Result<(), FirewallError> {
        let hash = key.hash();
        let mut first = None;
        let mut doomed = Vec::new();
        for element in &plan.own {
            match self.tables.get(element.set, &element.key) {
                Ok(Some(found)) if Owner::parse(&found.comment).is(&hash) => {
                    doomed.push((element.set, found));
                }
                Ok(_) => {}
                Err(error) => {
                    first.get_or_insert(error.into());
                }
            }
        }
        self.finish_removal(key, &plan.shared, doomed, first)
    }

    /// Removes everything of some concerns that carries the attachment's hash, without a record of
    /// it. It lists the sets of those concerns, so prefer [`Firewall::remove`].
    ///
    /// # Errors
    /// As [`Firewall::remove`].
    pub fn remove_unrecorded(
        &mut self,
        key: &AttachmentKey,
        concerns: &[Concern],
    ) -> Result<(), FirewallError> {
        let hash = key.hash();
        let mut first = None;
        let mut doomed = Vec::new();
        for set in concerns.iter().flat_map(|concern| concern.sets()) {
            match self.tables.list(*set) {
                Ok(found) => doomed.extend(
                    found
                        .into_iter()
                        .filter(|found| Owner::parse(&found.comment).is(&hash))
                        .map(|found| (*set, found)),
                ),
                Err(error) => {
                    first.get_or_insert(error.into());
                }
            }
        }
        let shared: Vec<SharedObject> = self.shared_of(concerns);
        self.finish_removal(key, &shared, doomed, first)
    }

    /// Says whether an element of any attachment leads a port at an address of the host to an
    /// address of a container.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn leads(
        &mut self,
        protocol: Protocol,
        (at, port): (IpAddr, u16),
        to: IpAddr,
    ) -> Result<bool, FirewallError> {
        let (all, exact) = if to.is_ipv4() {
            (Set::Hostports4, Set::HostportsAt4)
        } else {
            (Set::Hostports6, Set::HostportsAt6)
        };
        let key = [Field::Address(at), Field::Protocol(protocol), Field::Port(port)];
        // The port at one address takes precedence.
        for (set, key) in [(exact, &key[..]), (all, &key[1..])] {
            let found = self.tables.get(set, key)?;
            if let Some(ObservedElement { value: ObservedValue::Endpoint(address, _), .. }) = found
            {
                return Ok(address == to);
            }
        }
        Ok(false)
    }

    /// Says whether the attachment has every element of a plan. Rules are not compared.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn has(&mut self, key: &AttachmentKey, plan: &Plan) -> Result<bool, FirewallError> {
        let hash = key.hash();
        for element in &plan.own {
            match self.tables.get(element.set, &element.key) {
                Ok(Some(found)) if Owner::parse(&found.comment).is(&hash) => {}
                Ok(_) => return Ok(false),
                Err(error) if error.absent => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    /// Compares a plan with the kernel and describes each difference; returns none when all is
    /// well.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn check(
        &mut self,
        key: &AttachmentKey,
        plan: &Plan,
    ) -> Result<Vec<String>, FirewallError> {
        let hash = key.hash();
        let mut holders = Holders { index: self.index, known: None, census: Census::new() };
        let mut differences = Vec::new();
        let masquerades = masquerades(plan);
        for table in plan.tables() {
            match self.tables.altered(table, &masquerades)? {
                None => differences.push(format!("missing: table {table}")),
                Some(altered) => differences.extend(altered.describe(table)),
            }
        }
        for element in &plan.own {
            let Some(found) = self.tables.get(element.set, &element.key)? else {
                differences.push(format!("missing: {element}"));
                continue;
            };
            let owner = Owner::parse(&found.comment);
            if element.set.is_exclusive() && holders.is_same_container(&owner, key) {
                continue;
            }
            if !owner.is(&hash) {
                differences.push(format!("no longer ours ({}): {element}", found.comment));
            } else if !same_value(element, &found) {
                differences.push(format!("has another value: {element}"));
            }
        }
        for shared in &plan.shared {
            for element in shared.elements() {
                if self.tables.get(element.set, &element.key)?.is_none() {
                    differences.push(format!("missing: {element}"));
                }
            }
            differences.extend(self.switches.check(shared)?);
        }
        Ok(differences)
    }

    /// Gives the chains that a plan needs the hooks and rules that they should have, lets their
    /// tables see packets, and removes chains of others that see packets from these tables. Leaves
    /// all elements as they are. [`Firewall::add`] only counts rules: for a repair.
    ///
    /// **Idempotence**: nothing is written if nothing is different.
    ///
    /// # Errors
    /// When the kernel refuses; no rule has changed then.
    pub fn mend(&mut self, plan: &Plan) -> Result<(), FirewallError> {
        let masquerades = masquerades(plan);
        let mut changes = Vec::new();
        for table in plan.tables() {
            let Some(mut altered) = self.tables.altered(table, &masquerades)? else {
                changes.push(Change::Layout(table));
                continue;
            };
            let mut own = Vec::new();
            for outbound in &masquerades {
                if altered.rules.remove(&outbound.chain_name()) {
                    own.push(Change::AddMasquerade(outbound.clone()));
                }
            }
            let foreign = std::mem::take(&mut altered.foreign);
            if altered != Alteration::default() {
                changes.push(Change::Layout(table));
            }
            changes.extend(own);
            changes.extend(foreign.into_iter().map(|chain| Change::DeleteChain { table, chain }));
        }
        if !changes.is_empty() {
            self.tables.commit(&changes)?;
        }
        Ok(())
    }

    /// Removes what belongs to attachments of `network` that do not stay: elements by their
    /// comment, references to shared objects by their holder, chains that nothing jumps to. `stays`
    /// is called with an attachment's hash ([`AttachmentKey::hash`]) after the elements are listed:
    /// an attachment that appears later cannot own any of them.
    ///
    /// # Errors
    /// The first failure; the other steps are tried all the same.
    pub fn gc(
        &mut self,
        network: &str,
        stays: &dyn Fn(&str) -> bool,
        concerns: &[Concern],
    ) -> Result<CollectReport, FirewallError> {
        let mut first = None;
        let mut collected = CollectReport::default();
        let mut doomed = Vec::new();
        for set in concerns.iter().flat_map(|concern| concern.sets()) {
            let listed = match self.tables.list(*set) {
                Ok(listed) => listed,
                Err(error) => {
                    first.get_or_insert(FirewallError::from(error));
                    continue;
                }
            };
            for found in listed {
                let owner = Owner::parse(&found.comment);
                if let Owner::Attachment { hash, .. } = &owner
                    && owner.is_of_network(network)
                    && !stays(hash)
                {
                    collected.elements += 1;
                    collected.owners.insert(hash.clone());
                    doomed.push((*set, found));
                }
            }
        }
        let mut changes = self.deletions(doomed, &mut first);
        for shared in self.shared_of(concerns) {
            for holder in self.index.holders(&shared.object()).found {
                if holder.network.as_str() == network && !stays(&holder.hash()) {
                    changes.extend(self.let_go(&holder, &shared, &mut first));
                }
            }
            // The machine forbade it when the last attachment ended.
            let object = shared.object();
            let is_left = self.index.has_note(&object).is_ok_and(|noted| noted)
                && self.index.is_held(&object).is_ok_and(|held| !held);
            if is_left {
                changes.extend(self.switch_off(&shared, &mut first));
            }
        }
        self.commit_removal(&changes, &mut first);
        self.delete_unused_chains(&mut first);
        first.map_or(Ok(collected), Err)
    }

    /// Converts the tables that an older executable made to this one's layout, each in one
    /// transaction; says whether there was such a table. Missing tables are not created.
    ///
    /// # Errors
    /// When the kernel refuses; the table is then unchanged.
    pub fn renew(index: &Index) -> Result<bool, FirewallError> {
        // Nearly always there is nothing to do, and then it takes no lock.
        if older(&mut NftTables::open()?)?.is_empty() {
            return Ok(false);
        }
        let mut firewall = Firewall::open(index)?;
        let older = older(firewall.tables.as_mut())?;
        if !older.is_empty() {
            firewall.tables.commit(&older)?;
        }
        Ok(true)
    }

    /// Removes our tables when they hold no element of any attachment; says whether they are gone.
    ///
    /// # Errors
    /// When the kernel refuses, or the holders of a shared object cannot be listed.
    pub fn prune(&mut self) -> Result<bool, FirewallError> {
        for set in Set::ALL {
            let listed = self.tables.list(*set)?;
            if listed
                .iter()
                .any(|found| matches!(Owner::parse(&found.comment), Owner::Attachment { .. }))
            {
                return Ok(false);
            }
        }
        for shared in self.shared_of(Concern::ALL) {
            let object = shared.object();
            let held = self.index.is_held(&object);
            if held.map_err(|source| FirewallError::State { object, source })? {
                return Ok(false);
            }
        }
        self.tables.delete_tables()?;
        Ok(true)
    }

    /// Removes our tables and restores every setting, even while attachments use them.
    ///
    /// # Errors
    /// The first failure; the other steps are tried all the same.
    pub fn remove_all(&mut self) -> Result<(), FirewallError> {
        let mut first = None;
        for shared in self.shared_of(Concern::ALL) {
            for holder in self.index.holders(&shared.object()).found {
                // Its elements go with the tables.
                let _ = self.let_go(&holder, &shared, &mut first);
            }
        }
        if let Err(error) = self.tables.delete_tables() {
            first.get_or_insert(error.into());
        }
        first.map_or(Ok(()), Err)
    }

    /// Decides what ADD has to change. Changes nothing.
    fn plan_add(&mut self, key: &AttachmentKey, plan: &Plan) -> Result<Vec<Change>, FirewallError> {
        self.passed_over = false;
        self.outlived.clear();
        let owner = Owner::of(key);
        let hash = key.hash();
        let mut holders = Holders { index: self.index, known: None, census: Census::new() };
        let mut changes = Vec::new();
        for table in plan.tables() {
            if !self.tables.is_laid_out(table)? {
                changes.push(Change::Layout(table));
            }
        }
        let mut chains = BTreeSet::new();
        for element in &plan.own {
            let found = self.tables.get(element.set, &element.key)?;
            if element.set.is_exclusive() {
                let theirs = found.as_ref().map(|found| Owner::parse(&found.comment));
                if theirs.is_some_and(|theirs| holders.is_same_container(&theirs, key)) {
                    self.passed_over = true;
                    continue;
                }
                self.refuse_if_reserved(key, element, &mut holders)?;
            }
            if let Some(found) = found {
                let theirs = Owner::parse(&found.comment);
                if theirs.is(&hash) && same_value(element, &found) {
                    continue;
                }
                if element.set.is_exclusive() && !theirs.is(&hash) {
                    holders.refuse_if_live(&theirs, element)?;
                }
                changes.push(Change::DeleteElement { set: element.set, key: element.key.clone() });
            }
            if let Some(outbound) = element.value.outbound()
                && let Some(chain) = element.chain()
                && self.tables.jumps_to(&chain)?.is_none()
                && chains.insert(chain)
            {
                changes.push(Change::AddMasquerade(outbound));
            }
            let (element, comment) = (element.clone(), owner.to_string());
            changes.push(Change::AddElement { element, comment });
        }
        for shared in &plan.shared {
            if let SharedObject::IptablesHostport { protocol, port, at } = shared {
                self.refuse_for_iptables(key, *protocol, *port, *at, &mut holders)?;
            }
            for element in shared.elements() {
                if self.tables.get(element.set, &element.key)?.is_none() {
                    let comment = Owner::Shared(shared.object()).to_string();
                    changes.push(Change::AddElement { element, comment });
                }
            }
        }
        Ok(changes)
    }

    fn hold_and_commit(
        &mut self,
        key: &AttachmentKey,
        plan: &Plan,
        changes: &[Change],
    ) -> Result<(), FirewallError> {
        for shared in &plan.shared {
            let object = shared.object();
            self.index
                .hold(&object, key)
                .map_err(|source| FirewallError::State { object, source })?;
        }
        if !changes.is_empty() {
            self.tables.commit(changes)?;
        }
        // Only now: the rules that drop packets on such an interface are already in place.
        for shared in &plan.shared {
            self.switches.on(self.index, shared)?;
        }
        Ok(())
    }

    /// Refuses a port at all addresses while another attachment has it at one, and the reverse.
    fn refuse_if_reserved(
        &mut self,
        key: &AttachmentKey,
        element: &Element,
        holders: &mut Holders<'_>,
    ) -> Result<(), FirewallError> {
        if element.set == Set::Loopback6 {
            // This element goes with a port that has already been checked.
            return Ok(());
        }
        let (at, protocol, port) = match element.key.as_slice() {
            [Field::Protocol(protocol), Field::Port(port)] => (None, *protocol, *port),
            [Field::Address(at), Field::Protocol(protocol), Field::Port(port)] => {
                (Some(*at), *protocol, *port)
            }
            _ => return Ok(()),
        };
        let ipv4 = matches!(element.set, Set::Hostports4 | Set::HostportsAt4);
        if at.is_some() {
            let everywhere = if ipv4 { Set::Hostports4 } else { Set::Hostports6 };
            let wildcard = [Field::Protocol(protocol), Field::Port(port)];
            if let Some(found) = self.tables.get(everywhere, &wildcard)? {
                let theirs = Owner::parse(&found.comment);
                if !theirs.is(&key.hash()) && !holders.is_same_container(&theirs, key) {
                    holders
                        .refuse_if_live(&theirs, &Element::new(everywhere, wildcard.to_vec()))?;
                }
            }
        }
        self.refuse_if_shared(key, (at, protocol, port), ipv4, holders)
    }

    /// Refuses a port that iptables is to forward while another attachment has it, through elements
    /// of ours or through iptables.
    fn refuse_for_iptables(
        &mut self,
        key: &AttachmentKey,
        protocol: Protocol,
        port: u16,
        at: IpAddr,
        holders: &mut Holders<'_>,
    ) -> Result<(), FirewallError> {
        let ipv4 = at.is_ipv4();
        let (all, exact) = if ipv4 {
            (Set::Hostports4, Set::HostportsAt4)
        } else {
            (Set::Hostports6, Set::HostportsAt6)
        };
        let at = Some(at).filter(|at| !at.is_unspecified());
        let port_key = [Field::Protocol(protocol), Field::Port(port)];
        let at_key = at.map(|at| [&[Field::Address(at)], port_key.as_slice()].concat());
        let keys = [Some((all, port_key.to_vec())), at_key.map(|key| (exact, key))];
        for (set, wanted) in keys.into_iter().flatten() {
            let Some(found) = self.tables.get(set, &wanted)? else { continue };
            let theirs = Owner::parse(&found.comment);
            if !theirs.is(&key.hash()) && !holders.is_same_container(&theirs, key) {
                holders.refuse_if_live(&theirs, &Element::new(set, wanted))?;
            }
        }
        self.refuse_if_shared(key, (at, protocol, port), ipv4, holders)
    }

    /// Refuses a port that another attachment holds as a shared object: a port at all addresses if
    /// an attachment has it at any, a port at one address if iptables forwards it at that one or at
    /// all.
    fn refuse_if_shared(
        &mut self,
        key: &AttachmentKey,
        (at, protocol, port): (Option<IpAddr>, Protocol, u16),
        ipv4: bool,
        holders: &mut Holders<'_>,
    ) -> Result<(), FirewallError> {
        let by_iptables = |at| SharedObject::IptablesHostport { protocol, port, at };
        let objects = match at {
            None => vec![(SharedObject::Hostport { protocol, port, ipv4 }, None)],
            Some(at) => {
                vec![(by_iptables(hostport::everywhere(ipv4)), None), (by_iptables(at), Some(at))]
            }
        };
        for (object, address) in objects {
            for holder in self.index.holders(&object.object()).found {
                if holder.container_id == key.container_id {
                    continue;
                }
                let hash = holder.hash();
                if holders.is_live(&hash) {
                    let holder = Some(Box::new(holder));
                    return Err(FirewallError::Held { protocol, port, address, holder, hash });
                }
                if !self.outlived.contains(&holder) {
                    self.outlived.push(holder);
                }
            }
        }
        Ok(())
    }

    fn finish_removal(
        &mut self,
        key: &AttachmentKey,
        shared: &[SharedObject],
        doomed: Vec<(Set, ObservedElement)>,
        mut first: Option<FirewallError>,
    ) -> Result<(), FirewallError> {
        // One transaction: each transaction that deletes costs a kernel grace period when its
        // socket is closed.
        let mut changes = self.deletions(doomed, &mut first);
        for shared in shared {
            changes.extend(self.let_go(key, shared, &mut first));
        }
        self.commit_removal(&changes, &mut first);
        first.map_or(Ok(()), Err)
    }

    /// Turns elements to be deleted into changes, and adds the chains that nothing will jump to
    /// afterwards.
    fn deletions(
        &mut self,
        doomed: Vec<(Set, ObservedElement)>,
        first: &mut Option<FirewallError>,
    ) -> Vec<Change> {
        let mut jumps: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, found) in &doomed {
            if let ObservedValue::Jump(chain) = &found.value {
                *jumps.entry(chain).or_default() += 1;
            }
        }
        let mut unused = Vec::new();
        let mut unknown = BTreeSet::new();
        for (chain, fewer) in jumps {
            match self.tables.jumps_to(chain) {
                Ok(Some(all)) if all <= fewer => {
                    unused.push(delete_masquerade(chain.to_owned()));
                }
                Ok(_) => {}
                Err(error) => {
                    first.get_or_insert(error.into());
                    unknown.insert(chain.to_owned());
                }
            }
        }
        // If it is not known whether a chain is still used, the element that leads to it stays, so
        // that the next removal asks again.
        let is_known = |found: &ObservedElement| match &found.value {
            ObservedValue::Jump(chain) => !unknown.contains(chain),
            _ => true,
        };
        let known = doomed.into_iter().filter(|(_, found)| is_known(found));
        let mut changes: Vec<Change> =
            known.map(|(set, found)| Change::DeleteElement { set, key: found.key }).collect();
        changes.extend(unused);
        changes
    }

    fn commit_removal(&mut self, changes: &[Change], first: &mut Option<FirewallError>) {
        if changes.is_empty() {
            return;
        }
        match self.tables.commit(changes) {
            Ok(()) => {}
            // The tables were flushed between our look and our change: they are gone, which is what
            // we want.
            Err(error) if error.absent && self.all_gone(changes) => {}
            // Another program has changed the number of a chain's rules, by which we count what
            // jumps to it. That chain stays until a repair has written it again.
            Err(error) if error.is_busy() && changes.iter().any(deletes_chain) => {
                let (chains, others): (Vec<Change>, Vec<Change>) =
                    changes.iter().cloned().partition(deletes_chain);
                self.commit_removal(&others, first);
                // One by one: the kernel does not say which of several it is.
                if 1 < chains.len() {
                    for chain in &chains {
                        self.commit_removal(std::slice::from_ref(chain), first);
                    }
                }
            }
            Err(error) => {
                first.get_or_insert(error.into());
            }
        }
    }

    fn all_gone(&mut self, changes: &[Change]) -> bool {
        changes.iter().all(|change| match change {
            Change::DeleteElement { set, key } => matches!(self.tables.get(*set, key), Ok(None)),
            _ => true,
        })
    }

    /// Releases a shared object. The last release also switches off the object's sysctl or route
    /// and returns the elements to delete then: they must drop packets until it is off.
    fn let_go(
        &mut self,
        key: &AttachmentKey,
        shared: &SharedObject,
        first: &mut Option<FirewallError>,
    ) -> Vec<Change> {
        let object = shared.object();
        match self.index.release(&object, key) {
            Ok(Release::Last) => {}
            // A crash, or a failure of what follows, may have left the object without a holder.
            Ok(Release::NotHeld) => {}
            Ok(Release::Held) => return Vec::new(),
            Err(source) => {
                first.get_or_insert(FirewallError::State { object, source });
                return Vec::new();
            }
        }
        self.switch_off(shared, first)
    }

    /// Switches off what a shared object without a holder needs beside nftables, and returns the
    /// elements to delete then.
    fn switch_off(
        &mut self,
        shared: &SharedObject,
        first: &mut Option<FirewallError>,
    ) -> Vec<Change> {
        match self.switches.off(self.index, shared) {
            Ok(true) => {}
            // The attachment ends all the same. Its interface ends with it, or another attachment
            // or GC tries again; until then the elements drop packets.
            Ok(false) => return Vec::new(),
            Err(error) => {
                first.get_or_insert(error);
                return Vec::new();
            }
        }
        let mut changes = Vec::new();
        for Element { set, key, .. } in shared.elements() {
            match self.tables.get(set, &key) {
                Ok(Some(_)) => changes.push(Change::DeleteElement { set, key }),
                Ok(None) => {}
                Err(error) => {
                    first.get_or_insert(error.into());
                }
            }
        }
        changes
    }

    fn delete_unused_chains(&mut self, first: &mut Option<FirewallError>) {
        match self.tables.masquerade_chains() {
            Ok(chains) => {
                let unused = chains.into_iter().filter(|(_, jumps)| *jumps == 0);
                let changes: Vec<_> = unused.map(|(chain, _)| delete_masquerade(chain)).collect();
                self.commit_removal(&changes, first);
            }
            Err(error) => {
                first.get_or_insert(error.into());
            }
        }
    }

    fn shared_of(&self, concerns: &[Concern]) -> Vec<SharedObject> {
        let objects = self.index.objects().found;
        let shared = objects.iter().filter_map(|object| SharedObject::parse(object));
        shared.filter(|shared| concerns.contains(&shared.concern())).collect()
    }
}

/// The attachments behind hashes; read only when a conflict is met.
struct Holders<'a> {
    index: &'a Index,
    known: Option<Vec<Record>>,
    census: Census,
}

impl Holders<'_> {
    fn records(&mut self, hash: &str) -> Vec<&Record> {
        let index = self.index;
        let known = self.known.get_or_insert_with(|| index.list().found);
        known.iter().filter(|record| record.attachment.hash() == hash).collect()
    }

    /// Says whether the attachment's namespace still exists. Without a record that is unknown, and
    /// the attachment counts as alive.
    fn is_live(&mut self, hash: &str) -> bool {
        let records = self.records(hash);
        let known = !records.is_empty();
        let noted = state::noted_in(records);
        !known || noted.is_empty() || self.lives(&noted)
    }

    fn lives(&self, noted: &[NetnsNote]) -> bool {
        noted.iter().any(|noted| self.census.life(noted) != Life::Gone)
    }

    /// Says whether the owner is another attachment of the same container that still exists.
    ///
    /// Podman requests the same host ports from every network of a container. The first network
    /// publishes them, as with the reference, where the first rule wins.
    fn is_same_container(&mut self, owner: &Owner, key: &AttachmentKey) -> bool {
        let Owner::Attachment { hash, .. } = owner else { return false };
        if *hash == key.hash() {
            return false;
        }
        let records = self.records(hash);
        let same = |record: &&Record| record.attachment.container_id == key.container_id;
        let same: Vec<&Record> = records.into_iter().filter(same).collect();
        let known = !same.is_empty();
        let noted = state::noted_in(same);
        known && (noted.is_empty() || self.lives(&noted))
    }

    fn refuse_if_live(&mut self, owner: &Owner, element: &Element) -> Result<(), FirewallError> {
        let hash = match owner {
            Owner::Attachment { hash, .. } => hash.clone(),
            Owner::Shared(_) | Owner::Foreign => "(none)".to_owned(),
        };
        if !self.is_live(&hash) {
            return Ok(());
        }
        let holder = self.records(&hash).first().map(|record| Box::new(record.attachment.clone()));
        let (mut address, mut protocol, mut port) = (None, None, 0);
        for field in &element.key {
            match field {
                Field::Address(at) => address = Some(*at),
                Field::Protocol(what) => protocol = Some(*what),
                Field::Port(number) => port = *number,
                Field::Ifname(_) | Field::Mac(_) => {}
            }
        }
        let protocol = protocol.expect("only host ports are exclusive, and they name a protocol");
        Err(FirewallError::Held { protocol, port, address, holder, hash })
    }
}

/// Says whether the container's namespace that a record names may still exist; false only when it
/// is known to be gone.
#[must_use]
pub fn is_live(record: &Record, census: &Census) -> bool {
    record.noted().is_none_or(|noted| census.life(&noted) != Life::Gone)
}

fn delete_masquerade(chain: String) -> Change {
    Change::DeleteChain { table: Table::Inet, chain }
}

fn deletes_chain(change: &Change) -> bool {
    matches!(change, Change::DeleteChain { .. })
}

/// Lists the changes that bring existing tables to this layout.
fn older(tables: &mut dyn Tables) -> Result<Vec<Change>, FirewallError> {
    let mut older = Vec::new();
    for table in Table::ALL {
        if tables.exists(*table)? && !tables.is_laid_out(*table)? {
            older.push(Change::Layout(*table));
        }
    }
    Ok(older)
}

/// Lists what the masquerade chains that a plan needs are for.
fn masquerades(plan: &Plan) -> BTreeSet<Outbound> {
    cni::order::gather(plan.own.iter().filter_map(|element| element.value.outbound()))
}

fn same_value(element: &Element, found: &ObservedElement) -> bool {
    match (&element.value, &found.value) {
        (Value::Nothing, ObservedValue::Nothing) => true,
        (Value::Endpoint { address, port }, ObservedValue::Endpoint(is, at)) => {
            address == is && port == at
        }
        (Value::Masquerade { .. }, ObservedValue::Jump(chain)) => {
            element.chain().as_deref() == Some(chain)
        }
        _ => false,
    }
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
