//! `vrf`: puts the container's interface into a routing domain of its own (VRF).
//!
//! The VRF is a link in the container's namespace with a routing table. The first attachment that
//! names it creates it; the last one removes it if we created it. When an interface moves into a
//! VRF, the kernel removes its routes and, by default, its IPv6 addresses. Both are restored when
//! ADD returns: the routes in the VRF's table, those of other tables where they were.
//!
//! What the interface had stays in the record until it has it again, so the next ADD completes one
//! that was killed.
//!
//! The plugin chooses a table that nothing uses: no VRF, no rule, no route. It also avoids the
//! kernel's own tables, which the reference does not check. DEL succeeds if interface, VRF or
//! namespace are gone.

mod config;
mod enslave;
mod moving;
mod node;
mod remove;
mod wanted;

use cni::{AddResult, Version};
use cni_plugin::{Call, Info, Role};
use kernel::netns::Netns;
use kernel::route::LinkKind;
use serde::{Deserialize, Serialize};
use state::Index;

use self::config::Config;
use self::moving::MoveLoss;
use crate::engine::{Addition, Kind, NetnsEntry, Removal, Undo};
use crate::shared::failure::Failure;
use crate::shared::failures::Failures;
use crate::shared::{attachment, netns_lock, trial};

/// What the plugin is. Its versions are the reference's.
pub const INFO: Info =
    Info::new("vrf").role(Role::Chained).versions(Version::starting_from(Version::V0_3_1));

/// The plugin's type, and the name of its records.
const NAME: &str = INFO.name;
/// The reference's words.
const NO_PREVIOUS: &str = "missing prevResult from earlier plugin";

/// The table that STATUS tries; its namespace contains nothing else.
const TRIAL_TABLE: u32 = 10;

/// Attachments of `vrf`.
#[derive(Debug)]
pub(crate) struct Vrf;

/// What ADD records about an attachment for DEL.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RecordData {
    /// The VRF.
    vrf: String,
    /// Its table and its hardware address, in case another program removes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    table: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mac: Option<String>,
    /// What the interface had, until it has it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    moving: Option<MoveLoss>,
    /// The interface's ifindex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ifindex: Option<u32>,
}

impl Kind for Vrf {
    const INFO: Info = INFO;
    const ENTER: NetnsEntry = NetnsEntry::Always;
    type Raw = config::Raw;
    type Config = Config;
    type RecordData = RecordData;
    type Cache = ();

    fn config(call: &Call<'_>) -> Result<Config, Failure> {
        Config::of(call)
    }

    /// Reports whether the kernel has VRFs: STATUS tries that in a namespace of its own, which is
    /// deleted at once.
    fn status(_: &Call<'_>) -> Result<(), Failure> {
        trial::require_kind("vrf", LinkKind::Vrf { table: TRIAL_TABLE }, "CONFIG_NET_VRF")
    }

    fn attach(attaching: &mut Addition<'_, Self>) -> Result<AddResult, Failure> {
        let call = attaching.call;
        let result = call.require_prev_result(NO_PREVIOUS)?;
        enter(call, attaching.index, &call.open_netns()?, attaching.config)?;
        Ok(result)
    }

    fn take_down(removal: &Removal<'_, Self>, failures: &mut Failures) {
        failures.note_as_it_is(remove::take_down(removal));
    }
}

/// Moves the interface into its VRF, or completes the move, and records it. On failure everything is
/// as before.
fn enter(call: &Call<'_>, index: &Index, netns: &Netns, config: &Config) -> Result<(), Failure> {
    let _lock = netns_lock::lock(netns)?;
    let mut undo = Undo::new();
    let entered = enter_locked(call, index, netns, config, &mut undo);
    entered.map_err(|cause| undo.run(cause))
}

fn enter_locked<'a>(
    call: &'a Call<'_>,
    index: &'a Index,
    netns: &Netns,
    config: &Config,
    undo: &mut Undo<'a>,
) -> Result<(), Failure> {
    let key = call.attachment();
    let known: Option<RecordData> = attachment::recorded(index, key, NAME);
    let (is_known, earlier) = (known.is_some(), known.unwrap_or_default());
    let refused = |error: Failure| error.context("cmdAdd failed");
    let plan = enslave::look(netns, key, config, earlier).map_err(refused)?;
    let (table, mac, ifindex) = (Some(plan.table()), plan.mac(), Some(plan.ifindex()));
    let write_record = |moving| {
        let recorded =
            RecordData { vrf: config.vrf.clone(), table, mac: mac.clone(), moving, ifindex };
        attachment::write_record(call, index, NAME, &recorded, netns)
    };
    let moving = plan.moving();
    let moves = moving.is_some();
    if !is_known {
        undo.push("remove the record", move || attachment::remove_record(index, key, NAME));
    }
    write_record(moving)?;
    plan.carry_out(undo).map_err(refused)?;
    if moves { write_record(None) } else { Ok(()) }
}
