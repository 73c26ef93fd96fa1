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
//! | `bridge_link` | the bridge itself: created, held, released |
//! | `bridge_item` | the bridge as CHECK compares it and repair restores it |
//! | `gateway` | the addresses of gateways |
//! | `port` | the host's end as a port of the bridge |
//! | `vlan_gateway` | the link with the gateway of a VLAN |
//! | `connect` | ADD |
//! | `remove` | DEL and GC |
//! | `wanted` | what CHECK compares and repair restores |
//! | `filter` | masquerading and spoof checks |

mod bridge_item;
mod bridge_link;
mod config;
mod connect;
mod filter;
mod gateway;
mod port;
mod remove;
mod vlan_gateway;
mod wanted;

use cni::json::{JsonError, UnknownKey, unknown_keys};
use cni::{AddResult, Error};
use cni_plugin::{Call, Info, Outcome, Plugin, Role, Routed};
use ipnet::IpNet;

use kernel::route::RouteSocket;

use crate::engine;
use crate::shared::{attachment, kernel_error as kernel};

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
    gateway::configured(call, &config::Config::of(call).ok()?).ok().flatten()
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
        engine::check::<Bridge>(call)
    }

    fn repair_and_check(&self, call: &Call<'_>) -> Outcome {
        engine::repair::<Bridge>(call)
    }

    fn gc(&self, call: &Call<'_>) -> Result<(), Error> {
        remove::gc(call)
    }

    fn validate(&self, call: &Call<'_>) -> Result<(), Error> {
        config::Config::of(call).map(drop)
    }

    /// Refuses a bridge name that another link has, and a bridge whose address conflicts with the
    /// gateway's.
    fn fits_host(&self, call: &Call<'_>) -> Result<(), Error> {
        let config = config::Config::of(call)?;
        let mut host = RouteSocket::open().map_err(kernel)?;
        bridge_link::observe(&mut host, config.bridge.as_str())?;
        let Some((name, gateways)) = gateway::configured(call, &config)? else { return Ok(()) };
        let link = host.link_by_name(&name).map_err(kernel)?;
        link.map_or(Ok(()), |link| {
            let present = gateway::present(&mut host, link.index)?;
            refuse_others(&link.name, &present, &gateways)
        })
    }

    /// Runs STATUS of the IPAM plugin.
    fn status(&self, call: &Call<'_>) -> Result<(), Error> {
        call.ipam().map_or(Ok(()), |ipam| ipam.status())
    }

    fn unknown_keys(&self, config: &str) -> Result<Vec<UnknownKey>, JsonError> {
        unknown_keys::<config::Raw>(config)
    }
}
