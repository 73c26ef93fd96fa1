//! `bridge`: a veth pair whose host end is a port of a Linux bridge.
//!
//! The first attachment that needs the bridge creates it, and the last removes it if we created it.
//! One message creates the pair: the container's end appears in its namespace with its final name
//! and address. The host's end is named after the attachment and carries its owner in its alias, so
//! DEL finds it even if everything else is lost.
//!
//! | module | what |
//! |---|---|
//! | `config` | the configuration, checked |
//! | `bridge_link` | the bridge itself: created, held, released |
//! | `bridge_item` | the bridge as CHECK compares it and repair restores it |
//! | `gateway` | the addresses of gateways |
//! | `port` | the host's end as a port of the bridge |
//! | `vlan_gateway` | the link with the gateway of a VLAN |
//! | `vrf` | the VRF that the link with the gateways belongs to |
//! | `connect` | ADD |
//! | `remove` | what DEL and GC remove |
//! | `wanted` | what CHECK compares and repair restores |
//! | `filter` | masquerading, spoof checks, and no routers among the containers |

mod bridge_item;
mod bridge_link;
mod config;
mod connect;
mod filter;
mod gateway;
mod port;
mod remove;
mod vlan_gateway;
mod vrf;
mod wanted;

use cni::{AddResult, AttachmentKey, code};
use cni_plugin::{Call, HostRouting, Info, Role};
use kernel::route::RouteSocket;
use state::Index;

use self::config::Config;
use self::connect::RecordData;
use crate::engine::{Addition, Collection, Kind, NetnsEntry, Removal};
use crate::shared::failure::Failure;
use crate::shared::failures::Failures;
use crate::shared::{attachment, forwarding, host_name, pair, readiness, rules};

/// What the plugin is.
pub const INFO: Info = Info::new("bridge")
    .role(Role::Interface)
    .capabilities(&["mac", "hostIfname"])
    .routed(HostRouting::IfSet(&["isGateway", "isDefaultGateway"]));

pub(crate) use self::bridge_link::{delete_ownerless, is_known, is_marked};
pub(crate) use self::gateway::{ConfiguredGateways, refuse_others};

/// Returns the gateways of a configuration, as far as they are known before addresses are assigned.
pub(crate) fn gateways(call: &Call<'_>) -> Option<ConfiguredGateways> {
    gateway::configured(call, &Config::of(call).ok()?).ok().flatten()
}

/// Attachments of `bridge`.
#[derive(Debug)]
pub(crate) struct Bridge;

impl Kind for Bridge {
    const INFO: Info = INFO;
    const ENTER: NetnsEntry = NetnsEntry::IfNeeded;
    type Raw = config::Raw;
    type Config = Config;
    type RecordData = RecordData;
    type Cache = ();

    fn config(call: &Call<'_>) -> Result<Config, Failure> {
        Config::of(call)
    }

    /// Refuses a bridge name that another link has, a host without what the network needs, and a
    /// bridge whose address conflicts with the gateway's.
    fn fits_host(call: &Call<'_>) -> Result<(), Failure> {
        let config = Config::of(call)?;
        let mut host = RouteSocket::open()?;
        let index = Index::new(call.roots());
        let hears_routers = bridge_link::refuse_foreign(&mut host, &index, config.bridge.as_str())?;
        host_name::refuse_foreign(call, &mut host, config.host_ifname.as_ref())?;
        let bridge = host.link_by_name(config.bridge.as_str())?;
        let name = bridge.as_ref().map(|link| link.name.as_str());
        // Nothing is switched off on a bridge by which the host hears its routers.
        let quieted = name.filter(|_| !hears_routers);
        readiness::refuse_unfit(call, name, quieted, config.gateway)?;
        let link = config.wanted_gateways()?.link;
        vrf::fits_host(&mut host, config.vrf.as_ref(), &link)?;
        if config.gateway {
            let routed = connect::routed(&mut host, &config, bridge.as_ref())?;
            readiness::refuse_unroutable(call, &mut host, &routed)?;
        }
        let gateways = gateway::configured(call, &config)?.filter(|gateways| !gateways.replaces);
        let Some(gateways) = gateways else { return Ok(()) };
        let Some(link) = host.link_by_name(&gateways.link)? else { return Ok(()) };
        let present = gateway::present(&mut host, link.index)?;
        refuse_others(&link.name, &present, &gateways.addresses)
    }

    /// Reports also whether the VRF exists, and whether the kernel has what a bridge that is not
    /// there yet needs.
    fn status(call: &Call<'_>) -> Result<(), Failure> {
        if let Some(ipam) = call.ipam() {
            ipam.status()?;
        }
        let config = Config::of(call)?;
        let mut host = RouteSocket::open().map_err(attachment::unavailable)?;
        bridge_link::require_kernel(&mut host, &config.wanted_bridge())?;
        let Some(name) = config.vrf else { return Ok(()) };
        let found = vrf::find(&mut host, Some(name.as_str()));
        found.map(drop).map_err(|error| error.with_code(code::PLUGIN_NOT_AVAILABLE))
    }

    fn attach(attaching: &mut Addition<'_, Self>) -> Result<AddResult, Failure> {
        connect::attach(attaching)
    }

    fn take_down(removal: &Removal<'_, Self>, failures: &mut Failures) {
        remove::take_down(removal, failures);
    }

    fn unrecorded(call: &Call<'_>, index: &Index, failures: &mut Failures) -> Vec<AttachmentKey> {
        pair::unrecorded(call, index, failures)
    }

    fn collect(collecting: &Collection<'_, Self>, failures: &mut Failures) {
        let Collection { call, index, spared, .. } = collecting;
        failures.note("collect filter rules", rules::collect(call, index, spared));
        failures.note("remove unused bridges", bridge_link::collect(index));
        forwarding::collect(index, failures);
    }
}
