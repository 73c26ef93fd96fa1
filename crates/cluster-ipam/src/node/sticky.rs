//! Addresses that a pod keeps while it is recreated under its name, on any node.
//!
//! A record names the address that the pod keeps, its node and its holder; the writer that succeeds
//! by compare-and-swap has the address. The address stays in the block it came from: the block's
//! record names the keeper, and its node does not assign the address by itself. A block with such
//! addresses is not returned. If its node is gone, the block then belongs to no node, but its
//! record stays.
//!
//! A pod's address is taken over once no container has it: its container was detached, or its
//! node was given up. Detaching never waits for the store: what the node has on its disk counts,
//! and its record follows.
//!
//! Otherwise a new container does not get its predecessor's address, even if both are the same
//! pod's: the old one may still be there.

use std::net::IpAddr;
use std::time::Duration;

use cni::code;
use node_api::ipam::Owner;
use node_api::{Pod, Refusal};

use super::claim::away;
use super::table::AddressHolder;
use super::{ADDRESS, Node, unwritten};
use crate::local::{HeldFile, HeldName};
use crate::network::{Network, Range};
use crate::record::{self, BlockRecord, Holder, NodeRecord, StickyRecord, node_key};
use crate::store::{Entry, Filter, Key, Kind, StoreError};

/// How often to reread a record because other writers were faster.
const TRIES: u32 = 16;
/// How long an address must have no keeper's record before it is free: longer than any write takes
/// to arrive.
const UNKEPT: Duration = Duration::from_secs(120);

/// Returns the name of the record of the address that a pod keeps in a range.
fn key(space: &str, pod: &Pod, ifname: &str, range: &Range) -> Key {
    let of = format!("{}\0{}\0{ifname}\0{}", pod.namespace, pod.name, range.subnet());
    Key::new(Kind::Sticky, format!("{space}/{}", cni::owner::sha512_hex(&of, 32)))
}

impl Node {
    pub(super) fn assign_sticky(
        &self,
        network: &Network,
        range: &Range,
        wanted: Option<IpAddr>,
        owner: &Owner,
        made: &mut Vec<HeldName>,
    ) -> Result<IpAddr, Refusal> {
        let Some(pod) = owner.pod.as_ref().filter(|pod| !pod.name.is_empty()) else {
            let text = "addresses of this network are kept by pods, and the runtime names none: K8S_POD_NAMESPACE and K8S_POD_NAME are missing";
            return Err(Refusal::new(code::INVALID_ENVIRONMENT, text));
        };
        let space = network.space(range);
        let key = key(&space, pod, &owner.ifname, range);
        for _ in 0..TRIES {
            self.ensure_lease()?;
            let epoch = self.lock().epoch;
            let mut record = StickyRecord {
                space: space.clone(),
                namespace: pod.namespace.clone(),
                name: pod.name.clone(),
                ifname: owner.ifname.clone(),
                address: None,
                node: self.settings.node.clone(),
                addresses: self.lock().addresses.clone(),
                epoch,
                holder: Some(holder(network, owner)),
            };
            let found = self.store.get(&key).map_err(|error| away(&error))?;
            let kept = match &found {
                Some(entry) => self.kept_address(&key, entry, range, wanted, owner)?,
                None => None,
            };
            let (address, fresh) = match kept {
                Some(address) => (address, false),
                None => {
                    let hash = owner.hash();
                    let address = self.assign_one(network, range, wanted, owner, &hash, made)?;
                    self.keep(&space, address, &key)?;
                    (address, true)
                }
            };
            record.address = Some(address);
            let value = record::write(&record);
            let written = match &found {
                None => self.store.create(&key, &value),
                Some(entry) => self.store.update(&key, &entry.revision, &value),
            };
            match written {
                Ok(_) => {}
                Err(StoreError::Conflict) => {
                    // Another writer decided which address it is. The one we took in vain becomes
                    // free again once it is no longer kept.
                    if fresh && let Some(name) = made.pop() {
                        self.files.remove_held(&name).map_err(|error| unwritten(&error))?;
                        self.lock().remove(&name, self.clock.now());
                    }
                    continue;
                }
                Err(error) => return Err(away(&error)),
            }
            let name = HeldName { space: space.clone(), address, hash: owner.hash() };
            let file = HeldFile {
                boot: self.settings.boot.clone(),
                network: network.name().to_owned(),
                owner: owner.clone(),
                sticky: Some(key.name.clone()),
                ..HeldFile::default()
            };
            self.files.write_held(&name, &file).map_err(|error| unwritten(&error))?;
            self.lock().insert(&name, AddressHolder::read(file));
            if !made.contains(&name) {
                made.push(name);
            }
            return Ok(address);
        }
        Err(Refusal::for_now(format!("the record {key} keeps changing")))
    }

    /// Returns the address in a record if it may be taken; `None` if the record has no usable one.
    fn kept_address(
        &self,
        key: &Key,
        entry: &Entry,
        range: &Range,
        wanted: Option<IpAddr>,
        owner: &Owner,
    ) -> Result<Option<IpAddr>, Refusal> {
        let Some(found) = record::read::<StickyRecord>(&entry.value) else {
            let text = format!("the store's record {key} is not that of a pod's address");
            return Err(Refusal::new(ADDRESS, text).with_details("remove or correct it"));
        };
        if let Some(has) = &found.holder
            && !self.is_over(&found, has, owner)?
        {
            let (pod, node) = (format!("{}/{}", found.namespace, found.name), &found.node);
            let text =
                format!("the address that pod {pod} keeps is still its container's on node {node}");
            return Err(Refusal::for_now(text).with_details(format!(
                "container {}; it is free once that is detached, or the node is given up",
                has.container
            )));
        }
        let Some(address) = found.address.filter(|address| range.allows(*address)) else {
            return Ok(None);
        };
        if !self.is_kept(&found.space, address, key)? {
            return Ok(None);
        }
        match wanted {
            Some(wanted) if wanted != address => {
                let text = format!("{wanted} is wanted by a pod that keeps {address}");
                Err(Refusal::new(ADDRESS, text)
                    .with_details("`netwrightd ipam --release-sticky NAMESPACE/NAME` frees it"))
            }
            _ => Ok(Some(address)),
        }
    }

    /// Whether the holder of an address no longer has it.
    fn is_over(&self, found: &StickyRecord, has: &Holder, owner: &Owner) -> Result<bool, Refusal> {
        if has.container == owner.container && has.ifname == owner.ifname {
            return Ok(true);
        }
        if found.node == self.settings.node {
            let hash = super::lease::owner_of(has).hash();
            let table = self.lock();
            return Ok(table.of_owner(&hash).is_empty() && !table.busy.contains(&hash));
        }
        let node = self.store.get(&node_key(&found.node)).map_err(|error| away(&error))?;
        let node = node.and_then(|entry| record::read::<NodeRecord>(&entry.value));
        // A node that is back reports by itself what its containers have.
        Ok(node.is_none_or(|node| node.fenced))
    }

    /// Whether the block of an address names its keeper; if not, any container may have got the
    /// address.
    fn is_kept(&self, space: &str, address: IpAddr, key: &Key) -> Result<bool, Refusal> {
        let ours = {
            let table = self.lock();
            let id = table.block_of(space, address);
            id.and_then(|id| table.blocks.get(&id))
                .map(|block| block.kept.get(&address) == Some(&key.name))
        };
        if let Some(ours) = ours {
            return Ok(ours);
        }
        let all = self.store.list(Kind::Block, Filter::Space(space));
        let all = all.map_err(|error| away(&error))?;
        let mut records = all.iter().filter_map(|entry| record::read::<BlockRecord>(&entry.value));
        let found = records.find(|block| block.space == space && block.block.contains(&address));
        Ok(found.is_some_and(|block| block.kept.get(&address) == Some(&key.name)))
    }

    /// Records the keeper of an address of one of our blocks, on the disk and in the block's
    /// record.
    fn keep(&self, space: &str, address: IpAddr, key: &Key) -> Result<(), Refusal> {
        // No other thread writes an older state meanwhile.
        let _one = self.tending.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (id, block) = {
            let mut table = self.lock();
            let id = table.block_of(space, address);
            let found = id.and_then(|id| {
                let block = table.blocks.get_mut(&id)?;
                block.kept.insert(address, key.name.clone());
                block.dirty = true;
                Some((id, block.clone()))
            });
            found.ok_or_else(|| Refusal::for_now("the block of an address is lost"))?
        };
        self.write_block(&id, &block).map_err(|error| unwritten(&error))?;
        self.publish_block(&id).map_err(|error| away(&error))?;
        let table = self.lock();
        let stays = table.blocks.get(&id).is_some_and(|now| now.epoch == block.epoch && !now.dirty);
        if stays { Ok(()) } else { Err(Refusal::for_now("the block of an address is lost")) }
    }

    /// Updates the records of pods' addresses: a detached pod has no holder, and a pod that is here
    /// after the node was given up is the holder again.
    pub(super) fn sweep_sticky(&self) -> Result<(), StoreError> {
        let me = &self.settings.node;
        for entry in self.store.list(Kind::Sticky, Filter::Node(me))? {
            let Some(found) = record::read::<StickyRecord>(&entry.value) else { continue };
            let Some(has) = found.holder.as_ref().filter(|_| found.node == *me) else { continue };
            let hash = super::lease::owner_of(has).hash();
            {
                let table = self.lock();
                if !table.of_owner(&hash).is_empty() || table.busy.contains(&hash) {
                    continue;
                }
            }
            let free = StickyRecord { holder: None, ..found };
            match self.store.update(&entry.key, &entry.revision, &record::write(&free)) {
                Ok(_) | Err(StoreError::Conflict) => {}
                Err(error) => return Err(error),
            }
        }
        self.unkeep()
    }

    /// After the node was given up: finds which of the kept addresses are still here.
    pub(super) fn compare_sticky(&self, epoch: u64) -> Result<(), StoreError> {
        let all = self.lock().sticky();
        for (name, held, key) in all {
            let key = Key::new(Kind::Sticky, key);
            let found = self.store.get(&key)?;
            let mine = found.and_then(|entry| {
                let record = record::read::<StickyRecord>(&entry.value)?;
                let has = record.holder.as_ref()?;
                let same = record.node == self.settings.node
                    && has.container == held.owner.container
                    && has.ifname == held.owner.ifname
                    && record.address == Some(name.address);
                same.then(|| (entry.revision.clone(), StickyRecord { epoch, ..record }))
            });
            let kept = match mine {
                // A process that read it while we were away is too late.
                Some((was, record)) => {
                    match self.store.update(&key, &was, &record::write(&record)) {
                        Ok(_) => true,
                        Err(StoreError::Conflict) => false,
                        Err(error) => return Err(error),
                    }
                }
                None => false,
            };
            let changed = self.lock().set_lost_one(&name, !kept);
            self.mark(changed)?;
        }
        Ok(())
    }

    /// Frees addresses of our blocks whose keepers are gone.
    fn unkeep(&self) -> Result<(), StoreError> {
        let kept: Vec<(HeldName, String)> = {
            let table = self.lock();
            let of = table.blocks.iter().flat_map(|(id, block)| {
                block.kept.iter().map(move |(address, key)| {
                    let name = HeldName {
                        space: id.space.clone(),
                        address: *address,
                        hash: String::new(),
                    };
                    (name, key.clone())
                })
            });
            of.filter(|(name, _)| !table.is_held(&name.space, name.address)).collect()
        };
        let now = self.clock.now();
        for (name, key) in kept {
            let found = self.store.get(&Key::new(Kind::Sticky, key))?;
            let found = found.and_then(|entry| record::read::<StickyRecord>(&entry.value));
            let is_kept = found.is_some_and(|record| record.address == Some(name.address));
            let at = (name.space.clone(), name.address);
            let since = {
                let mut table = self.lock();
                if is_kept {
                    table.unkept.remove(&at);
                    continue;
                }
                *table.unkept.entry(at.clone()).or_insert(now)
            };
            if now.saturating_sub(since) < UNKEPT {
                continue;
            }
            let changed = {
                let mut table = self.lock();
                table.unkept.remove(&at);
                let id = table.block_of(&name.space, name.address);
                id.and_then(|id| {
                    let block = table.blocks.get_mut(&id)?;
                    block.kept.remove(&name.address);
                    block.dirty = true;
                    block.empty_since = now;
                    Some((id, block.clone()))
                })
            };
            if let Some((id, block)) = changed {
                self.write_block(&id, &block)
                    .map_err(|error| StoreError::Refused(unwritten(&error).msg))?;
            }
        }
        Ok(())
    }
}

fn holder(network: &Network, owner: &Owner) -> Holder {
    Holder {
        network: network.name().to_owned(),
        container: owner.container.clone(),
        ifname: owner.ifname.clone(),
        pod: owner.pod.clone(),
    }
}
