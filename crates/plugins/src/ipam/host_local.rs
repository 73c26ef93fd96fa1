//! `host-local`: addresses from ranges, kept in files on this host.
//!
//! Configuration, folder and messages are the reference's; [`ipam`] implements the folder. The
//! differences:
//!
//! - All addresses of an ADD are chosen and written while it holds the network's lock once. When
//!   ADD fails, it releases what *this* call reserved; the reference releases everything that the
//!   attachment has in the network.
//! - A call waits at most 30 seconds for the lock, and the error names its holder (code 11).
//! - DEL needs only `ipam.dataDir` and the network's name from the configuration, so addresses are
//!   released even if their ranges have become invalid. `CNI_ARGS` does not matter either.
//! - A DEL that undoes an ADD ([`cni::UNDO`]) releases what was reserved for the namespace of that
//!   ADD: another plugin may have reserved an address for a container of the same names before.
//! - DEL, CHECK and STATUS do not create the network's folder.
//! - CHECK also finds that an address of `prevResult` belongs to another attachment by now.
//! - GC and STATUS exist.
//! - When a pool gives no address, ADD releases what was reserved for namespaces that are known to
//!   be gone (`stale.rs`). What the attachment itself had before its container, or the machine,
//!   started again it gets again.

mod config;
mod resolv;
mod stale;

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cni::{AddResult, Error, IpConfig, code};
use cni_plugin::{Call, Info, Plugin, Role, codes};
use ipam::{
    AllocateError, CollectReport, Holder, Owner, PlanError, RangeSet, SetError, Store, StoreError,
};
use ipnet::IpNet;
use rustix::fs::Access;
use rustix::io::Errno;

use config::HostLocal as Config;

use crate::shared::claim::Pool;
use crate::shared::failure::Failure;
use crate::shared::readiness;

/// How long a call waits for a network's lock. We hold it for less than a millisecond, and the
/// reference for up to half a second; a longer holder is stuck.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);

/// What the plugin is.
pub const INFO: Info = Info::new("host-local")
    .role(Role::Addresses)
    .capabilities(&["ips", "ipRanges"])
    .gives_any_requested();

/// The plugin `host-local`.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostLocal;

impl Plugin for HostLocal {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn add(&self, call: &Call<'_>) -> Result<AddResult, Error> {
        let config = Config::load(call)?;
        let requested = config.requested(call)?;
        let dns = match &config.resolv_conf {
            Some(path) => resolv::read(Path::new(path))?,
            None => cni::Dns::default(),
        };
        let store = store(call, &config.data_dir).with_origin(stale::origin(call));
        let locked = store.lock_or_create(timeout(call)).map_err(Failure::from)?;
        let owner = Owner::from(call.attachment());
        let mut assigned = locked.allocate(&config.ranges, &requested, &owner);
        if let Err(AllocateError::Plan(PlanError::Set { source, .. })) = &assigned
            && stale::is_own(source, &owner)
        {
            let own = stale::give_up_own(call, &locked, &owner).map_err(Failure::from)?;
            if !own.is_empty() {
                let wanted = stale::again(&config.ranges, &requested, &own);
                assigned = locked.allocate(&config.ranges, &wanted, &owner);
            }
        }
        // A DEL may be missing: after a power failure there is none.
        if let Err(AllocateError::Plan(PlanError::Set { source, .. })) = &assigned
            && stale::may_be_why(source, &locked)
            && 0 < stale::release(call, &locked).map_err(Failure::from)?
        {
            assigned = locked.allocate(&config.ranges, &requested, &owner);
        }
        let assigned = assigned.map_err(Failure::from)?;
        let ips = assigned.iter().map(|one| IpConfig::new(one.address, Some(one.gateway)));
        Ok(AddResult { ips: ips.collect(), routes: config.routes, dns, ..AddResult::default() })
    }

    fn del(&self, call: &Call<'_>) -> Result<(), Error> {
        // ADD refuses a configuration that cannot be read.
        let data_dir = config::data_dir(call).unwrap_or_else(|error| {
            call.warn(format_args!("looks in {}: {error}", ipam::DATA_DIR));
            ipam::DATA_DIR.into()
        });
        let store = store(call, &data_dir);
        let Some(locked) = store.lock(timeout(call)).map_err(Failure::from)? else {
            return Ok(());
        };
        let owner = Owner::from(call.attachment());
        if call.is_renewed() {
            let past = stale::past(&locked, &owner).map_err(Failure::from)?;
            return removed(locked.remove(past));
        }
        if call.is_undo() {
            let made = stale::made_by_this_add(call, &locked, &owner).map_err(Failure::from)?;
            if let Some(made) = made {
                return removed(locked.remove(made));
            }
        }
        locked.release(&owner).map_err(Failure::from)?;
        Ok(())
    }

    fn check(&self, call: &Call<'_>) -> Result<(), Error> {
        let config = Config::load(call)?;
        let store = store(call, &config.data_dir);
        let owner = Owner::from(call.attachment());
        let is_ours = |holder: &Holder| holder.is(&owner) || holder.is_container_of(&owner);
        let previous = call.prev_result()?;
        let expected: Vec<IpAddr> = previous
            .iter()
            .flat_map(|previous| previous.container_ips(&owner.ifname).map(|ip| ip.address.addr()))
            .collect();
        if !store.holds(&owner, &expected).map_err(Failure::from)? {
            return Err(Error::new(
                codes::DRIFT,
                format!(
                    "host-local: Failed to find address added by container {}",
                    owner.container_id
                ),
            )
            .with_details(format!("looked in {}", store.directory().display())));
        }
        for address in expected {
            if config.ranges.sets().iter().all(|set| set.range_of(address).is_none()) {
                continue;
            }
            match store.holder_of(address).map_err(Failure::from)? {
                Some(holder) if is_ours(&holder) => {}
                Some(holder) => {
                    return Err(Error::new(
                        codes::DRIFT,
                        format!("host-local: address {address} is reserved by {holder}"),
                    )
                    .with_details(
                        "two interfaces may use one address; detach and attach this one",
                    ));
                }
                None => {
                    return Err(Error::new(
                        codes::DRIFT,
                        format!("host-local: address {address} is not reserved any more"),
                    )
                    .with_details("another container may be given it"));
                }
            }
        }
        Ok(())
    }

    /// Reserves again what the container has and no attachment holds. An address that another
    /// attachment holds by now stays with it, and CHECK reports it. The calling plugin holds the
    /// attachment's lock if it is one of ours; after another plugin's DEL nothing may be reserved.
    fn repair(&self, call: &Call<'_>) -> Result<Vec<String>, Error> {
        if state::Index::new(call.roots()).of_attachment(call.attachment()).found.is_empty() {
            return Ok(Vec::new());
        }
        let config = Config::load(call)?;
        let store = store(call, &config.data_dir);
        let owner = Owner::from(call.attachment());
        let previous = call.require_prev_result("Required prevResult missing")?;
        let in_range = |address: &IpAddr| {
            config.ranges.sets().iter().any(|set| set.range_of(*address).is_some())
        };
        let mut missing = Vec::new();
        let ips = previous.container_ips(&owner.ifname).map(|ip| ip.address.addr());
        for address in ips.filter(in_range) {
            if store.holder_of(address).map_err(Failure::from)?.is_none() {
                missing.push(address);
            }
        }
        if missing.is_empty() {
            return Ok(Vec::new());
        }
        let locked = store.lock_or_create(timeout(call)).map_err(Failure::from)?;
        let mut lines = Vec::new();
        for address in missing {
            if locked.restore(&owner, address).map_err(Failure::from)? {
                lines.push(format!("reservation of address {address}"));
            }
        }
        Ok(lines)
    }

    fn gc(&self, call: &Call<'_>) -> Result<(), Error> {
        let store = store(call, &config::data_dir(call)?);
        let Some(locked) = store.lock(timeout(call)).map_err(Failure::from)? else {
            return Ok(());
        };
        let valid = call.valid_attachments();
        let attachments: HashSet<(&str, &str)> =
            valid.iter().map(|one| (&*one.container_id, &*one.ifname)).collect();
        let containers: HashSet<&str> = valid.iter().map(|one| &*one.container_id).collect();
        let collected = locked
            .collect(|holder| match holder {
                Holder::Attachment(owner) => {
                    attachments.contains(&(&*owner.container_id, &*owner.ifname))
                }
                Holder::Container(id) => containers.contains(&**id),
                Holder::Unread => true,
                Holder::Unwritten | Holder::Unknown => false,
            })
            .map_err(Failure::from)?;
        let mut failures = crate::shared::failures::Failures::new();
        for error in collected.failed {
            failures.note("release", Err::<(), _>(error));
        }
        Ok(failures.into_result()?)
    }

    fn validate(&self, call: &Call<'_>) -> Result<(), Error> {
        Ok(Config::load(call).map(drop)?)
    }

    fn doubts(&self, call: &Call<'_>) -> Vec<Error> {
        config::doubts(call).unwrap_or_default().into_iter().map(Error::from).collect()
    }

    fn fits_host(&self, call: &Call<'_>) -> Result<(), Error> {
        Ok(writable(&Config::load(call)?.data_dir)?)
    }

    fn status(&self, call: &Call<'_>) -> Result<(), Error> {
        let unavailable = |msg: String| Error::new(code::PLUGIN_NOT_AVAILABLE, msg);
        let config = Config::load(call)?;
        if let Some(path) = &config.resolv_conf {
            resolv::read(Path::new(path))
                .map_err(|error| unavailable(error.message().to_owned()))?;
        }
        let folder = config.data_dir.join(call.network().as_str());
        readiness::refuse_full("addresses", &folder)?;
        let store = store(call, &config.data_dir);
        let reserved = store
            .addresses()
            .map_err(|error| unavailable(Failure::from(error).message().to_owned()))?;
        for (index, set) in config.ranges.sets().iter().enumerate() {
            let counts = |address: &&IpAddr| {
                set.range_of(**address).is_some() && !config.ranges.is_gateway(**address)
            };
            let used = reserved.iter().filter(counts).count();
            let capacity = config.ranges.capacity(set);
            if capacity <= u128::try_from(used).unwrap_or(u128::MAX) {
                return Err(unavailable(format!("no IP addresses available in range set: {set}"))
                    .with_details(format!(
                        "range set {index}: {used} of {capacity} addresses are reserved; {ENLARGE}"
                    )));
            }
        }
        Ok(())
    }

    fn unknown_keys(
        &self,
        config: &str,
    ) -> Result<Vec<cni::json::UnknownKey>, cni::json::JsonError> {
        config::unknown_keys(config)
    }
}

/// Returns the first failure of a removal.
fn removed(collected: CollectReport) -> Result<(), Error> {
    match collected.failed.into_iter().next() {
        Some(error) => Err(Failure::from(error).into()),
        None => Ok(()),
    }
}

/// Returns the files of the reservations of an attachment with this record that are not of a namespace
/// that is gone.
///
/// # Errors
/// When the folder cannot be read: it may hold some.
pub(crate) fn present(
    record: &state::Record,
    roots: &state::Roots,
) -> Result<Vec<PathBuf>, StoreError> {
    let Some(ipam) = &record.ipam else { return Ok(Vec::new()) };
    if ipam["type"] != INFO.name {
        return Ok(Vec::new());
    }
    let dir = ipam["dataDir"].as_str().filter(|dir| !dir.is_empty()).unwrap_or(ipam::DATA_DIR);
    let network = &record.attachment.network;
    let store = Store::new(Path::new(dir), network).with_index(&roots.addresses());
    let Some(locked) = store.lock(LOCK_TIMEOUT)? else { return Ok(Vec::new()) };
    let present = stale::present(&locked, &Owner::from(&record.attachment))?;
    let folder = Path::new(dir).join(network.as_str());
    Ok(present.into_iter().map(|reservation| folder.join(reservation.file)).collect())
}

/// Returns the gateways' addresses that a configuration with this IPAM plugin asks for. A set of
/// several subnets is skipped: only ADD decides from which one an attachment gets its address.
pub(crate) fn gateways(call: &Call<'_>) -> Vec<IpNet> {
    let ours = call.ipam().is_some_and(|ipam| ipam.plugin_type() == INFO.name);
    // The plugin itself reports what is wrong with it.
    let Some(config) = ours.then(|| Config::load(call).ok()).flatten() else { return Vec::new() };
    let one = |set: &RangeSet| match set.ranges() {
        [range] => IpNet::new(range.gateway(), range.subnet().prefix_len()).ok(),
        _ => None,
    };
    config.ranges.sets().iter().filter_map(one).collect()
}

/// Returns the subnets of a configuration with this IPAM plugin; none if it cannot be read, which the
/// plugin itself reports.
pub(super) fn subnets(call: &Call<'_>) -> Vec<IpNet> {
    let Ok(config) = Config::load(call) else { return Vec::new() };
    let ranges = config.ranges.sets().iter().flat_map(RangeSet::ranges);
    ranges.map(ipam::Range::subnet).collect()
}

/// Returns the pools of each range set of a configuration with this IPAM plugin: a container gets one
/// address of each set.
pub(crate) fn pools(call: &Call<'_>) -> Vec<Vec<Pool>> {
    let ours = call.ipam().is_some_and(|ipam| ipam.plugin_type() == INFO.name);
    let Some(config) = ours.then(|| Config::load(call).ok()).flatten() else { return Vec::new() };
    let pool = |range: &ipam::Range| {
        let (gateway, prefix_len) = (range.gateway(), range.subnet().prefix_len());
        let ip = |address: IpAddr| {
            let address = IpNet::new(address, prefix_len).ok()?;
            Some(IpConfig::new(address, Some(gateway)))
        };
        Some(Pool { first: ip(range.start())?, last: ip(range.end())? })
    };
    let pools = |set: &RangeSet| set.ranges().iter().filter_map(pool).collect();
    config.ranges.sets().iter().map(pools).collect()
}

/// Refuses a folder to which even root cannot write, because of its file system or its attributes.
/// A missing folder would be created in the nearest one above it.
fn writable(data_dir: &Path) -> Result<(), Failure> {
    let there = data_dir.ancestors().find(|path| path.symlink_metadata().is_ok());
    let Some(there) = there.filter(|path| path.is_absolute()) else { return Ok(()) };
    let refused = |why: &dyn std::fmt::Display| {
        let dir = data_dir.display();
        let text = format!("addresses cannot be written down in {dir}: {}: {why}", there.display());
        Failure::new(codes::STATE, text)
            .with_details("key \"dataDir\" of \"ipam\" is a folder that can be written to")
    };
    if !there.is_dir() {
        return Err(refused(&"it is not a folder"));
    }
    match rustix::fs::access(there, Access::WRITE_OK | Access::EXEC_OK) {
        Err(error @ (Errno::ROFS | Errno::PERM)) => Err(refused(&error)),
        // The caller may lack a privilege that root has.
        _ => Ok(()),
    }
}

fn store(call: &Call<'_>, data_dir: &Path) -> Store {
    Store::new(data_dir, call.network()).with_index(&call.context().roots.addresses())
}

/// What to do if a pool is empty.
const ENLARGE: &str = "enlarge the range, or release what no container has any more (netwright gc)";

/// Returns how long this call may wait for the lock.
fn timeout(call: &Call<'_>) -> Duration {
    match call.context().deadline {
        Some(deadline) => LOCK_TIMEOUT.min(deadline.saturating_duration_since(Instant::now())),
        None => LOCK_TIMEOUT,
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        if error.is_busy() {
            return Failure::from_chain(code::TRY_AGAIN_LATER, &error)
                .with_details("nothing was changed; see what that process waits for");
        }
        Failure::from_chain(codes::STATE, &error)
    }
}

impl From<AllocateError> for Failure {
    fn from(error: AllocateError) -> Self {
        match error {
            AllocateError::Plan(plan) => Failure::from_chain(codes::ADDRESS, &plan)
                .with_details(plan_details(&plan).unwrap_or_default()),
            AllocateError::Store(error) => error.into(),
            other => {
                Failure::from_chain(codes::STATE, &other).with_details("DEL releases what is left")
            }
        }
    }
}

fn plan_details(error: &PlanError) -> Option<String> {
    match error {
        PlanError::Set { source, .. } => match source {
            SetError::Exhausted { used, capacity, .. } => {
                Some(format!("{used} of {capacity} addresses are reserved; {ENLARGE}"))
            }
            SetError::Taken { address, holder, .. } => {
                holder.as_ref().map(|holder| format!("{address} is reserved by {holder}"))
            }
            SetError::Duplicate { .. } => {
                Some("DEL of the attachment releases its address".to_owned())
            }
            _ => None,
        },
        PlanError::Unsatisfied { .. } => Some(
            "the address lies in no range of the network, or in a set of ranges that gives another one already"
                .to_owned(),
        ),
        _ => None,
    }
}
