//! `ptp`: a veth pair between the container and the host, which routes everything.
//!
//! Whatever a container sends goes to the host, even packets to neighbours in its subnet: its only
//! link-scope route leads to the gateway, whose address is on the host's end. The host has a route
//! to each container.
//!
//! | module | what |
//! |---|---|
//! | `config` | the configuration, checked |
//! | `plan` | addresses and routes of both ends |
//! | `connect` | ADD |
//! | `remove` | DEL and GC |
//! | `wanted` | what CHECK compares and repair restores |

mod config;
mod connect;
mod plan;
mod remove;
mod wanted;

use cni::json::{JsonError, UnknownKey, unknown_keys};
use cni::{AddResult, Error};
use cni_plugin::{Call, Info, Outcome, Plugin, Role, Routed};

use config::Config;

use crate::engine;
use crate::shared::attachment;

/// What the plugin is.
pub const INFO: Info = Info::new("ptp").role(Role::Interface).routed(Routed::Always);

/// The plugin's type.
const NAME: &str = INFO.name;

/// The plugin.
#[derive(Debug)]
pub struct Ptp;

impl Plugin for Ptp {
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
        engine::check::<Ptp>(call)
    }

    fn repair_and_check(&self, call: &Call<'_>) -> Outcome {
        engine::repair::<Ptp>(call)
    }

    fn gc(&self, call: &Call<'_>) -> Result<(), Error> {
        remove::gc(call)
    }

    fn validate(&self, call: &Call<'_>) -> Result<(), Error> {
        Config::of(call)?;
        config::ipam(call).map(drop)
    }

    /// Runs STATUS of the IPAM plugin. The host always has what a pair needs.
    fn status(&self, call: &Call<'_>) -> Result<(), Error> {
        config::ipam(call)?.status()
    }

    fn unknown_keys(&self, config: &str) -> Result<Vec<UnknownKey>, JsonError> {
        unknown_keys::<config::Raw>(config)
    }
}
