//! What an attachment of `policy` wants, for CHECK and repair.

use std::net::IpAddr;

use node_api::policy::{AttachmentRecord, StartRequest};
use wanted::{Item, Reason, State, Wanted};

use super::config::Config;
use super::daemon::{Assessment, Daemon};
use super::ends::Ends;
use super::frames::{self, Need};
use super::link::{self, Bridge, Side};
use super::{NAME, Policy, at, inside, owner, plan, plan_of, table};
use crate::engine::{
    Attachment, Comparison, Mismatch, Picture, Wants, differs, sound, unknown, wanted_of_another,
};
use crate::shared::failure::Failure;
use crate::shared::{attachment, drift, rules};

impl Wants for Policy {
    const NO_PREVIOUS: &'static str = super::NO_PREVIOUS;
    /// Where its packets are judged: by now the host's side of the link may be a port of another
    /// bridge, or of none.
    type Observation = Option<Side>;

    fn observe(
        attached: &Attachment<'_, Self>,
        picture: &mut Picture<'_>,
    ) -> Result<Self::Observation, Failure> {
        let (recorded, ifname) = (attached.recorded, attached.ifname);
        let namespaces = picture.namespaces.get()?;
        if namespaces.inside.link_by_name(ifname)?.is_none() {
            // The first item says so.
            return Ok(None);
        }
        let found = link::find(namespaces, ifname, attached.result)
            .map_err(|refused| drift(refused.message().to_owned()))?;
        let is_inside = found == Side::Inside;
        if recorded.is_some_and(|recorded| recorded.started.inside != is_inside) {
            let text = format!("interface {ifname} is another link than the one that ADD saw");
            return Err(drift(text).with_details("detach the container, and attach it anew"));
        }
        let Side::Host(found) = found else { return Ok(Some(Side::Inside)) };
        let place = recorded.map(|recorded| recorded.bridge.as_deref());
        let now = found.bridge.as_ref().map(|bridge| bridge.name.as_str());
        if recorded.and_then(|recorded| recorded.index).is_some_and(|index| index != found.index) {
            let text = format!("link {:?} is another link than the one that ADD saw", found.name);
            return Err(drift(text).with_details("detach the container, and attach it anew"));
        }
        if let Some(before) = place.filter(|before| *before != now) {
            let name =
                |bridge: Option<&str>| bridge.map_or("none".to_owned(), |b| format!("{b:?}"));
            let text = format!(
                "link {:?} is a port of bridge {}, and ADD found it at {}",
                found.name,
                name(now),
                name(before)
            );
            return Err(drift(text).with_details("detach the container, and attach it anew"));
        }
        Ok(Some(Side::Host(found)))
    }

    fn wanted(attached: &Attachment<'_, Self>, observed: &Self::Observation) -> Wanted {
        let mut wanted = wanted_of_another(attached.ifname);
        let Some(side) = observed else { return wanted };
        let recorded = match attached.recorded {
            Some(recorded) => recorded.clone(),
            None => unrecorded(attached, side),
        };
        let addresses = recorded.started.addresses.clone();
        let Side::Host(link) = side else {
            wanted.push(Item::host(State::Verdicts { addresses }, Reason::Policy));
            return wanted;
        };
        let peer = State::Peer { link: link.name.clone(), of: attached.ifname.to_owned() };
        wanted.push(Item::host(peer, Reason::Created));
        // If its packets cannot be judged, it is to pass none.
        let passes = match &link.bridge {
            Some(_) if !frames::is_loaded() => plan(&recorded, &[]),
            _ => plan_of(&recorded),
        };
        wanted.extend(rules::wanted(None, passes, Vec::new(), Reason::Policy));
        if let Some(bridge) = &link.bridge {
            let shown = Need::of(&addresses, bridge).wanted(&bridge.name);
            wanted.push(Item::host(State::ShownPackets(shown), Reason::Policy));
        }
        wanted.push(Item::host(State::Verdicts { addresses }, Reason::Policy));
        wanted
    }

    fn compare(config: &Config, picture: &mut Picture<'_>, item: &Item) -> Comparison {
        match &item.state {
            State::ShownPackets(shown) => {
                let Some(bridge) = bridge(picture, &shown.bridge)? else { return sound() };
                let found = frames::difference(&bridge, Need::from_wanted(shown))?;
                Ok(found.into_iter().map(Mismatch::new).collect())
            }
            State::Verdicts { addresses } => compare_verdicts(config, picture, addresses),
            _ => Err(unknown(item)),
        }
    }

    /// Does what ADD would do.
    fn restore(
        config: &Config,
        picture: &mut Picture<'_>,
        item: &Item,
    ) -> Result<Option<String>, Failure> {
        let (call, index) = (picture.call, picture.index);
        let key = call.attachment();
        match &item.state {
            State::ShownPackets(shown) => {
                let Some(bridge) = bridge(picture, &shown.bridge)? else { return Ok(None) };
                let host = &mut picture.namespaces.get()?.host;
                frames::hold(host, index, key, &bridge, Need::from_wanted(shown))?;
            }
            State::Verdicts { addresses } => {
                let recorded: Option<AttachmentRecord> = attachment::recorded(index, key, NAME);
                match recorded.as_ref().is_some_and(|recorded| recorded.started.inside) {
                    true => {
                        let netns = &picture.namespaces.get()?.netns;
                        inside::close(index, netns, call.ifname().as_str())?;
                    }
                    // If the rules were changed, the verdict may still be right.
                    false if !table::is_complete()? => table::complete(index)?,
                    false => table::close(index, &ends(recorded.as_ref(), addresses))?,
                }
                if let Some(recorded) = recorded {
                    Daemon::new(call, config.socket.clone()).start(call, &recorded.started)?;
                }
            }
            _ => return Err(unknown(item)),
        }
        Ok(None)
    }
}

/// Returns what ADD would have recorded of an attachment without a record.
fn unrecorded(attached: &Attachment<'_, Policy>, side: &Side) -> AttachmentRecord {
    let addresses = link::addresses(attached.result, attached.ifname);
    at(side, StartRequest { addresses, ..StartRequest::default() }, attached.ifname)
}

/// Returns what leads to the verdicts of these addresses. Without a record only the attachment's
/// addresses are known here.
fn ends(recorded: Option<&AttachmentRecord>, addresses: &[IpAddr]) -> Ends {
    let meets = recorded.and_then(|recorded| recorded.started.meets.clone());
    Ends::of(&StartRequest { addresses: addresses.to_vec(), meets, ..StartRequest::default() })
}

/// Without a daemon, an address without a verdict may be one that no policy selects. But if there
/// is no table at all, another program has removed it, and nothing is judged. Only a daemon knows
/// what the rules of policies should be; the rules that are the same for all pods are compared.
fn compare_verdicts(
    config: &Config,
    picture: &mut Picture<'_>,
    addresses: &[IpAddr],
) -> Comparison {
    let call = picture.call;
    let owner = owner(call, call.attachment());
    match Daemon::new(call, config.socket.clone()).judged(&owner)? {
        Some(Assessment::Sound) => return sound(),
        Some(Assessment::Differs(text)) => return differs(text),
        None => {}
    }
    let recorded: Option<AttachmentRecord> =
        attachment::recorded(picture.index, call.attachment(), NAME);
    if recorded.as_ref().is_some_and(|recorded| recorded.started.inside) {
        let netns = &picture.namespaces.get()?.netns;
        return match inside::difference(netns, call.ifname().as_str())? {
            Some(text) => differs(text),
            None => sound(),
        };
    }
    match table::without_verdict(&ends(recorded.as_ref(), addresses))? {
        None => differs("the packet filter has no verdicts of network policy".to_owned()),
        Some(_) if !table::is_complete()? => {
            differs("the packet filter has other rules of network policy than it should".to_owned())
        }
        Some(without) => {
            for address in without {
                call.warn(format_args!(
                    "{address} has no verdict, and no netwrightd says whether a policy selects it"
                ));
            }
            sound()
        }
    }
}

fn bridge(picture: &mut Picture<'_>, name: &str) -> Result<Option<Bridge>, Failure> {
    let host = &mut picture.namespaces.get()?.host;
    match host.link_index(name)? {
        Some(index) => Bridge::read(host, index),
        None => Ok(None),
    }
}
