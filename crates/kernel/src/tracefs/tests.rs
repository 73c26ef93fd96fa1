use super::*;

/// As kernel 6.18 wrote them; the first packet is a probe that a rule drops.
const RECORDED: &str = "\
# tracer: nop
#
# entries-in-buffer/entries-written: 31/31   #P:2
#
#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
#              | |         |   |||||     |         |
         python3-1930    [000] ...1. 63484.859890: tracing_mark_write: netwright probe 1
         python3-1930    [000] b.... 63484.859945: net_dev_queue: dev=eth0 skbaddr=0000000040ed9fae len=215
         python3-1930    [000] ..s1. 63484.859948: netif_receive_skb: dev=vethd4 skbaddr=0000000040ed9fae len=201
         python3-1930    [000] .Ns1. 63484.861476: kfree_skb: skbaddr=0000000040ed9fae rx_sk=0000000000000000 protocol=2048 location=nft_do_chain+0x3e8/0x610 reason: NETFILTER_DROP
    kworker/u8:1-21196   [000] ..s1. 63484.897957: kfree_skb: skbaddr=00000000267cbd65 rx_sk=0000000000000000 protocol=34525 location=ip6_mc_input+0x15e/0x270 reason: NOT_SPECIFIED
";

fn read(text: &[u8]) -> Vec<Event> {
    events_of(text).unwrap()
}

#[test]
fn what_the_kernel_wrote_is_read() {
    let event = |at_us, interrupted, what| Event { at_us, thread: 1930, interrupted, what };
    let packet = 0x40ed_9fae;
    let queued = PacketEvent::Queued { packet, link: "eth0".to_owned(), length: 215 };
    let received = PacketEvent::Received { packet, link: "vethd4".to_owned(), length: 201 };
    let dropped = PacketEvent::Dropped {
        packet,
        protocol: 0x0800,
        function: "nft_do_chain".to_owned(),
        reason: "NETFILTER_DROP".to_owned(),
    };
    let expected = [
        event(63_484_859_890, false, PacketEvent::Marked("netwright probe 1".to_owned())),
        event(63_484_859_945, false, queued),
        event(63_484_859_948, true, received),
        event(63_484_861_476, true, dropped),
        // The last line is of a packet that no other line names.
    ];
    assert_eq!(read(RECORDED.as_bytes()), expected);
}

#[test]
fn older_kernels_say_less() {
    let text = "\
# tracer: nop
          <idle>-0       [001] ..s.    12.000001: netif_receive_skb: dev=eth0 skbaddr=ffff888103c4ab00 len=60
          <idle>-0       [001] ..s.    12.000002: kfree_skb: skbaddr=ffff888103c4ab00 protocol=2048 location=00000000f7be23c3
";
    let events = read(text.as_bytes());
    let what = PacketEvent::Dropped {
        packet: 0xffff_8881_03c4_ab00,
        protocol: 0x0800,
        function: String::new(),
        reason: String::new(),
    };
    assert_eq!(events[1], Event { at_us: 12_000_002, thread: 0, interrupted: true, what });
}

/// The name of a process may look like anything, but not take more room.
#[test]
fn a_name_forges_nothing() {
    let mark =
        |name: &str| format!("{name:>16}-77      [000] ..... 1.000000: tracing_mark_write: here\n");
    for name in ["x-1 [0] .. 1.0: ", "a-1: b: c-2", "\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}"] {
        // The kernel counts bytes.
        let missing = 16_usize.saturating_sub(name.len());
        let line = format!("{}{name}{}", " ".repeat(missing), &mark("")[16..]);
        let events = read(line.as_bytes());
        assert_eq!(events.len(), 1, "{name}");
        assert_eq!(events[0].thread, 77);
    }
}

#[test]
fn an_instance_belongs_to_a_process_that_lives_or_is_left() {
    let own = own_name().unwrap();
    assert!(!is_left(&own), "{own}");
    let pid = std::process::id();
    assert!(is_left(&format!("{PREFIX}{pid}-1-0")), "another process had the number");
    // Above the largest process number (linux include/linux/threads.h PID_MAX_LIMIT).
    assert!(is_left(&format!("{PREFIX}4194305-1-0")));
    for foreign in ["foo", "netwright-doctor-", "netwright-doctor-x-1-0"] {
        assert!(!is_left(foreign), "{foreign}");
    }
}

proptest::proptest! {
    #[test]
    fn reading_anything_ends(bytes: Vec<u8>, text: String) {
        let _ = events_of(&bytes[..]);
        let line = format!("         python3-1930    [000] ..s1. {text}\n");
        let _ = events_of(line.as_bytes());
        let line = format!("         python3-1930    [000] ..s1. 1.000000: kfree_skb: {text}\n");
        let _ = events_of(line.as_bytes());
    }
}
