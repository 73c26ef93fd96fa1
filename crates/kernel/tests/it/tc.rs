//! Traffic control, checked with `tc`.

use kernel::Errno;
use kernel::route::{
    Change, FqCodel, LinkKind, LinkSet, NewLink, Peak, Qdisc, QdiscKind, Redirect, RouteSocket,
    Tbf, TcHandle,
};

use crate::guard::{fresh_netns, in_netns, json, sh, skip, try_sh, veth_to};

const MBIT: u64 = 125_000;

fn tbf(ifindex: u32, tbf: Tbf) -> Qdisc {
    Qdisc {
        ifindex,
        handle: TcHandle::new(1, 0),
        parent: TcHandle::ROOT,
        kind: QdiscKind::Tbf(tbf),
    }
}

fn bucket(rate: u64) -> Tbf {
    Tbf { rate, burst: 25_000, limit: 60_000, peak: None }
}

#[test]
fn a_token_bucket_is_as_tc_sees_it() {
    in_netns(|| {
        let mut socket = RouteSocket::open().unwrap();
        let far = fresh_netns();
        let (link, _) = veth_to(&mut socket, "veth1", &far);
        assert_eq!(socket.qdisc(link, TcHandle::ROOT).unwrap(), None);
        let plain = bucket(20 * MBIT);
        socket.apply_one(&Change::AddQdisc(tbf(link, plain))).unwrap();
        let again = socket.apply_one(&Change::AddQdisc(tbf(link, plain))).unwrap_err();
        assert!(again.is_exists(), "{again}");
        let seen = json("tc -j qdisc show dev veth1 root");
        assert_eq!((&seen[0]["kind"], &seen[0]["handle"]), (&"tbf".into(), &"1:".into()));
        assert_eq!(seen[0]["options"]["rate"], 2_500_000);
        assert_eq!(seen[0]["options"]["burst"], 25_000);
        // The longest wait is (limit - burst) / rate.
        assert_eq!(seen[0]["options"]["lat"], 14_000);

        let peak = Some(Peak { rate: 40 * MBIT, burst: 3_100 });
        let both = Tbf { peak, burst: 125_000, ..bucket(20 * MBIT) };
        socket.apply_one(&Change::ReplaceQdisc(tbf(link, both))).unwrap();
        let text = sh("tc -r qdisc show dev veth1 root");
        for words in ["rate 20Mbit", "burst 125000b", "peakrate 40Mbit", "minburst 309"] {
            assert!(text.contains(words), "{words}: {text}");
        }
        let read = socket.qdisc(link, TcHandle::ROOT).unwrap().unwrap().qdisc;
        assert_eq!(
            (read.ifindex, read.handle, read.parent),
            (link, TcHandle::new(1, 0), TcHandle::ROOT)
        );
        let QdiscKind::Tbf(read) = read.kind else { panic!("{read:?}") };
        assert!(both.is_as(&read), "{read:?}");

        socket
            .apply_one(&Change::DelQdisc {
                ifindex: link,
                parent: TcHandle::ROOT,
                handle: TcHandle::new(1, 0),
            })
            .unwrap();
        assert_eq!(socket.qdisc(link, TcHandle::ROOT).unwrap(), None);
        let gone = Change::DelQdisc {
            ifindex: link,
            parent: TcHandle::ROOT,
            handle: TcHandle::UNSPECIFIED,
        };
        assert_eq!(socket.apply_one(&gone).unwrap_err().errno(), Some(Errno::NOENT));
        assert_eq!(socket.qdisc(4711, TcHandle::ROOT).unwrap(), None);
    });
}

/// The kernel keeps rates in 64 bits and the bucket's size as a time.
#[test]
fn what_is_written_is_read_whatever_the_rate() {
    in_netns(|| {
        let mut socket = RouteSocket::open().unwrap();
        let far = fresh_netns();
        let (link, _) = veth_to(&mut socket, "veth1", &far);
        for (rate, burst) in [
            (1_000, 1_514),
            (MBIT, 3_000),
            (1_000 * MBIT, 500_000),
            (100_000 * MBIT, 50_000_000),
            (u64::from(u32::MAX) + 7, 50_000_000),
        ] {
            let wanted = Tbf { burst, limit: 7_000_000, ..bucket(rate) };
            let peak = Some(Peak { rate: rate * 2, burst: burst / 2 + 1_000 });
            for wanted in [wanted, Tbf { peak, ..wanted }] {
                let change = Change::ReplaceQdisc(tbf(link, wanted));
                socket.apply_one(&change).unwrap();
                let read = socket.qdisc(link, TcHandle::ROOT).unwrap().unwrap().qdisc.kind;
                let QdiscKind::Tbf(read) = read else { panic!("{read:?}") };
                assert!(wanted.is_as(&read), "{wanted:?} became {read:?}");
            }
            let seen = json("tc -j qdisc show dev veth1 root");
            assert_eq!(seen[0]["options"]["rate"], rate);
        }
        let slow_peak = Some(Peak { rate: MBIT, burst: 3_000 });
        let change = Change::ReplaceQdisc(tbf(link, Tbf { peak: slow_peak, ..bucket(MBIT) }));
        assert_eq!(socket.apply_one(&change).unwrap_err().errno(), Some(Errno::INVAL));
    });
}

#[test]
fn everything_that_comes_in_goes_to_another_link() {
    in_netns(|| {
        let mut socket = RouteSocket::open().unwrap();
        let far = fresh_netns();
        let (link, _) = veth_to(&mut socket, "veth1", &far);
        let ifb = NewLink { up: true, ..NewLink::new("ifb7", LinkKind::Ifb) };
        let to = socket.create_link(&ifb).unwrap().index;
        let redirect =
            Redirect { ifindex: link, parent: TcHandle::INGRESS_FILTERS, preference: 7, to };
        assert_eq!(socket.filters(link, redirect.parent).unwrap(), []);
        for kind in [QdiscKind::Ingress, QdiscKind::Clsact] {
            let hook = Qdisc {
                ifindex: link,
                handle: TcHandle::INGRESS_QDISC,
                parent: TcHandle::INGRESS,
                kind: kind.clone(),
            };
            assert_eq!(socket.qdisc(link, TcHandle::INGRESS).unwrap(), None);
            socket.apply(&[Change::AddQdisc(hook.clone()), Change::AddRedirect(redirect)]).unwrap();
            assert_eq!(socket.qdisc(link, TcHandle::INGRESS).unwrap().unwrap().qdisc, hook);
            let seen = json("tc -j filter show dev veth1 ingress");
            let seen = seen.as_array().unwrap().last().unwrap();
            assert_eq!((&seen["pref"], &seen["kind"]), (&7.into(), &"u32".into()));
            let actions = seen["options"]["actions"].as_array().unwrap();
            assert_eq!(actions.len(), 1, "{actions:?}");
            assert_eq!(actions[0]["mirred_action"], "redirect");
            assert_eq!(actions[0]["to_dev"], "ifb7");
            // Also if another program made it.
            assert_eq!(try_sh("tc filter add dev veth1 ingress pref 9 protocol all u32 match u32 0 0 action mirred egress mirror dev ifb7").0, Some(0));
            let found = socket.filters(link, redirect.parent).unwrap();
            let found: Vec<_> = found
                .iter()
                .map(|filter| (filter.preference, filter.kind.as_str(), filter.redirects_to))
                .collect();
            assert_eq!(found, [(7, "u32", Some(to)), (9, "u32", None)]);
            socket.apply_one(&Change::DelRedirect(redirect)).unwrap();
            assert_eq!(socket.filters(link, redirect.parent).unwrap().len(), 1);
            assert!(socket.apply_one(&Change::DelRedirect(redirect)).unwrap_err().is_not_found());
            socket
                .apply_one(&Change::DelQdisc {
                    ifindex: link,
                    parent: TcHandle::INGRESS,
                    handle: TcHandle::INGRESS_QDISC,
                })
                .unwrap();
        }
    });
}

#[test]
fn what_went_through_is_counted() {
    in_netns(|| {
        let mut socket = RouteSocket::open().unwrap();
        let far = fresh_netns();
        let (link, peer) = veth_to(&mut socket, "veth1", &far);
        let mut there = RouteSocket::open_in(&far).unwrap();
        there
            .apply_one(&Change::SetLink { ifindex: peer, set: LinkSet::default().up(true) })
            .unwrap();
        sh(
            "ip addr add 192.0.2.1/24 dev veth1 && ip neigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev veth1",
        );
        let small = Tbf { rate: MBIT, burst: 2_000, limit: 10_000, peak: None };
        socket.apply_one(&Change::AddQdisc(tbf(link, small))).unwrap();
        // A hundred packets at once: some pass, some wait, and the rest are dropped.
        let sender = std::net::UdpSocket::bind("192.0.2.1:0").unwrap();
        for _ in 0..100 {
            let _ = sender.send_to(&[0; 1_000], "192.0.2.2:9");
        }
        let stats = socket.qdisc(link, TcHandle::ROOT).unwrap().unwrap().stats;
        let seen = json("tc -j -s qdisc show dev veth1 root");
        assert!(0 < stats.packets && 1_000 < stats.bytes, "{stats:?}");
        assert!(0 < stats.drops && 0 < stats.overlimits, "{stats:?}");
        assert_eq!(seen[0]["drops"], stats.drops);
        assert!(stats.packets <= seen[0]["packets"].as_u64().unwrap());
    });
}

#[test]
fn a_kind_that_is_not_known_is_not_sent() {
    in_netns(|| {
        let mut socket = RouteSocket::open().unwrap();
        let far = fresh_netns();
        let (link, _) = veth_to(&mut socket, "veth1", &far);
        let other =
            Qdisc { kind: QdiscKind::Other("nonesuch".to_owned()), ..tbf(link, bucket(MBIT)) };
        let error = socket.apply_one(&Change::AddQdisc(other)).unwrap_err();
        let said = "add qdisc nonesuch 1: at root of link";
        assert!(error.to_string().starts_with(said), "{error}");
    });
}

#[test]
fn vm_fair_queueing_inside_a_bucket() {
    in_netns(|| {
        let mut socket = RouteSocket::open().unwrap();
        let far = fresh_netns();
        let (link, _) = veth_to(&mut socket, "veth1", &far);
        let settings = FqCodel {
            target_us: Some(6_000),
            interval_us: Some(110_000),
            limit: Some(1_000),
            memory_bytes: Some(4_000_000),
        };
        let inner = Qdisc {
            ifindex: link,
            handle: TcHandle::new(2, 0),
            parent: TcHandle::new(1, 1),
            kind: QdiscKind::FqCodel(settings),
        };
        socket.apply_one(&Change::AddQdisc(tbf(link, bucket(MBIT)))).unwrap();
        if let Err(error) = socket.apply_one(&Change::AddQdisc(inner)) {
            assert!(error.is_not_found(), "{error}");
            assert!(std::env::var_os("NETWRIGHT_VM").is_none(), "{error}");
            return skip("tc::vm_fair_queueing_inside_a_bucket", &error.to_string());
        }
        let seen = json("tc -j qdisc show dev veth1");
        let seen =
            seen.as_array().unwrap().iter().find(|qdisc| qdisc["kind"] == "fq_codel").unwrap();
        assert_eq!(seen["parent"], "1:1");
        assert_eq!(seen["options"]["limit"], 1_000);
        assert_eq!(seen["options"]["memory_limit"], 4_000_000);
        let read = socket.qdisc(link, TcHandle::new(1, 1)).unwrap().unwrap().qdisc;
        let QdiscKind::FqCodel(read) = read.kind else { panic!("{read:?}") };
        // Times are kept in units of 1024 ns.
        let near = |a: Option<u32>, b: u32| a.is_some_and(|a| a.abs_diff(b) <= 2);
        assert!(near(read.target_us, 6_000) && near(read.interval_us, 110_000), "{read:?}");
        // New settings of the bucket leave its inner discipline alone.
        socket.apply_one(&Change::ReplaceQdisc(tbf(link, bucket(2 * MBIT)))).unwrap();
        assert!(socket.qdisc(link, TcHandle::new(1, 1)).unwrap().is_some());
    });
}
