//! `ptp`: a veth pair between the container and the host, which routes everything.
//!
//! All that a container sends goes to the host, even packets to neighbours in its subnet: its only
//! link-scope route leads to the gateway, whose address is on the host's end. The host has a route
//! to each container.
//!
//! | module | what |
//! |---|---|
//! | `config` | the configuration, checked |
//! | `plan` | addresses and routes of both ends |
//! | `connect` | ADD |
//! | `wanted` | what CHECK compares and repair restores |

mod config;
mod connect;
mod plan;
mod wanted;

use cni::{AddResult, AttachmentKey};
use cni_plugin::{Call, HostRouting, Info, Role};
use kernel::route::RouteSocket;
use state::Index;

use self::config::Config;
use self::connect::RecordData;
use crate::engine::{Addition, Collection, Kind, NetnsEntry, Removal};
use crate::shared::failure::Failure;
use crate::shared::failures::Failures;
use crate::shared::shared_object::ReleaseReason;
use crate::shared::{claim, forwarding, host_name, pair, readiness, rules};

/// What the plugin is.
pub const INFO: Info = Info::new("ptp")
    .role(Role::Interface)
    .capabilities(&["hostIfname"])
    .routed(HostRouting::Always);

/// Attachments of `ptp`.
#[derive(Debug)]
pub(crate) struct Ptp;

impl Kind for Ptp {
    const INFO: Info = INFO;
    const ENTER: NetnsEntry = NetnsEntry::IfNeeded;
    type Raw = config::Raw;
    type Config = Config;
    type RecordData = RecordData;
    type Cache = ();

    fn config(call: &Call<'_>) -> Result<Config, Failure> {
        let config = Config::of(call)?;
        config::ipam(call)?;
        Ok(config)
    }

    fn fits_host(call: &Call<'_>) -> Result<(), Failure> {
        let config = Config::of(call)?;
        let mut host = RouteSocket::open()?;
        host_name::refuse_foreign(call, &mut host, config.host_ifname.as_ref())?;
        readiness::refuse_unfit(call, None, None, true)?;
        readiness::refuse_unroutable(
            call,
            &mut host,
            &claim::ContainerRouting { one_by_one: true, ..claim::ContainerRouting::default() },
        )
    }

    fn attach(attaching: &mut Addition<'_, Self>) -> Result<AddResult, Failure> {
        connect::attach(attaching)
    }

    /// The kernel removes the host's addresses and routes with its end of the pair.
    fn take_down(removal: &Removal<'_, Self>, failures: &mut Failures) {
        let Removal { call, index, key, recorded, .. } = removal;
        let host = recorded.as_ref().map(|recorded| recorded.host_ifname.as_str());
        let filter = recorded.as_ref().map(|recorded| (&recorded.filter, recorded.ips.as_slice()));
        pair::take_down(removal, host, filter, failures);
        forwarding::release(index, key, ReleaseReason::of(call), failures);
    }

    fn unrecorded(call: &Call<'_>, index: &Index, failures: &mut Failures) -> Vec<AttachmentKey> {
        pair::unrecorded(call, index, failures)
    }

    fn collect(collecting: &Collection<'_, Self>, failures: &mut Failures) {
        let Collection { call, index, spared, .. } = collecting;
        failures.note("collect filter rules", rules::collect(call, index, spared));
        forwarding::collect(index, failures);
    }
}
