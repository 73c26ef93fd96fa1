//! What every lease needs of its surroundings.

use std::path::Path;
use std::time::Duration;

use cni::AttachmentKey;
use cni_plugin::codes;
use dhcp::{v4, v6};
use kernel::netns::Netns;
use kernel::route::RouteSocket;
use plugins::ipam::dhcp::protocol::Client;

use super::flags::Flags;
use super::late::Late;
use super::store::{Place, Store};
use crate::poll::Poller;

/// The wait before the first SOLICIT. RFC 8415 spreads out hosts that start together; a container waits for it.
const FIRST_SOLICIT: Duration = Duration::from_millis(50);

/// What every lease needs of its surroundings.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) flags: Flags,
    pub(crate) boot_id: String,
    pub(crate) poller: Poller,
    pub(crate) store: Store,
    pub(crate) late: Late,
    /// In the daemon's own namespace, which is the host's.
    pub(crate) host: RouteSocket,
}

/// Why a namespace is not to be had.
#[derive(Debug)]
pub(crate) enum NoNetns {
    /// It is gone, or its path leads to another by now.
    Gone,
    /// It cannot be opened just now.
    Failed(cni::Error),
}

impl World {
    /// Opens a lease's namespace, if it is still that one.
    pub(crate) fn netns(&self, place: &Place) -> Result<Netns, NoNetns> {
        let path = self.flags.on_host(&place.netns);
        match Netns::open(&path) {
            Ok(netns) if same(&netns, place) => Ok(netns),
            Ok(_) => Err(NoNetns::Gone),
            Err(
                kernel::netns::NetnsError::Missing { .. }
                | kernel::netns::NetnsError::NotANamespace { .. },
            ) => Err(NoNetns::Gone),
            Err(error) => {
                Err(NoNetns::Failed(cni::Error::from_chain(cni::code::INVALID_NETNS, &error)))
            }
        }
    }

    /// Says whether a path is known to lead to another namespace than a lease's.
    pub(crate) fn is_another(&self, path: &Path, place: &Place) -> bool {
        Netns::open(&self.flags.on_host(path)).is_ok_and(|netns| !same(&netns, place))
    }

    /// How a DHCPv4 client is told to behave. A lease that a container has is looked for without end.
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

    /// The same for DHCPv6.
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

/// Device and inode may be those of a namespace that is gone; the cookie, where it is known, is not.
fn same(netns: &Netns, place: &Place) -> bool {
    let id = netns.id();
    (id.dev, id.ino) == (place.netns_id.dev, place.netns_id.ino)
        && place
            .netns_cookie
            .is_none_or(|noted| netns.cookie().is_none_or(|cookie| cookie == noted))
}

/// Who the client is, as the reference has it.
fn client_key(key: &AttachmentKey) -> String {
    format!("{}/{}/{}", key.container_id, key.network, key.ifname)
}

/// What is asked for: first what the configuration names, then, unless it says otherwise, the usual.
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

/// An error of the kernel's as the plugin shall tell it.
pub(crate) fn kernel_error(error: &kernel::NetlinkError) -> cni::Error {
    cni::Error::from_chain(codes::KERNEL, error)
}

#[cfg(test)]
mod tests {
    use state::NetnsIdentity;

    use super::super::way::Way;
    use super::*;

    #[test]
    fn a_namespace_with_the_inode_of_one_that_is_gone_is_another() {
        testkit::require!("root");
        let netns = Netns::open(Path::new("/proc/self/ns/net")).unwrap();
        let cookie = netns.cookie().unwrap();
        let noted = |netns_cookie| Place {
            netns: "/proc/self/ns/net".into(),
            netns_id: NetnsIdentity { dev: netns.id().dev, ino: netns.id().ino },
            netns_cookie,
            ifindex: 2,
            mac: dhcp::MacAddr([2, 0, 0, 0, 0, 1]),
            way: Way::Unknown,
        };
        assert!(same(&netns, &noted(Some(cookie))));
        assert!(!same(&netns, &noted(Some(cookie + 1))));
        assert!(same(&netns, &noted(None)), "an earlier daemon noted none");
    }
}
