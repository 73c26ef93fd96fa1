//! The IPAM driver: pools of its own, or those of a network list, whose address folder it also
//! reads.
//!
//! The driver records here what it hands out. Where the addresses are a network list's, it reads
//! the folder as well, so that it does not hand out what containers of CNI runtimes have; ADD makes
//! the reservation there.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use cni::{Error, NetworkName, code};
use cni_plugin::codes;
use cni_runtime::ConfigFolder;
use cnm::ipam::{
    self as messages, Address, AddressSpaces, ReleaseAddress, ReleasePool, RequestAddress,
    RequestPool,
};
use ipam::{RangeSet, RangeSets, Store};
use ipnet::{IpAddrRange, IpNet, Ipv4AddrRange, Ipv4Net, Ipv6AddrRange, Ipv6Net};
use kernel::living::Census;
use kernel::route::{IpFamily, RouteFilter, RouteSocket};

use super::driver::{Asker, Driver, KeyGuard, texts};
use super::handover::kernel_error;
use super::holds::{Hold, PoolId, SHARED};
use super::journal::{Pool, Use};
use super::network::subnets;
use super::pool_config;
use super::sandbox::Engine;

/// Our address space. There is no global one, but Docker wants a name for it.
pub(super) const LOCAL: &str = "netwright";
const GLOBAL: &str = "netwright-global";
/// The option (`--ipam-opt`) that names a network list.
const CONFLIST: &str = "conflist";
/// The ID that stands for all pools while one is chosen.
const ALL: &str = "pools";
/// Where pools come from when the user names none: a /24 of the first, a /64 of the second
/// (RFC 4193, its global ID drawn at random once).
const V4_POOLS: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(10, 201, 0, 0), 16);
const V6_POOLS: Ipv6Net =
    Ipv6Net::new_assert(Ipv6Addr::new(0xfd6e, 0x7769, 0x6768, 0, 0, 0, 0, 0), 48);
/// How many addresses are tried to find a free one; a folder may be as full as a /16.
const TRIES: usize = 1 << 17;
/// How often a list's subnet is given to a request that did not name it, while no network is made
/// of it: libnetwork repeats the request for as long as it does not like the answer, and holds
/// everything it was given.
const MAX_CHOSEN: usize = 8;
/// The files that list the host's name servers. Docker takes no subnet that contains one of them.
const NAME_SERVERS: [&str; 2] = ["/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"];

impl Driver {
    #[expect(clippy::unused_self, reason = "as the other calls")]
    pub(super) fn address_spaces(&self) -> AddressSpaces {
        AddressSpaces {
            local_default_address_space: LOCAL.to_owned(),
            global_default_address_space: GLOBAL.to_owned(),
        }
    }

    /// Waits until no other call holds the pools, and holds them.
    pub(super) fn hold_pools(&self) -> Result<KeyGuard<'_>, Error> {
        self.hold(ALL)
    }

    pub(super) fn request_pool(
        &self,
        asked: &RequestPool,
        asker: &Asker,
    ) -> Result<messages::Pool, Error> {
        let _held = self.hold_pools()?;
        if let Some(key) = asked.options.keys().find(|key| *key != CONFLIST) {
            return Err(Error::new(code::INVALID_CONFIG, format!("unknown IPAM option {key:?}"))
                .with_details("conflist=NAME is the only one"));
        }
        let mut pool = match asked.options.get(CONFLIST) {
            Some(name) => self.pool_of_list(name, asked)?,
            None => self.pool_of_our_own(asked)?,
        };
        let boot = self.boot_id.get(..8).unwrap_or_default();
        let name = format!("{boot}-{}", asker.call);
        let hold = Hold {
            part: parse_pool("range", &asked.sub_pool)?,
            gateway: None,
            engine: asker.engine.map(|engine| engine.to_string()),
            chosen: asked.pool.is_empty(),
            asked_ms: service_kit::clock::boot_ms(),
        };
        let pool_id = pool.id_of(&name);
        pool.holds.insert(name, hold);
        self.journal.put_pool(&pool)?;
        let gateway = pool.gateway.map(|gateway| with_length(gateway, pool.subnet));
        let mut data = texts([(messages::GATEWAY, gateway.unwrap_or_default())]);
        data.retain(|_, text| !text.is_empty());
        Ok(messages::Pool { pool_id, pool: pool.subnet.to_string(), data })
    }

    fn pool_of_list(&self, name: &str, asked: &RequestPool) -> Result<Pool, Error> {
        let (sets, _) = self.ranges(name)?;
        let wanted: Option<IpNet> = parse_pool("pool", &asked.pool)?;
        let fits = |range: &&ipam::Range| match wanted {
            Some(wanted) => range.subnet() == wanted,
            None => range.subnet().addr().is_ipv6() == asked.v6,
        };
        let fitting: Vec<&ipam::Range> =
            sets.sets().iter().flat_map(RangeSet::ranges).filter(fits).collect();
        let range = match wanted {
            Some(_) => fitting.first().copied(),
            None => self.acceptable(name, &fitting)?,
        };
        let Some(range) = range else {
            let family = if asked.v6 { "IPv6" } else { "IPv4" };
            let what =
                wanted.map_or_else(|| format!("{family} subnet"), |subnet| subnet.to_string());
            return Err(Error::new(
                code::INVALID_CONFIG,
                format!("network list {name:?} does not hand out addresses of {what}"),
            ));
        };
        let id = pool_of_range(name, range);
        let mut pool = match self.journal.pool(&id)? {
            Some(pool) => pool,
            None => Pool::new(id, range.subnet()),
        };
        pool.conflist = Some(name.to_owned());
        pool.gateway = Some(range.gateway());
        Ok(pool)
    }

    fn pool_of_our_own(&self, asked: &RequestPool) -> Result<Pool, Error> {
        let pools = self.journal.pools();
        let Some(subnet) = parse_pool("pool", &asked.pool)? else {
            let subnet = self.free_subnet(&pools, asked.v6)?;
            return Ok(Pool::new(file_name(subnet), subnet));
        };
        if let Some(what) = ipam::host::no_hosts(subnet) {
            return Err(Error::new(
                code::INVALID_CONFIG,
                format!("{subnet} has {what}, which no container can have"),
            ));
        }
        let part = parse_pool("range", &asked.sub_pool)?;
        if part.is_some_and(|part| !subnet.contains(&part)) {
            return Err(Error::new(
                code::INVALID_CONFIG,
                format!("range {} is not in {subnet}", asked.sub_pool),
            ));
        }
        let networks = self.journal.networks();
        let meets = |pool: &&Pool| {
            pool.conflist.is_none()
                && (pool.subnet.contains(&subnet) || subnet.contains(&pool.subnet))
        };
        for pool in pools.iter().filter(meets) {
            let claimed = networks.iter().any(|network| network.is_on(pool));
            let has = |what: Use| pool.taken.values().any(|for_what| *for_what == what);
            if claimed || has(Use::Any) || pool.rebuilt {
                return Err(in_use(subnet, pool));
            }
            if !has(Use::Gateway) {
                // The engine that requested it has not used it yet; if it still tries to, it learns
                // that the pool is not its own.
                self.journal.remove_pool(&pool.id)?;
            } else if pool.subnet != subnet || pool.holds.values().any(Hold::may_live) {
                return Err(in_use(subnet, pool));
            } else {
                // Of an engine that was killed, or of another driver's network without containers.
                // No address is given twice.
                return Ok(pool.clone());
            }
        }
        Ok(Pool::new(file_name(subnet), subnet))
    }

    /// Finds a range that Docker accepts without having asked for it.
    fn acceptable<'r>(
        &self,
        list: &str,
        fitting: &[&'r ipam::Range],
    ) -> Result<Option<&'r ipam::Range>, Error> {
        let Some(first) = fitting.first() else { return Ok(None) };
        let family = if first.subnet().addr().is_ipv6() { IpFamily::V6 } else { IpFamily::V4 };
        let taken = taken_on_host(family)?;
        let networks = self.journal.networks();
        let is_asked_again = |range: &ipam::Range| {
            let Ok(Some(pool)) = self.journal.pool(&pool_of_range(list, range)) else {
                return false;
            };
            let claimed = |name: &str| {
                let id = pool.id_of(name);
                networks.iter().any(|network| network.holds.iter().flatten().any(|one| *one == id))
            };
            let open = pool
                .holds
                .iter()
                .filter(|(name, hold)| hold.chosen && hold.may_live() && !claimed(name));
            MAX_CHOSEN <= open.count()
        };
        let found = fitting.iter().copied().find(|range| {
            let subnet = range.subnet();
            let meets = |one: &IpNet| one.contains(&subnet) || subnet.contains(one);
            !taken.iter().any(meets) && !is_asked_again(range)
        });
        if found.is_some() {
            return Ok(found);
        }
        let listed: Vec<String> =
            fitting.iter().map(|range| format!("--subnet {}", range.subnet())).collect();
        Err(Error::new(
            code::INVALID_CONFIG,
            format!("the subnets of network list {list:?} are in use on this host: name the one that Docker is to use"),
        )
        .with_details(format!("create the network with {}", listed.join(" or "))))
    }

    /// Frees addresses that no endpoint has now or had at the last look: their release got lost.
    pub(super) fn collect_addresses(&self, before: &HashSet<String>, now: &mut HashSet<String>) {
        let Ok(_held) = self.hold(ALL) else { return };
        for mut pool in self.journal.pools() {
            let addresses: Vec<IpAddr> = pool.taken.keys().copied().collect();
            let count = pool.taken.len();
            for address in addresses {
                if pool.taken.get(&address) != Some(&Use::Any) || self.is_held(&pool, address, None)
                {
                    continue;
                }
                let name = format!("address {}/{address}", pool.id);
                if before.contains(&name) {
                    pool.taken.remove(&address);
                    pool.held_by.remove(&address);
                } else {
                    now.insert(name);
                }
            }
            if pool.taken.len() != count && self.journal.put_pool(&pool).is_ok() {
                tracing::info!(pool = %pool.id, addresses = count - pool.taken.len(), "collected");
            }
        }
    }

    /// Chooses a subnet that is in neither our pools nor the host's routes.
    fn free_subnet(&self, pools: &[Pool], v6: bool) -> Result<IpNet, Error> {
        let mut taken = taken_on_host(if v6 { IpFamily::V6 } else { IpFamily::V4 })?;
        taken.extend(pools.iter().map(|pool| pool.subnet));
        taken.extend(self.journal.networks().iter().flat_map(subnets));
        let free =
            |subnet: &IpNet| !taken.iter().any(|one| one.contains(subnet) || subnet.contains(one));
        let found = if v6 {
            // A /48 has 65,536 of them.
            let mut all = V6_POOLS.subnets(64).expect("64 is longer than 48").map(IpNet::V6);
            all.find(free)
        } else {
            let mut all = V4_POOLS.subnets(24).expect("24 is longer than 16").map(IpNet::V4);
            all.find(free)
        };
        found.ok_or_else(|| {
            Error::new(codes::ADDRESS, "every subnet that could be chosen is in use")
                .with_details("choose one with --subnet")
        })
    }

    pub(super) fn release_pool(&self, asked: &ReleasePool) -> Result<(), Error> {
        let _held = self.hold_pools()?;
        self.release(&PoolId::parse(&asked.pool_id))
    }

    pub(super) fn request_address(
        &self,
        asked: &RequestAddress,
        engine: Option<Engine>,
    ) -> Result<Address, Error> {
        let _held = self.hold_pools()?;
        let id = PoolId::parse(&asked.pool_id);
        let mut pool = self.known_pool(&id)?;
        let for_gateway = asked
            .options
            .get(messages::ADDRESS_TYPE)
            .is_some_and(|for_what| for_what == messages::GATEWAY);
        let for_what = if for_gateway { Use::Gateway } else { Use::Any };
        let address = if asked.address.is_empty() {
            self.choose(&pool, &id.hold, for_what)?
        } else {
            let wanted: IpAddr = asked.address.parse().map_err(|_| {
                Error::new(code::INVALID_CONFIG, format!("{:?} is not an address", asked.address))
            })?;
            self.check_wanted(&pool, wanted, for_what, engine)?;
            wanted
        };
        let hold = pool.holds.entry(id.hold.clone()).or_default();
        match for_what {
            Use::Gateway => hold.gateway = Some(address),
            Use::Any if asked.address.is_empty() => pool.last = Some(address),
            Use::Any => {}
        }
        pool.give(address, for_what, &id.hold);
        self.journal.put_pool(&pool)?;
        Ok(Address { address: with_length(address, pool.subnet), ..Address::default() })
    }

    pub(super) fn release_address(&self, asked: &ReleaseAddress) -> Result<(), Error> {
        let _held = self.hold_pools()?;
        let id = PoolId::parse(&asked.pool_id);
        if super::journal::check_id(&id.pool).is_err() {
            return Ok(());
        }
        let Some(mut pool) = self.journal.pool(&id.pool)? else { return Ok(()) };
        let Ok(address) = asked.address.parse::<IpAddr>() else { return Ok(()) };
        if !pool.release(address, &id.hold) {
            return Ok(());
        }
        self.journal.put_pool(&pool)
    }

    /// Returns a pool that has this hold.
    fn known_pool(&self, id: &PoolId) -> Result<Pool, Error> {
        let pool = self.journal.pool(&id.pool)?.filter(|pool| pool.may_have(&id.hold));
        pool.ok_or_else(|| {
            Error::new(
                code::INVALID_CONFIG,
                format!("pool {:?} is not known to netwright", id.pool),
            )
            .with_details(
                "its record is gone, or it was given back: remove the network and create it again",
            )
        })
    }

    /// Refuses an address that cannot be given.
    fn check_wanted(
        &self,
        pool: &Pool,
        wanted: IpAddr,
        for_what: Use,
        engine: Option<Engine>,
    ) -> Result<(), Error> {
        if !pool.subnet.contains(&wanted) {
            return Err(Error::new(
                codes::ADDRESS,
                format!("address {wanted} is not in pool {}", pool.subnet),
            ));
        }
        let is_recorded = pool.taken.get(&wanted) == Some(&Use::Gateway);
        // The gateway of a network that was made by an earlier version stays.
        if let Some(what) = no_host(wanted, pool.subnet).filter(|_| !is_recorded) {
            return Err(Error::new(
                codes::ADDRESS,
                format!("address {wanted} is {what}: no container can have it"),
            ));
        }
        if for_what == Use::Any && pool.gateways().any(|gateway| gateway == wanted) {
            return Err(taken(wanted, "the gateway has it"));
        }
        match pool.taken.get(&wanted) {
            // The gateway of a list's pool, requested by the second network on it.
            Some(Use::Gateway) if for_what == Use::Gateway => Ok(()),
            Some(Use::Gateway) => Err(taken(wanted, "the gateway has it")),
            Some(Use::Any) if self.is_held(pool, wanted, engine) => {
                Err(taken(wanted, "a container has it"))
            }
            Some(Use::Any) => Ok(()),
            None => match self.holder_in_folder(pool, wanted) {
                Some(holder) => Err(taken(wanted, &holder)),
                None => Ok(()),
            },
        }
    }

    /// Says whether a recorded address is still in use. Where our own networks use the pool, their
    /// endpoints tell, and an address that Docker forgot to release is free; otherwise there is
    /// only the record to go by. An engine that was killed does not report that its containers are
    /// gone, but we can see that it does not have them.
    fn is_held(&self, pool: &Pool, address: IpAddr, engine: Option<Engine>) -> bool {
        let ours = self.journal.networks();
        if self.is_unclaimed(pool, address, &ours) {
            return true;
        }
        let on_pool: Vec<_> = ours.iter().filter(|network| network.is_on(pool)).collect();
        let reserved = on_pool.iter().any(|network| {
            let data = network.asked.ipv4.iter().chain(&network.asked.ipv6);
            data.flat_map(|data| data.aux_addresses.values())
                .any(|text| text.parse::<IpNet>().is_ok_and(|one| one.addr() == address))
        });
        let census = Census::new();
        // An endpoint whose record cannot be read may have any address.
        reserved
            || self.journal.may_lack_an_endpoint()
            || self.journal.endpoints().iter().any(|endpoint| {
                on_pool.iter().any(|network| network.id == endpoint.network)
                    && !engine.is_some_and(|engine| engine.has_lost(endpoint, &census))
                    && endpoint.layout.addresses.iter().any(|one| one.addr() == address)
            })
    }

    fn choose(&self, pool: &Pool, hold: &str, for_what: Use) -> Result<IpAddr, Error> {
        let known = pool.holds.get(hold);
        if for_what == Use::Gateway {
            let mut usable = hosts(pool.subnet, pool.subnet);
            let said = known.and_then(|hold| hold.gateway).or_else(|| pool.gateways().next());
            return said.or_else(|| usable.next()).ok_or_else(|| exhausted(pool.subnet));
        }
        let folder: Vec<IpAddr> = match &pool.conflist {
            Some(name) => self.folder(name)?.addresses().unwrap_or_default(),
            None => Vec::new(),
        };
        let ranges = match &pool.conflist {
            Some(name) => Some(self.ranges(name)?.0),
            None => None,
        };
        let allowed = |address: &IpAddr| {
            ranges.as_ref().is_none_or(|sets| {
                sets.sets().iter().any(|set| set.range_of(*address).is_some())
                    && !sets.is_gateway(*address)
            })
        };
        let part = known.and_then(|hold| hold.part);
        let part = part.or(pool.part.filter(|_| hold == SHARED)).unwrap_or(pool.subnet);
        let free = |address: &IpAddr| {
            !pool.taken.contains_key(address)
                && !folder.contains(address)
                && !pool.gateways().any(|gateway| gateway == *address)
                && allowed(address)
        };
        let all = || hosts(part, pool.subnet).take(TRIES);
        let behind = |last: IpAddr| all().skip_while(move |one| *one <= last);
        let next = pool.last.and_then(|last| behind(last).find(free));
        let found = next.or_else(|| all().find(free));
        found.ok_or_else(|| exhausted(part))
    }

    /// Reads what a network list hands out, and where its reservations are.
    fn ranges(&self, name: &str) -> Result<(RangeSets, PathBuf), Error> {
        let folder = ConfigFolder::scan(&self.conf_dir).map_err(|error| error.to_cni())?;
        let list = folder.find(name).map_err(|error| error.to_cni())?;
        let ipam = pool_config::ipam_of_list(list)?.filter(pool_config::is_host_local);
        let Some(ipam) = ipam else {
            return Err(Error::new(
                code::INVALID_CONFIG,
                format!("network list {name:?} does not have its addresses from host-local"),
            )
            .with_details(
                "create the network with --ipam-driver null: then the list gives the addresses",
            ));
        };
        Ok((pool_config::range_sets(&ipam)?, ipam.folder()))
    }

    fn folder(&self, name: &str) -> Result<Store, Error> {
        let (_, data_dir) = self.ranges(name)?;
        Ok(Store::new(&data_dir, &NetworkName::new(name)?))
    }

    fn holder_in_folder(&self, pool: &Pool, address: IpAddr) -> Option<String> {
        let store = self.folder(pool.conflist.as_ref()?).ok()?;
        let holder = store.holder_of(address).ok().flatten()?;
        Some(format!("it is reserved: {holder}"))
    }
}

/// Lists the addresses of a part of a subnet that hosts can have: the whole subnet decides.
fn hosts(part: IpNet, subnet: IpNet) -> impl Iterator<Item = IpAddr> {
    let is_of_family = part.addr().is_ipv4() == subnet.addr().is_ipv4();
    let ends = is_of_family
        .then(|| ipam::host::hosts_between(subnet, part.network(), part.broadcast()))
        .flatten();
    let range = |ends| match ends {
        (IpAddr::V4(first), IpAddr::V4(last)) => Some(Ipv4AddrRange::new(first, last).into()),
        (IpAddr::V6(first), IpAddr::V6(last)) => Some(Ipv6AddrRange::new(first, last).into()),
        _ => None,
    };
    let found: Option<IpAddrRange> = ends.and_then(range);
    found.into_iter().flatten()
}

/// Says what an address is if no host of the subnet can have it.
fn no_host(address: IpAddr, subnet: IpNet) -> Option<String> {
    ipam::host::no_host(IpNet::new(address, subnet.prefix_len()).ok()?)
}

fn taken(address: IpAddr, why: &str) -> Error {
    Error::new(codes::ADDRESS, format!("address {address} is taken")).with_details(why)
}

fn exhausted(part: IpNet) -> Error {
    Error::new(codes::ADDRESS, format!("no address of pool {part} is free"))
}

fn in_use(subnet: IpNet, pool: &Pool) -> Error {
    Error::new(
        code::INVALID_CONFIG,
        format!("pool {subnet} overlaps pool {}, which is in use", pool.subnet),
    )
}

/// Returns the name of the pool for a list's range.
fn pool_of_range(list: &str, range: &ipam::Range) -> String {
    format!("{list}.{}", file_name(range.subnet()))
}

/// Returns what libnetwork considers used when no subnet was requested: destinations of the main
/// table's routes, and name servers (its `CheckRouteOverlaps` and `CheckNameserverOverlaps`).
fn taken_on_host(family: IpFamily) -> Result<Vec<IpNet>, Error> {
    let mut host = RouteSocket::open().map_err(|error| kernel_error(&error))?;
    let routes = host.routes(RouteFilter::main(family)).map_err(|error| kernel_error(&error))?;
    let mut taken: Vec<IpNet> = routes.iter().map(|route| route.destination).collect();
    taken.retain(|subnet| subnet.prefix_len() != 0);
    for path in NAME_SERVERS {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let servers = text.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
        let servers = servers.filter_map(|rest| rest.trim().parse::<IpAddr>().ok());
        taken.extend(servers.map(IpNet::from));
    }
    Ok(taken)
}

fn with_length(address: IpAddr, subnet: IpNet) -> String {
    format!("{address}/{}", subnet.prefix_len())
}

/// Returns a subnet as part of a file name.
fn file_name(subnet: IpNet) -> String {
    subnet.to_string().replace('/', "-")
}

fn parse_pool(what: &str, text: &str) -> Result<Option<IpNet>, Error> {
    if text.is_empty() {
        return Ok(None);
    }
    let subnet: IpNet = text.parse().map_err(|_| {
        Error::new(
            code::INVALID_CONFIG,
            format!("{what} {text:?} is not an address with its length"),
        )
    })?;
    Ok(Some(subnet.trunc()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_subnet_decides_which_addresses_of_a_part_hosts_can_have() {
        let all = |part: &str, subnet: &str| {
            let all = hosts(part.parse().unwrap(), subnet.parse().unwrap());
            all.map(|one| one.to_string()).collect::<Vec<_>>().join(" ")
        };
        for (part, subnet, addresses) in [
            ("10.81.0.254/31", "10.81.0.0/24", "10.81.0.254"),
            ("10.81.0.255/32", "10.81.0.0/24", ""),
            ("10.82.0.0/30", "10.82.0.0/24", "10.82.0.1 10.82.0.2 10.82.0.3"),
            ("10.82.0.4/30", "10.82.0.0/24", "10.82.0.4 10.82.0.5 10.82.0.6 10.82.0.7"),
            ("10.84.0.0/30", "10.84.0.0/30", "10.84.0.1 10.84.0.2"),
            ("10.85.0.0/31", "10.85.0.0/31", "10.85.0.0 10.85.0.1"),
            ("10.86.0.5/32", "10.86.0.5/32", "10.86.0.5"),
            ("fd86::/126", "fd86::/64", "fd86::1 fd86::2 fd86::3"),
            ("fd86::4/126", "fd86::/64", "fd86::4 fd86::5 fd86::6 fd86::7"),
            ("fd80::/127", "fd80::/127", "fd80:: fd80::1"),
            ("::/126", "::/64", "::2 ::3"),
        ] {
            assert_eq!(all(part, subnet), addresses, "{part} of {subnet}");
        }
    }
}
