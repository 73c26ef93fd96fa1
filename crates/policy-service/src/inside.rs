//! The tables in containers' own namespaces, for networks whose packets do not pass the node.
//!
//! A namespace is found by what the plugin's record says of it: path, identity and cookie. It is
//! opened for each change and closed again, since an open socket would keep it alive after its
//! container. The container may have changed the table in it: the service compares the table and
//! puts it right, and draws no conclusions from it.
//!
//! The key of such a table is the interface alone: an address that nothing recorded would lead to
//! no verdict. If the addresses of an interface lead to different chains, it is closed. Drops are
//! counted and not logged, because logging would need an open socket there. Rejected: a program of
//! `tc` (it has no connection tracking), egress of `netdev` (the connection is not known yet), and
//! the table's flag `owner` (the end of the service would open everything).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use firewall::FirewallError;
use firewall::pods::{self, DroppedPackets, PodsTable};
use kernel::living::{Census, NetnsNote};
use kernel::netlink::NetlinkError;
use kernel::netns::Netns;
use kernel::route::RouteSocket;
use policy::{Direction, PerDirection, Program, Step, program};
use service_kit::stop::words;

use super::engine::{Container, Site};
use super::records::Id;

/// What stands in containers' namespaces as far as we know.
#[derive(Debug, Default)]
pub(super) struct InsideFilters {
    held: BTreeMap<Site, InsideFilter>,
    /// Why the namespaces of attachments are not as they are to be.
    failed: BTreeMap<Id, String>,
    /// The kernel has refused something.
    is_refused: bool,
}

#[derive(Debug)]
struct InsideFilter {
    container: Container,
    program: Program,
}

/// What is to be brought, and how.
#[derive(Debug)]
pub(super) struct DesiredFilters {
    /// All containers, each with what its namespace is to have.
    pub(super) programs: Vec<(Container, Program)>,
    /// Also those that should be right already.
    pub(super) all: bool,
    /// Which attachments a damaged record was of is not known: interfaces that are closed stay
    /// closed.
    pub(super) is_blind: bool,
}

/// Finds a namespace by its record: never another one, nor that of this process.
pub(super) fn find(noted: &NetnsNote, census: &Census) -> Option<Netns> {
    let own = Netns::current_id().ok()?;
    census.find(noted).filter(|found| found.id() != own)
}

impl InsideFilters {
    /// Reports whether there is nothing of ours in any namespace, as far as we know.
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Returns why the namespace of an attachment is not as it is to be, if that is so.
    pub(super) fn failure(&self, id: &Id) -> Option<&String> {
        self.failed.get(id)
    }

    /// Reports whether the kernel has refused something in a namespace. A namespace that is gone
    /// does not count.
    pub(super) fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// Makes those of these steps that are elements of sets which containers have. Returns whether
    /// that was all that was to be done.
    pub(super) fn apply(&mut self, steps: &[Step]) -> bool {
        let census = Census::new();
        let mut stale = Vec::new();
        for (site, held) in &mut self.held {
            let is_own = |step: &&Step| match step {
                Step::AddElement { set, .. } | Step::RemoveElement { set, .. } => {
                    held.program.sets.contains_key(set)
                }
                _ => false,
            };
            let own: Vec<Step> = steps.iter().filter(is_own).cloned().collect();
            if own.is_empty() {
                continue;
            }
            let made = with_table(&held.container.noted, &census, |table| table.apply(&own));
            let follows = own.iter().all(|step| held.program.apply(step).is_ok());
            // Another program has changed the table, or the namespace is gone.
            if !follows || !matches!(made, Ok(Some(()))) {
                stale.push(site.clone());
            }
        }
        let is_all = stale.is_empty();
        stale.iter().for_each(|site| drop(self.held.remove(site)));
        is_all
    }

    /// Brings namespaces to what they are to have. `closed` are attachments that a plugin has
    /// closed since. Returns how many another program had changed.
    pub(super) fn bring(&mut self, wanted: DesiredFilters, closed: &BTreeSet<Id>) -> usize {
        let DesiredFilters { programs, all, is_blind } = wanted;
        let census = Census::new();
        let mut held = std::mem::take(&mut self.held);
        let told = std::mem::take(&mut self.failed);
        self.is_refused = false;
        let mut put_back = 0;
        for (container, program) in programs {
            let before = held.remove(&container.site).filter(|held| held.program == program);
            let is_closed = container.ids.iter().any(|id| closed.contains(id));
            let is_as_it_was = before.is_some() && !is_closed;
            if is_as_it_was && !all {
                self.held.insert(container.site.clone(), InsideFilter { container, program });
                continue;
            }
            let brought = with_table(&container.noted, &census, |table| {
                let closing = is_blind.then(|| stays_closed(table, &program)).transpose()?;
                table.bring(closing.as_ref().unwrap_or(&program))
            });
            let why = match brought {
                Ok(Some(difference)) => {
                    if let Some(first) = difference.lines().first().filter(|_| is_as_it_was) {
                        let name = &container.name;
                        tracing::warn!(%first, "put back what was changed in the namespace of {name}");
                        put_back += 1;
                    }
                    self.held.insert(container.site.clone(), InsideFilter { container, program });
                    continue;
                }
                Ok(None) => "nothing leads to its network namespace".to_owned(),
                Err(error) => {
                    self.is_refused = true;
                    words(&error)
                }
            };
            if !container.ids.iter().any(|id| told.get(id) == Some(&why)) {
                tracing::warn!(error = why, "{} is not judged as it should be", container.name);
            }
            self.failed.extend(container.ids.into_iter().map(|id| (id, why.clone())));
        }
        put_back
    }

    /// Says how the namespace of an attachment differs from what it is to have, if it does.
    pub(super) fn differs(&self, id: &Id) -> Result<Option<String>, FirewallError> {
        let Some(held) = self.held.values().find(|held| held.container.ids.contains(id)) else {
            return Ok(self.failure(id).cloned());
        };
        let noted = &held.container.noted;
        let found = with_table(noted, &Census::new(), |table| table.observe(&held.program))?;
        Ok(found.and_then(|difference| difference.lines().first().cloned()))
    }
}

/// Lists the addresses of a container's judged interfaces that no record has, such as link-local
/// ones. Each comes with a recorded address of its interface: connections are judged as if they had
/// that one.
pub(super) fn stand_ins(
    netns: &Netns,
    container: &Container,
) -> Result<BTreeMap<IpAddr, IpAddr>, NetlinkError> {
    let mut route = RouteSocket::open_in(netns)?;
    let mut all = BTreeMap::new();
    for (ifname, recorded) in &container.interfaces {
        let Some(link) = route.link_by_name(ifname)? else { continue };
        for found in route.addresses(Some(link.index))? {
            let address = found.address.addr();
            let same = recorded.iter().find(|one| one.is_ipv4() == address.is_ipv4());
            if let Some(stand_in) = same.or(recorded.first())
                && !recorded.contains(&address)
            {
                all.insert(address, *stand_in);
            }
        }
    }
    Ok(all)
}

/// Closes interfaces of containers that lead nowhere, and puts back what is the same in each table,
/// as long as it is not known what else is to be there. Returns how many containers had such
/// interfaces. All are tried; then the first failure is returned.
pub(super) fn close_what_is_open(containers: &[Container]) -> Result<usize, FirewallError> {
    let census = Census::new();
    let (mut count, mut failed) = (0, None);
    for container in containers {
        let name = &container.name;
        match with_table(&container.noted, &census, |table| close_open(table, container)) {
            Ok(Some(true)) => {
                tracing::warn!(
                    "no policies are known yet: {name} had lost its verdicts, and is closed"
                );
                count += 1;
            }
            Ok(_) => {}
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(count), Err)
}

/// Does it in the table of one container. The container may have damaged a table that cannot be
/// read.
fn close_open(table: &mut PodsTable, container: &Container) -> Result<bool, FirewallError> {
    let names = container.interfaces.iter().map(|(name, _)| name);
    let closed = pods::complete(table).and_then(|()| {
        let mut closed = false;
        for name in names.clone() {
            let PerDirection { ingress, egress } = pods::interface_verdicts(table, name)?;
            if ingress.is_none() || egress.is_none() {
                pods::close_interface(table, name)?;
                closed = true;
            }
        }
        Ok(closed)
    });
    match closed {
        Err(FirewallError::Tables(_)) => {
            let names: Vec<String> = names.cloned().collect();
            pods::close_alone(table, &names).map(|()| true)
        }
        other => other,
    }
}

/// Returns how many packets were dropped in a container's namespace; `None` if that cannot be read.
pub(super) fn dropped(container: &Container) -> Option<DroppedPackets> {
    with_table(&container.noted, &Census::new(), PodsTable::dropped).ok().flatten()
}

/// Removes the table from a namespace, if it is still there.
pub(super) fn remove(noted: &NetnsNote, census: &Census) -> Result<(), FirewallError> {
    with_table(noted, census, PodsTable::remove).map(drop)
}

/// Does something with the table of a namespace; `None` if nothing leads there.
fn with_table<T>(
    noted: &NetnsNote,
    census: &Census,
    work: impl FnOnce(&mut PodsTable) -> Result<T, FirewallError>,
) -> Result<Option<T>, FirewallError> {
    let Some(netns) = find(noted, census) else { return Ok(None) };
    let mut table = PodsTable::open_inside(&netns)?;
    work(&mut table).map(Some)
}

/// Adds to a program that interfaces which lead to a chain now stay closed, unless it has them.
fn stays_closed(table: &mut PodsTable, program: &Program) -> Result<Program, FirewallError> {
    let mut closing = program.clone();
    for name in pods::interfaces(table)? {
        for direction in Direction::ALL {
            let leads = closing.interfaces.entry((direction, name.clone()));
            leads.or_insert_with(|| program::unknown(direction));
        }
    }
    Ok(closing)
}
