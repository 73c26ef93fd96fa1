//! `ovs`: a port of an Open vSwitch bridge, written into its database.
//!
//! A veth pair whose host end is the port, or a port that Open vSwitch creates itself and that
//! moves into the container. Everything that ADD needs from the switch is one transaction. The rows
//! carry their owner in `external_ids`, so DEL finds them whatever else is lost.
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
//! | `mirrors` | joining and leaving mirrors |
//! | `chained` | joining mirrors as plugins of their own |
//! | `remove` | DEL and GC |
//! | `wanted` | what CHECK compares and repair restores |
//! | `port` | the same of the port and its link |
//! | `status` | STATUS |
//! | `sweep` | ports of containers that are gone |

mod chained;
mod config;
mod connect;
mod database;
mod defaults;
mod extras;
mod interior;
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

use cni::json::{JsonError, UnknownKey, unknown_keys};
use cni::{AddResult, Error};
use cni_plugin::{Call, Info, Outcome, Plugin, Role};

use crate::engine;
use crate::shared::attachment;

pub use chained::{MirrorConsumer, MirrorProducer};
pub use sweep::sweep;

/// What the plugin is.
pub const INFO: Info = Info::new("ovs").role(Role::Interface).capabilities(&["mac"]);

/// The plugin's type.
const NAME: &str = INFO.name;

/// The plugin.
#[derive(Debug)]
pub struct Ovs;

impl Plugin for Ovs {
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
        engine::check::<Ovs>(call)
    }

    fn repair_and_check(&self, call: &Call<'_>) -> Outcome {
        engine::repair::<Ovs>(call)
    }

    fn gc(&self, call: &Call<'_>) -> Result<(), Error> {
        remove::gc(call)
    }

    fn validate(&self, call: &Call<'_>) -> Result<(), Error> {
        config::Config::of(call).map(drop)
    }

    fn status(&self, call: &Call<'_>) -> Result<(), Error> {
        status::status(call)
    }

    fn unknown_keys(&self, config: &str) -> Result<Vec<UnknownKey>, JsonError> {
        unknown_keys::<config::Raw>(config)
    }
}
