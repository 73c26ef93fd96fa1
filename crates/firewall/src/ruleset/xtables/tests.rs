use super::*;

fn of(name: &str, revision: u32, info: &[u8]) -> (Vec<Step>, Vec<Set>) {
    let mut sets = Vec::new();
    let mut made_up = |elements| make_up(&mut sets, 7, elements);
    let steps = matched(name, revision, info, Family::Ip, &mut made_up);
    (steps, sets)
}

/// `struct xt_conntrack_mtinfo3`, with what is compared, and the two masks.
fn mtinfo(wanted: u16, inverted: u16, states: u16, statuses: u16) -> Vec<u8> {
    let mut info = vec![0; 164];
    for (at, value) in [(146, wanted), (148, inverted), (150, states), (152, statuses)] {
        info[at..at + 2].copy_from_slice(&value.to_ne_bytes());
    }
    info
}

#[test]
fn states_of_connections() {
    // --ctstate RELATED,ESTABLISHED
    let (steps, _) = of("conntrack", 3, &mtinfo(1 | 1 << 13, 0, 0b110, 0));
    assert_eq!(steps, bits(Connection::State, 0b110, false));
    // ! --ctstate INVALID,UNTRACKED
    let (steps, _) = of("conntrack", 3, &mtinfo(1, 1, 1 | 1 << 8, 0));
    assert_eq!(steps, bits(Connection::State, 1 | 1 << 6, true));
    // --ctstate DNAT
    let (steps, _) = of("conntrack", 3, &mtinfo(1, 0, 1 << 7, 0));
    assert_eq!(steps, bits(Connection::Status, 1 << 5, false));
    // --ctstatus DNAT
    let (steps, _) = of("conntrack", 3, &mtinfo(1 << 6, 0, 0, 1 << 5));
    assert_eq!(steps, bits(Connection::Status, 1 << 5, false));
    // Both, and something else.
    for wanted in [1 | 1 << 6, 1 << 3] {
        assert_eq!(of("conntrack", 3, &mtinfo(wanted, 0, 2, 2)).0, [unknown("conntrack")]);
    }
    assert_eq!(of("state", 0, &8_u32.to_ne_bytes()).0, bits(Connection::State, 8, false));
}

#[test]
fn ports() {
    let numbers = |numbers: [u16; 4]| numbers.map(u16::to_ne_bytes).concat();
    let port = |offset| Step::Payload { base: Header::Transport, offset, len: 2, to: FIRST };
    let range = |invert, first: u16, last: u16| Step::Range {
        invert,
        from: FIRST,
        first: first.to_be_bytes().to_vec(),
        last: last.to_be_bytes().to_vec(),
    };
    // -p tcp --dport 80
    let tcp = [numbers([0, u16::MAX, 80, 80]), vec![0; 4]].concat();
    assert_eq!(of("tcp", 0, &tcp).0, [port(2), range(false, 80, 80)]);
    // -p udp ! --sport 1024:65535
    let udp = [numbers([1024, u16::MAX, 0, u16::MAX]), vec![1, 0]].concat();
    assert_eq!(of("udp", 0, &udp).0, [port(0), range(true, 1024, u16::MAX)]);
    // -p tcp --syn
    let syn = [numbers([0, u16::MAX, 0, u16::MAX]), vec![0, 0x17, 0x02, 0]].concat();
    let (steps, _) = of("tcp", 0, &syn);
    assert_eq!(steps.len(), 3);
    assert_eq!(steps[2], Step::Compare { op: Comparison::Equal, from: FIRST, with: vec![2] });
    // --dports 80,8000:8080
    let mut several = vec![1, 3];
    several.extend([80_u16, 8000, 8080].map(u16::to_ne_bytes).concat());
    several.resize(48, 0);
    several[33] = 1;
    let (steps, sets) = of("multiport", 1, &several);
    let set = sets[0].name.clone();
    assert_eq!(steps, [port(2), Step::Lookup { set, from: FIRST, invert: false, to: None }]);
    let bytes = |port: u16| port.to_be_bytes().to_vec();
    assert_eq!(
        sets[0].elements,
        [element(bytes(80), None), element(bytes(8000), Some(bytes(8080)))]
    );
}

#[test]
fn addresses_and_marks() {
    // -m addrtype ! --dst-type LOCAL
    let mut info = [0_u16.to_ne_bytes(), 4_u16.to_ne_bytes()].concat();
    info.extend(2_u32.to_ne_bytes());
    let (steps, sets) = of("addrtype", 1, &info);
    let set = sets[0].name.clone();
    assert_eq!(
        steps,
        [
            Step::Fib { source: false, kind: true, to: FIRST },
            Step::Lookup { set, from: FIRST, invert: true, to: None },
        ]
    );
    assert_eq!(sets[0].elements, [element(2_u32.to_ne_bytes().to_vec(), None)]);
    // --limit-iface-in
    let limited = [4_u16.to_ne_bytes().to_vec(), vec![0; 2], 4_u32.to_ne_bytes().to_vec()].concat();
    assert_eq!(of("addrtype", 1, &limited).0, [unknown("addrtype")]);
    // --mark 0x4000/0x4000
    let mut info = [0x4000_u32.to_ne_bytes(), 0x4000_u32.to_ne_bytes()].concat();
    info.extend([0; 4]);
    let (steps, _) = of("mark", 1, &info);
    assert_eq!(steps[0], Step::Meta { key: Meta::Mark, to: FIRST });
    let with = 0x4000_u32.to_ne_bytes().to_vec();
    assert_eq!(steps[2], Step::Compare { op: Comparison::Equal, from: FIRST, with });
}

#[test]
fn targets() {
    let on = |name: &str, revision, info: &[u8]| target(name, revision, info, Family::Ip);
    assert_eq!(on("MASQUERADE", 0, &[]), [Step::SourceNat]);
    assert_eq!(on("LOG", 0, &[]), [effect("LOG")]);
    assert_eq!(on("TPROXY", 1, &[]), [unknown("TPROXY")]);
    // -j CT --notrack, and -j CT --zone 3.
    let tracking = |flags: u16, zone: u16| [flags.to_ne_bytes(), zone.to_ne_bytes()].concat();
    assert_eq!(on("CT", 2, &tracking(1, 0)), [effect("notrack")]);
    assert_eq!(on("CT", 2, &tracking(0, 3)), [effect("CT")]);
    let rejected = |with: &str| [Step::Reject { with: with.to_owned() }];
    assert_eq!(on("REJECT", 0, &3_u32.to_ne_bytes()), rejected("icmp port-unreachable"));
    let v6 = target("REJECT", 0, &6_u32.to_ne_bytes(), Family::Ip6);
    assert_eq!(v6, rejected("tcp reset"));
    // --to-destination 10.88.0.2:80, as a new and as an old iptables writes it.
    let (flags, address, port) = (3_u32.to_ne_bytes(), [10, 88, 0, 2], 80_u16.to_be_bytes());
    let mut new = vec![0; 40];
    new[..4].copy_from_slice(&flags);
    new[4..8].copy_from_slice(&address);
    new[36..38].copy_from_slice(&port);
    let mut old = vec![0; 20];
    old[4..8].copy_from_slice(&flags);
    old[8..12].copy_from_slice(&address);
    old[16..18].copy_from_slice(&port);
    let expected = [
        Step::Immediate { to: FIRST, data: address.to_vec() },
        Step::Immediate { to: SECOND, data: port.to_vec() },
        Step::DestinationNat { address: Some(FIRST), port: Some(SECOND) },
    ];
    assert_eq!(on("DNAT", 2, &new), expected);
    assert_eq!(on("DNAT", 0, &old), expected);
    // --to-source 10.88.0.2: both ends of the range are there.
    new[20..24].copy_from_slice(&address);
    old[12..16].copy_from_slice(&address);
    let source = [
        Step::Immediate { to: FIRST, data: address.to_vec() },
        Step::SourceNatTo { address: FIRST },
    ];
    assert_eq!(on("SNAT", 2, &new), source);
    assert_eq!(on("SNAT", 0, &old), source);
    old[15] = 9;
    assert_eq!(on("SNAT", 0, &old), [Step::SourceNat]);
    // A structure that is cut off says nothing.
    assert_eq!(on("DNAT", 2, &new[..20]), [unknown("DNAT")]);
}

#[test]
fn queues_and_hops() {
    let on = |name: &str, revision, info: &[u8]| target(name, revision, info, Family::Ip);
    let queue = |first, last, bypass| [Step::Queue { first, last, bypass }];
    // --queue-num 7; --queue-balance 7:10 --queue-bypass
    let info = [7_u16, 4, 1].map(u16::to_ne_bytes).concat();
    assert_eq!(on("NFQUEUE", 0, &info[..2]), queue(7, 7, false));
    assert_eq!(on("NFQUEUE", 1, &info[..4]), queue(7, 10, false));
    assert_eq!(on("NFQUEUE", 3, &info), queue(7, 10, true));
    assert_eq!(on("NFQUEUE", 3, &info[..2]), [unknown("NFQUEUE")]);
    assert_eq!(on("QUEUE", 0, &[]), queue(0, 0, false));
    // --ttl-set 1; --ttl-dec 1; --ttl-inc 1; --hl-set 1
    let set = |offset| {
        [
            Step::Immediate { to: FIRST, data: vec![1] },
            Step::Write { base: Header::Network, offset, len: 1, from: FIRST },
        ]
    };
    assert_eq!(on("TTL", 0, &[0, 1, 0, 0]), set(8));
    assert_eq!(on("TTL", 0, &[2, 1, 0, 0]), [effect("TTL -1")]);
    assert_eq!(on("TTL", 0, &[1, 1, 0, 0]), [effect("TTL")]);
    assert_eq!(target("HL", 0, &[0, 1, 0, 0], Family::Ip6), set(7));
}

#[test]
fn what_is_cut_off_or_not_known_is_unknown() {
    for name in
        ["conntrack", "state", "tcp", "udp", "multiport", "addrtype", "mark", "iprange", "icmp"]
    {
        assert_eq!(of(name, 1, &[]).0, [unknown(name)], "{name}");
    }
    for name in ["physdev", "statistic", "set", "bpf"] {
        assert_eq!(of(name, 0, &[0; 512]).0, [unknown(name)], "{name}");
    }
}

#[test]
fn a_mark_that_is_set() {
    // -j MARK --set-xmark 0x80000/0xff0000
    let info = [0x80000_u32, 0xff0000].map(u32::to_ne_bytes).concat();
    let steps = target("MARK", 2, &info, Family::Ip);
    assert_eq!(
        steps[1],
        Step::Bitwise {
            from: FIRST,
            to: FIRST,
            mask: (!0xff0000_u32).to_ne_bytes().to_vec(),
            xor: 0x80000_u32.to_ne_bytes().to_vec(),
        }
    );
    assert_eq!(steps[2], Step::Mark { from: FIRST });
    // Of another revision nothing is known.
    assert_eq!(target("MARK", 1, &info, Family::Ip), [effect("MARK")]);
}
