//! What an attachment of `portmap` wants, for CHECK and repair.

use cni::Error;
use cni_plugin::{Call, codes};
use firewall::iptables::hostport::Wanted as Chains;
use firewall::{Plan, iptables, reference, taken};
use ipnet::IpNet;
use kernel::route::RouteSocket;
use wanted::{Because, HostPorts, Item, State, Wanted};

use super::config::{Config, Iptables};
use super::flows::{self, When};
use super::recorded::Recorded;
use super::{NAME, Portmap, Want, addresses, chains, families, put_in_place, want};
use crate::engine::{Attached, Compared, Difference, Found, Kind, Picture, unknown};
use crate::shared::filter::{filter_error, iptables_error, with_firewall};
use crate::shared::{host_side, kernel_error as kernel};

/// What the host has that decides what is wanted.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// The ports, if there are any.
    ports: Option<HostPorts>,
    /// Routes of others that cover the container's addresses.
    covered: Vec<Error>,
}

impl Kind for Portmap {
    const NAME: &'static str = NAME;
    const CHAINED: bool = true;
    type Config = Config;
    type Recorded = Recorded;
    type Observed = Seen;

    fn config(call: &Call<'_>) -> Result<Config, Error> {
        Config::of(call)
    }

    /// Without a record, the reference's plugin may have created its chains: they are right as long
    /// as they are complete.
    fn observe(
        config: &Config,
        recorded: Option<&Recorded>,
        attached: &Attached<'_>,
        picture: &mut Picture<'_>,
    ) -> Result<Seen, Error> {
        let addresses = addresses(attached.result, attached.ifname);
        if config.forwards.is_empty() || addresses.is_empty() {
            return Ok(Seen::default());
        }
        let Want { facts, iptables } = want(picture.call, config, attached.result, recorded)?;
        let mut ports = HostPorts { plan: facts.plan, chains: iptables };
        let mut foreign = Vec::new();
        if let Some(recorded) = recorded {
            foreign = covered(recorded, &addresses)?;
        } else if reference::has_hostports(attached.key).map_err(|error| filter_error(&error))? {
            let usual = || chains(config, &Iptables::default(), &addresses);
            let theirs = ports.chains.take().unwrap_or_else(usual);
            let theirs = Chains { guarded: false, ..theirs };
            ports = HostPorts { plan: Plan::default(), chains: Some(theirs) };
        }
        Ok(Seen { ports: Some(ports), covered: foreign })
    }

    fn wanted(_: &Config, _: Option<&Recorded>, seen: &Seen, _: &Attached<'_>) -> Wanted {
        let mut wanted = Wanted::new();
        let item = |ports: &HostPorts| {
            let because = Because::Key(taken::PORT_MAPPINGS.to_owned());
            Item::host(State::HostPorts(ports.clone()), because)
        };
        wanted.extend(seen.ports.iter().map(item));
        wanted
    }

    fn compare(_: &Config, picture: &mut Picture<'_>, item: &Item) -> Compared {
        let State::HostPorts(HostPorts { plan, chains }) = &item.state else {
            return Err(unknown(item));
        };
        let key = picture.call.attachment();
        let mut found = Vec::new();
        if !plan.is_empty() {
            found.extend(with_firewall(picture.index, |firewall| firewall.check(key, plan))?);
        }
        if let Some(chains) = chains {
            let checked = iptables::hostport::check(key, chains);
            found.extend(checked.map_err(|error| iptables_error(&error))?);
        }
        Ok(found.into_iter().map(|text| Found::new(format!("packet filter: {text}"))).collect())
    }

    /// A program that has a port by now would no longer receive any packets.
    fn restore(
        config: &Config,
        picture: &mut Picture<'_>,
        item: &Item,
    ) -> Result<Option<String>, Error> {
        let State::HostPorts(HostPorts { plan, chains }) = &item.state else {
            return Err(unknown(item));
        };
        let (call, index) = (picture.call, picture.index);
        if let Some(taken) = strangers(config, call)? {
            return Err(Error::new(codes::HOST_PORT, format!("nothing was put back: {taken}")));
        }
        let recorded = Recorded::read(index, call.attachment()).unwrap_or_default();
        let result = call.require_prev_result(Portmap::NO_PREVIOUS)?;
        let udp = want(call, config, &result, Some(&recorded))?.facts.udp;
        let facts = Recorded { plan: plan.clone(), iptables: chains.is_some(), udp };
        // What an older release's record does not list, DEL must know before it exists.
        let both = facts.joined(Some(&recorded));
        if both.plan.shared.iter().any(|one| !recorded.plan.shared.contains(one)) {
            both.write(call, index)?;
        }
        let want = Want { facts, iptables: chains.clone() };
        put_in_place(index, call.attachment(), &want, Some(&recorded))?;
        flows::forget(call, &want.facts.udp, When::Added);
        Ok(None)
    }

    /// Routes to the container that routes of others cover: repair leaves those alone.
    fn others(
        _: &Config,
        seen: &Seen,
        _: &Attached<'_>,
        _: &mut Picture<'_>,
    ) -> Result<Vec<Difference>, Error> {
        let covered = seen.covered.iter().map(|covered| Difference::of(Err(covered.clone())));
        Ok(covered.collect::<Result<Vec<_>, Error>>()?.into_iter().flatten().collect())
    }
}

/// Lists the addresses that the host reaches by another interface than ADD recorded.
fn covered(recorded: &Recorded, addresses: &[IpNet]) -> Result<Vec<Error>, Error> {
    let mut host = RouteSocket::open().map_err(kernel)?;
    let mut found = Vec::new();
    for to in addresses.iter().map(IpNet::addr) {
        let Some(ifname) = recorded.way_to(to) else { continue };
        let Some(link) = host.link_by_name(&ifname).map_err(kernel)? else { continue };
        // Only the plugin that created our route knows which one it is. Here only a dropping route
        // must be told from it.
        let covered = host_side::covering(&mut host, &link, to, &IpNet::from(to))?;
        found.extend(covered.map(|covered| covered.drift(&ifname)));
    }
    Ok(found)
}

/// Finds a port of the attachment that a program of the host uses.
fn strangers(config: &Config, call: &Call<'_>) -> Result<Option<taken::Taken>, Error> {
    let result = call.require_prev_result(Portmap::NO_PREVIOUS)?;
    let addresses = addresses(&result, call.ifname().as_str());
    let taken = taken::find(&config.forwards, families(&addresses));
    Ok(taken.into_iter().find(taken::Taken::is_strangers))
}
