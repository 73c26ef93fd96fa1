//! Which networks have a pool: one hold for each answer to `RequestPool`, named in the PoolID that
//! the engine sends back.
//!
//! libnetwork requests a pool before it calls CreateNetwork, and releases it when the network is
//! not created after all. Neither call names the network. If we counted networks, a failed creation
//! would take the pool from a network that lives. So each answer has its own PoolID: the pool's
//! name, `/`, and the hold's name.
//!
//! A network claims its holds when it is created. Where there are several, on a list that several
//! networks share, it may claim another network's hold: `release` and `forget_holds` then exchange
//! them, so that no network loses its pool.

use std::collections::HashSet;
use std::fmt;
use std::net::IpAddr;

use cni::Error;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::driver::Driver;
use super::journal::{Network, Pool, Use};
use super::network::{pools_of, subnets};
use super::pools::LOCAL;
use super::sandbox::Engine;

/// The hold's name in a PoolID without one: earlier drivers gave such PoolIDs to several networks.
pub(super) const SHARED: &str = "";

/// One owner of a pool, or of a part of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Hold {
    /// The part that is handed out (`--ip-range`).
    pub(crate) part: Option<IpNet>,
    /// The gateway that the engine asked for.
    pub(crate) gateway: Option<IpAddr>,
    /// The engine's process that asked, if we could see it.
    pub(crate) engine: Option<String>,
    /// We chose the subnet.
    pub(crate) chosen: bool,
    /// When it was asked for, in milliseconds since the boot.
    pub(crate) asked_ms: u64,
}

impl Hold {
    /// Says whether the engine that asked may still live.
    pub(super) fn may_live(&self) -> bool {
        self.engine.as_deref().is_none_or(Engine::may_live)
    }
}

/// The name by which the engine knows a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PoolId {
    pub(super) pool: String,
    pub(super) hold: String,
}

impl PoolId {
    pub(super) fn parse(text: &str) -> Self {
        let (pool, hold) = text.split_once('/').unwrap_or((text, SHARED));
        PoolId { pool: pool.to_owned(), hold: hold.to_owned() }
    }
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.hold.as_str() {
            SHARED => f.write_str(&self.pool),
            hold => write!(f, "{}/{hold}", self.pool),
        }
    }
}

impl Pool {
    /// Returns the PoolID of a hold.
    pub(super) fn id_of(&self, hold: &str) -> String {
        PoolId { pool: self.id.clone(), hold: hold.to_owned() }.to_string()
    }

    /// Says whether a hold exists. In a rebuilt record any may.
    pub(super) fn may_have(&self, hold: &str) -> bool {
        self.rebuilt || self.holds.contains_key(hold)
    }

    /// Records an address for a hold.
    pub(super) fn give(&mut self, address: IpAddr, for_what: Use, hold: &str) {
        self.taken.insert(address, for_what);
        self.held_by.entry(address).or_default().insert(hold.to_owned());
    }

    /// Takes an address from a hold; returns false when the hold did not have it. An address
    /// without a recorded hold comes from an older driver, or is in a rebuilt record.
    pub(super) fn release(&mut self, address: IpAddr, hold: &str) -> bool {
        match self.held_by.get_mut(&address) {
            Some(holders) => {
                let had = holders.remove(hold);
                if holders.is_empty() {
                    self.held_by.remove(&address);
                    self.taken.remove(&address);
                }
                had
            }
            None if hold == SHARED || !self.holds.contains_key(SHARED) => {
                self.taken.remove(&address).is_some()
            }
            None => false,
        }
    }

    /// Removes a hold with all its addresses.
    fn drop_hold(&mut self, hold: &str) {
        self.holds.remove(hold);
        let addresses: Vec<IpAddr> = self.held_by.keys().copied().collect();
        for address in addresses {
            self.release(address, hold);
        }
    }

    /// Returns the gateways of all holds.
    pub(super) fn gateways(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.gateway.into_iter().chain(self.holds.values().filter_map(|hold| hold.gateway))
    }
}

impl Network {
    /// Says whether the network has the pool, by its claims; for a network of an older driver, by
    /// its subnet.
    pub(super) fn is_on(&self, pool: &Pool) -> bool {
        match &self.holds {
            Some(ids) => ids.iter().any(|id| PoolId::parse(id).pool == pool.id),
            None => subnets(self).contains(&pool.subnet),
        }
    }

    fn claims(&self, pool: &Pool, hold: &str) -> bool {
        match &self.holds {
            Some(ids) => ids.contains(&pool.id_of(hold)),
            None => hold == SHARED && subnets(self).contains(&pool.subnet),
        }
    }

    fn exchange(&mut self, from: &str, to: String) {
        for id in self.holds.iter_mut().flatten().filter(|id| *id == from) {
            id.clone_from(&to);
        }
    }
}

impl Driver {
    /// Returns the holds of a new network: of each of its pools the first that no network claims,
    /// preferring its own engine's. `None` for pools that a previous driver gave. The caller holds
    /// all pools.
    pub(super) fn claim(
        &self,
        network: &Network,
        engine: Option<Engine>,
    ) -> Result<Option<Vec<String>>, Error> {
        let list = network.list()?.name;
        let engine = engine.map(|engine| engine.to_string());
        let networks = self.journal.networks();
        let pools = self.journal.pools();
        let mut claimed: HashSet<String> =
            networks.iter().flat_map(|other| other.holds.iter().flatten().cloned()).collect();
        let mut ours = Vec::new();
        let mut is_shared = false;
        for data in pools_of(&network.asked).filter(|data| data.address_space == LOCAL) {
            let Ok(subnet) = data.pool.parse::<IpNet>() else { continue };
            let on_subnet = || pools.iter().filter(|pool| pool.subnet == subnet.trunc());
            let holds = on_subnet().flat_map(|pool| pool.holds.iter().map(move |one| (pool, one)));
            let free = holds.filter(|(pool, (name, _))| {
                *name != SHARED && !claimed.contains(&pool.id_of(name))
            });
            let first = free.min_by_key(|(pool, (_, hold))| {
                let of_list = pool.conflist.as_ref().is_some_and(|name| *name == list);
                (!of_list, hold.engine != engine, hold.asked_ms)
            });
            match first {
                Some((pool, (name, _))) => {
                    claimed.insert(pool.id_of(name));
                    ours.push(pool.id_of(name));
                }
                None => is_shared |= on_subnet().any(|pool| pool.holds.contains_key(SHARED)),
            }
        }
        Ok((!is_shared || !ours.is_empty()).then_some(ours))
    }

    /// Releases a hold of a pool; the pool goes with its last hold. A hold that was never given is
    /// not an error. The caller holds all pools.
    pub(super) fn release(&self, id: &PoolId) -> Result<(), Error> {
        if super::journal::check_id(&id.pool).is_err() {
            return Ok(());
        }
        let Some(pool) = self.journal.pool(&id.pool)? else { return Ok(()) };
        if !pool.may_have(&id.hold) {
            return Ok(());
        }
        let mut networks = self.journal.networks();
        networks.retain(|network| !network.released && network.claims(&pool, &id.hold));
        // Several networks of an older driver share one PoolID.
        if 1 < networks.len() {
            return Ok(());
        }
        if let Some(mut network) = networks.pop() {
            match self.spare(&pool, &id.hold) {
                Some(spare) => network.exchange(&id.to_string(), pool.id_of(&spare)),
                None => network.released = true,
            }
            self.journal.put_network(&network)?;
        }
        self.drop_hold(pool, &id.hold)
    }

    /// Finds a hold that the same engine asked for and no network claims. It may be the claiming
    /// network's own; then the given one belongs to a network that is not created yet.
    fn spare(&self, pool: &Pool, hold: &str) -> Option<String> {
        let engine = &pool.holds.get(hold)?.engine;
        let networks = self.journal.networks();
        let mut others = pool.holds.iter().filter(|(name, other)| {
            let claimed = networks.iter().any(|network| network.claims(pool, name));
            *name != hold && *name != SHARED && other.engine == *engine && !claimed
        });
        others.next().map(|(name, _)| name.clone())
    }

    fn drop_hold(&self, mut pool: Pool, hold: &str) -> Result<(), Error> {
        pool.drop_hold(hold);
        match pool.holds.is_empty() {
            true => self.journal.remove_pool(&pool.id),
            false => self.journal.put_pool(&pool),
        }
    }

    /// Removes a network's record, and the holds that the engine did not release before. The caller
    /// holds no pool.
    pub(super) fn forget_network(&self, network: &Network) -> Result<(), Error> {
        let _pools = self.hold_pools()?;
        // It may have exchanged a hold meanwhile.
        let network = self.journal.network(&network.id)?.unwrap_or_else(|| network.clone());
        self.journal.remove_network(&network.id)?;
        let mut others = self.journal.networks();
        let Some(ids) = &network.holds else {
            for pool in self.journal.pools() {
                let shared = pool.holds.contains_key(SHARED) && network.is_on(&pool);
                if shared && !others.iter().any(|other| other.claims(&pool, SHARED)) {
                    self.drop_hold(pool, SHARED)?;
                }
            }
            return Ok(());
        };
        for id in ids {
            let parsed = PoolId::parse(id);
            let Some(pool) = self.journal.pool(&parsed.pool)? else { continue };
            if !pool.holds.contains_key(&parsed.hold) {
                continue;
            }
            // Another network's hold was released in place of this one's: each had claimed the
            // other's.
            let is_gone = |id: &String| {
                let of = PoolId::parse(id);
                of.pool == pool.id && !pool.holds.contains_key(&of.hold)
            };
            let heir = others.iter_mut().find_map(|other| {
                let gone = other.holds.iter().flatten().find(|id| is_gone(id)).cloned()?;
                (other.released).then_some((other, gone))
            });
            match heir {
                Some((heir, gone)) => {
                    heir.exchange(&gone, id.clone());
                    heir.released = heir.holds.iter().flatten().any(is_gone);
                    self.journal.put_network(heir)?;
                }
                None => self.drop_hold(pool, &parsed.hold)?,
            }
        }
        Ok(())
    }

    /// Says whether an address that was given for a hold belongs to a network other than ours, or
    /// to one that is not created yet: then there is only the record to go by.
    pub(super) fn is_unclaimed(&self, pool: &Pool, address: IpAddr, networks: &[Network]) -> bool {
        match pool.held_by.get(&address) {
            Some(holders) => holders
                .iter()
                .any(|hold| !networks.iter().any(|network| network.claims(pool, hold))),
            None => !networks.iter().any(|network| network.is_on(pool)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_of_an_older_driver_has_one_hold() {
        let old = r#"{"version":1,"id":"10.73.0.0-24","subnet":"10.73.0.0/24","part":null,
            "conflist":null,"gateway":"10.73.0.1","taken":{"10.73.0.1":"gateway"},"last":null}"#;
        let mut pool: Pool = serde_json::from_str(old).unwrap();
        assert!(pool.may_have(SHARED) && !pool.may_have("1"));
        assert_eq!(pool.id_of(SHARED), "10.73.0.0-24");
        let gateway = "10.73.0.1".parse().unwrap();
        // An address that a driver without holds gave is not released by a later network.
        pool.holds.insert("1".to_owned(), Hold::default());
        assert!(!pool.release(gateway, "1") && pool.taken.contains_key(&gateway));
        assert!(pool.release(gateway, SHARED) && pool.taken.is_empty());
    }

    #[test]
    fn an_address_that_two_hold_stays_until_both_have_left() {
        let mut pool = Pool::new("lan.10.71.0.0-24".to_owned(), "10.71.0.0/24".parse().unwrap());
        for name in ["1", "2"] {
            pool.holds.insert(name.to_owned(), Hold::default());
            pool.give("10.71.0.9".parse().unwrap(), Use::Gateway, name);
        }
        pool.drop_hold("1");
        assert_eq!(pool.taken.len(), 1);
        pool.drop_hold("2");
        assert!(pool.taken.is_empty() && pool.held_by.is_empty() && pool.holds.is_empty());
    }

    #[test]
    fn pool_ids_come_back_as_they_went() {
        for text in ["lan.10.71.0.0-24/a1-5-2-0", "10.73.0.0-24"] {
            assert_eq!(PoolId::parse(text).to_string(), text);
        }
    }
}
