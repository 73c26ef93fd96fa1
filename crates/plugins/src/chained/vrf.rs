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

use cni::json::{JsonError, UnknownKey, unknown_keys};
use cni::{AddResult, Error, Version};
use cni_plugin::{Call, Info, Outcome, Plugin, Role};
use kernel::netns::Netns;
use kernel::route::{LinkKind, NewLink};
use serde::{Deserialize, Serialize};
use state::Index;

use self::config::Config;
use self::moving::Moving;
use crate::engine;
use crate::shared::{attachment, kernel_error, netns_lock, trial};

/// What the plugin is. Its versions are the reference's.
pub const INFO: Info =
    Info::new("vrf").role(Role::Chained).versions(Version::starting_from(Version::V0_3_1));

/// The plugin's type, and the name of its records.
const NAME: &str = INFO.name;
/// The reference's words.
const NO_PREVIOUS: &str = "missing prevResult from earlier plugin";

/// The table that STATUS tries; its namespace contains nothing else.
const TRIAL_TABLE: u32 = 10;

/// The plugin.
#[derive(Debug)]
pub struct Vrf;

/// What ADD records about an attachment for DEL.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Recorded {
    /// The VRF.
    vrf: String,
    /// Its table and its hardware address, in case someone removes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    table: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mac: Option<String>,
    /// What the interface had, until it has it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    moving: Option<Moving>,
    /// The interface's ifindex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ifindex: Option<u32>,
}

impl Plugin for Vrf {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn add(&self, call: &Call<'_>) -> Result<AddResult, Error> {
        attachment::add_alone(call, || self.add_locked(call))
    }

    fn del(&self, call: &Call<'_>) -> Result<(), Error> {
        remove::del(call)
    }

    fn check(&self, call: &Call<'_>) -> Result<(), Error> {
        engine::check::<Vrf>(call)
    }

    fn repair_and_check(&self, call: &Call<'_>) -> Outcome {
        engine::repair::<Vrf>(call)
    }

    fn gc(&self, call: &Call<'_>) -> Result<(), Error> {
        remove::gc(call)
    }

    fn validate(&self, call: &Call<'_>) -> Result<(), Error> {
        Config::of(call).map(drop)
    }

    /// Reports whether the configuration is valid, and whether the kernel has VRFs: STATUS tries
    /// that in a namespace of its own, which is deleted at once.
    fn status(&self, call: &Call<'_>) -> Result<(), Error> {
        Config::of(call)?;
        trial::in_fresh_netns(|socket| {
            let vrf = NewLink::new("trial", LinkKind::Vrf { table: TRIAL_TABLE });
            let made = socket.create_link(&vrf).map(drop);
            made.map_err(|error| {
                kernel_error(error).with_details("the kernel needs CONFIG_NET_VRF")
            })
        })
    }

    fn unknown_keys(&self, config: &str) -> Result<Vec<UnknownKey>, JsonError> {
        unknown_keys::<config::Raw>(config)
    }
}

impl Vrf {
    /// Runs ADD under the attachment's lock.
    fn add_locked(&self, call: &Call<'_>) -> Result<AddResult, Error> {
        let config = Config::of(call)?;
        let result = call.require_prev_result(NO_PREVIOUS)?;
        let netns = call.open_netns()?;
        enter(call, &Index::new(call.roots()), &netns, &config).map(|()| result)
    }
}

/// Moves the interface into its VRF, or completes the move, and records it.
fn enter(call: &Call<'_>, index: &Index, netns: &Netns, config: &Config) -> Result<(), Error> {
    let key = call.attachment();
    let _lock = netns_lock::lock(netns)?;
    let known: Option<Recorded> = attachment::recorded(index, key, NAME);
    let (known, earlier) = (known.is_some(), known.unwrap_or_default());
    let refused = |error: Error| error.context("cmdAdd failed");
    let plan = enslave::look(netns, key, config, earlier).map_err(refused)?;
    let (table, mac, ifindex) = (Some(plan.table()), plan.mac(), Some(plan.ifindex()));
    let write_down = |moving| {
        let recorded =
            Recorded { vrf: config.vrf.clone(), table, mac: mac.clone(), moving, ifindex };
        attachment::write_down(call, index, NAME, &recorded, netns)
    };
    let moving = plan.moving();
    let moves = moving.is_some();
    write_down(moving)?;
    plan.carry_out().map_err(refused).map_err(|error| {
        let forgotten = if known { Ok(()) } else { attachment::forget(index, key, NAME) };
        error.with_details(forgotten.err().map(|also| also.to_string()).unwrap_or_default())
    })?;
    if moves { write_down(None) } else { Ok(()) }
}
