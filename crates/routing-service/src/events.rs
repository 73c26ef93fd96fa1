//! Which events of the kernel ask for a look: those that say something else than is known.

use std::collections::BTreeMap;

use ipnet::IpNet;
use kernel::events::{Object, ObjectEvent};
use kernel::route::{Route, TABLE_LOCAL, TABLE_MAIN};
use routing::object::Key;
use routing::plan::Change;
use routing::settings::OwnNode;
use routing::{Routing, Settings};

use super::context::Context;
use super::dataplane::Dataplane;
use super::host::{self, Links};
use super::schedule::Due;

impl Dataplane {
    /// Takes the events so far.
    pub(super) fn hear(&mut self, context: &Context) -> Due {
        self.hear_but(context, |_| false)
    }

    /// Takes the events that follow at once when tunnels were made or changed, before anything is
    /// on those that are new. What the events say of these links is outdated; the links are read
    /// again. But one that was up at the look, and has been down since, has lost what leaves by it,
    /// and only the event of its being down reports that.
    pub(super) fn hear_of_tunnels(&mut self, context: &Context, run: &[Change]) -> Due {
        let is_of_run = |name: &str| {
            let mut keys = run.iter().filter_map(Change::key);
            keys.any(|key| matches!(key, Key::Tunnel { link } if **link == *name))
        };
        // As the look has read them; those that this run has made are down there.
        let tunnels = self.links.of_tunnels().filter(|link| is_of_run(&link.name));
        let were_up: BTreeMap<u32, bool> = tunnels.map(|link| (link.index, link.up())).collect();
        let is_past = |event: &ObjectEvent| match event {
            ObjectEvent::Changed(Object::Link(link)) => {
                were_up.get(&link.index).is_some_and(|was_up| link.up() || !was_up)
            }
            _ => false,
        };
        let mut due = self.hear_but(context, is_past);
        for index in were_up.keys() {
            let event = match self.netlink.link_by_index(*index) {
                Ok(Some(link)) => ObjectEvent::Changed(Object::Link(Box::new(link))),
                _ => ObjectEvent::Lost,
            };
            if concerns(&context.routing(), &context.settings, &self.links, &event) {
                due |= Due::LOOK;
            }
        }
        due
    }

    /// Takes the events so far, without those that are outdated.
    fn hear_but(&mut self, context: &Context, is_past: impl Fn(&ObjectEvent) -> bool) -> Due {
        let events = match self.listener.heard() {
            Ok(events) => events,
            Err(error) => {
                tracing::warn!(%error, "events may be missed");
                vec![ObjectEvent::Lost]
            }
        };
        let mut due = Due::default();
        for event in events.into_iter().filter(|event| !is_past(event)) {
            if event == ObjectEvent::FilterRemoved {
                self.filter.may_have_changed();
                due |= Due { filter: true, ..Due::default() };
            } else if concerns(&context.routing(), &context.settings, &self.links, &event) {
                tracing::debug!(?event, "heard");
                due |= Due { routes: !is_of_ours(&self.links, &event), ..Due::LOOK };
            }
        }
        due
    }
}

/// Says whether an event is of an object of ours, on which no way to a node depends.
fn is_of_ours(links: &Links, event: &ObjectEvent) -> bool {
    match event {
        ObjectEvent::Changed(object) | ObjectEvent::Removed(object) => links.ours(object).is_some(),
        _ => false,
    }
}

/// Says whether an event reports something that differs from what is known.
fn concerns(routing: &Routing, settings: &Settings, links: &Links, event: &ObjectEvent) -> bool {
    let (object, there) = match event {
        ObjectEvent::Changed(object) => (object, true),
        ObjectEvent::Removed(object) => (object, false),
        _ => return true,
    };
    if let Object::Link(link) = object
        && !settings.standby
        && links.lacks_mark(link)
    {
        return true;
    }
    if let Some((key, value)) = links.ours(object) {
        let known = routing.observed().objects().get(&key);
        return known != value.as_ref().filter(|_| there);
    }
    if let (Object::Link(link), false) = (object, there)
        && !links.has(link.index)
    {
        // A look has found it gone.
        return false;
    }
    let own = routing.cluster().own();
    let is_waiting = routing.waits_for().is_some();
    let carries = |index: u32| {
        let name = links.name_of(index);
        own.uplinks.iter().any(|(_, uplink)| uplink.as_ref().is_some_and(|of| of.name == name))
    };
    let is_of_own = |route: &Route| {
        let prefix = route.destination.trunc();
        // A block may have been taken a moment ago.
        let is_one = prefix.prefix_len() == prefix.max_prefix_len();
        own.node.all_prefixes().any(|own| own.contains(&prefix))
            || (is_one && settings.is_of_space(prefix))
    };
    // What a router advertisement makes in a prefix of pods is removed.
    let may_be_announced = |index: Option<u32>, prefix: IpNet| {
        there
            && index.is_some_and(|index| links.is_of_host(index))
            && settings.ranges().any(|range| range.contains(&prefix))
    };
    // The route says something of pods, or may be the way to a node.
    let may_matter = |route: &Route| {
        let prefix = route.destination.trunc();
        let ranges: Vec<IpNet> = settings.ranges().collect();
        host::matters(route, &ranges)
            || own.node.underlay.iter().any(|own| prefix.contains(&own))
            || routing.cluster().has_underlay_in(prefix)
    };
    // The last pod of an earlier prefix may be gone.
    let may_end = !there && routing.has_earlier();
    match object {
        // A look has read the link so already: the event only says that a tunnel was made on
        // it, for instance.
        Object::Link(link) if there && links.is_as(link) => false,
        Object::Link(link) => {
            may_end || is_waiting || carries(link.index) || own_name(own, &link.name)
        }
        // On the segment of another node, packets may come in by any link.
        Object::Address(address) => {
            is_waiting
                || carries(address.ifindex)
                || (host::is_announced(address)
                    && may_be_announced(Some(address.ifindex), address.address.trunc()))
                || own.node.underlay.iter().any(|own| address.address.contains(&own))
        }
        // Routes of pods come and go all the time, and so do a router's. The kernel's own
        // routes follow from addresses and links, which have events too.
        Object::Route(route) => {
            may_end
                || (route.table == TABLE_MAIN
                    && host::is_learnt(route, &[])
                    && may_be_announced(route.oif, route.destination.trunc()))
                || (route.table != TABLE_LOCAL
                    && !is_of_own(route)
                    && (is_waiting || may_matter(route)))
        }
        Object::Neighbour(_) | Object::VxlanFdb(_) | Object::Nexthop(_) => false,
        _ => true,
    }
}

/// Reports whether a link has the name of one of this node's tunnels or uplinks.
fn own_name(own: &OwnNode, name: &str) -> bool {
    let uplinks = own.uplinks.iter().filter_map(|(_, uplink)| uplink.as_ref());
    uplinks
        .map(|uplink| &uplink.name)
        .chain(own.tunnels.iter().map(|of| &of.name))
        .any(|of| **of == *name)
}
