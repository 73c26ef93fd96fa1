//! What an attachment of `portmap` wants, for CHECK and repair.

use cni_plugin::{Call, codes};
use firewall::iptables::hostport::DesiredHostports as Chains;
use firewall::{Plan, iptables, reference, taken};
use ipnet::IpNet;
use kernel::route::RouteSocket;
use wanted::{HostPorts, Item, Reason, State, Wanted};

use super::config::{Config, Iptables};
use super::flows::{self, PortChange};
use super::recorded::RecordData;
use super::{Portmap, WantedForwards, addresses, answers, chains, families, put_in_place, want};
use crate::chained::sbr::own_way;
use crate::engine::{Attachment, Comparison, Difference, Mismatch, Picture, Wants, unknown};
use crate::shared::failure::Failure;
use crate::shared::filter::with_firewall;
use crate::shared::host_side;

/// What the host has that decides what is wanted.
#[derive(Debug, Default)]
pub(crate) struct Observation {
    /// The ports, if there are any.
    ports: Option<HostPorts>,
    /// Routes of others that cover the container's addresses.
    covered: Vec<Failure>,
    /// The rule and the table by which answers leave.
    answers: Vec<Item>,
}

impl Wants for Portmap {
    type Observation = Observation;

    /// Without a record, the reference's plugin may have created its chains: they are right as long
    /// as they are complete.
    fn observe(
        attached: &Attachment<'_, Self>,
        picture: &mut Picture<'_>,
    ) -> Result<Observation, Failure> {
        let (config, recorded) = (attached.config, attached.recorded);
        let addresses = addresses(attached.result, attached.ifname);
        if config.forwards.is_empty() || addresses.is_empty() {
            return Ok(Observation::default());
        }
        let WantedForwards { recorded: wanted, iptables } =
            want(picture.call, config, attached.result, recorded)?;
        let mut ports = HostPorts { plan: wanted.plan, chains: iptables };
        let mut foreign = Vec::new();
        if let Some(recorded) = recorded {
            foreign = covered(recorded, &addresses)?;
        } else if reference::has_hostports(attached.key)? {
            let usual = || chains(config, &Iptables::default(), &addresses);
            let theirs = ports.chains.take().unwrap_or_else(usual);
            let theirs = Chains { guarded: false, ..theirs };
            ports = HostPorts { plan: Plan::default(), chains: Some(theirs) };
        }
        let answers = match recorded {
            Some(recorded) => answers::items(picture, attached.ifname, attached.result, recorded)?,
            None => None,
        };
        let answers = answers.map(|(_, items)| items).unwrap_or_default();
        Ok(Observation { ports: Some(ports), covered: foreign, answers })
    }

    fn wanted(_: &Attachment<'_, Self>, seen: &Observation) -> Wanted {
        let mut wanted = Wanted::new();
        let item = |ports: &HostPorts| {
            let because = Reason::Key(taken::PORT_MAPPINGS.to_owned());
            Item::host(State::HostPorts(ports.clone()), because)
        };
        wanted.extend(seen.ports.iter().map(item));
        wanted.extend(seen.answers.iter().cloned());
        wanted
    }

    fn compare(_: &Config, picture: &mut Picture<'_>, item: &Item) -> Comparison {
        let HostPorts { plan, chains } = match &item.state {
            State::HostPorts(ports) => ports,
            State::Rule(_) | State::SourceTables(_) => return own_way::compare(picture, item),
            _ => return Err(unknown(item)),
        };
        let key = picture.call.attachment();
        let mut found = Vec::new();
        if !plan.is_empty() {
            let own = with_firewall(picture.index, |firewall| firewall.check(key, plan))?;
            found.extend(own.iter().map(|text| Mismatch::of_filter(text).of_ours()));
        }
        if let Some(chains) = chains {
            let checked = iptables::hostport::check(key, chains);
            found.extend(checked?.iter().map(|text| Mismatch::of_filter(text)));
        }
        Ok(found)
    }

    /// A program that has a port by now would no longer receive any packets.
    fn restore(
        config: &Config,
        picture: &mut Picture<'_>,
        item: &Item,
    ) -> Result<Option<String>, Failure> {
        let HostPorts { plan, chains } = match &item.state {
            State::HostPorts(ports) => ports,
            State::Rule(_) | State::SourceTables(_) => {
                answers::record(picture)?;
                return own_way::restore(picture, item).map(|()| None);
            }
            _ => return Err(unknown(item)),
        };
        let (call, index) = (picture.call, picture.index);
        if let Some(taken) = strangers(config, call)? {
            return Err(Failure::new(codes::HOST_PORT, format!("nothing was put back: {taken}")));
        }
        let recorded = RecordData::read(index, call.attachment()).unwrap_or_default();
        let result = call.require_prev_result(Portmap::NO_PREVIOUS)?;
        let now = want(call, config, &result, Some(&recorded))?.recorded;
        let wanted = RecordData { plan: plan.clone(), iptables: chains.is_some(), ..now };
        // What an older release's record does not list, DEL must know before it exists.
        let both = wanted.joined(Some(&recorded));
        if both.plan.shared.iter().any(|one| !recorded.plan.shared.contains(one)) {
            both.write(call, index)?;
        }
        with_firewall(index, |firewall| firewall.mend(plan))?;
        let want = WantedForwards { recorded: wanted, iptables: chains.clone() };
        put_in_place(index, call.attachment(), &want, Some(&recorded))?;
        flows::forget(call, index, &want.recorded, PortChange::Added);
        Ok(None)
    }

    /// Routes to the container that routes of others cover: repair leaves those alone.
    fn others(
        _: &Attachment<'_, Self>,
        seen: &Observation,
        _: &mut Picture<'_>,
    ) -> Result<Vec<Difference>, Failure> {
        let covered = seen.covered.iter().map(|covered| Difference::of(Err(covered.clone())));
        Ok(covered.collect::<Result<Vec<_>, Failure>>()?.into_iter().flatten().collect())
    }
}

/// Lists the addresses that the host reaches by another interface than ADD recorded.
fn covered(recorded: &RecordData, addresses: &[IpNet]) -> Result<Vec<Failure>, Failure> {
    let mut host = RouteSocket::open()?;
    let mut found = Vec::new();
    for to in addresses.iter().map(IpNet::addr) {
        let Some(ifname) = recorded.way_to(to) else { continue };
        let Some(link) = host.link_by_name(&ifname)? else { continue };
        // Only the plugin that created our route knows which one it is. Here we only need to
        // distinguish it from a route that drops.
        let covered = host_side::covering(&mut host, &link, to, &IpNet::from(to))?;
        found.extend(covered.map(|covered| covered.drift(&ifname)));
    }
    Ok(found)
}

/// Finds a port of the attachment that a program of the host uses.
fn strangers(config: &Config, call: &Call<'_>) -> Result<Option<taken::TakenPort>, Failure> {
    let result = call.require_prev_result(Portmap::NO_PREVIOUS)?;
    let addresses = addresses(&result, call.ifname().as_str());
    let taken = taken::find(&config.forwards, families(&addresses));
    Ok(taken.into_iter().find(taken::TakenPort::is_strangers))
}
