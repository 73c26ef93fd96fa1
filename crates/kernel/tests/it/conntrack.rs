use std::net::UdpSocket;

use kernel::conntrack::{ConntrackSocket, Flow, FlowFilter};
use kernel::netns::within;
use kernel::nft::{Batch, Family, Hook, NewChain, NewRule, NftSocket, TableRef, Value, field};
use kernel::route::{AddressOptions, Change, IpFamily, LinkSet, RouteSocket};

use crate::guard::{fresh_netns, in_netns, lo_up, sh, veth_to};

/// How many flows are UDP; the kernel's own neighbour discovery is tracked as well.
fn udp(flows: Vec<Flow>) -> usize {
    flows.iter().filter(|flow| flow.original.protocol == Some(17)).count()
}

/// A host and a container; the host translates its UDP port 5353 to port 53 of the container.
#[test]
fn flows_of_a_hostport_are_found_and_forgotten() {
    in_netns(|| {
        let container = fresh_netns();
        let mut host = RouteSocket::open().unwrap();
        let mut inside = RouteSocket::open_in(&container).unwrap();
        lo_up(&mut host);
        let (veth, eth0) = veth_to(&mut host, "veth1", &container);
        let add = |ifindex, address: &str| Change::AddAddress {
            ifindex,
            address: address.parse().unwrap(),
            options: AddressOptions { nodad: true, ..AddressOptions::default() },
        };
        let up = Change::SetLink { ifindex: eth0, set: LinkSet::default().up(true) };
        inside.apply(&[up, add(eth0, "192.0.2.2/24"), add(eth0, "2001:db8::2/64")]).unwrap();
        host.apply(&[add(veth, "192.0.2.1/24"), add(veth, "2001:db8::1/64")]).unwrap();

        let table = TableRef::new(Family::Inet, "nwt");
        let mut batch = Batch::new();
        batch.add_table(&table, None);
        batch.add_chain(NewChain::base(&table, "out", Hook::output_dstnat()));
        for container in ["192.0.2.2", "2001:db8::2"] {
            let rule = NewRule::new(&table, "out")
                .is(field::nfproto(), Value::NfProto(if container.contains(':') { 10 } else { 2 }))
                .is(field::l4proto(), Value::UDP)
                .is(field::th_dport(), Value::Port(5353));
            batch.add_rule(rule.dnat(container.parse().unwrap(), Some(53)));
        }
        NftSocket::open().unwrap().commit(&batch).unwrap();

        let mut conntrack = ConntrackSocket::open().unwrap();
        for (family, own, remote) in
            [(IpFamily::V4, "192.0.2.1", "192.0.2.2"), (IpFamily::V6, "2001:db8::1", "2001:db8::2")]
        {
            let server = within(&container, || UdpSocket::bind((remote, 53)).unwrap()).unwrap();
            let client = UdpSocket::bind((own, 0)).unwrap();
            client.send_to(b"question", (own, 5353)).unwrap();
            let mut buffer = [0; 16];
            server.recv_from(&mut buffer).unwrap();
            let other = UdpSocket::bind((own, 0)).unwrap();
            other.send_to(b"question", (remote, 9)).unwrap();

            let all = FlowFilter { protocol: Some(17), ..FlowFilter::all(family) };
            assert_eq!(conntrack.flows(&all).unwrap().len(), 2);
            let port = FlowFilter { destination_port: Some(5353), ..all };
            let flows = conntrack.flows(&port).unwrap();
            assert_eq!(flows.len(), 1);
            assert_eq!(flows[0].original.destination, Some(own.parse().unwrap()));
            assert_eq!(flows[0].reply.source, Some(remote.parse().unwrap()));
            assert_eq!(flows[0].reply.source_port, Some(53));
            assert_ne!(flows[0].status & kernel::nft::field::ct_status_bits::DNAT, 0);
            for none in [
                FlowFilter { protocol: Some(6), ..port },
                FlowFilter { destination: Some(remote.parse().unwrap()), ..port },
                FlowFilter { destination_port: Some(53), ..all },
                FlowFilter { reply_source: Some(own.parse().unwrap()), ..port },
            ] {
                assert_eq!(conntrack.delete_flows(&none).unwrap(), 0, "{none:?}");
            }
            // Each condition separately, and a port of any protocol.
            for (one, count) in [
                (FlowFilter { source: Some(own.parse().unwrap()), ..FlowFilter::all(family) }, 2),
                (
                    FlowFilter {
                        destination: Some(own.parse().unwrap()),
                        ..FlowFilter::all(family)
                    },
                    1,
                ),
                (FlowFilter { destination_port: Some(5353), ..FlowFilter::all(family) }, 1),
                (
                    FlowFilter {
                        reply_source: Some(remote.parse().unwrap()),
                        ..FlowFilter::all(family)
                    },
                    2,
                ),
                (FlowFilter::all(family), 2),
            ] {
                assert_eq!(udp(conntrack.flows(&one).unwrap()), count, "{one:?}");
            }
            let exact = FlowFilter {
                reply_source: Some(remote.parse().unwrap()),
                destination: Some(own.parse().unwrap()),
                ..port
            };
            assert_eq!(conntrack.delete_flows(&exact).unwrap(), 1);
            assert_eq!(conntrack.flows(&port).unwrap(), []);
            assert_eq!(conntrack.flows(&all).unwrap().len(), 1, "the other one stays");
            let version = if family == IpFamily::V4 { "ipv4" } else { "ipv6" };
            let seen = sh(&format!("conntrack -L -f {version} -p udp 2>/dev/null"));
            assert!(!seen.contains("dport=5353") && seen.contains("dport=9 "), "{seen}");
        }
    });
}
