//! The settings of a device that a container may change, and that a move leaves as they are.

use kernel::route::{Link, LinkSet};
use serde::{Deserialize, Serialize};

/// The settings of a device besides its names, hardware address, MTU and state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Settings {
    no_arp: bool,
    promiscuous: bool,
    all_multicast: bool,
    multicast: bool,
    group: u32,
    tx_queue_len: u32,
}

impl Settings {
    /// Reads them from a link.
    pub(super) fn of(link: &Link) -> Self {
        Settings {
            no_arp: link.no_arp(),
            promiscuous: link.promiscuous(),
            all_multicast: link.all_multicast(),
            multicast: link.multicast(),
            group: link.group,
            tx_queue_len: link.tx_queue_len,
        }
    }

    /// Returns the changes that give a link these settings: the flags, the group and the queue's
    /// length, each if it differs.
    pub(super) fn changes(&self, link: &Link) -> [Option<LinkSet>; 3] {
        let now = Settings::of(link);
        let differs = |was: bool, is: bool| (was != is).then_some(was);
        let flags = LinkSet {
            no_arp: differs(self.no_arp, now.no_arp),
            promiscuous: differs(self.promiscuous, now.promiscuous),
            all_multicast: differs(self.all_multicast, now.all_multicast),
            multicast: differs(self.multicast, now.multicast),
            ..LinkSet::default()
        };
        let group = LinkSet { group: Some(self.group), ..LinkSet::default() };
        let queue = LinkSet { tx_queue_len: Some(self.tx_queue_len), ..LinkSet::default() };
        let same_flags =
            Settings { group: self.group, tx_queue_len: self.tx_queue_len, ..now.clone() };
        [
            (same_flags != *self).then_some(flags),
            (self.group != now.group).then_some(group),
            (self.tx_queue_len != now.tx_queue_len).then_some(queue),
        ]
    }
}
