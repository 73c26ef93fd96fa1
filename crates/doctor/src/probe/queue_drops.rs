//! What the node's queueing disciplines drop while probes are sent: a bucket that is too small, a filter
//! that polices. The discipline at which filters are counts what they drop.

use std::collections::BTreeMap;

use diagnose::model::{Namespace, QueueDrops};
use kernel::route::{QdiscInfo, RouteSocket};

/// A discipline: the index of its link, its parent, and its kind.
type Discipline = (u32, u32, String);

/// The counters of the node's disciplines at one moment.
#[derive(Debug, Default)]
pub struct DropCounters {
    drops: BTreeMap<Discipline, u32>,
}

impl DropCounters {
    /// Reads them; what cannot be read is not counted.
    pub fn read() -> Self {
        let found = RouteSocket::open().and_then(|mut socket| socket.qdiscs());
        DropCounters::of(&found.unwrap_or_default())
    }

    fn of(all: &[QdiscInfo]) -> Self {
        let entry = |one: &QdiscInfo| {
            let qdisc = &one.qdisc;
            let name = qdisc.kind.name().to_owned();
            ((qdisc.ifindex, qdisc.parent.0, name), one.stats.drops)
        };
        DropCounters { drops: cni::order::gather(all.iter().map(entry)) }
    }

    /// Notes at each link the discipline that has dropped most since then. One that came meanwhile
    /// says nothing.
    pub fn note(&self, now: &DropCounters, host: &mut Namespace) {
        for (discipline, drops) in &now.drops {
            let (index, _, kind) = discipline;
            let before = self.drops.get(discipline);
            let packets = before.map_or(0, |before| drops.saturating_sub(*before));
            let link = host.links.iter_mut().find(|link| link.index == *index);
            let Some(link) = link.filter(|_| packets != 0) else { continue };
            if link.dropped.as_ref().is_none_or(|known| known.packets < packets) {
                link.dropped = Some(QueueDrops { kind: kind.clone(), packets });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use diagnose::model::Link;

    #[test]
    fn what_was_dropped_since_then_is_noted() {
        let counters = |all: &[(u32, u32, &str, u32)]| DropCounters {
            drops: all
                .iter()
                .map(|(index, parent, kind, drops)| ((*index, *parent, (*kind).to_owned()), *drops))
                .collect(),
        };
        let before = counters(&[(2, 1, "tbf", 7), (2, 2, "pfifo", 0), (3, 1, "netem", 5)]);
        let now = counters(&[
            (2, 1, "tbf", 9),
            (2, 2, "pfifo", 4),
            (3, 1, "netem", 5),
            (4, 1, "tbf", 3),
            (9, 1, "tbf", 3),
        ]);
        let link = |index: u32| Link { index, ..Link::default() };
        let links = vec![link(2), link(3), link(4)];
        let mut host = Namespace { links, ..Namespace::default() };
        before.note(&now, &mut host);
        let dropped: Vec<Option<QueueDrops>> =
            host.links.into_iter().map(|link| link.dropped).collect();
        let noted = QueueDrops { kind: "pfifo".to_owned(), packets: 4 };
        assert_eq!(dropped, [Some(noted), None, None]);
    }
}
