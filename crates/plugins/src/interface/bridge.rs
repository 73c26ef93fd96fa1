//! `bridge`: a veth pair whose host end is a port of a Linux bridge.
//!
//! The first attachment that needs the bridge creates it, and the last removes it if we created it.
//! One message creates the pair: the container's end appears in its namespace with its final name
//! and address. The host's end is named after the attachment and carries its owner in its alias, so
//! DEL finds it whatever else is lost.
//!
//! | module | what |
//! |---|---|
//! | `config` | the configuration, checked |
//! | `bridge_link` | the bridge itself |
//! | `gateway` | the addresses of gateways |
//! | `vlan_gateway` | the link with the gateway of a VLAN |
//! | `connect` | ADD |
//! | `remove` | DEL and GC |
//! | `verify` | CHECK and STATUS |
//! | `repair` | a CHECK that restores |
//! | `filter` | masquerading and spoof checks |

mod bridge_link;
mod config;
mod connect;
mod filter;
mod gateway;
mod remove;
mod repair;
mod verify;
mod vlan_gateway;

use cni::json::{JsonError, UnknownKey, unknown_keys};
use cni::{AddResult, Error};
use cni_plugin::{Call, Info, Outcome, Plugin, Role, Routed};
use ipnet::IpNet;

use crate::shared::attachment;

/// What the plugin is.
pub const INFO: Info = Info::new("bridge")
    .role(Role::Interface)
    .capabilities(&["mac"])
    .routed(Routed::IfSet(&["isGateway", "isDefaultGateway"]));

/// The plugin's type.
const NAME: &str = INFO.name;

pub(crate) use self::gateway::refuse_others;

/// Returns the link that carries the gateways of a configuration, with their addresses, if foreign
/// addresses would be refused there, and as far as they are known before addresses are assigned.
pub(crate) fn gateways(call: &Call<'_>) -> Option<(String, Vec<IpNet>)> {
    verify::gateways(call, &config::Config::of(call).ok()?).ok().flatten()
}

/// The plugin.
#[derive(Debug)]
pub struct Bridge;

impl Plugin for Bridge {
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
        verify::check(call)
    }

    fn repair_and_check(&self, call: &Call<'_>) -> Outcome {
        repair::run(call)
    }

    fn gc(&self, call: &Call<'_>) -> Result<(), Error> {
        remove::gc(call)
    }

    fn validate(&self, call: &Call<'_>) -> Result<(), Error> {
        config::Config::of(call).map(drop)
    }

    fn fits_host(&self, call: &Call<'_>) -> Result<(), Error> {
        verify::fits_host(call)
    }

    fn status(&self, call: &Call<'_>) -> Result<(), Error> {
        verify::status(call)
    }

    fn unknown_keys(&self, config: &str) -> Result<Vec<UnknownKey>, JsonError> {
        unknown_keys::<config::Raw>(config)
    }
}
