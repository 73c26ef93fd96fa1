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
mod remove;
mod sysctl;
mod wanted;

use std::path::Path;

use cni::{AddResult, AttachmentKey, code};
use cni_plugin::{Call, Info, Role};
use kernel::netns::{Netns, within};
use state::Index;

use self::allowlist::Allowlist;
pub use self::config::DATA_DIR;
use self::config::{Config, LinkValues};
use self::node::Node;
use self::plan::{AddObservation, RecordData};
use crate::engine::{Addition, Kind, NetnsEntry, Removal, Wants as _};
use crate::shared::failure::Failure;
use crate::shared::failures::Failures;
use crate::shared::trial;

/// What the plugin is.
pub const INFO: Info = Info::new("tuning").role(Role::Chained).capabilities(&["mac"]);

/// The file in which the administrator lists the sysctls that may be set.
const ALLOWLIST: &str = "/etc/cni/tuning/allowlist.conf";

/// Attachments of `tuning`.
#[derive(Debug)]
pub(crate) struct Tuning;

impl Tuning {
    fn allowlist() -> Result<Option<Allowlist>, Failure> {
        Allowlist::read(Path::new(ALLOWLIST))
    }

    fn require_allowed(config: &Config) -> Result<(), Failure> {
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

impl Kind for Tuning {
    const INFO: Info = INFO;
    // `remove` opens the namespace once the backup or the record says that there is something to
    // restore.
    const ENTER: NetnsEntry = NetnsEntry::Never;
    type Raw = config::Raw;
    type Config = Config;
    type RecordData = RecordData;
    type Cache = ();

    fn config(call: &Call<'_>) -> Result<Config, Failure> {
        Config::of(call)
    }

    fn validate(call: &Call<'_>) -> Result<(), Failure> {
        Config::of_network(call).map(drop)
    }

    fn fits_host(call: &Call<'_>) -> Result<(), Failure> {
        Tuning::require_allowed(&Config::of_network(call)?)
    }

    /// Reports also whether a new container has the sysctls, as far as that can be known before.
    fn status(call: &Call<'_>) -> Result<(), Failure> {
        let read = Tuning::allowlist().map(drop);
        read.map_err(|failure| failure.with_code(code::PLUGIN_NOT_AVAILABLE))?;
        let config = Config::of_network(call)?;
        if config.sysctls.is_empty() {
            return Ok(());
        }
        trial::in_fresh_netns(|_| node::look(&config.sysctls))
    }

    fn attach(attaching: &mut Addition<'_, Self>) -> Result<AddResult, Failure> {
        let (call, config) = (attaching.call, attaching.config);
        Tuning::require_allowed(config)?;
        let mut result = call.require_prev_result(Tuning::NO_PREVIOUS)?;
        if config.is_empty() {
            return Ok(result);
        }
        let netns = call.open_netns()?;
        in_netns(&netns, || add_in_netns(call, config, &netns))?;
        update(&mut result, call.ifname().as_str(), &config.link);
        Ok(result)
    }

    fn take_down(removal: &Removal<'_, Self>, failures: &mut Failures) {
        remove::take_down(removal, failures);
    }

    /// Lists the attachments that claim a sysctl. ADD writes its record before it claims anything,
    /// so a claim without a record is that of an attachment whose record is lost.
    fn unrecorded(_: &Call<'_>, index: &Index, _: &mut Failures) -> Vec<AttachmentKey> {
        node::claims(index).into_iter().map(|(key, _)| key).collect()
    }
}

/// Runs `work` in the container's namespace.
fn in_netns<T>(netns: &Netns, work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    within(netns, work)?
}

fn add_in_netns(call: &Call<'_>, config: &Config, netns: &Netns) -> Result<(), Failure> {
    let key = call.attachment();
    let mut node = Node::new(call, key)?;
    node.set_netns(netns);
    let (recorded, stale) = match node.recorded() {
        Some((recorded, record)) if node.is_of(&record, netns) => (Some(recorded), None),
        Some((stale, _)) => (None, Some(stale)),
        None => (None, None),
    };
    // Where the first ADD put it, even if the configuration names another place by now.
    let backup_path = recorded
        .as_ref()
        .and_then(|recorded| recorded.backup.clone())
        .unwrap_or_else(|| backup::path(&config.data_dir, key));
    let known = AddObservation { recorded, stale, ..AddObservation::default() };
    let observed = observe(call, &mut node, config, known, &backup_path)?;
    plan::run(&plan::add(config, backup_path, &observed), &mut node)
}

fn observe(
    call: &Call<'_>,
    node: &mut Node<'_>,
    config: &Config,
    known: AddObservation,
    backup_path: &Path,
) -> Result<AddObservation, Failure> {
    let mut observed = known;
    if !config.link.is_empty() {
        let link = node.link()?.ok_or_else(|| {
            Failure::new(
                code::INVALID_CONFIG,
                format!("failed to get {:?}: Link not found", call.ifname().as_str()),
            )
            .with_details("tuning changes a link that a plugin before it in the list made")
        })?;
        node::check_link(config, &link)?;
        observed.link = Some(node::link_state(&link));
        observed.backup = backup::read(backup_path, |warning| call.warn(warning))?;
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
