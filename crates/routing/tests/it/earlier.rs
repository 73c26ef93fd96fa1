//! This node's former prefixes.

use expect_test::{Expect, expect};
use netwright_routing::earlier::{EarlierPrefixes, Pods};

use crate::support::{ip, net};

/// What a host shows that has a bridge for a former prefix, with pods on it.
fn bridge(recorded: &[&str]) -> Pods {
    Pods {
        routed: Vec::new(),
        bridges: vec![ip("10.244.1.1"), ip("192.0.2.1")],
        recorded: Some(recorded.iter().map(|address| ip(address)).collect()),
    }
}

#[test]
fn a_pod_may_live_where_an_address_is_in_use_and_nothing_says_otherwise() {
    let prefix = net("10.244.1.0/24");
    let in_use = bridge(&["10.244.9.2", "10.244.1.7"]);
    assert!(in_use.may_live_in(prefix));
    assert!(!bridge(&[]).may_live_in(prefix), "the records say that there is none");
    assert!(!bridge(&["10.244.9.2"]).may_live_in(prefix));
    let unknown = Pods { recorded: None, ..bridge(&[]) };
    assert!(unknown.may_live_in(prefix), "unknown is not gone");
    assert!(!unknown.may_live_in(net("10.244.2.0/24")));
    let rebooted = Pods { bridges: Vec::new(), ..in_use };
    assert!(!rebooted.may_live_in(prefix), "the records are older than the host's start");
    let routed = Pods { routed: vec![ip("10.244.1.7")], ..Pods::default() };
    assert!(routed.may_live_in(prefix));
    assert!(!routed.may_live_in(net("10.244.2.0/24")));
}

/// Judges, and asserts which prefixes are kept, and what is logged.
#[track_caller]
fn check(
    earlier: &mut EarlierPrefixes,
    own: &str,
    pods: &Pods,
    owner: Option<&str>,
    expected: &Expect,
) {
    let news = earlier.judge(&[net(own)], pods, |_| owner.map(str::to_owned));
    let kept = earlier.kept().into_iter().map(|prefix| format!("kept {prefix}\n"));
    let said =
        news.iter().map(|news| format!("{} {}\n", if news.warning { "!" } else { "-" }, news.text));
    let lost = earlier.losses().into_iter().map(|loss| format!("lost: {loss}\n"));
    expected.assert_eq(&kept.chain(said).chain(lost).collect::<String>());
}

#[test]
fn what_pods_live_in_is_kept_until_the_last_is_gone() {
    let mut earlier = EarlierPrefixes::default();
    earlier.had([net("10.244.1.0/24")]);
    assert!(!earlier.differs(&[net("10.244.1.0/24")]));
    let (lives, gone) = (bridge(&["10.244.1.7"]), bridge(&[]));
    check(&mut earlier, "10.244.1.0/24", &lives, None, &expect![""]);
    assert!(earlier.differs(&[net("10.244.9.0/24")]));
    check(
        &mut earlier,
        "10.244.9.0/24",
        &lives,
        None,
        &expect![[r#"
            kept 10.244.1.0/24
            - pods still live in 10.244.1.0/24, which this node had before: it stays routed until the last of them is gone
        "#]],
    );
    // It is logged once.
    check(
        &mut earlier,
        "10.244.9.0/24",
        &lives,
        None,
        &expect![[r#"
        kept 10.244.1.0/24
    "#]],
    );
    assert!(earlier.has_any());
    check(
        &mut earlier,
        "10.244.9.0/24",
        &gone,
        None,
        &expect![[r#"
            - the last pod in the earlier prefix 10.244.1.0/24 is gone
        "#]],
    );
    assert!(!earlier.has_any());
    // A later pod got its address from another program.
    check(&mut earlier, "10.244.9.0/24", &lives, None, &expect![""]);
}

#[test]
fn who_is_given_an_earlier_prefix_has_it() {
    let mut earlier = EarlierPrefixes::default();
    earlier.had([net("10.244.1.0/24")]);
    let lives = bridge(&["10.244.1.7"]);
    let lost = expect![[r#"
        ! pods still live in 10.244.1.0/24, which this node had before and which is node c's now: other nodes do not reach them any more
        lost: pods still live in 10.244.1.0/24, which this node had before and which is node c's now: other nodes do not reach them any more
    "#]];
    check(&mut earlier, "10.244.9.0/24", &lives, Some("c"), &lost);
    check(
        &mut earlier,
        "10.244.9.0/24",
        &lives,
        Some("c"),
        &expect![[r#"
            lost: pods still live in 10.244.1.0/24, which this node had before and which is node c's now: other nodes do not reach them any more
        "#]],
    );
    check(
        &mut earlier,
        "10.244.9.0/24",
        &lives,
        None,
        &expect![[r#"
            kept 10.244.1.0/24
            - pods still live in 10.244.1.0/24, which this node had before: it stays routed until the last of them is gone
        "#]],
    );
    // The prefix belongs to this node again, or is a part of one that does.
    for own in ["10.244.1.0/24", "10.244.0.0/16"] {
        let mut earlier = earlier.clone();
        check(&mut earlier, own, &lives, None, &expect![""]);
    }
}

#[test]
fn no_more_are_kept_than_others_read() {
    let mut earlier = EarlierPrefixes::default();
    let prefixes: Vec<_> = (20..40).map(|n| net(&format!("10.244.{n}.0/24"))).collect();
    earlier.had(prefixes);
    let pods = Pods {
        routed: (20..40).map(|n| ip(&format!("10.244.{n}.7"))).collect(),
        ..Pods::default()
    };
    earlier.judge(&[net("10.244.1.0/24")], &pods, |_| None);
    assert_eq!(earlier.kept().len(), 8);
}
