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
//! ADD returns `prevResult` unchanged. UDP and SCTP flows that began before the change keep their
//! old translation, so ADD and DEL delete them afterwards. DEL needs neither configuration nor
//! `prevResult` nor our record, and also removes what the reference's plugin left for the
//! attachment.

mod answers;
mod config;
mod flows;
mod recorded;
mod siblings;
mod wanted;

use std::net::IpAddr;

use cni::{AddResult, AttachmentKey, code};
use cni_plugin::{Call, Info, Role};
use firewall::element::Protocol;
use firewall::hostport::{self, Forward, Snat, Target};
use firewall::iptables::hostport::DesiredHostports as Chains;
use firewall::taken::{self, Families};
use firewall::{Concern, Plan, SharedObject, iptables, reference};
use ipnet::IpNet;
use kernel::route::RouteSocket;
use state::{Index, Record};

use self::config::{Backend, Config, Iptables};
use self::flows::PortChange;
use self::recorded::{RecordData, host_ports};
use crate::engine::{Addition, Collection, Kind, NetnsEntry, Removal};
use crate::shared::failure::Failure;
use crate::shared::failures::Failures;
use crate::shared::filter::{collect, remove_own, remove_stale, with_firewall};
use crate::shared::host_side;

/// What the plugin is.
pub const INFO: Info = Info::new("portmap")
    .role(Role::Chained)
    .capabilities(&[taken::PORT_MAPPINGS])
    .sole_capability(taken::PORT_MAPPINGS);

/// The plugin's type, and the name of its records.
const NAME: &str = INFO.name;
/// The concerns of this plugin.
const CONCERNS: &[Concern] = &[Concern::Hostport];

/// Attachments of `portmap`.
#[derive(Debug)]
pub(crate) struct Portmap;

impl Kind for Portmap {
    const INFO: Info = INFO;
    const ENTER: NetnsEntry = NetnsEntry::Never;
    type Raw = config::Raw;
    type Config = Config;
    type RecordData = RecordData;
    type Cache = ();

    fn config(call: &Call<'_>) -> Result<Config, Failure> {
        Config::of(call)
    }

    fn status(call: &Call<'_>) -> Result<(), Failure> {
        let ready = match Config::of(call)?.backend {
            Backend::Nftables => firewall::usable().map_err(Failure::from),
            Backend::Iptables(_) => iptables::usable("nat").map_err(Failure::from),
        };
        ready.map_err(|failure| failure.with_code(code::PLUGIN_NOT_AVAILABLE))
    }

    fn attach(attaching: &mut Addition<'_, Self>) -> Result<AddResult, Failure> {
        let (call, index, config) = (attaching.call, attaching.index, attaching.config);
        let result = call.require_prev_result("must be called as chained plugin")?;
        let key = attaching.key();
        let addresses = addresses(&result, call.ifname().as_str());
        if config.forwards.is_empty() || addresses.is_empty() {
            if !config.forwards.is_empty() {
                call.warn("the container has no address that ports could lead to");
            }
            attaching.remove_earlier()?;
            return Ok(result);
        }
        let before = RecordData::read(index, key);
        let mut want = want(call, config, &result, None)?;
        let way = answers::plan(attaching, &result)?;
        want.recorded.answers = way.as_ref().map(|way| way.recorded.clone());
        let both = want.recorded.joined(before.as_ref());
        both.write(call, index)?;
        // What an earlier ADD created works until DEL, which finds both in the record.
        if before.is_none() {
            attaching.begin(None);
        }
        if let Some(way) = way {
            way.make()?;
        }
        put_in_place(index, key, &want, before.as_ref())?;
        if both != want.recorded {
            want.recorded.write(call, index)?;
        }
        flows::forget(call, index, &want.recorded, PortChange::Added);
        for taken in taken::find(&config.forwards, families(&addresses)) {
            if !taken.is_on_behalf() {
                call.warn(taken);
            }
        }
        Ok(result)
    }

    /// Without a record everything is found by its marks, unless other plugins' records of the
    /// attachment show that none is missing.
    fn take_down(removal: &Removal<'_, Self>, failures: &mut Failures) {
        let Removal { call, index, key, recorded, .. } = removal;
        let previous = removal.prev_result().unwrap_or_default();
        let addresses = addresses(&previous, key.ifname.as_str());
        let addresses: Vec<IpAddr> = addresses.iter().map(IpNet::addr).collect();
        let nothing = Plan::default();
        let made_nothing = || index.made_nothing(key, NAME).then_some(&nothing);
        let plan = recorded.as_ref().map(|recorded| &recorded.plan).or_else(made_nothing);
        // The reference's chains, created by any plugin: with today's iptables they are nftables
        // chains. They go first: `route_localnet` stays for those that are left.
        if !call.is_renewed() {
            let left = reference::remove_hostports(key, &addresses);
            failures.note("rules of the reference plugin", left);
        }
        failures.note("nftables", remove_own(index, key, plan, CONCERNS));
        if let Some(recorded) = recorded {
            flows::forget(call, index, recorded, PortChange::Removed);
        }
        answers::remove(removal);
        failures.note("the container's other networks", siblings::take_over(call, index, key));
    }

    fn collect(collecting: &Collection<'_, Self>, failures: &mut Failures) {
        let Collection { call, index, spared, .. } = collecting;
        let left = reference::gc_hostports(call.network().as_str(), &spared.keys());
        failures.note("rules of the reference plugin", left);
        failures.note("nftables", collect(call, index, CONCERNS, spared));
    }
}

/// Lists the ports that an attachment's record forwards to its container; `None` if the record is
/// another plugin's, or the reference's chains have the ports.
#[must_use]
pub fn published(record: &Record) -> Option<Vec<Forward>> {
    Some(record).filter(|record| record.plugin == NAME).and_then(RecordData::of)?.forwards()
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
struct WantedForwards {
    recorded: RecordData,
    iptables: Option<Chains>,
}

/// Decides what the attachment needs. The route to the container is the one that ADD recorded, if
/// it did: the route that leads there now may be a foreign one.
fn want(
    call: &Call<'_>,
    config: &Config,
    result: &AddResult,
    known: Option<&RecordData>,
) -> Result<WantedForwards, Failure> {
    let addresses = addresses(result, call.ifname().as_str());
    let target = |address: &IpNet| {
        let host_ifname = match (config.snat, known) {
            (Snat::No, _) => None,
            (_, Some(known)) => known.way_to(address.addr()),
            (Snat::Needed | Snat::All, None) => host_ifname(call, result, address.addr())?,
        };
        Ok(Target { address: address.addr(), host_ifname })
    };
    let targets: Vec<Target> = addresses.iter().map(target).collect::<Result<_, Failure>>()?;
    let mut plan = hostport::plan(&config.forwards, &targets, config.snat).map_err(|error| {
        Failure::new(code::INVALID_CONFIG, error.to_string())
            .with_details("runtimeConfig.portMappings lists the same host port more than once")
    })?;
    let iptables = match &config.backend {
        Backend::Nftables => None,
        Backend::Iptables(options) => {
            let held = hostport::held_by_iptables(&plan);
            // Of our rules only the one that lets 127.0.0.0/8 out, with the drop that goes with it.
            plan.own.clear();
            plan.shared.retain(|shared| matches!(shared, SharedObject::Localnet(_)));
            // Two mappings with different conditions may share one port.
            if options.conditions4.is_empty() && options.conditions6.is_empty() {
                plan.join(held);
            }
            Some(chains(config, options, &addresses))
        }
    };
    let ports = |protocol| host_ports(protocol, &config.forwards, &targets);
    let (udp, sctp) = (ports(Protocol::Udp), ports(Protocol::Sctp));
    let answers = known.and_then(|known| known.answers.clone());
    let recorded = RecordData { plan, iptables: iptables.is_some(), udp, sctp, answers };
    Ok(WantedForwards { recorded, iptables })
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
/// before this one created. If none of these leads there, it is the one that the kernel uses: a
/// bridge may have its address on a VLAN device of others. Where they created some, a default route
/// does not count, even without a gateway: it is the uplink's. Behind a gateway nothing of ours can
/// block an answer.
///
/// # Errors
/// Code 100 when the kernel does not report it: half of what makes a port work would be missing.
fn host_ifname(
    call: &Call<'_>,
    result: &AddResult,
    address: IpAddr,
) -> Result<Option<String>, Failure> {
    let mut host = RouteSocket::open()?;
    let made = result.interfaces.iter().filter(|link| link.sandbox.is_empty());
    let made: Vec<&str> = made.map(|link| link.name.as_str()).collect();
    let route = host.route_to(address)?;
    let taken = match route.filter(|route| route.gateway.is_none()).and_then(|route| route.oif) {
        Some(oif) => host.link_by_index(oif)?,
        None => None,
    };
    // If the kernel uses one of them, no routes need to be read.
    let covered = taken.as_ref().is_none_or(|link| !made.contains(&link.name.as_str()));
    let own = if covered { host_side::link_leading_to(&mut host, &made, address)? } else { None };
    let is_in_doubt = covered && own.is_none() && !made.is_empty();
    let is_the_uplink = is_in_doubt && leads_by_default(&mut host, address)?;
    match own.or(taken.filter(|_| !is_the_uplink)) {
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

/// Says whether only a default route leads to an address.
fn leads_by_default(host: &mut RouteSocket, address: IpAddr) -> Result<bool, Failure> {
    let entry = host.route_entry_in(None, address)?;
    Ok(entry.is_some_and(|entry| entry.destination.prefix_len() == 0))
}

fn put_in_place(
    index: &Index,
    key: &AttachmentKey,
    want: &WantedForwards,
    before: Option<&RecordData>,
) -> Result<(), Failure> {
    // Before the old state is removed, so that it stays if another attachment holds a port.
    let (passed_over, outlived) = with_firewall(index, |firewall| {
        firewall.add(key, &want.recorded.plan)?;
        Ok((firewall.passed_over(), firewall.outlived().to_vec()))
    })?;
    // iptables forwarding to them would take precedence over ours.
    for gone in &outlived {
        reference::remove_hostports(gone, &[])?;
    }
    if passed_over {
        siblings::wait(index, key)?;
    }
    if let Some(before) = before {
        remove_what_changed(index, key, &want.recorded, before)?;
    }
    match &want.iptables {
        Some(wanted) => Ok(iptables::hostport::add(index, key, wanted)?),
        None => Ok(()),
    }
}

/// Removes what an earlier ADD created and this one does not want.
fn remove_what_changed(
    index: &Index,
    key: &AttachmentKey,
    now: &RecordData,
    before: &RecordData,
) -> Result<(), Failure> {
    if before.iptables && !now.iptables {
        reference::remove_hostports(key, &[])?;
    }
    remove_stale(index, key, &before.plan, &now.plan)
}
