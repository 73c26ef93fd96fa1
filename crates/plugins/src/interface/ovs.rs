//! `ovs`: a port of an Open vSwitch bridge, written into its database.
//!
//! A veth pair whose host end is the port, or a port that Open vSwitch creates itself and that
//! moves into the container. Everything that ADD needs from the switch is one transaction. The rows
//! carry their owner in `external_ids`, so DEL finds them even if everything else is lost.
//!
//! | module | what |
//! |---|---|
//! | `config` | the configuration, checked |
//! | `vlans` | access, trunk, native |
//! | `extras` | shaping, tunnels, mirrors, as configured |
//! | `defaults` | the file with defaults |
//! | `place` | where the database is, and the keys for it |
//! | `database` | the connection, and waiting for the switch |
//! | `rows` | what is written, as data |
//! | `connect` | ADD |
//! | `made` | what ADD has created, and its result |
//! | `interior` | ports that the switch creates |
//! | `joined` | bridges that patch ports join |
//! | `limits` | whether the kernel has the limits that the switch was told to set |
//! | `local_port` | the switch's own link on the host |
//! | `mirrors` | joining and leaving mirrors |
//! | `chained` | joining mirrors as plugins of their own |
//! | `remove` | what DEL and GC remove |
//! | `wanted` | what CHECK compares and repair restores |
//! | `port` | the same of the port and its link |
//! | `status` | STATUS |
//! | `sweep` | ports of containers that are gone |
//!
//! `ovs` takes no lock of its own, which would bind only ourselves: other programs change the
//! database too. A transaction says what it assumes (`wait`); if that does not hold, the plugin
//! reads and plans again. DEL of the last port removes the bridge or the tunnels only if they still
//! have the ports that it read. An ADD that needs a tunnel says so in its transaction.

mod chained;
mod config;
mod connect;
mod database;
mod defaults;
mod extras;
mod interior;
mod joined;
mod limits;
mod local_port;
mod made;
mod mirrors;
mod place;
mod port;
mod remove;
mod rows;
mod status;
mod sweep;
mod vlans;
mod wanted;

use cni::{AddResult, AttachmentKey};
use cni_plugin::{Call, Info, Role};
use state::Index;

use self::config::Config;
use self::connect::RecordData;
use crate::engine::{Addition, Kind, NetnsEntry, Removal};
use crate::shared::failure::Failure;
use crate::shared::failures::Failures;

pub(crate) use chained::{MirrorConsumer, MirrorProducer};
pub use sweep::sweep;

/// What the plugin is.
pub const INFO: Info = Info::new("ovs").role(Role::Interface).capabilities(&["mac"]);

/// The plugin's type.
const NAME: &str = INFO.name;

/// Attachments of `ovs`.
#[derive(Debug)]
pub(crate) struct Ovs;

impl Kind for Ovs {
    const INFO: Info = INFO;
    const ENTER: NetnsEntry = NetnsEntry::IfPossible;
    type Raw = config::Raw;
    type Config = Config;
    type RecordData = RecordData;
    type Cache = ();

    fn config(call: &Call<'_>) -> Result<Config, Failure> {
        Config::of(call)
    }

    fn status(call: &Call<'_>) -> Result<(), Failure> {
        status::status(call)
    }

    fn attach(attaching: &mut Addition<'_, Self>) -> Result<AddResult, Failure> {
        connect::attach(attaching)
    }

    fn take_down(removal: &Removal<'_, Self>, failures: &mut Failures) {
        remove::take_down(removal, failures);
    }

    /// A pair goes with its end on the host; a port that the switch created is in the container.
    fn is_inside(recorded: &RecordData) -> bool {
        recorded.inside.is_some()
    }

    fn unrecorded(call: &Call<'_>, index: &Index, failures: &mut Failures) -> Vec<AttachmentKey> {
        remove::unrecorded(call, index, failures)
    }
}
