//! What every lease needs from the rest of the daemon.

use std::path::Path;
use std::time::Duration;

use cni::AttachmentKey;
use cni_plugin::codes;
use dhcp::{v4, v6};
use kernel::living::{Census, Life, NetnsNote};
use kernel::netns::Netns;
use kernel::route::RouteSocket;
use node_api::dhcp::Client;
use service_kit::poll::Poller;

use super::deferred::DeferredReleases;
use super::flags::Flags;
use super::store::{Place, Store};
use docker_service::DriverRecords;

/// The wait before the first SOLICIT. RFC 8415 spreads out hosts that start together; here a
/// container waits for it.
const FIRST_SOLICIT: Duration = Duration::from_millis(50);

/// What every lease needs from the rest of the daemon.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) flags: Flags,
    pub(crate) boot_id: String,
    pub(crate) poller: Poller,
    pub(crate) store: Store,
    pub(crate) late: DeferredReleases,
    /// Which containers live, read once for all leases that are checked together.
    pub(crate) census: Census,
    /// Where Docker has put the interfaces that were made in a namespace of its driver.
    pub(crate) dockers: DriverRecords,
    /// A socket in the daemon's own namespace, which is the host's.
    pub(crate) host: RouteSocket,
}

/// Why a namespace cannot be opened.
#[derive(Debug)]
pub(crate) enum NoNetns {
    /// It is gone, or its path now leads to another namespace.
    Gone,
    /// It cannot be opened just now.
    Failed(cni::Error),
}

impl Context {
    /// Opens a lease's namespace, if the path still leads to it.
    pub(crate) fn netns(&self, place: &Place) -> Result<Netns, NoNetns> {
        let noted = self.noted(place);
        match noted.open() {
            Ok(Some(netns)) => return Ok(netns),
            Ok(None) => {}
            Err(error) => {
                let error = cni::Error::from_chain(cni::code::INVALID_NETNS, &error);
                return Err(NoNetns::Failed(error));
            }
        }
        // Its path is gone, which does not prove that the container is.
        let unknown = || {
            let path = place.netns.display();
            let text = format!("{path} is gone, and it is unknown whether its container is");
            NoNetns::Failed(cni::Error::new(cni::code::INVALID_NETNS, text))
        };
        match self.census.life(&noted) {
            Life::Gone => Err(NoNetns::Gone),
            Life::Living => self.census.find(&noted).ok_or_else(unknown),
            Life::Unknown => Err(unknown()),
        }
    }

    fn noted(&self, place: &Place) -> NetnsNote {
        NetnsNote {
            path: self.flags.on_host(&place.netns),
            id: Some(place.netns_id.into()),
            cookie: place.netns_cookie,
            pid_ns: place.pid_ns,
            sight: None,
            passage: state::is_passage(&place.netns),
        }
    }

    /// Says whether a path is known to lead to another namespace than the lease's.
    pub(crate) fn is_another(&self, path: &Path, place: &Place) -> bool {
        Netns::open(&self.flags.on_host(path)).is_ok_and(|netns| !self.noted(place).is(&netns))
    }

    /// Returns the configuration of a DHCPv4 client. For a lease that a container already has, the
    /// client keeps trying without end.
    pub(crate) fn v4_config(
        &self,
        key: &AttachmentKey,
        place: &Place,
        client: &Client,
        had_lease: bool,
    ) -> v4::Config {
        let mut timing = v4::Timing::from_flags(
            self.flags.timeout,
            self.flags.resend_max,
            self.flags.resend_timeout,
        );
        if had_lease {
            timing.acquire = None;
        }
        let provide = client.provide.iter();
        v4::Config {
            client_id: Some(v4::key_client_id(&client_key(key))),
            request: requested(client),
            send: provide.map(|one| v4::RawOption::new(one.code, one.value.clone())).collect(),
            broadcast: self.flags.broadcast,
            timing,
            boot_id: Some(self.boot_id.clone()),
            ..v4::Config::new(place.mac)
        }
    }

    /// Returns the same for DHCPv6.
    pub(crate) fn v6_config(&self, key: &AttachmentKey, had_lease: bool) -> v6::Config {
        let key = client_key(key);
        let acquire = Some(self.flags.resend_timeout).filter(|_| !had_lease);
        v6::Config {
            timing: v6::Timing { first_delay: FIRST_SOLICIT, acquire, ..v6::Timing::default() },
            boot_id: Some(self.boot_id.clone()),
            ..v6::Config::new(v6::Duid::from_key(&key), v6::key_iaid(&key))
        }
    }
}

/// Returns the client's identity, as the reference forms it.
fn client_key(key: &AttachmentKey) -> String {
    format!("{}/{}/{}", key.container_id, key.network, key.ifname)
}

/// Returns the options to request: first those the configuration names, then, unless it says
/// otherwise, the usual ones.
fn requested(client: &Client) -> Vec<u8> {
    let usual = if client.skip_default { &[] } else { v4::DEFAULT_REQUEST };
    let mut codes = Vec::new();
    for &code in client.request.iter().chain(usual) {
        if !codes.contains(&code) {
            codes.push(code);
        }
    }
    codes
}

/// Returns an error of the kernel as the plugin is to report it.
pub(crate) fn kernel_error(error: &kernel::NetlinkError) -> cni::Error {
    cni::Error::from_chain(codes::KERNEL, error)
}
