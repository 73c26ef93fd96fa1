//! `tuning`: sysctls of the container's namespace, and the hardware address, MTU, queue length,
//! promiscuous and all-multicast mode of its interface.
//!
//! ADD is all or nothing. It first reads and records everything that it will change, then sets the
//! link's values in one netlink message and writes the sysctls that differ, in the order of the
//! configuration. If any of this fails, everything is as before. The result is `prevResult` with
//! the new address and MTU of the container's interface; a link of the same name on the host's side
//! is a different one.
//!
//! DEL restores what still exists: the link's values, and, as long as the namespace exists, each
//! sysctl once the last attachment of the container that asked for it leaves. (The reference leaves
//! sysctls as they are.) DEL needs neither configuration nor `prevResult`, namespace, interface or
//! files.
//!
//! CHECK compares what the configuration names, each value separately (`wanted`). GC removes what
//! attachments left that are no longer valid. STATUS fails if the list of allowed sysctls cannot be
//! read, as ADD would.
//!
//! | where | what |
//! |---|---|
//! | `<dataDir>/<container ID>_<interface>.json` | the link's values before the first ADD, in the reference's format: either implementation can restore them |
//! | `<run>/owners/…/tuning.json` | the link and namespace of these values, the configured sysctls, and the original values of the interface's own |
//! | `<run>/shared/sysctl:<container ID>:<path>` | the attachments of the container that claim a sysctl, and its original value |
//! | `/etc/cni/tuning/allowlist.conf` | the administrator's: patterns of the sysctls that may be set |

mod allowlist;
mod backup;
mod config;
#[cfg(test)]
mod crash_tests;
mod node;
mod plan;
mod sysctl;
mod wanted;

use std::path::Path;

use cni::json::UnknownKey;
use cni::{AddResult, AttachmentKey, Error, code};
use cni_plugin::{Call, Info, Outcome, Plugin, Role, codes};
use kernel::living::Census;
use kernel::netns::{Netns, within};
use state::{Index, Record};

use self::allowlist::Allowlist;
use self::config::{Config, LinkValues};
use self::node::{Node, PLUGIN};
use self::plan::{Apply as _, Observed, Remains, Saved, Step};
use crate::engine::{self, Kind as _};
use crate::shared::attachment::{self, Stale};
use crate::shared::failures::Failures;

/// What the plugin is.
pub const INFO: Info = Info::new("tuning").role(Role::Chained).capabilities(&["mac"]);

/// The file in which the administrator lists the sysctls that may be set.
const ALLOWLIST: &str = "/etc/cni/tuning/allowlist.conf";

/// The plugin `tuning`.
#[derive(Debug)]
pub struct Tuning;

impl Tuning {
    fn allowlist() -> Result<Option<Allowlist>, Error> {
        Allowlist::read(Path::new(ALLOWLIST))
    }

    fn require_allowed(config: &Config) -> Result<(), Error> {
        if config.sysctls.is_empty() {
            return Ok(());
        }
        let Some(allowlist) = Tuning::allowlist()? else { return Ok(()) };
        config.sysctls.iter().try_for_each(|sysctl| allowlist.require(sysctl.key.written()))
    }
}

/// Checks, for the fuzzer, that a backup that was read is written so that it reads the same.
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub fn reads_a_backup_as_it_writes_it(bytes: &[u8]) {
    backup::assert_round_trip(bytes);
}

impl Plugin for Tuning {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn add(&self, call: &Call<'_>) -> Result<AddResult, Error> {
        attachment::add_alone(call, || add(call))
    }

    fn del(&self, call: &Call<'_>) -> Result<(), Error> {
        let _no_repair = attachment::lock_out_repair(call)?;
        let mut node = Node::new(call, call.attachment())?;
        let recorded = node.saved();
        // Where ADD put it, even if the configuration names another place by now. A damaged record
        // may name a place where nothing is.
        let configured = backup::path(&config::read_data_dir(call.document()), call.attachment());
        let backup_path = recorded.as_ref().and_then(|(saved, _)| saved.backup.clone());
        let backup_path =
            backup_path.filter(|path| *path == configured || path.exists()).unwrap_or(configured);
        let backup = backup::read(&backup_path, |warning| call.warn(warning));
        let (saved, netns) = match recorded {
            Some((saved, record)) => {
                let netns = call.open_any_netns()?.filter(|netns| node.is_of(&record, netns));
                (Some(saved), netns)
            }
            None => {
                let index = Index::new(call.roots());
                let claimed = Saved::lost(node::claims_of(&index, call.attachment()));
                let is_there = backup.is_some() || claimed.is_some();
                (claimed, if is_there { call.open_netns_if_there()? } else { None })
            }
        };
        let backup_path = Some(backup_path);
        let remains = Remains { backup_path, backup, saved, ..Remains::default() };
        take_down(call, &mut node, remains, netns.as_ref())
    }

    fn check(&self, call: &Call<'_>) -> Result<(), Error> {
        engine::check::<Tuning>(call)
    }

    fn repair_and_check(&self, call: &Call<'_>) -> Outcome {
        engine::repair::<Tuning>(call)
    }

    fn gc(&self, call: &Call<'_>) -> Result<(), Error> {
        let index = Index::new(call.roots());
        let all = index.list();
        all.damaged.iter().for_each(|damaged| call.warn(damaged));
        let ours: Vec<Record> =
            all.found.into_iter().filter(|record| record.plugin == PLUGIN).collect();
        let is_left = |key: &AttachmentKey| {
            let valid = call.is_valid_attachment(key.container_id.as_str(), key.ifname.as_str());
            key.network == *call.network() && !valid
        };
        let mut failures = Failures::new();
        for record in ours.iter().filter(|record| is_left(&record.attachment)) {
            let one = Stale::of(record.clone());
            let collected = one.collect(&index, PLUGIN, || collect(call, record, &ours));
            failures.note(format_args!("clean up {}", one.key), collected);
        }
        // Claims without a record. ADD writes its record before it claims anything.
        for (key, path) in node::claims(&index).into_iter().filter(|(key, _)| is_left(key)) {
            let one = Stale::look(&index, PLUGIN, key);
            if one.is_recorded() {
                continue;
            }
            let forgotten = one.collect(&index, PLUGIN, || {
                Node::new(call, &one.key)?.apply(&Step::ForgetSysctl { path })
            });
            failures.note(format_args!("clean up {}", one.key), forgotten);
        }
        failures.into_result()
    }

    fn validate(&self, call: &Call<'_>) -> Result<(), Error> {
        Config::of_network(call).map(drop)
    }

    fn fits_host(&self, call: &Call<'_>) -> Result<(), Error> {
        Tuning::require_allowed(&Config::of_network(call)?)
    }

    fn status(&self, _call: &Call<'_>) -> Result<(), Error> {
        match Tuning::allowlist() {
            Ok(_) => Ok(()),
            Err(error) => Err(Error { code: code::PLUGIN_NOT_AVAILABLE, ..error }),
        }
    }

    fn unknown_keys(&self, config: &str) -> Result<Vec<UnknownKey>, cni::json::JsonError> {
        cni::json::unknown_keys::<config::Raw>(config)
    }
}

/// Runs ADD under the attachment's lock.
fn add(call: &Call<'_>) -> Result<AddResult, Error> {
    let config = Config::of(call)?;
    Tuning::require_allowed(&config)?;
    let mut result = call.require_prev_result(Tuning::NO_PREVIOUS)?;
    if config.is_empty() {
        return Ok(result);
    }
    let netns = call.open_netns()?;
    inside(&netns, || add_inside(call, &config, &netns))?;
    update(&mut result, call.ifname().as_str(), &config.link);
    Ok(result)
}

/// Runs `work` in the container's namespace.
fn inside<T>(netns: &Netns, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    within(netns, work).map_err(|error| Error::from_chain(code::INVALID_NETNS, &error))?
}

fn add_inside(call: &Call<'_>, config: &Config, netns: &Netns) -> Result<(), Error> {
    let key = call.attachment();
    let mut node = Node::new(call, key)?;
    node.enter(netns);
    let (saved, stale) = match node.saved() {
        Some((saved, record)) if node.is_of(&record, netns) => (Some(saved), None),
        Some((stale, _)) => (None, Some(stale)),
        None => (None, None),
    };
    // Where the first ADD put it, even if the configuration names another place by now.
    let backup_path = saved
        .as_ref()
        .and_then(|saved| saved.backup.clone())
        .unwrap_or_else(|| backup::path(&config.data_dir, key));
    let known = Observed { saved, stale, ..Observed::default() };
    let observed = observe(call, &mut node, config, known, &backup_path)?;
    plan::run(&plan::add(config, backup_path, &observed), &mut node)
}

fn observe(
    call: &Call<'_>,
    node: &mut Node<'_>,
    config: &Config,
    known: Observed,
    backup_path: &Path,
) -> Result<Observed, Error> {
    let mut observed = known;
    if !config.link.is_empty() {
        let link = node.link()?.ok_or_else(|| {
            Error::new(
                code::INVALID_CONFIG,
                format!("failed to get {:?}: Link not found", call.ifname().as_str()),
            )
            .with_details("tuning changes a link that a plugin before it in the list made")
        })?;
        node::check_link(config, &link)?;
        observed.link = Some(node::link_state(&link));
        observed.backup = backup::read(backup_path, |warning| call.warn(warning));
    }
    observed.sysctls = node::read_sysctls(&config.sysctls, call.ifname())?;
    if observed.link.is_none() && observed.sysctls.iter().any(|sysctl| sysctl.own) {
        observed.link = node.link()?.as_ref().map(node::link_state);
    }
    Ok(observed)
}

/// Updates the container's interface in the result.
fn update(result: &mut AddResult, ifname: &str, values: &LinkValues) {
    let own = |link: &&mut cni::Interface| link.name == ifname && !link.sandbox.is_empty();
    for link in result.interfaces.iter_mut().filter(own) {
        if let Some(mac) = values.mac {
            link.mac = mac.to_string();
        }
        if let Some(mtu) = values.mtu {
            link.mtu = mtu;
        }
    }
}

/// Restores what still exists in the attachment's namespace and removes its record.
///
/// A link that cannot be restored is an error and stays recorded for the next attempt, because it
/// may outlive the container. Sysctls are deleted with the namespace. One that cannot be restored
/// is a warning, so that the plugins before this one still get their DEL.
fn take_down(
    call: &Call<'_>,
    node: &mut Node<'_>,
    mut remains: Remains,
    netns: Option<&Netns>,
) -> Result<(), Error> {
    let Some(netns) = netns else { return run_down(call, node, &remains) };
    inside(netns, || {
        remains.namespace = true;
        let own = |saved: &Saved| saved.ifindex.is_some() && saved.own().next().is_some();
        if remains.backup.is_some() || remains.saved.as_ref().is_some_and(own) {
            let ifindex = remains.saved.as_ref().and_then(|saved| saved.ifindex);
            let link = node.saved_link(ifindex)?;
            // The interface's own sysctls are below the link's present name; the container may have
            // renamed it. A link that came back from another namespace may have another ifindex;
            // then only its name identifies it.
            if let (Some(link), Some(saved)) = (&link, &mut remains.saved) {
                saved.rename_own(&link.name);
            }
            remains.link = link.as_ref().map(node::link_state).filter(|_| remains.backup.is_some());
        }
        run_down(call, node, &remains)
    })
}

fn run_down(call: &Call<'_>, node: &mut Node<'_>, remains: &Remains) -> Result<(), Error> {
    let steps = plan::del(remains);
    let mut failures = Failures::new();
    for (step, error) in plan::run_all(&steps, node) {
        match step {
            Step::ReleaseSysctl { .. } | Step::RestoreSysctl { .. }
                if error.code != codes::STATE =>
            {
                call.warn(format_args!("could not {}: {error}", step.describe()));
            }
            _ => {
                failures.note::<()>(step.describe(), Err(error));
            }
        }
    }
    failures.into_result()
}

/// Removes an attachment that is no longer valid.
fn collect(call: &Call<'_>, record: &Record, ours: &[Record]) -> Result<(), Error> {
    let key: &AttachmentKey = &record.attachment;
    let mut node = Node::new(call, key)?;
    let saved = node.saved();
    let backup_path = saved
        .as_ref()
        .and_then(|(saved, _)| saved.backup.clone())
        // The backup's name does not include the network: it may belong to an attachment of the
        // same name to another network.
        .filter(|path| !ours.iter().any(|other| is_backup_of(path, other) && other != record));
    let backup =
        backup_path.as_deref().and_then(|path| backup::read(path, |warning| call.warn(warning)));
    let netns = attachment::recorded_netns(record, &Census::new()).ok().flatten();
    let netns = netns.filter(|netns| node.is_of(record, netns));
    let saved = saved.map(|(saved, _)| saved);
    let remains = Remains { backup_path, backup, saved, ..Remains::default() };
    take_down(call, &mut node, remains, netns.as_ref())
}

fn is_backup_of(path: &Path, record: &Record) -> bool {
    record.data["backup"].as_str().is_some_and(|backup| Path::new(backup) == path)
}
