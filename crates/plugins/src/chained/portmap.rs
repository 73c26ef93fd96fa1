//! `portmap`: forwards ports of the host to ports of the container.
//!
//! The runtime asks for mappings through the capability `portMappings`. They become elements of
//! maps in `inet netwright` (see [`firewall::hostport`]), in one transaction. A port that a living
//! attachment holds is refused, and the error names the holder; a port whose holder's namespace is
//! gone is taken over. `backend: iptables`, or an option that only iptables has, uses exactly the
//! reference's chains instead.
//!
//! If a program of the host listens on a port, ADD does not refuse it (see [`firewall::taken`]):
//! ADD warns on standard error, and a repair leaves the port to the program.
//!
//! ADD returns `prevResult` unchanged. UDP flows that began before the change keep their old
//! translation, so ADD and DEL delete them afterwards. DEL needs neither configuration nor
//! `prevResult` nor our record, and also removes what the reference's plugin left for the
//! attachment.

mod config;
mod flows;
mod recorded;
mod siblings;
mod wanted;

use std::net::IpAddr;

use cni::json::{JsonError, UnknownKey, unknown_keys};
use cni::{AddResult, AttachmentKey, Error, code};
use cni_plugin::{Call, Info, Outcome, Plugin, Role};
use firewall::hostport::{self, Forward, Snat, Target};
use firewall::iptables::hostport::Wanted as Chains;
use firewall::taken::{self, Families};
use firewall::{Concern, Plan, Shared, iptables, reference};
use ipnet::IpNet;
use kernel::route::RouteSocket;
use state::{Index, Record};

use self::config::{Backend, Config, Iptables};
use self::flows::When;
use self::recorded::{Recorded, udp_ports};
use crate::engine;
use crate::shared::failures::Failures;
use crate::shared::filter::{
    Spared, change_error, collect, filter_error, iptables_error, remove_own, remove_stale,
    undo_add, with_firewall,
};
use crate::shared::{attachment, host_side, kernel_error};

/// What the plugin is.
pub const INFO: Info = Info::new("portmap")
    .role(Role::Chained)
    .capabilities(&[taken::PORT_MAPPINGS])
    .sole_capability(taken::PORT_MAPPINGS);

/// The plugin's type, and the name of its records.
const NAME: &str = INFO.name;
/// The concerns of this plugin.
const CONCERNS: &[Concern] = &[Concern::Hostport];

/// The plugin.
#[derive(Debug)]
pub struct Portmap;

impl Plugin for Portmap {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn add(&self, call: &Call<'_>) -> Result<AddResult, Error> {
        attachment::add_alone(call, || self.add_locked(call))
    }

    fn del(&self, call: &Call<'_>) -> Result<(), Error> {
        let _no_repair = attachment::lock_out_repair(call)?;
        let index = Index::new(call.roots());
        let key = call.attachment();
        let facts = Recorded::read(&index, key);
        take_down(call, &index, key, facts.as_ref())
    }

    fn check(&self, call: &Call<'_>) -> Result<(), Error> {
        engine::check::<Portmap>(call)
    }

    fn repair_and_check(&self, call: &Call<'_>) -> Outcome {
        engine::repair::<Portmap>(call)
    }

    fn gc(&self, call: &Call<'_>) -> Result<(), Error> {
        let down = |index: &Index, record: &Record| {
            take_down(call, index, &record.attachment, Recorded::of(record).as_ref())
        };
        let what = "rules of the reference plugin";
        let foreign =
            |network: &str, spared: &Spared<'_>| reference::gc_hostports(network, &spared.keys());
        collect(call, NAME, CONCERNS, down, what, foreign)
    }

    fn validate(&self, call: &Call<'_>) -> Result<(), Error> {
        Config::of(call).map(drop)
    }

    fn status(&self, call: &Call<'_>) -> Result<(), Error> {
        let config = Config::of(call)?;
        let ready = match config.backend {
            Backend::Nftables => firewall::usable().map_err(|error| filter_error(&error)),
            Backend::Iptables(_) => iptables::usable("nat").map_err(|error| iptables_error(&error)),
        };
        ready.map_err(|error| Error { code: code::PLUGIN_NOT_AVAILABLE, ..error })
    }

    fn unknown_keys(&self, config: &str) -> Result<Vec<UnknownKey>, JsonError> {
        unknown_keys::<config::Raw>(config)
    }
}

impl Portmap {
    /// Runs ADD under the attachment's lock.
    fn add_locked(&self, call: &Call<'_>) -> Result<AddResult, Error> {
        let config = Config::of(call)?;
        let result = call.require_prev_result("must be called as chained plugin")?;
        let key = call.attachment();
        let index = Index::new(call.roots());
        let before = Recorded::read(&index, key);
        let addresses = addresses(&result, call.ifname().as_str());
        if config.forwards.is_empty() || addresses.is_empty() {
            if !config.forwards.is_empty() {
                call.warn("the container has no address that ports could lead to");
            }
            if let Some(before) = before {
                take_down(call, &index, key, Some(&before))?;
            }
            return Ok(result);
        }
        let want = want(call, &config, &result, None)?;
        // Until the change is complete, DEL must know the old and the new.
        let both = want.facts.joined(before.as_ref());
        both.write(call, &index)?;
        put_in_place(&index, key, &want, before.as_ref()).map_err(|error| {
            undo_add(error, before.is_none(), || take_down(call, &index, key, Some(&both)))
        })?;
        if both != want.facts {
            want.facts.write(call, &index)?;
        }
        flows::forget(call, &want.facts.udp, When::Added);
        for taken in taken::find(&config.forwards, families(&addresses)) {
            if !taken.is_on_behalf() {
                call.warn(taken);
            }
        }
        Ok(result)
    }
}

/// Lists the ports that an attachment's record forwards to its container; `None` if the record is
/// another plugin's, or the reference's chains have the ports.
#[must_use]
pub fn published(record: &Record) -> Option<Vec<Forward>> {
    Some(record).filter(|record| record.plugin == NAME).and_then(Recorded::of)?.forwards()
}

/// Returns the first address of each family on the container's interface.
fn addresses(result: &AddResult, ifname: &str) -> Vec<IpNet> {
    let own: Vec<IpNet> = result.container_ips(ifname).map(|ip| ip.address).collect();
    let first = |ipv4| own.iter().copied().find(|at: &IpNet| at.addr().is_ipv4() == ipv4);
    [first(true), first(false)].into_iter().flatten().collect()
}

/// Returns the families in which ports are published.
fn families(addresses: &[IpNet]) -> Families {
    let has = |ipv4| addresses.iter().any(|at| at.addr().is_ipv4() == ipv4);
    Families { ipv4: has(true), ipv6: has(false) }
}

/// What an attachment needs: the recorded part, and what only iptables has to know.
struct Want {
    facts: Recorded,
    iptables: Option<Chains>,
}

/// Decides what the attachment needs. The route to the container is the one that ADD recorded, if
/// it did: the route that leads there now may be a foreign one.
fn want(
    call: &Call<'_>,
    config: &Config,
    result: &AddResult,
    noted: Option<&Recorded>,
) -> Result<Want, Error> {
    let addresses = addresses(result, call.ifname().as_str());
    let target = |address: &IpNet| {
        let host_ifname = match (config.snat, noted) {
            (Snat::No, _) => None,
            (_, Some(facts)) => facts.way_to(address.addr()),
            (Snat::Needed | Snat::All, None) => host_ifname(call, result, address.addr())?,
        };
        Ok(Target { address: address.addr(), host_ifname })
    };
    let targets: Vec<Target> = addresses.iter().map(target).collect::<Result<_, Error>>()?;
    let mut plan = hostport::plan(&config.forwards, &targets, config.snat).map_err(|error| {
        Error::new(code::INVALID_CONFIG, error.to_string())
            .with_details("runtimeConfig.portMappings lists the same host port more than once")
    })?;
    let iptables = match &config.backend {
        Backend::Nftables => None,
        Backend::Iptables(options) => {
            let held = hostport::held_by_iptables(&plan);
            // Of our rules only the one that lets 127.0.0.0/8 out, with the drop that goes with it.
            plan.own.clear();
            plan.shared.retain(|shared| matches!(shared, Shared::Localnet(_)));
            // Two mappings with different conditions may share one port.
            if options.conditions4.is_empty() && options.conditions6.is_empty() {
                plan.join(held);
            }
            Some(chains(config, options, &addresses))
        }
    };
    let udp = udp_ports(&config.forwards, &targets);
    Ok(Want { facts: Recorded { plan, iptables: iptables.is_some(), udp }, iptables })
}

fn chains(config: &Config, options: &Iptables, addresses: &[IpNet]) -> Chains {
    Chains {
        addresses: addresses.to_vec(),
        forwards: config.forwards.clone(),
        snat: config.snat,
        mark_bit: options.mark_bit,
        set_mark_chain: options.set_mark_chain.clone(),
        conditions4: options.conditions4.clone(),
        conditions6: options.conditions6.clone(),
        guarded: true,
    }
}

/// Finds the interface by which the host should reach the container directly: one that the plugins
/// before this one created. Only if they created none, it is the one that the kernel uses. Behind a
/// gateway nothing of ours can block an answer.
///
/// # Errors
/// Code 100 when the kernel does not report it: half of what makes a port work would be missing.
fn host_ifname(
    call: &Call<'_>,
    result: &AddResult,
    address: IpAddr,
) -> Result<Option<String>, Error> {
    let mut host = RouteSocket::open().map_err(kernel_error)?;
    let made = result.interfaces.iter().filter(|link| link.sandbox.is_empty());
    let made: Vec<&str> = made.map(|link| link.name.as_str()).collect();
    let route = host.route_to(address).map_err(kernel_error)?;
    let taken = match route.filter(|route| route.gateway.is_none()).and_then(|route| route.oif) {
        Some(oif) => host.link_by_index(oif).map_err(kernel_error)?,
        None => None,
    };
    // If the kernel uses one of them, no routes need to be read.
    let covered = taken.as_ref().is_none_or(|link| !made.contains(&link.name.as_str()));
    let own = if covered { host_side::way_among(&mut host, &made, address)? } else { None };
    match own.or(taken) {
        Some(link) if !link.loopback() => Ok(Some(link.name)),
        _ => {
            call.warn(format_args!(
                "the host has no interface towards {address}: connections from the host itself and from the \
                 container's neighbours to its host ports are not translated back"
            ));
            Ok(None)
        }
    }
}

fn put_in_place(
    index: &Index,
    key: &AttachmentKey,
    want: &Want,
    before: Option<&Recorded>,
) -> Result<(), Error> {
    // Before the old state is removed, so that it stays if another attachment holds a port.
    let (passed_over, outlived) = with_firewall(index, |firewall| {
        firewall.add(key, &want.facts.plan)?;
        Ok((firewall.passed_over(), firewall.outlived().to_vec()))
    })?;
    // iptables forwarding to them would take precedence over ours.
    for gone in &outlived {
        reference::remove_hostports(gone, &[]).map_err(|error| filter_error(&error))?;
    }
    if passed_over {
        siblings::wait(index, key)?;
    }
    if let Some(before) = before {
        remove_what_changed(index, key, &want.facts, before)?;
    }
    match &want.iptables {
        Some(wanted) => {
            iptables::hostport::add(index, key, wanted).map_err(|error| change_error(&error))
        }
        None => Ok(()),
    }
}

/// Removes what an earlier ADD created and this one does not want.
fn remove_what_changed(
    index: &Index,
    key: &AttachmentKey,
    now: &Recorded,
    before: &Recorded,
) -> Result<(), Error> {
    remove_stale(index, key, &before.plan, &now.plan)?;
    if before.iptables && !now.iptables {
        reference::remove_hostports(key, &[]).map_err(|error| filter_error(&error))?;
    }
    Ok(())
}

/// Removes everything of an attachment. Without a record it is found by its marks, unless other
/// plugins' records of the attachment show that none is missing.
fn take_down(
    call: &Call<'_>,
    index: &Index,
    key: &AttachmentKey,
    facts: Option<&Recorded>,
) -> Result<(), Error> {
    let mut failures = Failures::new();
    let previous = call.prev_result().ok().flatten().unwrap_or_default();
    let addresses: Vec<IpAddr> =
        addresses(&previous, key.ifname.as_str()).iter().map(ipnet::IpNet::addr).collect();
    let nothing = Plan::default();
    let made_nothing = || index.made_nothing(key, NAME).then_some(&nothing);
    let plan = facts.map(|facts| &facts.plan).or_else(made_nothing);
    failures.note("nftables", remove_own(index, key, plan, CONCERNS));
    // The reference's chains, whichever plugin created them: with today's iptables they are
    // nftables chains.
    let left = reference::remove_hostports(key, &addresses);
    failures.note("rules of the reference plugin", left.map_err(|error| filter_error(&error)));
    if let Some(facts) = facts {
        flows::forget(call, &facts.udp, When::Removed);
    }
    if failures.is_empty() {
        failures.note("record", attachment::forget(index, key, NAME));
    }
    failures.note("the container's other networks", siblings::take_over(call, index, key));
    failures.into_result()
}
