//! Repairs interfaces of Docker's containers: the driver's records say where Docker has put an
//! interface, and plugins restore there what ADD made.
//!
//! It runs in `netwrightd repair`, beside the driver, and writes none of the driver's records. It
//! leaves an endpoint alone until its start is complete: Docker fails when a route that it is about
//! to make exists already. Each plugin holds the attachment's lock, as DeleteEndpoint's DEL does.
//!
//! `netwrightd dhcp` asks the same records where an interface is: it renews a lease there.

use std::path::{Path, PathBuf};
use std::time::Instant;

use cni::{AttachmentKey, Error, IfName, NetworkList, code};
use cni_plugin::codes;
use cni_runtime::{Attachment, Cache, KnownAttachment, MovedInterface, Repairs, Runtime};
use ipnet::IpNet;
use kernel::netns::Netns;
use kernel::route::{IpFamily, Link, RouteFilter, RouteSocket, TABLE_MAIN};
use plugins::chained::{sbr, tuning};
use service_kit::clock;
use state::Roots;

use super::endpoint::alias;
use super::finish_link;
use super::handover::{find_ours, kernel_error, open_if_there};
use super::journal::{Endpoint, Journal, Phase};

/// Plugins that are not called, for a reason of the driver's own: it sets up differently what they
/// make in a container's namespace. The tables of `sbr` are others, and sysctls that `tuning` sets
/// for the whole namespace are not set at all.
const NOT_ASKED: [&str; 2] = [sbr::INFO.name, tuning::INFO.name];

/// The driver's records, as another process sees them.
#[derive(Debug)]
pub struct DriverRecords {
    journal: Journal,
    /// The runtime's cache of the published ports.
    ports: PathBuf,
    boot_id: String,
}

/// Where Docker has put an interface.
#[derive(Debug)]
pub struct Placement {
    /// The path by which Docker names the container's namespace.
    pub sandbox: PathBuf,
    /// That namespace.
    pub netns: Netns,
    /// The interface there.
    pub link: Link,
}

impl DriverRecords {
    /// Creates the reader; reads no record yet.
    ///
    /// # Errors
    /// When the kernel does not report the boot's identity.
    pub fn new(roots: &Roots) -> Result<Self, state::FileError> {
        Ok(DriverRecords {
            journal: Journal::of_another(
                &roots.lib.join("docker"),
                &roots.run.join("docker/records"),
            ),
            ports: roots.run.join("docker/ports"),
            boot_id: state::boot_id()?,
        })
    }

    /// Finds an endpoint's interface in its container; `None` while Docker has it elsewhere. `seen`
    /// says where a path of the host is seen from here.
    ///
    /// # Errors
    /// When record, namespace or kernel cannot be read.
    pub fn find(
        &self,
        key: &AttachmentKey,
        seen: impl FnOnce(&Path) -> PathBuf,
    ) -> Result<Option<Placement>, Error> {
        let endpoint = self.journal.endpoint(key.container_id.as_str())?;
        let Some(endpoint) = endpoint.filter(|endpoint| endpoint.phase == Phase::Joined) else {
            return Ok(None);
        };
        let Some(sandbox) = endpoint.sandbox.clone() else { return Ok(None) };
        let Some(netns) = open_if_there(&seen(&sandbox))? else { return Ok(None) };
        let mut inside = RouteSocket::open_in(&netns).map_err(|error| kernel_error(&error))?;
        let found = find_ours(&mut inside, &endpoint, &alias(key))?;
        Ok(found.map(|link| Placement { sandbox, netns, link }))
    }

    /// Restores what other programs changed of an endpoint. `None` when its start is not complete,
    /// or nothing is known of it here.
    ///
    /// # Errors
    /// When records, namespace or kernel cannot be read; when the interface is no longer in the
    /// container.
    pub fn repair(
        &self,
        runtime: &Runtime<'_>,
        known: &KnownAttachment,
        deadline: Option<Instant>,
    ) -> Result<Option<Repairs>, Error> {
        let Some(cached) = &known.cached else { return Ok(None) };
        let Some(endpoint) = self.journal.endpoint(known.key.container_id.as_str())? else {
            return Ok(None);
        };
        let Some(sandbox) = endpoint.sandbox.as_deref().filter(|_| self.is_at_rest(&endpoint))
        else {
            return Ok(None);
        };
        let Some(netns) = open_if_there(sandbox)? else { return Ok(None) };
        let mut inside = RouteSocket::open_in(&netns).map_err(|error| kernel_error(&error))?;
        let Some(link) = find_ours(&mut inside, &endpoint, &alias(&known.key))? else {
            return Err(Error::new(codes::DRIFT, "the interface is gone from the container")
                .with_details("restart the container"));
        };
        let moved = moved(sandbox, &link, &mut inside, &endpoint)?;
        let mut list = cached.list()?;
        list.plugins.retain(|plugin| !NOT_ASKED.contains(&plugin.plugin_type.as_str()));
        let mut repairs = repair_at(runtime, &list, &cached.attachment, &moved, deadline)?;
        let written = finish_link::put_switches_back(&netns, &link.name, &endpoint.layout)?;
        repairs.put_back.extend(written.into_iter().map(|what| ("docker".to_owned(), what)));
        let ports = runtime.clone().with_cache(Cache::new(&self.ports));
        let published = ports.cached_attachment(&known.key).map_err(|error| error.to_cni())?;
        if let Some(published) = published.filter(|published| published.result.is_some()) {
            let list = published.list()?;
            let more = repair_at(&ports, &list, &published.attachment, &moved, deadline)?;
            repairs.put_back.extend(more.put_back);
            repairs.left.extend(more.left);
        }
        Ok(Some(repairs))
    }

    /// Says whether a container has had the interface for so long that Docker and the driver are
    /// done with it.
    fn is_at_rest(&self, endpoint: &Endpoint) -> bool {
        let now_s = clock::boot_ms() / 1000;
        endpoint.phase == Phase::Joined
            && endpoint.boot_id == self.boot_id
            && finish_link::TIMEOUT.as_secs() <= now_s.saturating_sub(endpoint.since_s)
    }
}

fn repair_at(
    runtime: &Runtime<'_>,
    list: &NetworkList,
    attachment: &Attachment,
    moved: &MovedInterface,
    deadline: Option<Instant>,
) -> Result<Repairs, Error> {
    runtime.repair_list_at(list, attachment, moved, deadline).map_err(|error| error.to_cni())
}

/// Returns where the interface is. The default route uses it if Docker has made it the gateway
/// network and no other network has the default route.
fn moved(
    sandbox: &Path,
    link: &Link,
    inside: &mut RouteSocket,
    endpoint: &Endpoint,
) -> Result<MovedInterface, Error> {
    let netns = sandbox.to_str().ok_or_else(|| {
        Error::new(code::INVALID_NETNS, format!("the path {sandbox:?} is not UTF-8"))
    })?;
    let mut not_ours = Vec::new();
    for (family, default) in [(IpFamily::V4, "0.0.0.0/0"), (IpFamily::V6, "::/0")] {
        let filter = RouteFilter { family, table: Some(TABLE_MAIN), oif: None };
        let routes = inside.routes(filter).map_err(|error| kernel_error(&error))?;
        let mut defaults = routes.iter().filter(|route| route.destination.prefix_len() == 0);
        let leads_elsewhere = defaults.any(|route| route.oif != Some(link.index));
        if !endpoint.leads_out || leads_elsewhere {
            not_ours.push(default.parse::<IpNet>().expect("a prefix"));
        }
    }
    let ifname = IfName::new(&link.name)?;
    Ok(MovedInterface { netns: netns.to_owned(), ifname, not_ours })
}
