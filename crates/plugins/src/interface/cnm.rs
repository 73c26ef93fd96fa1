//! `cnm`: a container on a network of any Docker network driver. The plugin takes the role of
//! Docker's engine.
//!
//! A driver creates an interface on the host and reports its name. The engine, here the plugin,
//! moves it into the container, sets its addresses and routes, and moves it back before the driver
//! removes it. Addresses come from an IPAM driver, a CNI IPAM plugin, or the driver itself.
//! `docs/plugins.md` lists which requests a driver gets, and when.
//!
//! Drivers outlive calls and know nothing of CNI, and they may remember requests over a reboot. So
//! every request is recorded below `/var/lib/netwright/cnm` before it is sent.
//!
//! | module | what |
//! |---|---|
//! | `config` | the configuration, checked |
//! | `driver` | finding a driver, and asking it |
//! | `journal` | the records |
//! | `network`, `pools` | networks and their pools |
//! | `link` | the link that a driver lends |
//! | `connect`, `plan` | ADD |
//! | `remove` | what DEL and GC remove |
//! | `wanted` | what CHECK compares and repair restores |
//! | `status` | STATUS |

mod config;
mod connect;
mod driver;
mod journal;
mod link;
mod network;
mod plan;
mod pools;
mod remove;
mod status;
mod wanted;

use std::cell::OnceCell;

use cni::{AddResult, AttachmentKey};
use cni_plugin::{Call, Info, Role};
use serde::de::IgnoredAny;
use state::Index;

use self::config::Config;
use self::driver::Timeouts;
use self::journal::Journal;
use crate::engine::{Addition, Collection, Kind, NetnsEntry, Removal};
use crate::shared::failure::Failure;
use crate::shared::failures::Failures;

/// What the plugin is.
pub const INFO: Info =
    Info::new("cnm").role(Role::Interface).capabilities(&["mac", "ips", "portMappings"]);

/// The plugin's type.
const NAME: &str = INFO.name;

/// Attachments of `cnm`.
#[derive(Debug)]
pub(crate) struct Cnm;

impl Kind for Cnm {
    const INFO: Info = INFO;
    const CLAIMS: bool = false;
    const ENTER: NetnsEntry = NetnsEntry::Always;
    type Raw = config::Raw;
    type Config = Config;
    type RecordData = IgnoredAny;
    /// Each verb finds out only once which driver does not answer.
    type Cache = OnceCell<Timeouts>;

    fn config(call: &Call<'_>) -> Result<Config, Failure> {
        Config::of(call)
    }

    fn validate(call: &Call<'_>) -> Result<(), Failure> {
        Config::of_network(call).map(drop)
    }

    fn status(call: &Call<'_>) -> Result<(), Failure> {
        status::status(call)
    }

    fn attach(attaching: &mut Addition<'_, Self>) -> Result<AddResult, Failure> {
        connect::attach(attaching)
    }

    fn take_down(removal: &Removal<'_, Self>, failures: &mut Failures) {
        let timeouts = remove::timeouts(removal.call, removal.kept);
        let taken = remove::all(removal.call, removal.key, removal.netns.as_ref(), timeouts);
        failures.note_as_it_is(taken);
    }

    /// Finds the endpoints that are written down.
    fn unrecorded(call: &Call<'_>, _: &Index, failures: &mut Failures) -> Vec<AttachmentKey> {
        let journal = Journal::new(call.roots(), call.network().as_str());
        let endpoints = failures.note("list endpoints", journal.endpoints()).unwrap_or_default();
        endpoints.into_iter().map(|endpoint| endpoint.attachment).collect()
    }

    fn collect(collecting: &Collection<'_, Self>, failures: &mut Failures) {
        let timeouts = remove::timeouts(collecting.call, collecting.kept);
        failures.note("remove the network", remove::collect(collecting.call, timeouts));
    }
}
