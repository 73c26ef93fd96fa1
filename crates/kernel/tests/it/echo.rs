use std::net::IpAddr;
use std::time::Duration;

use kernel::echo::{Echo, Question, ask_all};

use crate::guard::{in_netns, sh};

/// On a host that forwards, the first address of a link's prefix is an anycast address. The host
/// answers requests to it from another address.
#[test]
fn an_anycast_address_answers_from_another_one() {
    in_netns(|| {
        sh("ip link add veth1 type veth peer name veth2; ip link set veth1 up; \
             ip link set veth2 up; ip link set lo up; sysctl -q -w net.ipv6.conf.all.forwarding=1; \
             ip addr add 2001:db8:7::1/64 dev veth1 nodad");
        // The kernel adds these addresses a moment later.
        sh("timeout 20 sh -c 'until ip -6 route show table local | \
             grep -q \"^anycast 2001:db8:7:: \"; do :; done'");
        let asked = |address: &str, from_any| {
            let address: IpAddr = address.parse().unwrap();
            Question { from_any, ..Question::small(address) }
        };
        let questions = [
            asked("2001:db8:7::1", false),
            asked("2001:db8:7::", false),
            asked("2001:db8:7::", true),
            asked("2001:db8:7::2", true),
        ];
        let echoes = ask_all(&questions, Duration::from_millis(500)).unwrap();
        let answered: Vec<bool> =
            echoes.iter().map(|echo| matches!(echo, Echo::Answered(_))).collect();
        assert_eq!(answered, [true, false, true, false], "{echoes:?}");
    });
}
