//! Feeds readers arbitrary bytes: none may panic at anything that the kernel, or a program that
//! poses as it, sends.

use crate::nft::{ChainInfo, RuleInfo, SetInfo, TableInfo, decode_elements};
use crate::route::{
    Address, BridgeVlan, ClassInfo, Fdb, FilterInfo, Link, Neighbour, NexthopObject, QdiscInfo,
    Route, Rule, TickRate, VxlanFdb,
};
use crate::wire::{Message, messages};

/// Makes every reader read one message, as each type that any of them accepts.
pub fn read(body: &[u8]) {
    let netfilter = (10 << 8..(10 << 8) + 16).chain([4 << 8]);
    for kind in (16..=46).chain(104..=106).chain(netfilter) {
        let message = Message { kind, flags: 0, seq: 1, body };
        let _ = crate::events::of_route(&message);
        let _ = crate::events::of_object(&message);
        let _ = crate::events::of_filter(&message);
        let _ = crate::events::of_table(&message, "t");
        let _ = crate::events::of_link(&message);
        let _ = Link::decode(&message);
        let _ = Address::decode(&message);
        let _ = Route::decode(&message);
        let _ = Route::is_cached(&message);
        let _ = Rule::decode(&message);
        let _ = Neighbour::decode(&message);
        let _ = Fdb::decode(&message);
        let _ = VxlanFdb::decode(&message);
        let _ = NexthopObject::decode(&message);
        let _ = BridgeVlan::decode(&message);
        let _ = QdiscInfo::decode(&message, TickRate::default());
        let _ = ClassInfo::decode(&message);
        let _ = FilterInfo::decode(&message);
        let _ = crate::wireguard::decode(&message);
        let _ = crate::xfrm::decode(body);
        let _ = TableInfo::decode(&message);
        let _ = ChainInfo::decode(&message);
        let _ = SetInfo::decode(&message);
        let _ = RuleInfo::decode(&message);
        let _ = decode_elements(&message);
        let _ = crate::nflog::decode(&message).map(|(_, logged)| logged.packet());
    }
}

/// Reads a datagram of messages, and each message in it.
pub fn read_datagram(bytes: &[u8]) {
    for message in messages(bytes) {
        read(message.body);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::Writer;

    type Inner = Vec<(u16, Vec<(u16, Vec<u8>)>)>;

    /// Attributes nested three deep, with any contents.
    fn attributes() -> impl Strategy<Value = Vec<(u16, Inner)>> {
        let leaf =
            prop::collection::vec((0..70_u16, prop::collection::vec(any::<u8>(), 0..20)), 0..4);
        let inner = prop::collection::vec((0..45_u16, leaf), 0..4);
        prop::collection::vec((0..70_u16, inner), 0..6)
    }

    proptest! {
        #[test]
        fn any_bytes(body: Vec<u8>) {
            read(&body);
            read_datagram(&body);
        }

        #[test]
        fn any_attributes(family in 0..12_u8, header: [u8; 15], length in 3..=15_usize, outer in attributes()) {
            let mut body = vec![family];
            body.extend_from_slice(&header[..length]);
            let mut writer = Writer::new();
            writer.raw(&body);
            for (kind, inner) in outer {
                writer.nest(kind, |writer| {
                    for (kind, leaves) in inner {
                        writer.nest(kind, |writer| {
                            for (kind, value) in leaves {
                                writer.put(kind, &value);
                            }
                        });
                    }
                });
            }
            read(writer.bytes());
        }
    }
}
