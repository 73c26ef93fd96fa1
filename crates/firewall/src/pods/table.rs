//! The table in the kernel.

use kernel::netlink::NetlinkError;
use kernel::netns::Netns;
use kernel::nft::{Batch, Expr, NftError, NftSocket, Operation};
use policy::{Direction, Program, Step};

use super::layout::{self, Form, Site};
use super::{Difference, DroppedPackets, Logging, NO_LOG, encode, ipvs, repair};
use crate::declared::KernelTable;
use crate::error::FirewallError;

/// The table `inet netwright-policy` of one network namespace.
///
/// There is no lock here: a caller that writes holds the lock `policy` of the index.
#[derive(Debug)]
pub struct PodsTable {
    table: KernelTable,
    /// It logs nothing once the kernel has shown that it cannot.
    form: Form,
}

impl PodsTable {
    /// Opens a socket in the caller's network namespace, and looks whether IPVS has services there.
    /// Creates nothing.
    ///
    /// **Privileges**: `CAP_NET_ADMIN` there.
    ///
    /// # Errors
    /// [`FirewallError::Open`].
    pub fn open(logging: Logging) -> Result<Self, FirewallError> {
        let table = KernelTable::open(layout::table())?;
        let site = Site::Node { services: ipvs::has_services() };
        Ok(PodsTable { table, form: Form { site, logging: Some(logging) } })
    }

    /// Opens a socket in another network namespace. Whether IPVS has services there is not known.
    ///
    /// # Errors
    /// [`FirewallError::Open`].
    pub fn open_in(netns: &Netns, logging: Logging) -> Result<Self, FirewallError> {
        let table = KernelTable::open_in(netns, layout::table())?;
        let site = Site::Node { services: false };
        Ok(PodsTable { table, form: Form { site, logging: Some(logging) } })
    }

    /// Opens a socket in a container's namespace, whose table has other maps and hooks: those for
    /// what the container itself sends and receives. Nothing is logged there: a listener would keep
    /// the namespace alive, as an open socket of the table does.
    ///
    /// # Errors
    /// [`FirewallError::Open`].
    pub fn open_inside(netns: &Netns) -> Result<Self, FirewallError> {
        let form = Form { site: Site::Container, logging: None };
        KernelTable::open_in(netns, layout::table()).map(|table| PodsTable { table, form })
    }

    /// Looks whether IPVS has services in the network namespace of the calling thread, which must
    /// be the table's. Once it has had some, the chains for what IPVS sends on belong to the table:
    /// [`put`](Self::put), [`bring`](Self::bring), [`close`](super::close) and
    /// [`complete`](super::complete) make them. They stay for good, so that no packet passes while
    /// services are made anew. Reports whether it has had some: never of a container's table.
    pub fn look_for_services(&mut self) -> bool {
        match &mut self.form.site {
            Site::Node { services } => {
                *services = *services || ipvs::has_services();
                *services
            }
            Site::Container => false,
        }
    }

    /// Returns the number by which the kernel names the table's socket in messages to listeners
    /// ([`kernel::events::TableListener::ignore`]).
    ///
    /// # Errors
    /// The kernel's.
    pub fn port(&mut self) -> std::io::Result<u32> {
        self.ask().port()
    }

    /// Says whether packets are logged: not if the kernel has refused a rule that logs ([`NO_LOG`]).
    #[must_use]
    pub fn logs(&self) -> bool {
        self.form.logging.is_some()
    }

    /// Says whether there is a table at all.
    ///
    /// # Errors
    /// [`FirewallError::Tables`] when the kernel does not answer.
    pub fn exists(&mut self) -> Result<bool, FirewallError> {
        self.table.exists()
    }

    /// Replaces the whole table in one transaction. Counters begin at 0.
    ///
    /// For tests, and where there is no table. A packet that passes at this moment may meet neither
    /// the old table nor the new one; [`bring`](Self::bring) changes only what differs.
    ///
    /// # Errors
    /// [`FirewallError::Tables`] when the kernel refuses; nothing has changed then.
    pub fn put(&mut self, program: &Program) -> Result<(), FirewallError> {
        let batch = encode::whole(program, self.form);
        self.commit(&batch).map_err(|error| self.failed(error))
    }

    /// Makes steps. These may be the steps of several changes, one after the other. Nothing is sent
    /// if there are none.
    ///
    /// They are one transaction. If there are chains or sets to make, another transaction makes
    /// those before; no packet meets them before the second
    /// ([`transactions`](super::transactions)).
    ///
    /// # Errors
    /// [`FirewallError::Tables`] when the kernel refuses: an object to add exists, or an object to
    /// remove or change is missing. Nothing has changed then; [`bring`](Self::bring) makes up for
    /// it. This does not check whether an address led where the steps assume, or whether a chain
    /// had its rules.
    pub fn apply(&mut self, steps: &[Step]) -> Result<(), FirewallError> {
        let [first, second] = encode::steps(steps);
        self.commit(&first).map_err(|error| self.failed(error))?;
        self.commit(&second).map_err(|error| {
            // If that is refused too, `bring` removes it.
            let _ = self.commit(&encode::undo(&first));
            self.failed(error)
        })
    }

    /// Compares the kernel with a program. Each line of the difference is a sentence about one
    /// thing that is missing, foreign or changed. The cost grows with the number of elements.
    ///
    /// # Errors
    /// [`FirewallError::Tables`] when the kernel does not answer.
    pub fn observe(&mut self, program: &Program) -> Result<Difference, FirewallError> {
        Ok(repair::difference(&self.table.read()?, program, self.form))
    }

    /// Brings the kernel to a program: finds what is different and repairs only that, as
    /// [`apply`](Self::apply) would. Returns what it found.
    ///
    /// **Idempotence**: nothing is written if nothing is different.
    ///
    /// # Errors
    /// [`FirewallError::Tables`] when the kernel refuses; nothing has changed then.
    pub fn bring(&mut self, program: &Program) -> Result<Difference, FirewallError> {
        let difference = self.observe(program)?;
        let done = self.commit(difference.first()).and_then(|()| self.commit(difference.repair()));
        match done {
            // Another program changed the table between our look and our change, or something that
            // we do not know refers to a foreign object.
            Err(error) if error.errno().is_some() => self.put(program)?,
            other => other.map_err(|error| self.failed(error))?,
        }
        Ok(difference)
    }

    /// Removes the table with everything in it. Success when it is gone already.
    ///
    /// # Errors
    /// [`FirewallError::Tables`] when the kernel refuses.
    pub fn remove(&mut self) -> Result<(), FirewallError> {
        self.table.remove()
    }

    /// Reads how many packets were dropped: none if there is no table.
    ///
    /// # Errors
    /// [`FirewallError::Tables`] when the kernel does not answer.
    pub fn dropped(&mut self) -> Result<DroppedPackets, FirewallError> {
        let mut counted = |chain: &str| -> Result<u64, FirewallError> {
            let rules = self.ask().rules(&layout::table(), chain);
            let rules = rules.map_err(|error| self.unread(error))?;
            let counter = |expr: &Expr| match expr {
                Expr::Counter { packets, .. } => Some(*packets),
                _ => None,
            };
            Ok(rules.iter().flat_map(|rule| &rule.exprs).find_map(counter).unwrap_or_default())
        };
        Ok(DroppedPackets {
            incoming: counted(&layout::deny(Direction::Ingress))?,
            outgoing: counted(&layout::deny(Direction::Egress))?,
            revived: counted(layout::CUT)?,
        })
    }

    pub(super) fn form(&self) -> Form {
        self.form
    }

    pub(super) fn ask(&mut self) -> &mut NftSocket {
        self.table.ask()
    }

    pub(super) fn unread(&self, error: NetlinkError) -> FirewallError {
        self.table.unread(error)
    }

    pub(super) fn failed(&self, error: NftError) -> FirewallError {
        self.table.failed(error)
    }

    pub(super) fn commit(&mut self, batch: &Batch) -> Result<(), NftError> {
        if !commit(batch, |batch| self.table.commit(batch))? {
            tracing::warn!("{NO_LOG}");
            self.form.logging = None;
        }
        Ok(())
    }
}

/// Commits a transaction. If the kernel refuses the rules that log because it cannot log, commits
/// it without them: packets must be dropped all the same. Returns whether the rules that log are in
/// it.
fn commit(
    batch: &Batch,
    mut send: impl FnMut(&Batch) -> Result<(), NftError>,
) -> Result<bool, NftError> {
    let logs = |operation: &Operation| match operation {
        Operation::AddRule { rule } => layout::logs(&rule.exprs),
        _ => false,
    };
    let Err(error) = send(batch) else { return Ok(true) };
    let refused = error.index.and_then(|index| batch.operations().get(index));
    if !error.is_not_found() || !refused.is_some_and(logs) {
        return Err(error);
    }
    let mut without = Batch::new();
    for operation in batch.operations().iter().filter(|operation| !logs(operation)) {
        without.push(operation.clone());
    }
    send(&without).map(|()| false)
}

#[cfg(test)]
mod tests {
    use kernel::nft::NewRule;
    use testkit::{Lab, Place as _};

    use super::*;
    use crate::pods;

    /// Changes a transaction so that every kernel refuses it as a kernel that cannot log does: each
    /// rule that logs is in a chain that does not exist, which gives the same error (linux
    /// net/netfilter/nf_log.c `nf_logger_find_get`).
    fn as_if_unable(batch: &Batch) -> Batch {
        let mut other = Batch::new();
        for operation in batch.operations() {
            other.push(match operation {
                Operation::AddRule { rule } if layout::logs(&rule.exprs) => {
                    let rule = NewRule::new(&layout::table(), "nowhere");
                    Operation::AddRule { rule }
                }
                operation => operation.clone(),
            });
        }
        other
    }

    #[test]
    fn a_kernel_that_cannot_log_drops_all_the_same() {
        testkit::require!("root");
        let lab = Lab::new("pods-no-log");
        lab.enter(|| {
            let mut table = PodsTable::open(Logging::default()).unwrap();
            let program = Program::empty();
            let whole = encode::whole(&program, table.form);
            let logs = commit(&whole, |batch| table.table.commit(&as_if_unable(batch))).unwrap();
            assert!(table.logs() && !logs);
            table.form.logging = None;
            assert!(table.observe(&program).unwrap().is_empty());
            // The plugin leaves what it finds as it is, and what it needs exists.
            let address = "192.0.2.7".parse().unwrap();
            let mut plugin = PodsTable::open(Logging::default()).unwrap();
            pods::close(&mut plugin, &[address]).unwrap();
            assert_eq!(table.observe(&program).unwrap().lines().len(), 4, "only the address");
            let found = pods::verdicts(&mut plugin, address).unwrap();
            assert_eq!(found.ingress.as_deref(), Some("unknown-in"));
            assert_eq!(table.dropped().unwrap(), DroppedPackets::default());
        });
        let listed = lab.sh("nft list table inet netwright-policy");
        assert!(!listed.contains("log "), "{listed}");
        let (_, denied) = listed.split_once("chain deny-out {").unwrap();
        let (denied, _) = denied.split_once('}').unwrap();
        let rules: Vec<&str> =
            denied.lines().map(str::trim).filter(|one| !one.is_empty()).collect();
        assert_eq!(rules[0], "counter packets 0 bytes 0");
        assert_eq!(rules[rules.len() - 1], "drop");
    }

    /// Any other refusal is one.
    #[test]
    fn what_is_missing_otherwise_is_told() {
        testkit::require!("root");
        let lab = Lab::new("pods-no-chain");
        lab.enter(|| {
            let mut table = PodsTable::open(Logging::default()).unwrap();
            let mut batch = encode::whole(&Program::empty(), table.form);
            batch.add_rule(NewRule::new(&layout::table(), "nowhere"));
            let mut sent = 0;
            let refused = commit(&batch, |batch| {
                sent += 1;
                table.table.commit(batch)
            });
            assert!(refused.unwrap_err().is_not_found());
            assert_eq!(sent, 1);
            assert!(!table.exists().unwrap());
        });
    }
}
