//! `portmap`: ports of the host lead to ports of the container.
//!
//! The runtime asks for mappings through the capability `portMappings`. They become elements of maps in
//! `inet netwright` (see [`firewall::hostport`]), in one transaction; a port that a living attachment holds is refused and
//! its holder named, one whose holder's namespace is gone is taken over. `backend: iptables`, or an option that only
//! iptables has, leads to the reference's chains instead, to the letter.
//!
//! ADD returns `prevResult` as it came. UDP flows that began before the change keep their old translation, so they
//! are forgotten after ADD and after DEL. DEL needs neither configuration nor `prevResult` nor our record, and
//! removes what the reference's plugin left for the attachment as well.

mod config;
mod facts;
mod flows;
mod siblings;

use std::net::IpAddr;

use cni::json::{JsonError, UnknownKey, unknown_keys};
use cni::{AddResult, AttachmentKey, Error, code};
use cni_plugin::{Call, Plugin};
use firewall::element::Element;
use firewall::hostport::{self, Snat, Target};
use firewall::iptables::hostport::Wanted;
use firewall::{Concern, Firewall, Shared, iptables, reference};
use ipnet::IpNet;
use kernel::route::RouteSocket;
use state::{Index, Record};

use self::config::{Backend, Config, Iptables};
use self::facts::{Facts, udp_ports};
use self::flows::When;
use crate::shared::failures::Failures;
use crate::shared::filter::{change_error, collect, drift, filter_error, iptables_error};
use crate::shared::kernel_error;
use crate::shared::repair;
use crate::shared::shared_object::file_error;

/// The plugin's type, and the name of its records.
const NAME: &str = "portmap";
/// What the plugin looks after.
const CONCERNS: &[Concern] = &[Concern::Hostport];

/// The plugin.
#[derive(Debug)]
pub struct Portmap;

impl Plugin for Portmap {
    fn name(&self) -> &'static str {
        NAME
    }

    fn add(&self, call: &Call<'_>) -> Result<AddResult, Error> {
        let config = Config::of(call)?;
        let result = call.require_prev_result("must be called as chained plugin")?;
        let key = call.attachment();
        let index = Index::new(call.roots());
        let before = Facts::read(&index, key);
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
        let want = want(call, &config, &addresses)?;
        // Until the change is through, DEL must know the old and the new.
        let both = want.facts.joined(before.as_ref());
        both.write(call, &index).map_err(|error| file_error(&error))?;
        if let Err(error) = put_in_place(&index, key, &want, before.as_ref()) {
            if before.is_some() {
                // What the first ADD made goes on working until DEL, which finds both noted.
                return Err(error);
            }
            return Err(match take_down(call, &index, key, Some(&both)) {
                Ok(()) => error,
                Err(undo) => error.with_details(format!("undoing it failed too: {undo}")),
            });
        }
        if both != want.facts {
            want.facts.write(call, &index).map_err(|error| file_error(&error))?;
        }
        flows::forget(call, &want.facts.udp, When::Added);
        Ok(result)
    }

    fn del(&self, call: &Call<'_>) -> Result<(), Error> {
        let _no_repair = repair::keep_off(call);
        let index = Index::new(call.roots());
        let key = call.attachment();
        let facts = Facts::read(&index, key);
        take_down(call, &index, key, facts.as_ref())
    }

    fn check(&self, call: &Call<'_>) -> Result<(), Error> {
        let config = Config::of(call)?;
        let result = call.require_prev_result("Required prevResult missing")?;
        let addresses = addresses(&result, call.ifname().as_str());
        if config.forwards.is_empty() || addresses.is_empty() {
            return Ok(());
        }
        let key = call.attachment();
        let index = Index::new(call.roots());
        let want = want(call, &config, &addresses)?;
        let noted = Facts::read(&index, key).is_some();
        let by_reference =
            !noted && reference::has_hostports(key).map_err(|error| filter_error(&error))?;
        let mut differences = Vec::new();
        if !by_reference {
            differences = Firewall::open(&index)
                .and_then(|mut firewall| firewall.check(key, &want.facts.plan))
                .map_err(|error| filter_error(&error))?;
        }
        // What the reference's plugin made before we came is right as long as it is whole.
        let theirs = by_reference.then(|| wanted(&config, &Iptables::default(), &addresses));
        if let Some(iptables) = want.iptables.or(theirs) {
            differences.extend(
                iptables::hostport::check(key, &iptables)
                    .map_err(|error| iptables_error(&error))?,
            );
        }
        drift(&differences)
    }

    fn repair(&self, call: &Call<'_>) -> Result<Vec<String>, Error> {
        repair::by_adding_again(call, self, NAME)
    }

    fn gc(&self, call: &Call<'_>) -> Result<(), Error> {
        let down = |index: &Index, record: &Record| {
            take_down(call, index, &record.attachment, Facts::of(record).as_ref())
        };
        let what = "rules of the reference plugin";
        collect(call, NAME, CONCERNS, down, what, reference::gc_hostports)
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

/// Returns the first address of each family that is the container's interface's.
fn addresses(result: &AddResult, ifname: &str) -> Vec<IpNet> {
    let own: Vec<IpNet> = result.container_ips(ifname).map(|ip| ip.address).collect();
    let first = |ipv4| own.iter().copied().find(|at: &IpNet| at.addr().is_ipv4() == ipv4);
    [first(true), first(false)].into_iter().flatten().collect()
}

/// What an attachment wants: what is noted, and what only iptables has to know.
struct Want {
    facts: Facts,
    iptables: Option<Wanted>,
}

/// Decides what the attachment wants.
fn want(call: &Call<'_>, config: &Config, addresses: &[IpNet]) -> Result<Want, Error> {
    let target = |address: &IpNet| {
        let host_ifname = match config.snat {
            Snat::No => None,
            Snat::Needed | Snat::All => host_ifname(call, address.addr())?,
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
            // Of ours only what lets 127.0.0.0/8 out, with the drop that goes with it.
            plan.own.clear();
            plan.shared.retain(|shared| matches!(shared, Shared::Localnet(_)));
            Some(wanted(config, options, addresses))
        }
    };
    let udp = udp_ports(&config.forwards, &targets);
    Ok(Want { facts: Facts { plan, iptables: iptables.is_some(), udp }, iptables })
}

fn wanted(config: &Config, options: &Iptables, addresses: &[IpNet]) -> Wanted {
    Wanted {
        addresses: addresses.to_vec(),
        forwards: config.forwards.clone(),
        snat: config.snat,
        mark_bit: options.mark_bit,
        set_mark_chain: options.set_mark_chain.clone(),
        conditions4: options.conditions4.clone(),
        conditions6: options.conditions6.clone(),
    }
}

/// Finds the interface by which the host reaches the container directly. Behind a gateway nothing of ours can
/// be in the way of an answer.
///
/// # Errors
/// Code 100 when the kernel does not tell: half of what makes a port work would be missing.
fn host_ifname(call: &Call<'_>, address: IpAddr) -> Result<Option<String>, Error> {
    let found = RouteSocket::open().and_then(|mut netlink| {
        let Some(route) = netlink.route_to(address)? else { return Ok(None) };
        match route.oif {
            Some(index) if route.gateway.is_none() => netlink.link_by_index(index),
            _ => Ok(None),
        }
    });
    match found.map_err(kernel_error)? {
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
    before: Option<&Facts>,
) -> Result<(), Error> {
    // Before the old is removed, so that a port held by another leaves it as it is.
    let mut firewall = Firewall::open(index).map_err(|error| filter_error(&error))?;
    firewall.add(key, &want.facts.plan).map_err(|error| filter_error(&error))?;
    let passed_over = firewall.passed_over();
    drop(firewall);
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

/// Removes what an earlier ADD made and this one does not want.
fn remove_what_changed(
    index: &Index,
    key: &AttachmentKey,
    now: &Facts,
    before: &Facts,
) -> Result<(), Error> {
    let mut stale = before.plan.clone();
    let is_wanted = |element: &Element| {
        now.plan.own.iter().any(|new| new.set == element.set && new.key == element.key)
    };
    stale.own.retain(|element| !is_wanted(element));
    stale.shared.retain(|shared| !now.plan.shared.contains(shared));
    if !stale.is_empty() {
        Firewall::open(index)
            .and_then(|mut firewall| firewall.remove(key, &stale))
            .map_err(|error| filter_error(&error))?;
    }
    if before.iptables && !now.iptables {
        reference::remove_hostports(key, &[]).map_err(|error| filter_error(&error))?;
    }
    Ok(())
}

/// Removes everything of an attachment. Without facts it is found by its marks, unless other plugins' records of
/// the attachment show that the account is whole.
fn take_down(
    call: &Call<'_>,
    index: &Index,
    key: &AttachmentKey,
    facts: Option<&Facts>,
) -> Result<(), Error> {
    let mut failures = Failures::new();
    let previous = call.prev_result().ok().flatten().unwrap_or_default();
    let addresses: Vec<IpAddr> =
        addresses(&previous, key.ifname.as_str()).iter().map(ipnet::IpNet::addr).collect();
    let removed = match facts {
        Some(facts) if facts.plan.is_empty() => Ok(()),
        Some(facts) => {
            Firewall::open(index).and_then(|mut firewall| firewall.remove(key, &facts.plan))
        }
        None if index.made_nothing(key, NAME) => Ok(()),
        None => {
            Firewall::open(index).and_then(|mut firewall| firewall.remove_unrecorded(key, CONCERNS))
        }
    };
    failures.note("nftables", removed.map_err(|error| filter_error(&error)));
    // The reference's chains, whoever made them: with today's iptables they are chains of nftables.
    let left = reference::remove_hostports(key, &addresses);
    failures.note("rules of the reference plugin", left.map_err(|error| filter_error(&error)));
    if let Some(facts) = facts {
        flows::forget(call, &facts.udp, When::Removed);
    }
    if failures.is_empty() {
        let removed = index.remove(key, NAME).map(drop);
        failures.note("record", removed.map_err(|error| file_error(&error)));
    }
    failures.note("the container's other networks", siblings::take_over(call, index, key));
    failures.into_result()
}
