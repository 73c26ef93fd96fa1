//! `cnm`: a container on a network of any Docker network driver. The plugin plays the part of Docker's engine.
//!
//! A driver makes an interface on the host and says what it is called; the engine, here the plugin, moves it into the
//! container, gives it its addresses and routes, and brings it back when the driver is to remove it. Addresses are an IPAM
//! driver's, a CNI address plugin's, or the driver's own. What is asked of a driver, and when, is in `docs/plugins.md`.
//!
//! Drivers live longer than calls and know nothing of CNI: what they were asked for is written down before they are
//! asked, below `/var/lib/netwright/cnm`, since they may remember it over a reboot.
//!
//! | module | what |
//! |---|---|
//! | `config` | what may be asked for |
//! | `driver` | finding a driver, and asking it |
//! | `journal` | what is written down |
//! | `network`, `pools` | networks and their pools |
//! | `link` | the link that a driver lends |
//! | `connect`, `plan` | ADD |
//! | `remove` | DEL and GC |
//! | `verify` | CHECK, repair and STATUS |

mod config;
mod connect;
mod driver;
mod journal;
mod link;
mod network;
mod plan;
mod pools;
mod remove;
mod verify;

use cni::json::{JsonError, UnknownKey, unknown_keys};
use cni::{AddResult, Error};
use cni_plugin::{Call, Plugin};

use crate::shared::attachment;

/// The plugin's type.
const NAME: &str = "cnm";

/// The plugin.
#[derive(Debug)]
pub struct Cnm;

impl Plugin for Cnm {
    fn name(&self) -> &'static str {
        NAME
    }

    fn add(&self, call: &Call<'_>) -> Result<AddResult, Error> {
        attachment::add_alone(call, || connect::add(call))
    }

    fn del(&self, call: &Call<'_>) -> Result<(), Error> {
        remove::del(call)
    }

    fn check(&self, call: &Call<'_>) -> Result<(), Error> {
        verify::check(call)
    }

    fn repair(&self, call: &Call<'_>) -> Result<Vec<String>, Error> {
        verify::repair(call)
    }

    fn gc(&self, call: &Call<'_>) -> Result<(), Error> {
        remove::gc(call)
    }

    fn validate(&self, call: &Call<'_>) -> Result<(), Error> {
        config::Config::of_network(call).map(drop)
    }

    fn status(&self, call: &Call<'_>) -> Result<(), Error> {
        verify::status(call)
    }

    fn unknown_keys(&self, config: &str) -> Result<Vec<UnknownKey>, JsonError> {
        unknown_keys::<config::Raw>(config)
    }
}
