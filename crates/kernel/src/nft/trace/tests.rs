use super::*;

/// As a kernel 6.18 sent them for three datagrams from 10.99.0.2, which a chain of ours marked: one
/// that a rule drops, one that a rule rejects, one that gets through.
const RECORDED: [&str; 7] = [
    "a8000000110a000000000000000000000100000008000f0000000002080004000000000308000600c2e6302c\
     060002007000000007000100747200000c00030000000000000000020c00050008000100ffffffff08000a00\
     0000000306000b000001000018000800450000c98a3f400040117b4b0a630002c63364011800090094050009\
     00b5356078787878787878787878787812000700a654d66b47c08e0091e9b9af08000000",
    "48000000110a000000000000000000000100000008000f0000000002080004000000000308000600c2e6302c\
     060002007000000007000100747200000c00050008000100ffffffff",
    "44000000110a000000000000000000000100000008000f0000000002080004000000000108000600c2e6302c\
     060002007000000007000100747200000800100000000001",
    "c0000000110a000000000000000000000100000008000f0000000002080004000000000308000600ed25199e\
     0c000200666f7277617264000c000100666f726569676e000c00030000000000000000020c00050008000100\
     0000000008000a000000000306000b000001000008000c000000000406000d000001000018000800450000c9\
     8a3f40003f117c4b0a630002c6336401180009009405000900b5356078787878787878787878787812000700\
     a654d66b47c08e0091e9b9af08000000",
    "c0000000110a000000000000000000000100000008000f0000000002080004000000000308000600a1b08af4\
     0c000200666f7277617264000c000100666f726569676e000c00030000000000000000030c00050008000100\
     0000000008000a000000000306000b000001000008000c000000000406000d000001000018000800450000ce\
     2a5440003f11dc300a630002c6336402180009009405000900ba356678787878787878787878787812000700\
     a654d66b47c08e0091e9b9af08000000",
    "b4000000110a000000000000000000000100000008000f000000000208000400000000030800060003af0bd5\
     0c000200666f7277617264000c000100666f726569676e000c00050008000100ffffffff08000a0000000003\
     06000b000001000008000c000000000406000d000001000018000800450000d3ccb640003f1139c80a630002\
     c6336403180009009405000900bf356c78787878787878787878787812000700a654d66b47c08e0091e9b9af\
     08000000",
    "4c000000110a000000000000000000000100000008000f000000000208000400000000010800060003af0bd5\
     0c000200666f7277617264000c000100666f726569676e000800100000000001",
];

fn bytes(hex: &str) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|value| u8::try_from(value).ok());
    let pairs = hex.as_bytes().chunks(2);
    pairs.map(|pair| digit(pair[0]).unwrap() << 4 | digit(pair[1]).unwrap()).collect()
}

fn read(recorded: &[&str]) -> Vec<TraceStep> {
    let mut heads = BTreeMap::new();
    let all: Vec<u8> = recorded.iter().flat_map(|hex| bytes(hex)).collect();
    wire::messages(&all).filter_map(|message| decode(&message, &mut heads)).collect()
}

fn flow(source_port: u16, destination: &str) -> Flow {
    Flow {
        protocol: Protocol::Udp,
        source: "10.99.0.2".parse().unwrap(),
        source_port,
        destination: destination.parse().unwrap(),
        destination_port: 9,
    }
}

#[test]
fn what_the_kernel_sent_is_read() {
    let judged = read(&RECORDED);
    let shown: Vec<String> = judged
        .iter()
        .map(|one| {
            let packet = one.packet.map(|packet| packet.to_string()).unwrap_or_default();
            format!("{} {} {:?} {:?} {packet}", one.table, one.chain, one.rule, one.verdict)
        })
        .collect();
    let to = |last: u8| format!("10.99.0.2:37893 to 198.51.100.{last}:9, protocol 17");
    let expected = [
        format!("inet tr p Some(2) Some(Continue) {}", to(1)),
        // The kernel reports the packet once.
        format!("inet tr p None Some(Continue) {}", to(1)),
        format!("inet tr p None Some(Accept) {}", to(1)),
        format!("inet foreign forward Some(2) Some(Drop) {}", to(1)),
        format!("inet foreign forward Some(3) Some(Drop) {}", to(2)),
        format!("inet foreign forward None Some(Continue) {}", to(3)),
        format!("inet foreign forward None Some(Accept) {}", to(3)),
    ];
    assert_eq!(shown, expected);
    assert_eq!((judged[3].ifindex_in, judged[3].ifindex_out), (Some(3), Some(4)));
    assert!(judged[3].is_drop() && !judged[6].is_drop());
}

#[test]
fn packets_are_told_by_their_flow() {
    let judged = read(&RECORDED[3..4]);
    assert_eq!(judged[0].of_flow(&flow(37_893, "198.51.100.1")), Some(false));
    // The destination may have been translated.
    assert_eq!(judged[0].of_flow(&flow(37_893, "203.0.113.1")), Some(false));
    assert_eq!(judged[0].of_flow(&flow(37_894, "198.51.100.1")), None);
    let answered = Flow {
        protocol: Protocol::Udp,
        source: "198.51.100.1".parse().unwrap(),
        source_port: 9,
        destination: "10.99.0.2".parse().unwrap(),
        destination_port: 37_893,
    };
    assert_eq!(judged[0].of_flow(&answered), Some(true));
    let tcp = Flow { protocol: Protocol::Tcp, ..flow(37_893, "198.51.100.1") };
    assert_eq!(judged[0].of_flow(&tcp), None);
}

#[test]
fn only_the_flow_and_its_answers_are_marked() {
    let echo = Flow {
        protocol: Protocol::Echo,
        source: "fd00:88::2".parse().unwrap(),
        source_port: 0x1234,
        destination: "2001:db8::1".parse().unwrap(),
        destination_port: 0,
    };
    let flows = [flow(4000, "198.51.100.1"), echo];
    let batch = marking("example", &[Family::Inet, Family::Bridge], &flows);
    let expected = "\
create table inet example of our own
add chain inet example prerouting
add rule to inet example prerouting
add rule to inet example prerouting
add rule to inet example prerouting
add rule to inet example prerouting
add chain inet example translated
add rule to inet example translated
add rule to inet example translated
add rule to inet example translated
add rule to inet example translated
add chain inet example output
add rule to inet example output
add rule to inet example output
add rule to inet example output
add rule to inet example output
create table bridge example of our own
add chain bridge example prerouting
add rule to bridge example prerouting
add rule to bridge example prerouting
add rule to bridge example prerouting
add rule to bridge example prerouting
";
    assert_eq!(batch.to_string(), expected);
    let table = TableRef::new(Family::Inet, "example");
    let compared = |flow: &Flow, back| -> Vec<Vec<u8>> {
        let rule = rule(&table, "prerouting", flow, back);
        let data = |expr| match expr {
            Expr::Cmp { op: CmpOp::Eq, data, .. } => Some(data),
            _ => None,
        };
        rule.exprs.into_iter().filter_map(data).collect()
    };
    let there = compared(&flows[0], false);
    let expected: [&[u8]; 6] =
        [&[2], &[10, 99, 0, 2], &[198, 51, 100, 1], &[17], &[0x0f, 0xa0], &[0, 9]];
    assert_eq!(there, expected);
    let back = compared(&flows[0], true);
    let expected: [&[u8]; 6] =
        [&[2], &[198, 51, 100, 1], &[10, 99, 0, 2], &[17], &[0, 9], &[0x0f, 0xa0]];
    assert_eq!(back, expected);
    let there = compared(&echo, false);
    assert_eq!(there[3..], [vec![58], vec![128], vec![0x12, 0x34]]);
    assert_eq!(compared(&echo, true)[4], [129]);
}

proptest::proptest! {
    #[test]
    fn reading_anything_ends(body: Vec<u8>, header: Vec<u8>) {
        let mut heads = BTreeMap::new();
        let message = |body| Message { kind: TRACE, flags: 0, seq: 0, body };
        decode(&message(&body), &mut heads);
        let mut writer = wire::Writer::new();
        writer.raw(&crate::nft::nfgenmsg(2, 0));
        writer.put_u32_be(attribute::ID, 1);
        writer.put(attribute::NETWORK_HEADER, &header);
        writer.put(attribute::TRANSPORT_HEADER, &header);
        let judged = decode(&message(writer.bytes()), &mut heads).unwrap();
        let _ = judged.of_flow(&flow(1, "198.51.100.1"));
    }
}
