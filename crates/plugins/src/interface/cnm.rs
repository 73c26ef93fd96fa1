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
//! | `remove` | DEL and GC |
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

use cni::json::{JsonError, UnknownKey, unknown_keys};
use cni::{AddResult, Error};
use cni_plugin::{Call, Info, Outcome, Plugin, Role};

use crate::engine;
use crate::shared::attachment;

/// What the plugin is.
pub const INFO: Info =
    Info::new("cnm").role(Role::Interface).capabilities(&["mac", "ips", "portMappings"]);

/// The plugin's type.
const NAME: &str = INFO.name;

/// The plugin.
#[derive(Debug)]
pub struct Cnm;

impl Plugin for Cnm {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn add(&self, call: &Call<'_>) -> Result<AddResult, Error> {
        attachment::add_alone(call, || connect::add(call))
    }

    fn del(&self, call: &Call<'_>) -> Result<(), Error> {
        remove::del(call)
    }

    fn check(&self, call: &Call<'_>) -> Result<(), Error> {
        engine::check::<Cnm>(call)
    }

    fn repair_and_check(&self, call: &Call<'_>) -> Outcome {
        engine::repair::<Cnm>(call)
    }

    fn gc(&self, call: &Call<'_>) -> Result<(), Error> {
        remove::gc(call)
    }

    fn validate(&self, call: &Call<'_>) -> Result<(), Error> {
        config::Config::of_network(call).map(drop)
    }

    fn status(&self, call: &Call<'_>) -> Result<(), Error> {
        status::status(call)
    }

    fn unknown_keys(&self, config: &str) -> Result<Vec<UnknownKey>, JsonError> {
        unknown_keys::<config::Raw>(config)
    }
}
