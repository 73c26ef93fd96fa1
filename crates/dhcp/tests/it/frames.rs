//! Frames: octet for octet, damaged, and from anywhere.

use netwright_dhcp::MacAddr;
use netwright_dhcp::frame::{ArpOperation, ArpPacket, Checksums, FrameError, UdpFrame, UdpPacket};
use proptest::prelude::*;

use crate::support::*;

fn hex(text: &str) -> Vec<u8> {
    let digits: String = text.split_whitespace().collect();
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap())
        .collect()
}

fn discover(payload: &[u8]) -> Vec<u8> {
    let frame = UdpFrame {
        source_mac: MAC,
        target_mac: MacAddr::BROADCAST,
        source: "0.0.0.0:68".parse().unwrap(),
        target: "255.255.255.255:67".parse().unwrap(),
        payload,
    };
    frame.to_frame().unwrap()
}

#[test]
fn a_datagram_octet_for_octet() {
    // The checksums come from another implementation of RFC 1071.
    assert_eq!(
        discover(b"abc"),
        hex("ffffffffffff 020000000001 0800
             4500001f 00004000 4011 3acf 00000000 ffffffff
             00440043 000b 3aef 616263")
    );
}

#[test]
fn a_checksum_of_zero_is_sent_as_ones() {
    let first = discover(&[0, 0]);
    let checksum = [first[40], first[41]];
    let frame = discover(&checksum);
    assert_eq!(frame[40..42], [0xff, 0xff]);
    assert!(UdpPacket::parse_frame(&frame, Checksums::Verify).is_ok());
}

#[test]
fn what_was_written_is_read() {
    let frame = discover(b"abc");
    let packet = UdpPacket::parse_frame(&frame, Checksums::Verify).unwrap();
    assert_eq!(packet.source_mac, Some(MAC));
    assert_eq!(packet.source.to_string(), "0.0.0.0:68");
    assert_eq!(packet.target.to_string(), "255.255.255.255:67");
    assert_eq!(packet.payload, b"abc");
    let bare = UdpPacket::parse(&frame[14..], Checksums::Verify).unwrap();
    assert_eq!((bare.source_mac, bare.payload), (None, packet.payload));
    // Ethernet's padding is not payload.
    let padded = [&frame[..], &[0; 20]].concat();
    assert_eq!(UdpPacket::parse_frame(&padded, Checksums::Verify), Ok(packet));
}

#[test]
fn options_in_the_ip_header_are_skipped() {
    let frame = discover(b"abc");
    let mut packet = frame[14..].to_vec();
    packet[0] = 0x46;
    packet[3] += 4;
    packet.splice(20..20, [1, 1, 1, 1]);
    assert_eq!(UdpPacket::parse(&packet, Checksums::Trust).unwrap().payload, b"abc");
    assert_eq!(UdpPacket::parse(&packet, Checksums::Verify), Err(FrameError::Checksum));
}

#[test]
fn damage_is_seen_and_missing_or_partial_checksums_are_borne() {
    let good = discover(b"abc");
    for at in 14..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        let read = UdpPacket::parse_frame(&bad, Checksums::Verify);
        assert!(read.is_err(), "{at}: {read:?}");
    }
    let mut absent = good.clone();
    absent[40..42].copy_from_slice(&[0, 0]);
    assert!(UdpPacket::parse_frame(&absent, Checksums::Verify).is_ok());
    // linux net/ipv4/udp.c udp4_hwcsum: the pseudo-header's sum, not complemented.
    let mut partial = good.clone();
    // 255.255 twice, protocol 17, length 11.
    partial[40..42].copy_from_slice(&[0x00, 0x1c]);
    assert!(UdpPacket::parse_frame(&partial, Checksums::Verify).is_ok());
    partial[41] += 1;
    assert_eq!(UdpPacket::parse_frame(&partial, Checksums::Verify), Err(FrameError::Checksum));
    assert!(UdpPacket::parse_frame(&partial, Checksums::Trust).is_ok());
}

#[test]
fn other_protocols_and_fragments_are_told_apart() {
    let changed = |at: usize, value: u8| {
        let mut frame = discover(b"abc");
        frame[at] = value;
        UdpPacket::parse_frame(&frame, Checksums::Trust).unwrap_err()
    };
    assert_eq!(changed(13, 6), FrameError::Other);
    assert_eq!(changed(12, 0x81), FrameError::Other);
    assert_eq!(changed(14, 0x65), FrameError::Other);
    assert_eq!(changed(23, 6), FrameError::Other);
    assert_eq!(changed(14, 0x44), FrameError::Short);
    assert_eq!(changed(20, 0x20), FrameError::Fragment);
    assert_eq!(changed(21, 1), FrameError::Fragment);
    assert_eq!(changed(17, 200), FrameError::Short);
    assert_eq!(changed(39, 7), FrameError::Short);
    assert_eq!(changed(39, 12), FrameError::Short);
    let frame = discover(b"abc");
    for length in 0..frame.len() {
        assert_eq!(
            UdpPacket::parse_frame(&frame[..length], Checksums::Verify),
            Err(FrameError::Short)
        );
    }
}

#[test]
fn a_datagram_longer_than_a_packet_is_refused() {
    let payload = vec![0; 65_508];
    let frame = UdpFrame {
        source_mac: MAC,
        target_mac: OTHER_MAC,
        source: "192.0.2.1:68".parse().unwrap(),
        target: "192.0.2.2:67".parse().unwrap(),
        payload: &payload,
    };
    assert_eq!(frame.to_frame(), Err(FrameError::Long));
    let largest = UdpFrame { payload: &payload[1..], ..frame }.to_frame().unwrap();
    assert!(UdpPacket::parse_frame(&largest, Checksums::Verify).is_ok());
}

#[test]
fn arp_octet_for_octet() {
    let probe = ArpPacket::probe(MAC, ADDRESS);
    let bytes = hex("ffffffffffff 020000000001 0806 0001 0800 06 04 0001
                     020000000001 00000000 000000000000 c0000232");
    assert_eq!(probe.to_frame(), bytes);
    assert_eq!(ArpPacket::parse_frame(&bytes), Ok(probe));
    let announcement = ArpPacket::announcement(MAC, ADDRESS);
    assert_eq!((announcement.sender, announcement.target), (ADDRESS, ADDRESS));
    let reply = ArpPacket {
        operation: ArpOperation::Reply,
        sender_mac: OTHER_MAC,
        sender: ADDRESS,
        target_mac: MAC,
        target: SERVER,
    };
    assert_eq!(reply.to_frame()[..6], MAC.0);
    assert_eq!(ArpPacket::parse(&reply.to_frame()[14..]), Ok(reply));
    for at in [13, 15, 17, 18, 19, 21] {
        let mut bad = bytes.clone();
        bad[at] = 9;
        assert_eq!(ArpPacket::parse_frame(&bad), Err(FrameError::Other), "{at}");
    }
    for length in 0..bytes.len() {
        assert_eq!(ArpPacket::parse_frame(&bytes[..length]), Err(FrameError::Short));
    }
}

proptest! {
    #[test]
    fn no_bytes_make_them_panic(frame in prop::collection::vec(any::<u8>(), 0..200)) {
        for checksums in [Checksums::Verify, Checksums::Trust] {
            let _ = UdpPacket::parse_frame(&frame, checksums);
            if let Ok(packet) = UdpPacket::parse(&frame, checksums) {
                prop_assert!(packet.payload.len() <= frame.len());
            }
        }
        let _ = ArpPacket::parse_frame(&frame);
        if let Ok(packet) = ArpPacket::parse(&frame) {
            prop_assert_eq!(ArpPacket::parse_frame(&packet.to_frame()), Ok(packet));
        }
    }

    #[test]
    fn any_payload_comes_through(payload in prop::collection::vec(any::<u8>(), 0..1500)) {
        let frame = discover(&payload);
        prop_assert_eq!(UdpPacket::parse_frame(&frame, Checksums::Verify).unwrap().payload, payload);
    }
}
