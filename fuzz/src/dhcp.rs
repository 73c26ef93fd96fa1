//! Packets of DHCP servers and of any other host on the link.

use std::time::Duration;

use netwright_dhcp::frame::{ArpPacket, Checksums, UdpFrame, UdpPacket};
use netwright_dhcp::{MacAddr, Now, ReceiveOutcome, Timestamp, UnixTime, v4, v6};

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

/// The client's times in the seeds: an hour's lease is due for renewal by now.
const LATER: Duration = Duration::from_secs(3500);

fn after(since: Duration) -> Now {
    let at = Timestamp::from_millis(1_000_000) + since;
    Now { at, wall: UnixTime::from_millis(at.as_millis()) }
}

/// Frames from a raw socket.
pub fn frame(data: &[u8]) {
    for checksums in [Checksums::Verify, Checksums::Trust] {
        let Ok(packet) = UdpPacket::parse_frame(data, checksums) else { continue };
        assert!(
            data.windows(packet.payload.len().max(1)).any(|part| part == packet.payload)
                || packet.payload.is_empty()
        );
        let again = UdpFrame {
            source_mac: packet.source_mac.expect("the frame had a header"),
            target_mac: MAC,
            source: packet.source,
            target: packet.target,
            payload: packet.payload,
        };
        let again = again.to_frame().expect("it fitted a packet before");
        assert_eq!(UdpPacket::parse_frame(&again, Checksums::Verify), Ok(packet));
    }
    if let Ok(packet) = ArpPacket::parse_frame(data) {
        assert_eq!(ArpPacket::parse_frame(&packet.to_frame()), Ok(packet));
    }
}

/// Replies to DISCOVER, then to REQUEST, then to a renewal: the input is used for all of them, with
/// the right transaction identifier.
pub fn dhcp_v4(data: &[u8]) {
    let mut config = v4::Config::new(MAC);
    config.probe = None;
    let mut client = v4::Client::new(config, v4::Start::Fresh, after(Duration::ZERO), 1);
    for now in [Duration::from_secs(1), Duration::from_secs(2), LATER].map(after) {
        let mut payload = data.to_vec();
        let sent = |action: v4::Action| match action {
            v4::Action::Send(transmit) => Some(transmit.payload),
            _ => None,
        };
        client.on_timer(now);
        let actions = std::iter::from_fn(|| client.poll_action()).collect::<Vec<_>>();
        if let Some(message) = actions.into_iter().filter_map(sent).next_back()
            && let Some(xid) = payload.get_mut(4..8)
        {
            xid.copy_from_slice(&message[4..8]);
        }
        // In SELECTING the client waits for a DHCPOFFER, in the other states for a DHCPACK.
        let kind = if client.state() == v4::State::Selecting { 2 } else { 5 };
        if let Some(octet) = payload.get_mut(242).filter(|_| data.get(240) == Some(&53)) {
            *octet = kind;
        }
        if client.on_packet(now, &payload, None) == ReceiveOutcome::Taken
            && let Some(lease) = client.lease()
        {
            assert!(!lease.address.addr().is_unspecified() && !lease.address.addr().is_multicast());
            assert!(
                lease.t1_s <= lease.t2_s
                    && lease.lease_s.is_none_or(|lease_s| lease.t2_s <= lease_s)
            );
            let names = lease.search.iter().chain(&lease.domain).chain(&lease.host_name);
            for name in names {
                assert!(name.bytes().all(|octet| octet.is_ascii_graphic()), "{name:?}");
            }
            let release = v4::release_message(&client.saved().expect("there is a lease"), 1);
            assert_eq!(release.payload[12..16], lease.address.addr().octets());
        }
        assert_ne!(client.state(), v4::State::Ended);
    }
}

/// The same for DHCPv6: replies to SOLICIT, REQUEST and RENEW.
pub fn dhcp_v6(data: &[u8]) {
    let mut config = v6::Config::new(v6::Duid::from_mac(MAC), 1);
    config.timing.first_delay = Duration::ZERO;
    let mut client = v6::Client::new(config, v6::Start::Fresh, after(Duration::ZERO), 1);
    for now in [Duration::from_secs(1), Duration::from_secs(2), LATER].map(after) {
        let mut payload = data.to_vec();
        client.on_timer(now);
        let mut xid = None;
        while let Some(action) = client.poll_action() {
            if let v6::Action::Send(transmit) = action {
                xid = transmit.payload.get(1..4).map(<[u8]>::to_vec);
            }
        }
        if let (Some(xid), Some(place)) = (xid, payload.get_mut(1..4)) {
            place.copy_from_slice(&xid);
        }
        // After SOLICIT the client waits for an ADVERTISE, after the others for a REPLY.
        if let Some(kind) = payload.first_mut().filter(|kind| **kind == 2) {
            *kind = if client.state() == v6::State::Soliciting { 2 } else { 7 };
        }
        if client.on_packet(now, &payload) == ReceiveOutcome::Taken
            && let Some(lease) = client.lease()
        {
            assert!((1..=16).contains(&lease.addresses.len()));
            for address in &lease.addresses {
                assert!(!address.address.is_multicast() && !address.address.is_unspecified());
            }
            for name in &lease.search {
                assert!(name.bytes().all(|octet| octet.is_ascii_graphic()), "{name:?}");
            }
            assert!(
                !v6::release_message(&client.saved().expect("there is a lease"), 1)
                    .payload
                    .is_empty()
            );
        }
    }
}
