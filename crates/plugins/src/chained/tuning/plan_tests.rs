use std::fmt::Write as _;

use expect_test::{Expect, expect};

use super::super::config::Sysctl;
use super::super::sysctl::SysctlKey;
use super::*;

const MAC_BEFORE: &str = "02:00:00:00:00:aa";
const MAC_WANTED: &str = "02:00:5e:00:53:01";

fn config(link: LinkValues, sysctls: &[(&str, &str)]) -> Config {
    let sysctls = sysctls.iter().map(|(key, value)| Sysctl {
        key: SysctlKey::parse(key, &"eth0".parse().unwrap()).unwrap(),
        value: (*value).to_owned(),
    });
    Config { data_dir: "/data".into(), sysctls: sysctls.collect(), link }
}

fn everything() -> LinkValues {
    LinkValues {
        mac: Some(MAC_WANTED.parse().unwrap()),
        mtu: Some(1400),
        promisc: Some(true),
        allmulti: Some(true),
        tx_queue_length: Some(5),
    }
}

fn mtu(mtu: u32) -> LinkValues {
    LinkValues { mtu: Some(mtu), ..LinkValues::default() }
}

/// A fresh veth.
fn link() -> LinkState {
    let values = LinkValues {
        mac: Some(MAC_BEFORE.parse().unwrap()),
        mtu: Some(1500),
        promisc: Some(false),
        allmulti: Some(false),
        tx_queue_length: Some(1000),
    };
    LinkState { ifindex: 2, values }
}

fn link_with(values: LinkValues) -> LinkState {
    LinkState { ifindex: 2, values: values.or(&link().values) }
}

fn sysctl(path: &str, value: &str) -> SysctlState {
    SysctlState { path: path.to_owned(), value: Some(value.to_owned()), own: false }
}

fn recorded(ifindex: u32, sysctls: &[(&str, &str)]) -> RecordData {
    let sysctls = sysctls.iter().map(|(path, asked)| RecordedSysctl {
        path: (*path).to_owned(),
        asked: (*asked).to_owned(),
        ..RecordedSysctl::default()
    });
    RecordData {
        ifindex: Some(ifindex),
        backup: Some("/data/c1_eth0.json".into()),
        sysctls: sysctls.collect(),
    }
}

#[track_caller]
fn check(config: &Config, observed: &AddObservation, expect: Expect) {
    let plan = add(config, "/data/c1_eth0.json".into(), observed);
    expect.assert_eq(&format!("{}-- undo --\n{}", show(&plan.steps), show(&plan.undo)));
}

#[track_caller]
fn check_del(observed: DelObservation, expect: Expect) {
    let observed = DelObservation { backup_path: Some("/data/c1_eth0.json".into()), ..observed };
    expect.assert_eq(&show(&del(&observed)));
}

fn show(steps: &[Step]) -> String {
    let mut text = String::new();
    for step in steps {
        match step {
            Step::WriteRecord(None) => writeln!(text, "no record"),
            Step::WriteRecord(Some(recorded)) => {
                let sysctls: Vec<_> = recorded.sysctls.iter().map(|s| s.path.as_str()).collect();
                writeln!(text, "record link {:?}, sysctls {sysctls:?}", recorded.ifindex)
            }
            Step::WriteBackup { path, values: None } => {
                writeln!(text, "no backup {}", path.display())
            }
            Step::WriteBackup { values: Some(values), .. } => {
                writeln!(text, "backup {}", values)
            }
            Step::SetLink { ifindex, to } => writeln!(text, "link {ifindex}: {}", to),
            Step::ClaimSysctl { path, was } => writeln!(text, "claim {path} (was {was:?})"),
            Step::WriteSysctl { path, value } => writeln!(text, "write {path} = {value}"),
            Step::RestoreSysctl { path, value } => writeln!(text, "restore {path} = {value}"),
            Step::ReleaseSysctl { path } => writeln!(text, "release {path}"),
            Step::ForgetSysctl { path } => writeln!(text, "forget {path}"),
        }
        .unwrap();
    }
    text
}

#[test]
fn a_first_add_remembers_then_changes() {
    check(
        &config(everything(), &[("net.core.somaxconn", "5"), ("net.ipv4.route.flush", "1")]),
        &AddObservation {
            link: Some(link()),
            sysctls: vec![
                sysctl("net/core/somaxconn", "4096"),
                SysctlState { path: "net/ipv4/route/flush".into(), value: None, own: false },
            ],
            ..AddObservation::default()
        },
        expect![[r#"
            record link Some(2), sysctls ["net/core/somaxconn", "net/ipv4/route/flush"]
            backup mac 02:00:00:00:00:aa, mtu 1500, promisc off, allmulti off, txqlen 1000
            link 2: mac 02:00:5e:00:53:01, mtu 1400, promisc on, allmulti on, txqlen 5
            claim net/core/somaxconn (was Some("4096"))
            write net/core/somaxconn = 5
            claim net/ipv4/route/flush (was None)
            write net/ipv4/route/flush = 1
            -- undo --
            link 2: mac 02:00:00:00:00:aa, mtu 1500, promisc off, allmulti off, txqlen 1000
            restore net/core/somaxconn = 4096
            forget net/core/somaxconn
            forget net/ipv4/route/flush
            no backup /data/c1_eth0.json
            no record
        "#]],
    );
}

#[test]
fn what_is_as_wanted_is_not_touched_but_remembered() {
    check(
        &config(mtu(1500), &[("net.ipv4.tcp_rmem", "1 2 3")]),
        &AddObservation {
            link: Some(link()),
            sysctls: vec![sysctl("net/ipv4/tcp_rmem", "1\t2\t3")],
            ..AddObservation::default()
        },
        expect![[r#"
            record link Some(2), sysctls ["net/ipv4/tcp_rmem"]
            backup mtu 1500
            claim net/ipv4/tcp_rmem (was Some("1\t2\t3"))
            -- undo --
            forget net/ipv4/tcp_rmem
            no backup /data/c1_eth0.json
            no record
        "#]],
    );
}

#[test]
fn a_second_add_keeps_the_originals() {
    check(
        &config(everything(), &[("net.core.somaxconn", "6")]),
        &AddObservation {
            link: Some(link_with(mtu(1400))),
            sysctls: vec![sysctl("net/core/somaxconn", "5")],
            backup: Some(mtu(1500)),
            recorded: Some(recorded(2, &[("net/core/somaxconn", "5"), ("net/gone", "1")])),
            stale: None,
        },
        expect![[r#"
            record link Some(2), sysctls ["net/core/somaxconn", "net/gone"]
            backup mac 02:00:00:00:00:aa, mtu 1500, promisc off, allmulti off, txqlen 1000
            link 2: mac 02:00:5e:00:53:01, promisc on, allmulti on, txqlen 5
            claim net/core/somaxconn (was Some("5"))
            write net/core/somaxconn = 6
            -- undo --
            link 2: mac 02:00:00:00:00:aa, promisc off, allmulti off, txqlen 1000
            restore net/core/somaxconn = 5
            backup mtu 1500
            record link Some(2), sysctls ["net/core/somaxconn", "net/gone"]
        "#]],
    );
}

#[test]
fn the_references_backup_is_believed_of_values_that_are_tuned_already() {
    let backup = Some(LinkValues { tx_queue_length: Some(77), ..mtu(9000) });
    let wanted = LinkValues { tx_queue_length: Some(5), ..mtu(1400) };
    check(
        &config(wanted, &[]),
        &AddObservation { link: Some(link_with(mtu(1400))), backup, ..AddObservation::default() },
        expect![[r#"
            record link Some(2), sysctls []
            backup mtu 9000, txqlen 1000
            link 2: txqlen 5
            -- undo --
            link 2: txqlen 1000
            backup mtu 9000, txqlen 77
            no record
        "#]],
    );
}

#[test]
fn memories_of_another_link_or_namespace_do_not_count() {
    let backup = Some(mtu(9000));
    check(
        &config(mtu(1400), &[]),
        &AddObservation {
            link: Some(link()),
            backup,
            recorded: Some(recorded(7, &[])),
            ..AddObservation::default()
        },
        expect![[r#"
            record link Some(2), sysctls []
            backup mtu 1500
            link 2: mtu 1400
            -- undo --
            link 2: mtu 1500
            backup mtu 9000
            record link Some(7), sysctls []
        "#]],
    );
    check(
        &config(mtu(1400), &[("net.core.somaxconn", "5")]),
        &AddObservation {
            link: Some(link_with(mtu(1400))),
            sysctls: vec![sysctl("net/core/somaxconn", "4096")],
            backup,
            recorded: None,
            stale: Some(recorded(2, &[("net/core/somaxconn", "1")])),
        },
        expect![[r#"
            forget net/core/somaxconn
            record link Some(2), sysctls ["net/core/somaxconn"]
            backup mtu 1400
            claim net/core/somaxconn (was Some("4096"))
            write net/core/somaxconn = 5
            -- undo --
            restore net/core/somaxconn = 4096
            forget net/core/somaxconn
            backup mtu 9000
            no record
        "#]],
    );
}

#[test]
fn del_brings_back_what_differs() {
    check_del(
        DelObservation {
            backup: Some(LinkValues { promisc: Some(false), ..mtu(1500) }),
            recorded: Some(recorded(2, &[("net/core/somaxconn", "5")])),
            namespace: true,
            link: Some(link_with(mtu(1400))),
            ..DelObservation::default()
        },
        expect![[r#"
            link 2: mtu 1500
            release net/core/somaxconn
            no backup /data/c1_eth0.json
        "#]],
    );
}

#[test]
fn del_needs_nothing() {
    check_del(
        DelObservation::default(),
        expect![[r#"
            no backup /data/c1_eth0.json
        "#]],
    );
    // The reference made the attachment.
    check_del(
        DelObservation {
            backup: Some(mtu(1500)),
            namespace: true,
            link: Some(link_with(mtu(1400))),
            ..DelObservation::default()
        },
        expect![[r#"
            link 2: mtu 1500
            no backup /data/c1_eth0.json
        "#]],
    );
}

#[test]
fn del_leaves_links_and_namespaces_alone_that_are_not_the_attachments() {
    let observed = DelObservation {
        backup: Some(mtu(1500)),
        recorded: Some(recorded(7, &[("net/core/somaxconn", "5")])),
        namespace: true,
        link: Some(link_with(mtu(1400))),
        ..DelObservation::default()
    };
    check_del(
        observed.clone(),
        expect![[r#"
            release net/core/somaxconn
            no backup /data/c1_eth0.json
        "#]],
    );
    check_del(
        DelObservation {
            recorded: Some(recorded(2, &[("net/core/somaxconn", "5")])),
            namespace: false,
            ..observed
        },
        expect![[r#"
            forget net/core/somaxconn
            no backup /data/c1_eth0.json
        "#]],
    );
}

#[test]
fn the_file_of_another_namespace_is_removed_where_it_is() {
    let backup = Some("/old/c1_eth0.json".into());
    check(
        &config(mtu(1400), &[]),
        &AddObservation {
            link: Some(link()),
            stale: Some(RecordData { backup, ..RecordData::default() }),
            ..AddObservation::default()
        },
        expect![[r"
            no backup /old/c1_eth0.json
            record link Some(2), sysctls []
            backup mtu 1500
            link 2: mtu 1400
            -- undo --
            link 2: mtu 1500
            no backup /data/c1_eth0.json
            no record
        "]],
    );
}

#[test]
fn a_backup_that_is_anothers_stays() {
    let recorded = Some(recorded(2, &[]));
    let steps = del(&DelObservation { recorded, namespace: true, ..DelObservation::default() });
    assert_eq!(show(&steps), "");
}

#[test]
fn what_is_the_interfaces_own_is_remembered_with_the_attachment() {
    let own = SysctlState { own: true, ..sysctl("net/ipv4/conf/eth0/arp_filter", "0") };
    let wanted = config(LinkValues::default(), &[("net.ipv4.conf.IFNAME.arp_filter", "1")]);
    check(
        &wanted,
        &AddObservation { sysctls: vec![own], ..AddObservation::default() },
        expect![[r#"
            record link None, sysctls ["net/ipv4/conf/eth0/arp_filter"]
            write net/ipv4/conf/eth0/arp_filter = 1
            -- undo --
            restore net/ipv4/conf/eth0/arp_filter = 0
            no record
        "#]],
    );
    let mut recorded = recorded(2, &[("net/ipv4/conf/eth0/arp_filter", "1")]);
    recorded.sysctls[0].was = Some("0".to_owned());
    let observed =
        DelObservation { recorded: Some(recorded), namespace: true, ..DelObservation::default() };
    check_del(
        observed,
        expect![[r#"
            restore net/ipv4/conf/eth0/arp_filter = 0
            no backup /data/c1_eth0.json
        "#]],
    );
}
