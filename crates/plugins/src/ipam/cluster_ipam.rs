//! `cluster-ipam`: addresses of networks that span nodes.
//!
//! The plugin holds no credentials and does not access the store. `netwrightd ipam` has the node's
//! blocks of addresses, and assigns addresses over a Unix socket ([`node_api::ipam`]).
//! Container ID and interface identify the holder of an address, and the pod is named as its user.
//! The keys are those of Whereabouts, and a few of our own. The plugin also answers to the name of
//! Whereabouts, so that definitions written for it need no change.
//!
//! - ADD requests an address of each range, and releases them if the answer is unusable.
//! - DEL needs only the key, and no running daemon: an undelivered message is left beside the
//!   socket. So a container can always be removed, even if the configuration or the cluster is
//!   broken.
//! - GC tells a running daemon which attachments are valid; an absent daemon checks that itself
//!   when it starts.
//! - CHECK compares the attachment with what the daemon knows of it; addresses that no attachment
//!   holds can be restored.
//! - STATUS asks whether ADD would be served.

mod config;
mod daemon;
mod flat;
mod keys;

use std::net::IpAddr;

use ::cluster_ipam::network::{Network, Range};
use cni::json::{JsonError, UnknownKey};
use cni::{AddResult, Error, IpConfig, code};
use cni_plugin::{Call, Info, Plugin, Role, codes};
use ipnet::IpNet;
use node_api::Pod;
use node_api::ipam::{
    AssignRequest, AssignedAddress, CollectRequest, HeldRequest, Owner, Request, StatusRequest,
};
use state::Index;

use crate::shared::drift;
use crate::shared::failure::Failure;
use crate::shared::unusable::doubt_of_gateway;
use config::Config;
use daemon::Daemon;

/// What the plugin is. Definitions written for Whereabouts use its other name.
pub const INFO: Info = Info::new("cluster-ipam")
    .aliases(&["whereabouts"])
    .role(Role::Addresses)
    .capabilities(&["ips"]);

/// The plugin's type.
const NAME: &str = INFO.name;

/// The plugin.
#[derive(Debug, Clone, Copy, Default)]
pub struct ClusterIpam;

impl Plugin for ClusterIpam {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn add(&self, call: &Call<'_>) -> Result<AddResult, Error> {
        let config = Config::of(call)?;
        config.refuse_unusable()?;
        let owner = owner(call);
        let daemon = Daemon::new(call, config.socket.clone());
        let assign = AssignRequest {
            network: config.network.spec().clone(),
            owner: owner.clone(),
            wanted: config.wanted.clone(),
        };
        let assigned = daemon.assigned(&Request::Assign(assign)).and_then(|assigned| {
            match unfit(&config.network, &assigned, &config.wanted) {
                None => Ok(assigned),
                Some(why) => Err(daemon::nonsense(&why)),
            }
        });
        let assigned = assigned.map_err(|failed| {
            // The daemon may have done it while its answer was lost.
            if failed.may_be_done {
                daemon.leave(call, &Request::Release(owner));
            }
            failed.error
        })?;
        let assigned = assigned.iter().map(|one| IpConfig::new(one.address, one.gateway));
        let ips = assigned.chain(config.fixed.iter().cloned());
        Ok(AddResult {
            ips: ips.map(|ip| config.complete(ip)).collect(),
            routes: config.routes,
            dns: config.dns,
            ..AddResult::default()
        })
    }

    fn del(&self, call: &Call<'_>) -> Result<(), Error> {
        let daemon = Daemon::new(call, config::socket_of(call));
        Ok(daemon.tell(call, &Request::Release(owner(call)))?)
    }

    fn check(&self, call: &Call<'_>) -> Result<(), Error> {
        let config = Config::of(call)?;
        let previous = call.require_prev_result("Required prevResult missing")?;
        let held = held(call, &config)?;
        let ifname = call.ifname().as_str();
        for one in &held {
            let reported = previous.container_ips(ifname).any(|ip| ip.address == one.address);
            if !reported {
                let text =
                    format!("{NAME}: Failed to find addr {} on interface {ifname}", one.address);
                return Err(drift(text)
                    .with_details("netwrightd has it assigned; prevResult does not list it")
                    .into());
            }
        }
        for address in of_ranges(&config.network, &previous, ifname) {
            if !held.iter().any(|one| one.address.addr() == address) {
                let text = format!(
                    "{NAME}: address {address} is not assigned to {} any more",
                    call.attachment()
                );
                return Err(drift(text)
                    .with_details("another container may be given it; detach and attach this one")
                    .into());
            }
        }
        if held.len() < config.network.ranges().len() {
            let text = format!(
                "{NAME}: Failed to find address added by container {}",
                call.container_id()
            );
            return Err(drift(text)
                .with_details(format!(
                    "netwrightd has {} of {} addresses assigned",
                    held.len(),
                    config.network.ranges().len()
                ))
                .into());
        }
        for fixed in &config.fixed {
            if !previous.container_ips(ifname).any(|ip| ip.address == fixed.address) {
                let text =
                    format!("{NAME}: Failed to find addr {} on interface {ifname}", fixed.address);
                return Err(drift(text).into());
            }
        }
        Ok(())
    }

    /// Gets the addresses assigned again that the container uses and no attachment holds. An
    /// address that another attachment holds by now stays with it, and CHECK reports it. The
    /// calling plugin holds the attachment's lock if it is one of ours; after another plugin's DEL
    /// nothing may be assigned.
    fn repair(&self, call: &Call<'_>) -> Result<Vec<String>, Error> {
        if Index::new(call.roots()).of_attachment(call.attachment()).found.is_empty() {
            return Ok(Vec::new());
        }
        let config = Config::of(call)?;
        let previous = call.require_prev_result("Required prevResult missing")?;
        let used = of_ranges(&config.network, &previous, call.ifname().as_str());
        let held = held(call, &config)?;
        let is_held = |address: &IpAddr| held.iter().any(|one| one.address.addr() == *address);
        let missing: Vec<IpAddr> =
            used.iter().copied().filter(|address| !is_held(address)).collect();
        if missing.is_empty() || used.len() < config.network.ranges().len() {
            return Ok(Vec::new());
        }
        let daemon = Daemon::new(call, config.socket.clone());
        let network = config.network.spec().clone();
        let assign = AssignRequest { network, owner: owner(call), wanted: used };
        daemon.assigned(&Request::Assign(assign)).map_err(|failed| failed.error)?;
        Ok(missing.iter().map(|address| format!("assignment of address {address}")).collect())
    }

    fn gc(&self, call: &Call<'_>) -> Result<(), Error> {
        let daemon = Daemon::new(call, config::socket_of(call));
        let network = call.network().to_string();
        let collect = CollectRequest { network, valid: call.valid_attachments().to_vec() };
        Ok(daemon.tell_now(call, &Request::Collect(collect))?)
    }

    fn validate(&self, call: &Call<'_>) -> Result<(), Error> {
        Ok(Config::of(call)?.refuse_unusable()?)
    }

    fn doubts(&self, call: &Call<'_>) -> Vec<Error> {
        let Ok(config) = Config::of(call) else { return Vec::new() };
        let of_ranges =
            config.network.ranges().iter().map(|range| (range.gateway(), range.subnet()));
        let of_fixed = config.fixed.iter().map(|one| (one.gateway, one.address));
        let doubt = |(gateway, subnet): (Option<IpAddr>, IpNet)| doubt_of_gateway(gateway?, subnet);
        of_ranges.chain(of_fixed).filter_map(doubt).map(Error::from).collect()
    }

    fn status(&self, call: &Call<'_>) -> Result<(), Error> {
        let config = Config::of(call)?;
        config.refuse_unusable()?;
        let daemon = Daemon::new(call, config.socket.clone());
        let network = config.network.spec().clone();
        let asked = daemon.ok(&Request::Status(StatusRequest { network }));
        Ok(asked.map_err(|failed| match failed.error {
            error if error.code() == code::LIMITED_CONNECTIVITY => error,
            error => error.with_code(code::PLUGIN_NOT_AVAILABLE),
        })?)
    }

    fn unknown_keys(&self, config: &str) -> Result<Vec<UnknownKey>, JsonError> {
        config::unknown_keys(config)
    }

    fn ignored_keys(&self) -> &'static [(&'static str, &'static str)] {
        keys::IGNORED
    }
}

/// Returns the owner. It depends only on the key.
fn owner(call: &Call<'_>) -> Owner {
    Owner {
        container: call.container_id().to_string(),
        ifname: call.attachment().ifname.to_string(),
        netns: call.env().netns.clone(),
        pod: Pod::of_args(&call.env().args),
    }
}

/// Returns what the daemon has assigned to the attachment.
fn held(call: &Call<'_>, config: &Config) -> Result<Vec<AssignedAddress>, Failure> {
    let daemon = Daemon::new(call, config.socket.clone());
    let network = config.network.spec().clone();
    let held = HeldRequest { network, owner: owner(call) };
    daemon.assigned(&Request::Held(held)).map_err(|failed| failed.error)
}

/// Returns the container's addresses that are in the network's ranges: `addresses` and `IP` may add
/// others.
fn of_ranges(network: &Network, previous: &AddResult, ifname: &str) -> Vec<IpAddr> {
    let addresses = previous.container_ips(ifname).map(|ip| ip.address.addr());
    addresses
        .filter(|address| network.ranges().iter().any(|range| range.allows(*address)))
        .collect()
}

/// Returns what is wrong with an answer to [`Request::Assign`], if anything: trusting a wrong one
/// would give two containers one address.
fn unfit(network: &Network, assigned: &[AssignedAddress], wanted: &[IpAddr]) -> Option<String> {
    let ranges = network.ranges();
    if assigned.len() != ranges.len() {
        return Some(format!("it gives {} addresses of {} ranges", assigned.len(), ranges.len()));
    }
    let has_range = |(one, range): (&AssignedAddress, &Range)| {
        let subnet = range.subnet();
        range.allows(one.address.addr()) && one.address.prefix_len() == subnet.prefix_len()
    };
    if let Some((one, range)) = assigned.iter().zip(ranges).find(|pair| !has_range(*pair)) {
        return Some(format!("it gives {} of the range of {}", one.address, range.subnet()));
    }
    let has = |address: IpAddr| assigned.iter().any(|one| one.address.addr() == address);
    if let Some(address) = wanted.iter().find(|address| !has(**address)) {
        return Some(format!("it does not give {address}, which was asked for"));
    }
    let mut seen: Vec<IpNet> = assigned.iter().map(|one| one.address).collect();
    seen.sort_unstable();
    let twice = seen.windows(2).find(|pair| pair[0].addr() == pair[1].addr());
    twice.map(|pair| format!("it gives {} twice", pair[0].addr()))
}

/// Returns the error for an answer that does not fit.
pub(super) fn answered_nonsense(why: &str) -> Failure {
    Failure::new(codes::DAEMON, format!("netwrightd answered what makes no sense: {why}"))
        .with_details("plugin and daemon should be of one version")
}
