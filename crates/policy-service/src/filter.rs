//! The packet filter's table, and the records beside it. Plugins use both too, so each change is
//! made under their common lock (`node_api::policy`, "Order").

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use firewall::FirewallError;
use firewall::pods::{self, Link, Logging, Loss, PodsTable, TABLE, TableContent};
use kernel::events::{TableEvent, TableListener};
use kernel::living::Census;
use kernel::netlink::NetlinkError;
use node_api::policy::{LOCK, PLUGIN};
use policy::program::Set;
use policy::{Direction, Name, Program, Step};
use state::{Index, Lock, Roots};

use super::engine::{AddressTarget, Place, Todo};
use super::inside::{self, DesiredFilters, InsideFilters};
use super::records::{Attachment, Id};
use super::shared::SharedEngine;

/// How long a plugin may hold the lock: it makes one small transaction and writes a file.
const LOCK_TIME: Duration = Duration::from_secs(5);

/// How many elements a program has that takes some time to write.
const LARGE: usize = 5_000;

/// How the table differed.
#[derive(Debug, Default)]
pub(super) struct TableDifference {
    /// One line for each difference.
    pub(super) lines: Vec<String>,
    /// The service itself had nothing to change: another program has made every difference.
    pub(super) is_as_it_was: bool,
}

/// The table.
#[derive(Debug)]
pub(super) struct Filter {
    table: PodsTable,
    listener: TableListener,
    /// The tables in containers' namespaces.
    inside: InsideFilters,
    index: Index,
    /// The records that could not be read; the log has named them.
    damaged: BTreeSet<String>,
    /// Records of the plugin are among them.
    is_damaged: bool,
    /// Which addresses some of these have is not known.
    is_blind: bool,
    /// `is_blind` was set, and is no longer: addresses may be closed that are to be open.
    sees_again: bool,
    /// What the table held at the last look before policies were known.
    held: Option<TableContent>,
}

impl Filter {
    pub(super) fn open(logging: Logging, roots: &Roots) -> Result<Self, FirewallError> {
        let failed = |error: Box<dyn std::error::Error + Send + Sync>| FirewallError::Open(error);
        let mut table = PodsTable::open(logging)?;
        let mut listener = TableListener::open(TABLE).map_err(|error| failed(error.into()))?;
        listener.ignore(table.port().map_err(|error| failed(error.into()))?);
        Ok(Filter {
            table,
            listener,
            inside: InsideFilters::default(),
            index: Index::new(roots),
            damaged: BTreeSet::new(),
            is_damaged: false,
            is_blind: false,
            sees_again: false,
            held: None,
        })
    }

    /// Returns what becomes readable when another program has taken something from the table.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.listener.descriptor()
    }

    /// Returns what other programs have done.
    pub(super) fn heard(&mut self) -> Result<BTreeSet<TableEvent>, NetlinkError> {
        self.listener.heard()
    }

    fn lock(&self) -> Result<Lock, FirewallError> {
        self.index.lock(LOCK, LOCK_TIME).map_err(FirewallError::Lock)
    }

    /// Reports whether dropped packets are logged, as far as the kernel can.
    pub(super) fn logs(&self) -> bool {
        self.table.logs()
    }

    /// Makes the chains for what IPVS sends on if it has services. Reports whether it has.
    pub(super) fn judge_services(&mut self) -> Result<bool, FirewallError> {
        if !self.table.look_for_services() {
            return Ok(false);
        }
        let _lock = self.lock()?;
        pods::complete(&mut self.table)?;
        Ok(true)
    }

    /// Makes steps in one transaction.
    pub(super) fn apply(&mut self, steps: &[Step]) -> Result<(), FirewallError> {
        let _lock = self.lock()?;
        self.table.apply(steps)
    }

    /// Lists the records, and brings the table to the program that follows from them. Adds what
    /// else is to be done for them. While the addresses of a record are not known, an address that
    /// has a verdict and no known owner is closed.
    pub(super) fn bring(
        &mut self,
        shared: &SharedEngine,
        todo: &mut Todo,
    ) -> Result<TableDifference, FirewallError> {
        let _lock = self.lock()?;
        let records = self.records(shared);
        let mut engine = shared.engine();
        engine.list_records(records);
        let more = engine.take_todo(Instant::now());
        let is_as_it_was = more.steps.is_empty() && todo.steps.is_empty() && !todo.bring;
        todo.add(more);
        let Some(program) = engine.whole() else { return Ok(TableDifference::default()) };
        let brought = if self.is_blind {
            let known: BTreeSet<IpAddr> =
                engine.attachments().flat_map(|one| one.own().iter().copied()).collect();
            let known_links: BTreeSet<Link> =
                engine.attachments().flat_map(Attachment::links).collect();
            let (there, links) = (pods::addresses(&mut self.table)?, pods::links(&mut self.table)?);
            let addresses = there.difference(&known).copied();
            let links = links.difference(&known_links).cloned();
            self.table.bring(&closing(program.into_owned(), addresses, links))?
        } else {
            self.table.bring(&program)?
        };
        Ok(TableDifference { lines: brought.lines().to_vec(), is_as_it_was })
    }

    /// Makes those of these steps that concern containers' namespaces. Returns whether that was all
    /// that was to be done.
    pub(super) fn apply_inside(&mut self, steps: &[Step]) -> bool {
        let Ok(_lock) = self.lock() else { return false };
        self.inside.apply(steps)
    }

    /// Lists the records, and brings containers' namespaces to what follows from them; with `all`,
    /// also those that should be right already. `closed` are attachments that a plugin has closed
    /// since. Returns how many another program had changed.
    pub(super) fn bring_inside(
        &mut self,
        shared: &SharedEngine,
        closed: &BTreeSet<Id>,
        all: bool,
    ) -> Result<usize, FirewallError> {
        let _lock = self.lock()?;
        let records = self.records(shared);
        let programs = {
            let mut engine = shared.engine();
            engine.list_records(records);
            let mut programs = Vec::new();
            for container in engine.containers() {
                let Some(program) = engine.program_inside(&container) else { continue };
                programs.push((container, program));
            }
            programs
        };
        let wanted = DesiredFilters { programs, all, is_blind: self.is_blind };
        Ok(self.inside.bring(wanted, closed))
    }

    /// Before policies are known: closes what containers' namespaces have lost. Returns in how
    /// many.
    pub(super) fn close_inside_if_missing(
        &mut self,
        shared: &SharedEngine,
    ) -> Result<usize, FirewallError> {
        if !shared.engine().judges_inside() {
            return Ok(0);
        }
        let _lock = self.lock()?;
        let records = self.records(shared);
        let containers = {
            let mut engine = shared.engine();
            engine.list_records(records);
            engine.containers()
        };
        inside::close_what_is_open(&containers)
    }

    /// Returns what is known of containers' namespaces.
    pub(super) fn inside(&self) -> &InsideFilters {
        &self.inside
    }

    /// If there is no table, makes one that closes all addresses with a record. Returns how many.
    pub(super) fn close_if_missing(
        &mut self,
        shared: &SharedEngine,
    ) -> Result<usize, FirewallError> {
        if self.table.exists()? {
            return Ok(0);
        }
        self.close_all(shared)
    }

    /// Does the same if the table lacks something that is the same for each program. Whoever took
    /// that may have emptied chains of policies too, and what was in these is not known.
    pub(super) fn close_if_damaged(
        &mut self,
        shared: &SharedEngine,
    ) -> Result<usize, FirewallError> {
        if self.table.exists()? && pods::is_complete(&mut self.table)? {
            return self.close_if_lost(shared);
        }
        self.close_all(shared)
    }

    /// Does the same if the table holds less than at the last look. An address that no longer leads
    /// to a chain is closed alone: a plugin removes those of a pod that goes.
    pub(super) fn close_if_lost(&mut self, shared: &SharedEngine) -> Result<usize, FirewallError> {
        if !self.table.exists()? {
            return self.close_all(shared);
        }
        pods::wake(&mut self.table)?;
        let now = TableContent::read(&mut self.table)?;
        let lost = self.held.as_ref().map(|held| held.lost(&now)).unwrap_or_default();
        if lost.others {
            return self.close_all(shared);
        }
        self.held = Some(now);
        if lost == Loss::default() {
            return Ok(0);
        }
        let is_lost = |address: &IpAddr| lost.addresses.contains(address);
        self.close_some(shared, is_lost, |link| lost.links.contains(link))
    }

    fn close_all(&mut self, shared: &SharedEngine) -> Result<usize, FirewallError> {
        self.close_some(shared, |_| true, |_| true)
    }

    /// Lists the records, and closes those addresses of pods that are picked.
    fn close_some(
        &mut self,
        shared: &SharedEngine,
        picks: impl Fn(&IpAddr) -> bool,
        picks_link: impl Fn(&Link) -> bool,
    ) -> Result<usize, FirewallError> {
        let _lock = self.lock()?;
        // A plugin may have removed an attachment without telling the service.
        let records = self.records(shared);
        let (addresses, links): (Vec<IpAddr>, Vec<Link>) = {
            let mut engine = shared.engine();
            engine.list_records(records);
            let recorded = engine.attachments().flat_map(|one| one.own().iter().copied());
            let judged = engine.program().into_iter().flat_map(|program| program.verdicts.keys());
            let all: BTreeSet<IpAddr> =
                recorded.chain(judged.map(|(_, address)| *address)).filter(&picks).collect();
            let links =
                engine.attachments().flat_map(Attachment::links).filter(&picks_link).collect();
            (all.into_iter().collect(), links)
        };
        if !addresses.is_empty() {
            pods::close(&mut self.table, &addresses)?;
        }
        if !links.is_empty() {
            pods::close_links(&mut self.table, &links)?;
        }
        self.held = Some(TableContent::read(&mut self.table)?);
        Ok(addresses.len() + links.len())
    }

    /// Says how the table differs from where addresses are to lead, if it does.
    pub(super) fn differs(
        &mut self,
        expected: &[AddressTarget],
    ) -> Result<Option<String>, FirewallError> {
        for AddressTarget { place, leads } in expected {
            let (found, named) = match place {
                Place::Own(address) => {
                    (pods::verdicts(&mut self.table, *address)?, address.to_string())
                }
                Place::Further(link) => {
                    let named = format!("{} at {}", link.address, link.interface);
                    (pods::link_verdicts(&mut self.table, link)?, named)
                }
            };
            for direction in Direction::ALL {
                let (wanted, found) = (leads.get(direction), found.get(direction));
                if wanted != found {
                    let chain = |chain: &Option<Name>| match chain {
                        Some(chain) => format!("leads to {chain}"),
                        None => "is not judged".to_owned(),
                    };
                    return Ok(Some(format!(
                        "{direction} of {named} {} in the packet filter, but by the policies it {}",
                        chain(found),
                        chain(wanted)
                    )));
                }
            }
        }
        Ok(None)
    }

    /// Reads all records of the plugin. A record that cannot be read is logged once, and counts as
    /// it was when it could be read.
    pub(super) fn records(&mut self, shared: &SharedEngine) -> Vec<Attachment> {
        let listed = self.index.list();
        let mut damaged: BTreeSet<String> =
            listed.damaged.iter().map(ToString::to_string).collect();
        // The hashes of the attachments with damaged records; `None` where any record may be the
        // damaged one.
        let own = listed.damaged.iter().filter(|one| one.may_be_of(PLUGIN));
        let mut illegible: BTreeSet<Option<String>> =
            own.map(|one| one.hash().map(str::to_owned)).collect();
        let mut attachments = Vec::new();
        for record in listed.found.iter().filter(|record| record.plugin == PLUGIN) {
            match Attachment::of(record) {
                Ok(attachment) => attachments.push(attachment),
                Err(error) => {
                    illegible.insert(Some(record.attachment.hash()));
                    damaged.insert(format!("the record of {}: {error}", record.attachment));
                }
            }
        }
        for what in damaged.difference(&self.damaged) {
            tracing::warn!("{what}");
        }
        self.damaged = damaged;
        let was_blind = self.is_blind;
        (self.is_damaged, self.is_blind) = (!illegible.is_empty(), false);
        if self.is_damaged {
            let found: BTreeSet<Id> = attachments.iter().map(|one| one.id.clone()).collect();
            let any = illegible.contains(&None::<String>);
            let engine = shared.engine();
            let known = engine.attachments().filter(|one| !found.contains(&one.id));
            let known = known.filter(|one| any || illegible.contains(&one.hash()));
            attachments.extend(known.cloned());
            let known: BTreeSet<Option<String>> =
                attachments.iter().map(Attachment::hash).collect();
            self.is_blind = illegible.iter().any(|hash| hash.is_none() || !known.contains(hash));
        }
        self.sees_again |= was_blind && !self.is_blind;
        attachments
    }

    /// Reports whether a record could not be read when the records were listed last.
    pub(super) fn is_damaged(&self) -> bool {
        self.is_damaged
    }

    /// Reports, once, whether the addresses of all records are known again, so that the table is to
    /// be brought to the program.
    pub(super) fn sees_again(&mut self) -> bool {
        std::mem::take(&mut self.sees_again)
    }

    /// Removes the table, and those in containers' namespaces. If one cannot be removed, the others
    /// are removed all the same.
    pub(super) fn remove(&mut self) -> Result<(), FirewallError> {
        let _lock = self.lock()?;
        let (census, mut removed) = (Census::new(), self.table.remove());
        for record in self.index.list().found.iter().filter(|record| record.plugin == PLUGIN) {
            if let Ok(Attachment { inside: Some(noted), .. }) = Attachment::of(record) {
                removed = removed.and(inside::remove(&noted, &census));
            }
        }
        removed
    }

    /// Removes the table if no attachment needs it. Returns how many do. A record that cannot be
    /// read counts as one.
    pub(super) fn remove_unused(&mut self) -> Result<usize, FirewallError> {
        let _lock = self.lock()?;
        let read = self.index.list();
        let recorded = read.found.iter().filter(|record| record.plugin == PLUGIN).count();
        let needed = recorded + read.damaged.len();
        if needed == 0 {
            self.table.remove()?;
        }
        Ok(needed)
    }
}

/// Adds to a program that these addresses are closed, unless it has a verdict for them.
fn closing(
    mut program: Program,
    addresses: impl IntoIterator<Item = IpAddr>,
    links: impl IntoIterator<Item = Link>,
) -> Program {
    for address in addresses {
        for direction in Direction::ALL {
            let verdict = program.verdicts.entry((direction, address));
            verdict.or_insert_with(|| policy::program::unknown(direction));
        }
    }
    for link in links {
        for direction in Direction::ALL {
            let verdict = program.links.entry((direction, link.clone()));
            verdict.or_insert_with(|| policy::program::unknown(direction));
        }
    }
    program
}

/// Reports whether a program takes some time to be written.
pub(super) fn is_large(program: &Program) -> bool {
    let elements = program.sets.values().map(|set| match set {
        Set::Addresses(all) => all.len(),
        Set::Intervals(all) => all.len(),
        Set::Ports(all) => all.len(),
    });
    LARGE < elements.sum::<usize>() + program.verdicts.len()
}
