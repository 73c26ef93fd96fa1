//! Ends connections that a change forbids, and all those of addresses whose containers go.
//!
//! The packet filter lets the packets of a connection pass that connection tracking knows. So a
//! thread lists the connections of the addresses that a change concerns, asks the engine, and makes
//! connection tracking forget those that are forbidden. Their next packet is a new connection's,
//! and meets the rules. It is judged by where it really goes, behind the translation of a service.
//!
//! Connections of networks that do not pass the node are tracked in their containers' own
//! namespaces, and are judged there.
//!
//! Connections that the host itself begins never meet the packet filter's rules, and stay; so do
//! those to it, unless a ClusterNetworkPolicy denies the node.
//!
//! A container that goes leaves its connections behind. The next one with its address would go on
//! with them, even while it is closed. So another thread makes connection tracking forget all of
//! them, and DEL waits for that: its address is released later.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use kernel::conntrack::{ConntrackSocket, Flow, FlowFilter};
use kernel::living::Census;
use kernel::netlink::NetlinkError;
use kernel::route::{IpFamily, RouteSocket};
use node_api::Refusal;
use node_api::policy::Answer;
use policy::{Protocol, Traffic};
use service_kit::health::Health;
use service_kit::stop::words;

use super::concern::Concern;
use super::counts::Counts;
use super::engine::Container;
use super::inside;
use super::server::Reply;
use super::shared::SharedEngine;

/// With more addresses of a family, all connections are listed at once.
const ONE_BY_ONE: usize = 4;

/// Pauses until connections that could not be judged are judged again: at first, and at most. Each
/// attempt may list all connections.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// The loop's end of the thread.
#[derive(Debug)]
pub(super) struct Cuts {
    to: Sender<Concern>,
    /// What is to be judged once the packet filter is as it is to be.
    owed: Concern,
}

impl Cuts {
    /// Starts the thread, which works in the namespace of its caller.
    pub(super) fn start(
        shared: SharedEngine,
        counts: Counts,
        health: Health,
    ) -> std::io::Result<Self> {
        let (to, from) = channel();
        let cutter = Cutter { shared, counts, health, conntrack: None };
        std::thread::Builder::new().name("cuts".to_owned()).spawn(move || cutter.run(&from))?;
        Ok(Cuts { to, owed: Concern::default() })
    }

    /// Judges the connections of these addresses, once the packet filter is as it is to be
    /// (`is_made`). Before that, a connection that is cut would go on by the old rules.
    pub(super) fn judge(&mut self, concern: Concern, is_made: bool) {
        self.owed.add(concern);
        if is_made && !self.owed.is_empty() {
            let _ = self.to.send(std::mem::take(&mut self.owed));
        }
    }
}

/// Addresses whose containers go, and who waits until their connections have ended.
type Departure = (BTreeSet<IpAddr>, Reply);

/// The loop's end of the thread that ends the connections of such addresses. It is another thread:
/// judging the connections that a change concerns may take longer than a plugin waits.
#[derive(Debug)]
pub(super) struct Departures {
    to: Sender<Departure>,
}

impl Departures {
    /// Starts the thread, which works in the namespace of its caller.
    pub(super) fn start() -> std::io::Result<Self> {
        let (to, from) = channel();
        let thread = std::thread::Builder::new().name("departures".to_owned());
        thread.spawn(move || see_off(&from))?;
        Ok(Departures { to })
    }

    /// Ends all connections of these addresses, and then answers.
    pub(super) fn end(&self, addresses: BTreeSet<IpAddr>, reply: Reply) {
        if addresses.is_empty() {
            return reply.send(Answer::Ok);
        }
        let _ = self.to.send((addresses, reply));
    }
}

fn see_off(from: &Receiver<Departure>) {
    // It stays open, as that of [`Cutter`] does.
    let mut conntrack = None;
    while let Ok((mut addresses, reply)) = from.recv() {
        let mut waiting = vec![reply];
        // All that came meanwhile goes together.
        for (more, reply) in from.try_iter() {
            addresses.extend(more);
            waiting.push(reply);
        }
        let ended = end_all(&mut conntrack, addresses);
        if let Err(error) = &ended {
            tracing::warn!(%error, "connections of containers that go stay");
        }
        for reply in waiting {
            reply.send(match &ended {
                Ok(()) => Answer::Ok,
                // The plugin tries it too.
                Err(error) => {
                    let why = words(error);
                    Refusal::for_now(format!("connections of its addresses stay: {why}")).into()
                }
            });
        }
    }
}

/// Makes connection tracking forget all connections of these addresses.
fn end_all(
    conntrack: &mut Option<ConntrackSocket>,
    addresses: BTreeSet<IpAddr>,
) -> Result<(), NetlinkError> {
    let mut socket = match conntrack.take() {
        Some(socket) => socket,
        None => ConntrackSocket::open()?,
    };
    let concern = Concern { local: addresses, others: BTreeSet::new() };
    let goes = |flow: &Flow| {
        let ends = [flow.original.source, flow.reply.source];
        ends.into_iter().flatten().any(|end| concern.local.contains(&end))
    };
    for filter in filters(&concern) {
        socket.delete_flows_if(&filter, goes)?;
    }
    *conntrack = Some(socket);
    Ok(())
}

struct Cutter {
    shared: SharedEngine,
    counts: Counts,
    health: Health,
    /// It stays open. Closing it just after the packet filter has lost something takes the kernel a
    /// grace period, and until then the loop's next transaction waits (`firewall::close`).
    conntrack: Option<ConntrackSocket>,
}

impl Cutter {
    fn run(mut self, from: &Receiver<Concern>) {
        let mut failed = None;
        while let Some((mut concern, pause)) = next(from, failed) {
            // All that came meanwhile is judged together.
            from.try_iter().for_each(|more| concern.add(more));
            let cut = self.cut(&concern);
            failed = cut.is_err().then_some((concern, pause));
            match &cut {
                Ok(0) => {}
                Ok(count) => tracing::info!(count, "ended connections that policies forbid now"),
                Err(error) => tracing::error!(%error, "forbidden connections continue"),
            }
            self.counts.cut(cut.as_ref().copied().unwrap_or_default());
            self.health.needs("connection tracking", cut.map(drop).map_err(|error| words(&error)));
        }
    }

    fn cut(&mut self, concern: &Concern) -> Result<usize, NetlinkError> {
        let own = own_addresses()?;
        self.shared.engine().take_host(own.clone());
        let mut conntrack = match self.conntrack.take() {
            Some(conntrack) => conntrack,
            None => ConntrackSocket::open()?,
        };
        let goes = |flow: &Flow| {
            let Some((ends, traffic)) = ends(flow) else { return false };
            let [source, destination] = ends;
            if own.contains(&source) || !concern.has(ends) {
                return false;
            }
            let engine = self.shared.engine();
            match own.contains(&destination) {
                true => engine.forbids_at_node(source, destination, traffic),
                false => engine.forbids(source, destination, traffic),
            }
        };
        let mut count = 0;
        for filter in filters(concern) {
            count += conntrack.delete_flows_if(&filter, goes)?;
        }
        self.conntrack = Some(conntrack);
        let (census, mut failed) = (Census::new(), None);
        let containers = self.shared.engine().containers();
        for container in containers {
            match self.cut_inside(&container, &census, concern) {
                Ok(more) => count += more,
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(count), Err)
    }

    /// Does the same in a container's namespace.
    fn cut_inside(
        &self,
        container: &Container,
        census: &Census,
        concern: &Concern,
    ) -> Result<usize, NetlinkError> {
        let Some(netns) = inside::find(&container.noted, census) else { return Ok(0) };
        let stand_ins = inside::stand_ins(&netns, container)?;
        let mut concern = concern.clone();
        let of = stand_ins.iter().filter(|(_, of)| concern.local.contains(*of));
        let of: Vec<IpAddr> = of.map(|(address, _)| *address).collect();
        concern.local.extend(of);
        let mut conntrack = ConntrackSocket::open_in(&netns)?;
        let goes = |flow: &Flow| {
            let Some((ends, traffic)) = ends(flow) else { return false };
            let [source, destination] = ends.map(|end| stand_ins.get(&end).copied().unwrap_or(end));
            concern.has(ends)
                && self.shared.engine().forbids_inside(container, (source, destination), traffic)
        };
        let mut count = 0;
        for filter in filters(&concern) {
            count += conntrack.delete_flows_if(&filter, goes)?;
        }
        Ok(count)
    }
}

/// Waits for what is to be judged. Returns it with the pause until it is judged again if that fails.
/// What has failed is judged again after its pause, or together with what comes before.
fn next(
    from: &Receiver<Concern>,
    failed: Option<(Concern, Duration)>,
) -> Option<(Concern, Duration)> {
    let Some((mut concern, pause)) = failed else {
        return from.recv().ok().map(|concern| (concern, AGAIN.0));
    };
    match from.recv_timeout(pause) {
        Ok(more) => concern.add(more),
        Err(RecvTimeoutError::Timeout) => {}
        Err(RecvTimeoutError::Disconnected) => return None,
    }
    Some((concern, (pause * 2).min(AGAIN.1)))
}

/// Returns filters that list the connections of these addresses. For few addresses the kernel sends
/// only their connections.
fn filters(concern: &Concern) -> Vec<FlowFilter> {
    let mut filters = Vec::new();
    for (family, is_v4) in [(IpFamily::V4, true), (IpFamily::V6, false)] {
        let all = concern.local.iter().chain(&concern.others);
        let addresses: Vec<IpAddr> = all.filter(|of| of.is_ipv4() == is_v4).copied().collect();
        match addresses.len() {
            0 => {}
            // The kernel compares no IPv6 addresses, so each list would be a whole one.
            1..=ONE_BY_ONE if is_v4 => filters.extend(addresses.into_iter().flat_map(|address| {
                let all = FlowFilter::all(family);
                [
                    FlowFilter { source: Some(address), ..all },
                    FlowFilter { reply_source: Some(address), ..all },
                ]
            })),
            _ => filters.push(FlowFilter::all(family)),
        }
    }
    filters
}

/// Returns which end began a connection and where it really goes, and what it is.
fn ends(flow: &Flow) -> Option<([IpAddr; 2], Traffic)> {
    let protocol = Protocol::of(flow.original.protocol?);
    let traffic = match protocol {
        Protocol::Tcp | Protocol::Udp | Protocol::Sctp => {
            Traffic::to(protocol, flow.reply.source_port?)
        }
        _ => Traffic::of(protocol),
    };
    Some(([flow.original.source?, flow.reply.source?], traffic))
}

/// Returns the addresses of this host.
pub(super) fn own_addresses() -> Result<BTreeSet<IpAddr>, NetlinkError> {
    let addresses = RouteSocket::open()?.addresses(None)?;
    Ok(addresses.iter().map(|address| address.address.addr()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn concern(addresses: &[&str]) -> Concern {
        let local = addresses.iter().map(|address| address.parse().unwrap()).collect();
        Concern { local, others: BTreeSet::new() }
    }

    #[test]
    fn connections_are_judged_once_the_packet_filter_is_as_it_is_to_be() {
        let (to, from) = channel();
        let mut cuts = Cuts { to, owed: Concern::default() };
        cuts.judge(concern(&["10.0.0.1"]), false);
        assert!(from.try_recv().is_err());
        cuts.judge(concern(&["10.0.0.2"]), true);
        assert_eq!(from.try_recv(), Ok(concern(&["10.0.0.1", "10.0.0.2"])));
        cuts.judge(Concern::default(), true);
        assert!(from.try_recv().is_err());
    }

    #[test]
    fn what_failed_is_judged_again() {
        let (to, from) = channel();
        let failed = || Some((concern(&["10.0.0.1"]), Duration::ZERO));
        assert_eq!(next(&from, failed()), failed());
        to.send(concern(&["10.0.0.2"])).unwrap();
        let both = concern(&["10.0.0.1", "10.0.0.2"]);
        assert_eq!(next(&from, failed()), Some((both, Duration::ZERO)));
        to.send(concern(&["10.0.0.2"])).unwrap();
        assert_eq!(next(&from, None), Some((concern(&["10.0.0.2"]), AGAIN.0)));
        drop(to);
        assert_eq!(next(&from, failed()), None);
    }

    #[test]
    fn few_addresses_are_asked_for_one_by_one() {
        assert!(filters(&concern(&[])).is_empty());
        let one = filters(&concern(&["10.0.0.1"]));
        assert_eq!(one.len(), 2);
        assert!(one.iter().all(|filter| *filter != FlowFilter::all(IpFamily::V4)));
        assert_eq!(filters(&concern(&["fd00::1"])), [FlowFilter::all(IpFamily::V6)]);
        let many = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "fd00::1"];
        let all = [FlowFilter::all(IpFamily::V4), FlowFilter::all(IpFamily::V6)];
        assert_eq!(filters(&concern(&many)), all);
    }
}
