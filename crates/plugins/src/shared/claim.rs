//! Addresses that a container cannot have: one that is the host's own, and one that another living
//! attachment has in a place where both are reachable.
//!
//! A [`Place`] is where an attachment is reachable: a bridge, a parent or a device, by the link's
//! ifindex and VLAN, and the host's routing table, or a VRF's, for containers that the host routes
//! to. Equal addresses in different places are fine. A link keeps its ifindex when it is renamed. A
//! bridge that is created again has another one, so a repair claims the addresses anew
//! ([`restore`], [`settle`]).
//!
//! One symbolic link below `/run/netwright/claims` ([`state::Index::claim`]) names the attachment
//! that has an address in a place. So ADD makes one system call, however many attachments there
//! are. A claim counts as long as the attachment's records say that its namespace may live: an ADD
//! that was killed, or a container that went without a DEL, does not block other attachments.

mod place;

use std::fmt::Display;
use std::net::IpAddr;
use std::time::Duration;

use cni::{AttachmentKey, IpConfig, code};
use cni_plugin::{Call, codes};
use ipnet::IpNet;
use kernel::living::Census;
use kernel::netlink::{Errno, NetlinkError, nothing_if};
use kernel::route::{IpFamily, Link, Route, RouteFilter, RouteKind, RouteProtocol, RouteSocket};
use serde::Deserialize;
use serde_json::{Value, json};
use state::{ClaimOutcome, Index, LOCK_TIMEOUT, ReadOutcome, Record};
use wanted::{Item, Reason, State};

pub use place::{Place, Segment, SegmentLinks, follow, vlan_link};

use super::attachment::may_live;
use super::drift;
use super::failure::Failure;
use super::failures::Failures;

/// The key that allows sharing an address on purpose.
const KEY: &str = "allowAddressConflict";

/// Reports whether the configuration allows addresses that others already have.
///
/// # Errors
/// Code 6 or 7 when it cannot be read.
pub fn may_conflict(call: &Call<'_>) -> Result<bool, Failure> {
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct OnlyConflicts {
        allow_address_conflict: bool,
    }
    Ok(call.read_config().map(|only: OnlyConflicts| only.allow_address_conflict)?)
}

/// Names what [`take`] will claim, for the attachment's record: DEL reads it from there.
#[must_use]
pub fn objects(places: &[Place], ips: &[IpNet]) -> Vec<String> {
    let of =
        |place: &Place| -> Vec<String> { ips.iter().map(|ip| place.object(ip.addr())).collect() };
    places.iter().flat_map(of).collect()
}

/// Claims the addresses for the attachment in each place. Its record, with the namespace and
/// [`objects`], is already written: other attachments' ADDs decide by it whether the attachment
/// lives.
///
/// # Errors
/// Code 108 naming the address and its holder, unless the configuration allows that; 105 and 11 for
/// our own files.
pub fn take(
    call: &Call<'_>,
    index: &Index,
    places: &[Place],
    ips: &[IpNet],
) -> Result<(), Failure> {
    for place in places {
        for ip in ips {
            if let Err(error) = take_one(call, index, place, ip.addr())
                && !(error.code() == codes::CONFLICT && may_conflict(call)?)
            {
                return Err(error);
            }
        }
    }
    Ok(())
}

fn take_one(call: &Call<'_>, index: &Index, place: &Place, address: IpAddr) -> Result<(), Failure> {
    let key = call.attachment();
    let object = place.object(address);
    for _ in 0..TRIES {
        let holders = match index.claim(&object, key)? {
            ClaimOutcome::Own => return Ok(()),
            ClaimOutcome::By(holders) => holders,
        };
        let living = living(index, &holders);
        if let Some(other) = living.first()
            && !may_conflict(call)?
        {
            return Err(taken(address, place, &other.name));
        }
        if join(index, &object, key, &holders, &living)? {
            return Ok(());
        }
    }
    Err(changes_hands(format_args!("{address} {}", place.describe())))
}

/// How often a claim is read again after others changed it meanwhile.
const TRIES: u32 = 8;

/// How long the holder of a claim may be busy before the call fails with "try again".
const HOLDER_TIMEOUT: Duration = Duration::from_secs(2);

fn changes_hands(object: impl Display) -> Failure {
    Failure::new(code::TRY_AGAIN_LATER, format!("address {object} changes hands"))
}

/// Adds an attachment to those holders of a claim that live; `false` when another call was faster.
fn join(
    index: &Index,
    object: &str,
    key: &AttachmentKey,
    holders: &[String],
    living: &[Claimant],
) -> Result<bool, Failure> {
    let mut to: Vec<String> = living.iter().map(|one| one.hash.clone()).collect();
    to.push(key.hash());
    pass(index, object, holders, &to)
}

fn pass(index: &Index, object: &str, from: &[String], to: &[String]) -> Result<bool, Failure> {
    // Another call that finds the same waits here, and then sees the result of this one.
    let lock = index.lock(object, LOCK_TIMEOUT)?;
    // A holder that is alone releases the claim without that lock.
    let alone = match from {
        [alone] => index.lock_hash(alone, HOLDER_TIMEOUT).map_err(Failure::from),
        _ => Ok(None),
    };
    let passed = alone.and_then(|_alone| Ok(index.pass_claim(object, from, to)?));
    index.end_lock(object, lock);
    passed
}

/// Reports which of the addresses that an attachment's record claims another living attachment has
/// by now, unless the configuration allows it (CHECK). A claim that is lost is not an error here: a
/// repair takes it again.
///
/// # Errors
/// Code 104, naming both; code 105 when claims cannot be read.
pub fn check(call: &Call<'_>, index: &Index, objects: &[String]) -> Result<(), Failure> {
    objects.iter().try_for_each(|object| check_one(call, index, object).map(drop))
}

/// Reports whether an attachment still has a claim, unless another living attachment has it by now.
///
/// # Errors
/// As [`check`].
pub fn check_one(call: &Call<'_>, index: &Index, object: &str) -> Result<bool, Failure> {
    let own = call.attachment().hash();
    let mut holders = index.claimed_by(object)?;
    let is_held = holders.contains(&own);
    holders.retain(|holder| *holder != own);
    if let Some(other) = living(index, &holders).first()
        && !may_conflict(call)?
    {
        let what = place::describe(object);
        let text = format!("address {what} is another's too: {} has it", other.name);
        return Err(drift(text).with_details("detach one of both, and attach it anew"));
    }
    Ok(is_held)
}

/// Describes claims as items.
pub fn wanted(objects: &[String]) -> impl Iterator<Item = Item> {
    objects
        .iter()
        .map(|object| Item::host(State::Claim { object: object.clone() }, Reason::Ownership))
}

/// Returns the claim that an item is about.
#[must_use]
pub fn of_item(item: &Item) -> Option<&String> {
    match &item.state {
        State::Claim { object } => Some(object),
        _ => None,
    }
}

/// Takes a claim again that an attachment has lost. Its record lists the claim first, so that DEL
/// knows it: the attachment may be reachable in another place than before.
///
/// # Errors
/// As [`take_again`].
pub fn restore(
    call: &Call<'_>,
    index: &Index,
    plugin: &str,
    object: &String,
) -> Result<(), Failure> {
    if let Some(mut record) = index.get(call.attachment(), plugin).found {
        let mut claims = recorded(&record.data);
        if !claims.contains(object) {
            claims.push(object.clone());
            record.data[CLAIMS] = json!(claims);
            index.put(&record)?;
        }
    }
    take_again(call, index, object)
}

/// Releases the claims that a record lists besides those of an attachment that is sound: it was
/// reachable in another place before.
///
/// # Errors
/// Code 105 and 11 for our own files.
pub fn settle(index: &Index, record: &Record, objects: &[&String]) -> Result<(), Failure> {
    let before = recorded(&record.data);
    if before.len() == objects.len() && before.iter().all(|object| objects.contains(&object)) {
        return Ok(());
    }
    for object in before.iter().filter(|object| !objects.contains(object)) {
        release_one(index, object, &record.attachment.hash())?;
    }
    let mut record = record.clone();
    record.data[CLAIMS] = json!(objects);
    Ok(index.put(&record)?)
}

/// Names a claim, for messages.
#[must_use]
pub fn name(object: &str) -> String {
    format!("claim of address {}", place::describe(object))
}

/// Takes a claim again that an attachment has lost.
///
/// # Errors
/// Code 108 when another living attachment has it, unless the configuration allows that; code 105
/// and 11 for our own files.
pub fn take_again(call: &Call<'_>, index: &Index, object: &str) -> Result<(), Failure> {
    let key = call.attachment();
    let holders = index.claimed_by(object)?;
    let living = living(index, &holders);
    let taken = match living.first() {
        Some(other) if !may_conflict(call)? => {
            return Err(taken_object(object, &other.name));
        }
        _ if holders.is_empty() => {
            let claimed = index.claim(object, key)?;
            claimed == ClaimOutcome::Own
        }
        _ => join(index, object, key, &holders, &living)?,
    };
    if taken { Ok(()) } else { Err(changes_hands(object)) }
}

/// The key under which a record lists its claims, besides what the plugin's own type has.
pub const CLAIMS: &str = "claims";

/// Returns the claims that an attachment's record lists.
#[must_use]
pub fn recorded(data: &Value) -> Vec<String> {
    Vec::deserialize(&data[CLAIMS]).unwrap_or_default()
}

/// An attachment that has a claim and is not known to be gone.
struct Claimant {
    hash: String,
    name: String,
}

/// Returns the holders of a claim that are not known to be gone.
fn living(index: &Index, holders: &[String]) -> Vec<Claimant> {
    // The census reads all processes once, and only if an attachment cannot be judged without it.
    let census = Census::new();
    let judge = |hash: &String| {
        Some(Claimant { hash: hash.clone(), name: living_name(index, hash, &census)? })
    };
    holders.iter().filter_map(judge).collect()
}

/// Names an attachment, unless it is known to be gone.
fn living_name(index: &Index, hash: &str, census: &Census) -> Option<String> {
    let records = index.of_hash(hash);
    let Some(first) = records.found.first() else {
        // An unreadable record may belong to an attachment that lives.
        return records.damaged.first().map(|damaged| format!("the owner of {damaged}"));
    };
    let has_netns =
        |record: &&Record| record.netns.as_deref().is_some_and(|path| !path.as_os_str().is_empty());
    let mut with_netns = records.found.iter().filter(has_netns).peekable();
    // An attachment that cannot be judged may live.
    let lives = with_netns.peek().is_none() || with_netns.any(|record| may_live(record, census));
    lives.then(|| first.attachment.to_string())
}

fn taken_object(object: &str, whose: &str) -> Failure {
    conflict(format!("address {} is taken: {whose} has it", place::describe(object)))
}

fn taken(address: IpAddr, place: &Place, whose: &str) -> Failure {
    conflict(format!("address {address} is taken {}: {whose} has it", place.describe()))
}

fn conflict(message: String) -> Failure {
    Failure::new(codes::CONFLICT, message).with_details(format!(
        "two containers cannot have one address there; where they share it on purpose give the \
         network \"{KEY}\": true"
    ))
}

/// Releases the claims that an attachment's record lists; without a record, all that it holds.
/// Claims that another attachment has by now stay.
pub fn release(
    index: &Index,
    key: &AttachmentKey,
    objects: Option<&[String]>,
    failures: &mut Failures,
) {
    let hash = key.hash();
    let found;
    let objects = match objects {
        Some(objects) => objects,
        None => {
            let ReadOutcome { found: own, damaged } = index.claims_of(&hash);
            for one in damaged {
                let unread = Failure::new(codes::STATE, format!("cannot read {one}"));
                failures.note("release addresses", Err::<(), _>(unread));
            }
            found = own;
            &found
        }
    };
    for object in objects {
        failures.note("release an address", release_one(index, object, &hash));
    }
}

fn release_one(index: &Index, object: &str, hash: &str) -> Result<(), Failure> {
    for _ in 0..TRIES {
        if index.unclaim(object, hash)? {
            return Ok(());
        }
        let holders = index.claimed_by(object)?;
        let others: Vec<String> = holders.iter().filter(|one| *one != hash).cloned().collect();
        let shares = others.len() < holders.len() && !others.is_empty();
        if shares && pass(index, object, &holders, &others)? {
            return Ok(());
        }
    }
    Err(changes_hands(object))
}

/// Refuses addresses that the host has on the links by which it reaches the container.
///
/// # Errors
/// Code 108 naming the address, unless the configuration allows it; code 100 when the kernel does
/// not answer.
pub fn refuse_addresses_of(
    call: &Call<'_>,
    host: &mut RouteSocket,
    links: &[Link],
    ips: &[IpNet],
) -> Result<(), Failure> {
    for link in links {
        let present = host.addresses(Some(link.index))?;
        let same = |ip: &&IpNet| {
            let address = ip.addr().to_canonical();
            present.iter().any(|own| own.address.addr().to_canonical() == address)
        };
        if let Some(ip) = ips.iter().find(same)
            && !may_conflict(call)?
        {
            return Err(own(ip.addr(), &link.name));
        }
    }
    Ok(())
}

/// Refuses addresses that the host has on a container's segment by a link of any name beside the
/// container's: a macvlan of its own on the parent, a VLAN device, the other end of a bridge's
/// port. Links that belong to a VRF are not looked at.
///
/// # Errors
/// As [`refuse_addresses_of`].
pub fn refuse_addresses_on(
    call: &Call<'_>,
    host: &mut RouteSocket,
    segment: &Segment,
    ips: &[IpNet],
) -> Result<(), Failure> {
    for ip in ips {
        let address = ip.addr().to_canonical();
        // The host seldom has the address, and may have thousands of others.
        let route = nothing_if(host.route_to(address), DROPS)?;
        if route.is_none_or(|route| route.kind != RouteKind::Local) {
            continue;
        }
        for present in host.addresses(None)? {
            if present.address.addr() == address
                && let Some(link) = host.link_by_index(present.ifindex)?
                && place::is_on(host, &link, segment)?
                && !may_conflict(call)?
            {
                return Err(own(address, &link.name));
            }
        }
    }
    Ok(())
}

/// Turns what ADD would refuse into what CHECK reports: something is not as ADD left it.
#[must_use]
pub fn as_drift(error: Failure) -> Failure {
    let is_conflict = error.code() == codes::CONFLICT;
    if is_conflict { error.with_code(codes::DRIFT) } else { error }
}

fn own(address: IpAddr, ifname: &str) -> Failure {
    let message = format!("address {address} is the host's own, on link {ifname:?}");
    Failure::new(codes::CONFLICT, message).with_details(format!(
        "leave it out of the pool (host-local: \"rangeStart\", \"rangeEnd\"), or give the network \
         \"{KEY}\": true if container and host share it on purpose"
    ))
}

/// By which of the host's routing tables and by which links the host routes to containers.
#[derive(Debug, Clone, Default)]
pub struct ContainerRouting {
    /// The links that lead to the containers.
    pub links: Vec<u32>,
    /// The VRF that these links belong to, and its table.
    pub vrf: Option<(u32, u32)>,
    /// Each container has its own route, and the gateway's address comes without its subnet.
    pub one_by_one: bool,
}

impl ContainerRouting {
    /// Routes to each container by a link of its own.
    #[must_use]
    pub fn one_by_one(link: u32) -> Self {
        ContainerRouting { links: vec![link], vrf: None, one_by_one: true }
    }

    /// Reads the link that has the gateway's address, if it exists already.
    ///
    /// # Errors
    /// Code 100 when the kernel does not answer.
    pub fn by(host: &mut RouteSocket, link: Option<&Link>) -> Result<Self, Failure> {
        let links = link.iter().map(|link| link.index).collect();
        let Some(master) = link.and_then(|link| link.master) else {
            return Ok(ContainerRouting { links, ..ContainerRouting::default() });
        };
        let master = host.link_by_index(master)?;
        let vrf = master.and_then(|master| Some((master.index, master.vrf_table?)));
        Ok(ContainerRouting { links, vrf, one_by_one: false })
    }

    /// The place within which the addresses of routed containers must differ.
    #[must_use]
    pub fn place(&self) -> Place {
        Place::Routes(self.vrf.map(|(_, table)| table))
    }

    /// The entry of the routing tables that leads to an address.
    fn to(&self, host: &mut RouteSocket, address: IpAddr) -> Result<Option<Route>, NetlinkError> {
        nothing_if(host.route_entry_in(self.vrf.map(|(vrf, _)| vrf), address), DROPS)
    }
}

/// The kernel's answer about a route that drops packets ([`RouteSocket::route_to`]). Such a route
/// counts as none.
const DROPS: &[Errno] = &[Errno::INVAL, Errno::ACCES];

/// Refuses addresses to which the host cannot route: the host's own; those of a subnet that the
/// host itself is in by another link than those, where the gateway's address would be that of a
/// router or a neighbour; and those of a network that the host reaches by a route.
///
/// # Errors
/// Code 108 naming the address and the link, unless the configuration allows it; code 100 when the
/// kernel does not answer.
pub fn refuse_unroutable(
    call: &Call<'_>,
    host: &mut RouteSocket,
    routed: &ContainerRouting,
    ips: &[IpConfig],
) -> Result<(), Failure> {
    for ip in ips {
        let address = ip.address.addr();
        let Some(route) = routed.to(host, address)? else { continue };
        let refused = match route.kind {
            RouteKind::Local => Some(local(host, routed, address)?),
            RouteKind::Unicast => {
                let what = format!("address {address}");
                by_route(host, &route, routed, ip, &what)?.map(|conflict| conflict.error)
            }
            _ => None,
        };
        if let Some(error) = refused
            && !may_conflict(call)?
        {
            return Err(error);
        }
    }
    Ok(())
}

/// A pool of addresses, one of which a container gets: from the first to the last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// The first address, as a container gets it.
    pub first: IpConfig,
    /// The last one.
    pub last: IpConfig,
}

/// Refuses a pool of which [`refuse_unroutable`] refuses every address.
///
/// # Errors
/// As there.
pub fn refuse_pool(
    call: &Call<'_>,
    host: &mut RouteSocket,
    routed: &ContainerRouting,
    pool: &Pool,
) -> Result<(), Failure> {
    let Pool { first, last } = pool;
    let (from, to) = (first.address.addr(), last.address.addr());
    let what = format!("every address from {from} to {to}");
    let mut refused = None;
    for ip in [first, last] {
        let address = ip.address.addr();
        let Some(route) = routed.to(host, address)? else { return Ok(()) };
        let conflict = match route.kind {
            // The host is in the subnet itself.
            RouteKind::Local => continue,
            RouteKind::Unicast => by_route(host, &route, routed, ip, &what)?,
            _ => None,
        };
        match conflict {
            Some(conflict) if conflict.covers(from) && conflict.covers(to) => {
                refused = Some(conflict.error);
            }
            _ => return Ok(()),
        }
    }
    match refused {
        // Another node may give the pool up in a moment.
        Some(error) if error.code() != code::TRY_AGAIN_LATER && !may_conflict(call)? => Err(error),
        _ => Ok(()),
    }
}

/// Reports addresses that the host itself has by now, on any link whose routes count (CHECK).
///
/// # Errors
/// Code 104 naming the address and the link, unless the configuration allows it; code 100 when the
/// kernel does not answer.
pub fn check_own(
    call: &Call<'_>,
    host: &mut RouteSocket,
    routed: &ContainerRouting,
    ips: &[IpConfig],
) -> Result<(), Failure> {
    for ip in ips {
        let address = ip.address.addr();
        let is_own = routed.to(host, address)?.is_some_and(|route| route.kind == RouteKind::Local);
        if is_own && !may_conflict(call)? {
            return Err(as_drift(local(host, routed, address)?));
        }
    }
    Ok(())
}

/// Refuses a gateway address that already belongs to another: to the container itself, to another
/// living attachment in one of the places, or to a router that the host reaches by another link.
/// The host would have the address too, on a link of `routed`.
///
/// # Errors
/// Code 108 naming the address, unless the configuration allows it; code 100 when the kernel does
/// not answer, 105 when the claims on the address cannot be read.
pub fn refuse_gateways(
    call: &Call<'_>,
    host: &mut RouteSocket,
    index: &Index,
    routed: &ContainerRouting,
    places: &[Place],
    ips: &[IpConfig],
) -> Result<(), Failure> {
    for gateway in ips.iter().filter_map(|ip| ip.gateway) {
        let mut refused = None;
        if ips.iter().any(|ip| ip.address.addr() == gateway) {
            refused = Some(both(gateway));
        } else if !is_link_local(gateway) {
            for place in places {
                refused = refused.or(claimed(call, index, place, gateway)?);
            }
            if refused.is_none() {
                refused = router(host, routed, gateway)?;
            }
        }
        if let Some(error) = refused
            && !may_conflict(call)?
        {
            return Err(error);
        }
    }
    Ok(())
}

fn both(address: IpAddr) -> Failure {
    let message = format!("address {address} is the container's and its gateway's");
    Failure::new(codes::CONFLICT, message)
        .with_details("the host has the gateway's address: leave it out of the container's pool")
}

/// Returns the conflict if another living attachment claims a gateway's address in a place.
fn claimed(
    call: &Call<'_>,
    index: &Index,
    place: &Place,
    gateway: IpAddr,
) -> Result<Option<Failure>, Failure> {
    let holders = index.claimed_by(&place.object(gateway))?;
    let own = call.attachment().hash();
    let others: Vec<String> = holders.into_iter().filter(|holder| *holder != own).collect();
    Ok(living(index, &others).first().map(|other| taken(gateway, place, &other.name)))
}

/// Returns the conflict if a gateway's address is that of one of the host's own routers.
fn router(
    host: &mut RouteSocket,
    routed: &ContainerRouting,
    gateway: IpAddr,
) -> Result<Option<Failure>, Failure> {
    let Some(route) = routed.to(host, gateway)? else { return Ok(None) };
    let direct = route.kind == RouteKind::Unicast && route.gateway.is_none();
    let Some(oif) = route.oif.filter(|oif| direct && !routed.links.contains(oif)) else {
        return Ok(None);
    };
    // Reached only if a pool and the subnet of another link overlap.
    let filter = RouteFilter { family: IpFamily::of(gateway), table: None, oif: Some(oif) };
    let leads = host.routes(filter)?;
    if leads.iter().all(|route| route.gateway != Some(gateway)) {
        return Ok(None);
    }
    let Some(link) = host.link_by_index(oif)? else { return Ok(None) };
    let message = format!("gateway {gateway} is a router of the host, on link {:?}", link.name);
    Ok(Some(Failure::new(codes::CONFLICT, message).with_details(
        "the host would have its router's address itself: give the network a subnet of its own, or another gateway",
    )))
}

/// Returns whether an address means another neighbour on each link.
fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// Names the link that has an address of the host.
fn local(
    host: &mut RouteSocket,
    routed: &ContainerRouting,
    address: IpAddr,
) -> Result<Failure, Failure> {
    let vrf = routed.vrf.map(|(vrf, _)| vrf);
    let mut name = "lo".to_owned();
    for one in host.addresses(None)? {
        if one.address.addr() == address
            && let Some(link) = host.link_by_index(one.ifindex)?
        {
            name = link.name;
            // Another VRF may have the address too.
            if vrf.is_none_or(|vrf| link.master == Some(vrf)) {
                break;
            }
        }
    }
    Ok(own(address, &name))
}

/// The protocol of the routes by which `netwrightd routing` reaches other nodes' containers.
const OF_ROUTING: RouteProtocol = RouteProtocol(78);

/// The reason why the host does not route to an address.
struct Conflict {
    /// The addresses that it concerns.
    subnet: IpNet,
    error: Failure,
}

impl Conflict {
    fn covers(&self, address: IpAddr) -> bool {
        self.subnet.contains(&address)
    }
}

/// Returns the conflict if the host's route to an address, called `what`, leads elsewhere.
fn by_route(
    host: &mut RouteSocket,
    route: &Route,
    routed: &ContainerRouting,
    ip: &IpConfig,
    what: &str,
) -> Result<Option<Conflict>, Failure> {
    match elsewhere(host, route, routed, ip, what)? {
        None => behind(host, route, routed, ip, what),
        conflict => Ok(conflict),
    }
}

/// Returns the conflict if one of the host's routes leads to the container's subnet, or to a part
/// of it that contains the address. A broader route, such as a default route, is for addresses that
/// no network here has.
fn behind(
    host: &mut RouteSocket,
    route: &Route,
    routed: &ContainerRouting,
    ip: &IpConfig,
    what: &str,
) -> Result<Option<Conflict>, Failure> {
    let to = route.destination;
    let oif = route.oif.or_else(|| route.next_hops.first()?.oif);
    let Some(oif) = oif.filter(|oif| !routed.links.contains(oif)) else { return Ok(None) };
    // Routes of the host's own subnets are judged by its addresses.
    let is_own_subnet = route.protocol == Some(RouteProtocol::KERNEL);
    if is_own_subnet || to.prefix_len() < ip.address.prefix_len() || to.prefix_len() == 0 {
        return Ok(None);
    }
    let Some(link) = host.link_by_index(oif)? else { return Ok(None) };
    if link.alias.as_deref().is_some_and(|alias| alias.starts_with(super::owner::PREFIX)) {
        return Ok(None);
    }
    let by = route.gateway.map(|gateway| format!(" by {gateway}")).unwrap_or_default();
    let message =
        format!("{what} is of {to}, to which the host has a route{by} on link {:?}", link.name);
    let error = if route.protocol == Some(OF_ROUTING) {
        // The block may be this node's since a moment ago.
        Failure::new(code::TRY_AGAIN_LATER, message).with_details(
            "netwrightd routing knows another node that has this address: if it stays so, give the \
             network a range that no other node has, or start the service routing",
        )
    } else {
        Failure::new(codes::CONFLICT, message).with_details(
            "the host would no longer reach what is there, or not the container: give the network a subnet of its own, or remove the route",
        )
    };
    Ok(Some(Conflict { subnet: to, error }))
}

/// Returns the conflict if the host is in the container's subnet by another link.
fn elsewhere(
    host: &mut RouteSocket,
    route: &Route,
    routed: &ContainerRouting,
    ip: &IpConfig,
    what: &str,
) -> Result<Option<Conflict>, Failure> {
    let is_other = |oif: &u32| route.gateway.is_none() && !routed.links.contains(oif);
    let Some(oif) = route.oif.filter(is_other) else { return Ok(None) };
    let present = host.addresses(Some(oif))?;
    let address = ip.address.addr();
    let is_gateway = |own: &IpNet| ip.gateway == Some(own.addr());
    let own: Vec<IpNet> = present.iter().map(|own| own.address).collect();
    // This is intended, and hides nothing. A bridge would get that address with its subnet, next to
    // the link that has both.
    if routed.one_by_one && own.iter().any(is_gateway) {
        return Ok(None);
    }
    let covers = |own: &&IpNet| ip.address.prefix_len() <= own.prefix_len() || is_gateway(own);
    let subnet = own.iter().find(|own| own.contains(&address) && covers(own));
    let Some(subnet) = subnet else { return Ok(None) };
    let Some(link) = host.link_by_index(oif)? else { return Ok(None) };
    let is_ours =
        link.alias.as_deref().is_some_and(|alias| alias.starts_with(super::owner::PREFIX));
    // The kernel looks into table main for what a VRF has no route to yet.
    let is_apart = routed.vrf.map(|(vrf, _)| vrf) != link.master;
    // Containers that rely on both routes are not worse off by one more.
    let is_no_worse = routed.one_by_one || is_apart || has_subnet(host, &routed.links, address)?;
    if is_ours && is_no_worse {
        return Ok(None);
    }
    let subnet = subnet.trunc();
    let message =
        format!("{what} is of subnet {subnet}, which is on the host's link {:?}", link.name);
    let why = if is_ours {
        "containers of another network are there, and the host would reach those of one network \
         alone: give the network a subnet of its own, or the other's bridge"
    } else {
        "the host would reach neither the containers nor its own neighbours and router: give the \
         network a subnet of its own, or put containers on that link with macvlan or ipvlan"
    };
    let error = Failure::new(codes::CONFLICT, message).with_details(why);
    Ok(Some(Conflict { subnet, error }))
}

/// Reports whether one of the links has an address in whose subnet another one is.
fn has_subnet(
    host: &mut RouteSocket,
    links: &[u32],
    address: IpAddr,
) -> Result<bool, NetlinkError> {
    for link in links {
        let present = host.addresses(Some(*link))?;
        if present.iter().any(|own| own.address.contains(&address)) {
            return Ok(true);
        }
    }
    Ok(false)
}
