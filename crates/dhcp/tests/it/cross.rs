//! The formats compared with second implementations: `dhcproto` for messages, `smoltcp` for frames.

use std::net::Ipv4Addr;

use dhcproto::{Decodable as _, Decoder, Encodable as _, v4 as p4, v6 as p6};
use netwright_dhcp::frame::{ArpPacket, Checksums, UdpFrame, UdpPacket};
use netwright_dhcp::{ReceiveOutcome, v4, v6};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire;

use crate::support::{ADDRESS, Bench, MAC, OTHER_MAC, SERVER, plain, seconds};
use crate::support6;

fn read(payload: &[u8]) -> p4::Message {
    p4::Message::decode(&mut Decoder::new(payload)).unwrap()
}

#[test]
fn dhcproto_reads_our_v4_messages() {
    let mut config = plain();
    config.client_id = Some(v4::key_client_id("c1/net/eth0"));
    config.send = vec![v4::RawOption::new(12, *b"web"), v4::RawOption::new(77, [b'u'; 300])];
    config.broadcast = true;
    let mut bench = Bench::new(config, v4::Start::Fresh);
    let discover = read(&bench.last());
    assert_eq!(discover.opcode(), p4::Opcode::BootRequest);
    assert_eq!((discover.chaddr(), discover.flags().broadcast()), (&MAC.0[..], true));
    let option = |message: &p4::Message, code| message.opts().get(code).cloned();
    use p4::{DhcpOption as O, OptionCode as C};
    assert_eq!(discover.opts().msg_type(), Some(p4::MessageType::Discover));
    let id = v4::key_client_id("c1/net/eth0");
    assert_eq!(option(&discover, C::ClientIdentifier), Some(O::ClientIdentifier(id)));
    assert_eq!(option(&discover, C::MaxMessageSize), Some(O::MaxMessageSize(1500)));
    assert_eq!(option(&discover, C::Hostname), Some(O::Hostname("web".into())));
    let list = v4::DEFAULT_REQUEST.iter().map(|code| C::from(*code)).collect();
    assert_eq!(option(&discover, C::ParameterRequestList), Some(O::ParameterRequestList(list)));
    assert_eq!(option(&discover, C::UserClass), Some(O::UserClass(vec![b'u'; 300])));

    bench.packet(&theirs(&bench.last(), p4::MessageType::Offer));
    let request = read(&bench.last());
    assert_eq!(request.opts().msg_type(), Some(p4::MessageType::Request));
    let requested = option(&request, C::RequestedIpAddress);
    assert_eq!(requested, Some(O::RequestedIpAddress(ADDRESS)));
    assert_eq!(option(&request, C::ServerIdentifier), Some(O::ServerIdentifier(SERVER)));
    bench.packet(&theirs(&bench.last(), p4::MessageType::Ack));
    bench.with(v4::Client::release);
    let release = read(&bench.last());
    assert_eq!((release.ciaddr(), release.yiaddr()), (ADDRESS, Ipv4Addr::UNSPECIFIED));
    assert_eq!(release.opts().msg_type(), Some(p4::MessageType::Release));
}

/// A reply that dhcproto wrote.
fn theirs(to: &[u8], kind: p4::MessageType) -> Vec<u8> {
    use p4::DhcpOption as O;
    let asked = read(to);
    let mut reply = p4::Message::default();
    reply.set_opcode(p4::Opcode::BootReply).set_xid(asked.xid()).set_chaddr(asked.chaddr());
    reply.set_yiaddr(ADDRESS);
    let ip = |text: &str| text.parse::<Ipv4Addr>().unwrap();
    let name = |text: &str| text.parse().unwrap();
    for option in [
        O::MessageType(kind),
        O::ServerIdentifier(SERVER),
        O::AddressLeaseTime(7200),
        O::Renewal(1000),
        O::Rebinding(2000),
        O::SubnetMask(ip("255.255.255.0")),
        O::Router(vec![SERVER]),
        O::DomainNameServer(vec![ip("192.0.2.5"), ip("192.0.2.6")]),
        O::DomainName("example.org".into()),
        O::DomainSearch(vec![name("eng.example.org."), name("ops.example.org.")]),
        O::InterfaceMtu(1400),
        O::Hostname("web".into()),
        O::ClasslessStaticRoute(vec![
            ("198.51.100.0/25".parse().unwrap(), ip("192.0.2.3")),
            ("0.0.0.0/0".parse().unwrap(), ip("192.0.2.1")),
        ]),
    ] {
        reply.opts_mut().insert(option);
    }
    reply.to_vec().unwrap()
}

#[test]
fn we_read_dhcprotos_v4_replies() {
    let mut bench = Bench::new(plain(), v4::Start::Fresh);
    bench.packet(&theirs(&bench.last(), p4::MessageType::Offer));
    let received = bench.packet(&theirs(&bench.last(), p4::MessageType::Ack));
    assert_eq!(received, ReceiveOutcome::Taken);
    let lease = bench.lease();
    assert_eq!(lease.address.to_string(), "192.0.2.50/24");
    assert_eq!((lease.lease_s, lease.t1_s, lease.t2_s), (Some(7200), 1000, 2000));
    assert_eq!((lease.gateway, lease.mtu), (Some(SERVER), Some(1400)));
    assert_eq!(lease.dns.len(), 2);
    assert_eq!(lease.domain.as_deref(), Some("example.org"));
    assert_eq!(lease.search, ["eng.example.org", "ops.example.org"]);
    assert_eq!(lease.host_name.as_deref(), Some("web"));
    let routes: Vec<_> = lease.routes.iter().map(|route| route.destination.to_string()).collect();
    assert_eq!(routes, ["198.51.100.0/25", "0.0.0.0/0"]);
}

#[test]
fn dhcproto_and_we_speak_v6() {
    use p6::{DhcpOption as O, OptionCode as C};
    let read = |payload: &[u8]| p6::Message::decode(&mut Decoder::new(payload)).unwrap();
    let mut bench = support6::Bench::new(support6::plain(), v6::Start::Fresh);
    let solicit = read(&bench.last());
    assert_eq!(solicit.msg_type(), p6::MessageType::Solicit);
    let Some(O::ClientId(id)) = solicit.opts().get(C::ClientId) else { panic!("no client") };
    assert!(solicit.opts().get(C::RapidCommit).is_some());
    assert_eq!(solicit.opts().get(C::ElapsedTime), Some(&O::ElapsedTime(0)));
    let Some(O::ORO(list)) = solicit.opts().get(C::ORO) else { panic!("no request list") };
    assert_eq!(list.opts, [C::DomainNameServers, C::DomainSearchList, C::SolMaxRt]);

    let mut inner = p6::DhcpOptions::new();
    inner.insert(O::IAAddr(p6::IAAddr {
        addr: support6::ip("2001:db8::50"),
        preferred_life: 3600,
        valid_life: 7200,
        opts: p6::DhcpOptions::new(),
    }));
    let mut reply = p6::Message::new_with_id(p6::MessageType::Reply, solicit.xid());
    for option in [
        O::ClientId(id.clone()),
        O::ServerId(support6::SERVER.to_vec()),
        O::RapidCommit,
        O::IANA(p6::IANA { id: support6::IAID, t1: 1000, t2: 2000, opts: inner }),
        O::DomainNameServers(vec![support6::ip("2001:db8::5")]),
        O::DomainSearchList(vec!["example.org.".parse().unwrap()]),
    ] {
        reply.opts_mut().insert(option);
    }
    assert_eq!(bench.packet(&reply.to_vec().unwrap()), ReceiveOutcome::Taken);
    let lease = bench.lease();
    assert_eq!((lease.t1_s, lease.t2_s), (Some(1000), Some(2000)));
    assert_eq!(lease.addresses[0].valid_s, Some(7200));
    assert_eq!(lease.dns, [support6::ip("2001:db8::5")]);
    assert_eq!(lease.search, ["example.org"]);

    bench.run(seconds(1000));
    let renew = read(&bench.last());
    assert_eq!(renew.msg_type(), p6::MessageType::Renew);
    let Some(O::IANA(association)) = renew.opts().get(C::IANA) else { panic!("no association") };
    assert_eq!((association.id, association.t1, association.t2), (support6::IAID, 0, 0));
    let Some(O::IAAddr(address)) = association.opts.get(C::IAAddr) else { panic!("no address") };
    assert_eq!(address.addr, support6::ip("2001:db8::50"));
}

#[test]
fn smoltcp_reads_our_datagrams_and_we_its() {
    let frame = UdpFrame {
        source_mac: MAC,
        target_mac: OTHER_MAC,
        source: "192.0.2.50:68".parse().unwrap(),
        target: "192.0.2.1:67".parse().unwrap(),
        payload: b"some payload",
    };
    let ours = frame.to_frame().unwrap();
    let ethernet = wire::EthernetFrame::new_checked(&ours).unwrap();
    assert_eq!(ethernet.src_addr().0, MAC.0);
    assert_eq!(
        (ethernet.dst_addr().0, ethernet.ethertype()),
        (OTHER_MAC.0, wire::EthernetProtocol::Ipv4)
    );
    let ip = wire::Ipv4Packet::new_checked(ethernet.payload()).unwrap();
    let all = ChecksumCapabilities::default();
    let ip_repr = wire::Ipv4Repr::parse(&ip, &all).unwrap();
    let udp = wire::UdpPacket::new_checked(ip.payload()).unwrap();
    let (source, target) = (ip_repr.src_addr.into(), ip_repr.dst_addr.into());
    let udp_repr = wire::UdpRepr::parse(&udp, &source, &target, &all).unwrap();
    assert_eq!((udp_repr.src_port, udp_repr.dst_port), (68, 67));
    assert_eq!(udp.payload(), b"some payload");

    let mut theirs = vec![0; 34 + 8 + 12];
    theirs[..14].copy_from_slice(&ours[..14]);
    ip_repr.emit(&mut wire::Ipv4Packet::new_unchecked(&mut theirs[14..]), &all);
    let write = |payload: &mut [u8]| payload.copy_from_slice(b"some payload");
    let mut packet = wire::UdpPacket::new_unchecked(&mut theirs[34..]);
    udp_repr.emit(&mut packet, &source, &target, 12, write, &all);
    let packet = UdpPacket::parse_frame(&theirs, Checksums::Verify).unwrap();
    assert_eq!((packet.source, packet.target), (frame.source, frame.target));
    assert_eq!(packet.payload, frame.payload);
    // smoltcp takes a partial checksum for one.
    let pseudo: u32 = [0xc000, 0x0232, 0xc000, 0x0201, 17, 20].iter().sum();
    let folded = u16::try_from((pseudo & 0xffff) + (pseudo >> 16)).unwrap();
    theirs[40..42].copy_from_slice(&folded.to_be_bytes());
    let udp = wire::UdpPacket::new_checked(&theirs[34..]).unwrap();
    assert!(udp.verify_partial_checksum(&source, &target));
    assert!(UdpPacket::parse_frame(&theirs, Checksums::Verify).is_ok());
}

#[test]
fn smoltcp_reads_our_arp_and_we_its() {
    for ours in [ArpPacket::probe(MAC, ADDRESS), ArpPacket::announcement(MAC, ADDRESS)] {
        let frame = ours.to_frame();
        let ethernet = wire::EthernetFrame::new_checked(&frame).unwrap();
        assert!(ethernet.dst_addr().is_broadcast());
        let packet = wire::ArpPacket::new_checked(ethernet.payload()).unwrap();
        let repr = wire::ArpRepr::parse(&packet).unwrap();
        let mut theirs = vec![0; repr.buffer_len()];
        repr.emit(&mut wire::ArpPacket::new_unchecked(&mut theirs));
        assert_eq!(theirs, &frame[14..]);
        assert_eq!(ArpPacket::parse(&theirs), Ok(ours));
    }
}
