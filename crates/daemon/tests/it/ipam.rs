//! Addresses of networks that span nodes: the daemon between the plugin and the API server.

mod import;
mod own_user;
pub(crate) mod rig;
mod silent;

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use node_api::ipam::{Answer, Request};
use node_api::{Message, Pod, inbox, ipam};
use serde_json::Value;
use testkit::{Place as _, wait_for};

use rig::{Cluster, ask, owner, say};

#[test]
fn two_nodes_give_addresses_and_the_api_shows_whose_they_are() {
    testkit::require!("root");
    let cluster = Cluster::new("ipam-two");
    let (n1, n2) = (cluster.daemon("n1", &[]), cluster.daemon("n2", &[]));
    let mut given = BTreeSet::new();
    for index in 0..20 {
        let daemon = if index % 2 == 0 { &n1 } else { &n2 };
        let addresses = daemon.assign(&format!("c{index}")).unwrap();
        assert!(addresses[0].is_ipv4() && addresses[1].is_ipv6());
        assert!(addresses.into_iter().all(|address| given.insert(address)));
    }
    let again = n1.assign("c0").unwrap();
    assert_eq!(n1.held("c0").unwrap(), again);
    let shown = |node: &str, container: &str| {
        let blocks = cluster.blocks(node);
        let mut holders = blocks.iter().filter_map(|block| block["spec"]["held"].as_object());
        holders.any(|held| held.values().any(|holder| holder["container"] == container))
    };
    wait_for("the API to show it", || (shown("n1", "c0") && shown("n2", "c1")).then_some(()));
    n1.release("c0");
    assert!(n1.held("c0").unwrap().is_empty());
    wait_for("the API to show that", || (!shown("n1", "c0")).then_some(()));
    assert_eq!(n1.status(), Answer::Ok);
}

#[test]
fn without_the_api_addresses_are_given_and_freed_also_by_the_next_daemon() {
    testkit::require!("root");
    let cluster = Cluster::new("ipam-away");
    let n1 = cluster.daemon("n1", &[]);
    let first = n1.assign("c0").unwrap();
    cluster.api.refuse();
    let second = n1.assign("c1").unwrap();
    n1.kill();
    let n1 = cluster.daemon("n1", &[]);
    assert_eq!(n1.assign("c0").unwrap(), first);
    assert_eq!(n1.held("c1").unwrap(), second);
    n1.release("c1");
    assert!(n1.assign("c2").is_ok());
    let refusal = (3..20).find_map(|index| n1.assign(&format!("c{index}")).err()).unwrap();
    assert!(refusal.retry, "{refusal}");
    assert!(
        refusal.msg.starts_with(
            "this node needs more addresses and cannot ask for them: the store does not answer"
        ),
        "{refusal}"
    );
    for index in 0..20 {
        n1.release(&format!("c{index}"));
    }
    cluster.api.restore();
    wait_for("addresses again", || n1.assign("c9").ok());
}

#[test]
fn what_nobody_heard_is_done_by_the_next_daemon_before_anything_else() {
    testkit::require!("root");
    let cluster = Cluster::new("ipam-left");
    let n1 = cluster.daemon("n1", &[]);
    n1.assign("c0").unwrap();
    let kept = n1.assign("c1").unwrap();
    n1.kill();
    let leave = |container: &str| {
        let release = Request::Release(owner(container));
        let folder = inbox::folder(&cluster.socket("n1"));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join(release.todo_name().unwrap());
        fs::write(path, release.to_line().unwrap()).unwrap();
        folder
    };
    let folder = leave("c0");
    fs::write(folder.join("nonsense"), "tea").unwrap();
    let n1 = cluster.daemon("n1", &[]);
    assert!(n1.held("c0").unwrap().is_empty());
    assert_eq!(n1.held("c1").unwrap(), kept);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    // The daemon does a late DEL before the ADD that follows it.
    let before_that = n1.assign("c0").unwrap();
    leave("c0");
    assert_ne!(n1.assign("c0").unwrap(), before_that);
    leave("c1");
    wait_for("what is left to be done", || n1.held("c1").unwrap().is_empty().then_some(()));
}

#[test]
fn a_slow_api_is_waited_for() {
    testkit::require!("root");
    let cluster = Cluster::new("ipam-slow");
    let n1 = cluster.daemon("n1", &[]);
    cluster.api.slow(Duration::from_secs(2));
    // Many requests come at once, for more addresses than a block has. They share the daemon's
    // requests to the store.
    std::thread::scope(|scope| {
        let asked: Vec<_> = (0..30)
            .map(|index| {
                let n1 = &n1;
                scope.spawn(move || n1.assign(&format!("c{index}")).unwrap())
            })
            .collect();
        let given: BTreeSet<_> = asked.into_iter().map(|one| one.join().unwrap()).collect();
        assert_eq!(given.len(), 30);
    });
    cluster.api.slow(Duration::ZERO);
}

#[test]
fn a_node_that_is_gone_is_given_up_and_an_administrator_may_say_so() {
    testkit::require!("root");
    let cluster = Cluster::new("ipam-gone");
    let n1 = cluster.daemon("n1", &["--lease", "2s"]);
    let n2 = cluster.daemon("n2", &["--lease", "2s"]);
    n1.assign("c0").unwrap();
    n2.assign("c1").unwrap();
    // The node's object is deleted, but the node lives.
    cluster.api.remove("nodes", "", "n2");
    n1.kill();
    let told = cluster.run(&["--forget", "n1"]);
    let words = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(told.status.success() && words.contains("forgotten"), "{words}");
    wait_for("its blocks to be free", || cluster.blocks("n1").is_empty().then_some(()));
    wait_for("the report to arrive", || {
        n2.said().contains("a node is gone: its blocks are free").then_some(())
    });
    assert!(!cluster.blocks("n2").is_empty());
    let told = cluster.run(&["--forget", "n9"]);
    let words = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(!told.status.success() && words.contains("no node \"n9\" has blocks"), "{words}");
    // Node n1 was not gone after all.
    let n1 = cluster.daemon("n1", &["--lease", "2s"]);
    wait_for("its blocks to be its again", || {
        n1.held("c0").ok().filter(|held| !held.is_empty() && !cluster.blocks("n1").is_empty())
    });
}

#[test]
fn what_is_no_message_is_answered_in_a_sentence() {
    testkit::require!("root");
    let cluster = Cluster::new("ipam-nonsense");
    let n1 = cluster.daemon("n1", &[]);
    for (line, words) in [
        (&b"tea\n"[..], "does not understand the plugin: not a message"),
        (b"{}\n", "a message of version 0"),
        (b"{\"version\":1,\"assign\":{}}\n", "the network has no name"),
        (
            b"{\"version\":1,\"assign\":{\"network\":{\"network\":\"n\",\"ranges\":[{\"subnet\":\"10.0.0.0/24\"}]}}}\n",
            "the request for an address has no container ID",
        ),
        (
            b"{\"version\":1,\"status\":{\"network\":{\"network\":\"n\"}}}\n",
            "network \"n\" has no range of addresses",
        ),
    ] {
        let answer = Answer::from_line(&say(&n1.socket, line).unwrap()).unwrap();
        let Answer::Refused(refusal) = answer else { panic!("{answer:?}") };
        assert!(refusal.msg.contains(words), "{refusal}");
    }
    assert!(n1.assign("c0").is_ok());
}

/// The same code serves the socket of `netwrightd multinet`.
#[test]
fn clients_that_say_nothing_keep_nobody_waiting() {
    testkit::require!("root");
    crate::rig::raise_descriptor_limit();
    let cluster = Cluster::new("ipam-many-silent");
    let n1 = cluster.daemon("n1", &[]);
    let silent: Vec<_> = cluster.lab.enter(|| {
        let connect = |_| std::os::unix::net::UnixStream::connect(&n1.socket).unwrap();
        (0..3000).map(connect).collect()
    });
    n1.assign("c0").unwrap();
    assert!(!n1.said().contains("timed out"), "{}", n1.said());
    drop(silent);
    n1.assign("c1").unwrap();
}

/// The daemon does not read the system's trusted certificates if it checks no certificate, or has a
/// file with the authority.
#[test]
fn etcd_needs_no_certificates_of_the_system() {
    testkit::require!("root", "program:etcd", "program:curl", "program:openssl");
    for secure in [false, true] {
        let cluster = Cluster::new(if secure { "ipam-no-ca-tls" } else { "ipam-no-ca" });
        let etcd = match secure {
            true => testkit::real::Etcd::start_secure(&cluster.lab),
            false => testkit::real::Etcd::start(&cluster.lab),
        };
        let mut flags = Vec::new();
        if secure {
            let [certificate, key] = etcd.files("client");
            for (flag, path) in [
                ("--etcd-ca", etcd.authority("ca")),
                ("--etcd-cert", certificate),
                ("--etcd-key", key),
            ] {
                flags.extend([flag.to_owned(), path.display().to_string()]);
            }
        }
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let n1 = cluster.daemon_without_certificates("n1", &etcd, &flags);
        assert_eq!(n1.assign("c0").unwrap().len(), 2, "secure: {secure}");
    }
}

#[test]
fn what_is_not_defined_and_what_is_not_allowed_is_said() {
    testkit::require!("root");
    let cluster = Cluster::new("ipam-rights");
    cluster.api.allow_only(&[]);
    let n1 = cluster.daemon("n1", &[]);
    let refusal = n1.assign("c0").unwrap_err();
    assert!(refusal.retry && refusal.msg.contains("is forbidden"), "{refusal}");
    // Once the manifests of deploy/kubernetes are applied, it continues by itself.
    cluster.api.allow_only(&[(rules(), None)]);
    wait_for("an address", || n1.assign("c0").ok());
}

/// What the service was started with no longer serves: it takes what the kubeconfig says by then,
/// without a restart.
#[test]
fn a_kubeconfig_that_changes_is_read_again() {
    testkit::require!("root");
    let cluster = Cluster::new("ipam-kubeconfig");
    let n1 = cluster.daemon("n1", &[]);
    cluster.api.require_token("another");
    let refusal = n1.assign("c0").unwrap_err();
    assert!(refusal.retry && refusal.msg.contains("Unauthorized"), "{refusal}");
    // What is being written may be wrong for a moment.
    fs::write(cluster.dir.join("kubeconfig"), "{").unwrap();
    wait_for("the file to be named", || {
        n1.assign("c0").unwrap_err().msg.contains("read the kubeconfig").then_some(())
    });
    let _ = cluster.api.kubeconfig(&cluster.dir);
    wait_for("addresses", || n1.assign("c0").ok());
}

/// The rules of the daemon's role.
fn rules() -> Value {
    let all = testkit::real::manifest_file("5-addresses.yaml");
    all.iter().find(|one| one["kind"] == "ClusterRole").unwrap()["rules"].clone()
}

/// The manifest's role allows every request of the daemon and its commands, and no other.
#[test]
fn rights_are_what_is_asked_for() {
    testkit::require!("root");
    let cluster = Cluster::new("ipam-role");
    cluster.api.allow_only(&[(rules(), None)]);
    let (n1, n2) =
        (cluster.daemon("n1", &["--idle", "0"]), cluster.daemon("n2", &["--lease", "1s"]));
    // The daemon makes a space, blocks and leases, holds them, and returns empty blocks.
    n2.assign("c1").unwrap();
    let many: Vec<String> = (0..10).map(|index| format!("many{index}")).collect();
    many.iter().for_each(|container| drop(n1.assign(container).unwrap()));
    many.iter().for_each(|container| n1.release(container));
    wait_for("blocks to be given back", || cluster.blocks("n1").is_empty().then_some(()));
    // A space grows.
    let mut grown = rig::network();
    grown.ranges.push("10.1.0.0/20".parse().unwrap());
    assert!(matches!(assign(&n1, grown, "c2"), Answer::Assigned(_)));
    // A pod keeps an address, gets it again, and then gives it up.
    for container in ["c3", "c4"] {
        wait_for("the pod's address", || {
            matches!(assign_sticky(&n1, container), Answer::Assigned(_)).then_some(())
        });
        n1.release(container);
    }
    wait_for("it to be free", || {
        cluster.run(&["--release-sticky", "ns/web-0"]).status.success().then_some(())
    });
    // One node is gone because its object is, and one because an administrator says so.
    n2.kill();
    cluster.api.remove("nodes", "", "n2");
    n1.kill();
    assert!(cluster.run(&["--forget", "n1"]).status.success());
    let n1 = cluster.daemon("n1", &["--lease", "1s"]);
    wait_for("the other's blocks", || cluster.blocks("n2").is_empty().then_some(()));
    let asked = || -> BTreeSet<(String, String, String)> {
        let own = |asked: testkit::kube::LoggedRequest| (asked.group, asked.resource, asked.verb);
        cluster.api.asked().into_iter().map(own).collect()
    };
    let mut allowed = BTreeSet::new();
    let texts = |value: &Value| -> Vec<String> {
        let list = value.as_array().into_iter().flatten();
        list.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    for rule in rules().as_array().unwrap() {
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                for verb in texts(&rule["verbs"]) {
                    allowed.insert((group.clone(), resource.clone(), verb));
                }
            }
        }
    }
    wait_for("everything to have been asked for", || allowed.is_subset(&asked()).then_some(()));
    assert_eq!(asked(), allowed, "{}", n1.said());
    let refused = cluster.api.asked().into_iter().find(|asked| matches!(asked.code, 401 | 403));
    assert_eq!(refused, None);
}

fn assign(
    daemon: &rig::Daemon,
    network: cluster_ipam::network::NetworkSpec,
    container: &str,
) -> Answer {
    let request = Request::Assign(ipam::AssignRequest {
        network,
        owner: owner(container),
        wanted: Vec::new(),
    });
    ask(&daemon.socket, &request).unwrap()
}

/// Requests the address that a pod keeps.
fn assign_sticky(daemon: &rig::Daemon, container: &str) -> Answer {
    let pod = Pod { namespace: "ns".into(), name: "web-0".into(), uid: String::new() };
    let request = Request::Assign(ipam::AssignRequest {
        network: cluster_ipam::network::NetworkSpec { sticky: true, ..rig::network() },
        owner: ipam::Owner { pod: Some(pod), ..owner(container) },
        wanted: Vec::new(),
    });
    ask(&daemon.socket, &request).unwrap()
}

#[test]
fn etcd_keeps_them_as_well() {
    testkit::require!("root", "program:etcd", "program:curl");
    let cluster = Cluster::new("ipam-etcd-daemon");
    let etcd = testkit::real::Etcd::start(&cluster.lab);
    let n1 = cluster.daemon_with_etcd("n1", &etcd, &[]);
    assert_eq!(n1.assign("c0").unwrap().len(), 2);
}

/// There are two nodes and two blocks. The first node has both blocks, and no container has an
/// address of them any longer.
fn empty_blocks_go_to_who_needs_them(n1: &rig::Daemon, n2: &rig::Daemon) {
    let mut small = rig::network();
    small.ranges = vec!["10.2.0.0/28".parse().unwrap()];
    let given = |answer: Answer| match answer {
        Answer::Assigned(all) => all[0].address.addr(),
        other => panic!("{other:?}"),
    };
    for index in 0..10 {
        given(assign(n1, small.clone(), &format!("first-{index}")));
    }
    for index in 0..10 {
        n1.release(&format!("first-{index}"));
    }
    // A request may come before the record shows that these blocks are empty.
    wait_for("an address of the other node's blocks", || {
        matches!(assign(n2, small.clone(), "second"), Answer::Assigned(_)).then_some(())
    });
    for index in 0..10 {
        given(assign(n2, small.clone(), &format!("second-{index}")));
    }
}

#[test]
fn empty_blocks_go_to_the_node_that_needs_them_by_the_api() {
    testkit::require!("root");
    let cluster = Cluster::new("ipam-want-api");
    let (n1, n2) = (cluster.daemon("n1", &[]), cluster.daemon("n2", &[]));
    empty_blocks_go_to_who_needs_them(&n1, &n2);
}

#[test]
fn empty_blocks_go_to_the_node_that_needs_them_by_etcd() {
    testkit::require!("root", "program:etcd", "program:curl");
    let cluster = Cluster::new("ipam-want-etcd");
    let etcd = testkit::real::Etcd::start(&cluster.lab);
    let n1 = cluster.daemon_with_etcd("n1", &etcd, &[]);
    let n2 = cluster.daemon_with_etcd("n2", &etcd, &[]);
    empty_blocks_go_to_who_needs_them(&n1, &n2);
}

/// The test restores the folders of etcd's members from a copy. This takes half a minute, in which
/// no blocks are assigned.
#[test]
fn an_etcd_that_was_put_back_from_a_copy_gives_no_address_twice() {
    testkit::require!("full", "root", "program:etcd", "program:curl");
    let cluster = Cluster::new("ipam-etcd-back");
    let mut etcd = testkit::real::Etcd::start(&cluster.lab);
    let n1 = cluster.daemon_with_etcd("n1", &etcd, &[]);
    let n2 = cluster.daemon_with_etcd("n2", &etcd, &[]);
    let mut small = rig::network();
    small.ranges = vec!["10.3.0.0/27".parse().unwrap()];
    let mut given = BTreeSet::new();
    let mut give = |daemon: &rig::Daemon, container: &str| {
        let answer = assign(daemon, small.clone(), container);
        if let Answer::Assigned(all) = &answer {
            assert!(given.insert(all[0].address.addr()), "{:?} is assigned twice", all[0]);
        }
        answer
    };
    assert!(matches!(give(&n1, "c0"), Answer::Assigned(_)));
    assert!(matches!(give(&n2, "d0"), Answer::Assigned(_)));
    let (folder, copy) = (cluster.dir.join("etcd"), cluster.dir.join("etcd-copy"));
    let swap = |etcd: &mut testkit::real::Etcd<'_>, command: String| {
        (0..3).for_each(|member| etcd.kill(member));
        cluster.lab.sh(&command);
        (0..3).for_each(|member| etcd.revive(member));
        etcd.wait_for_leader();
    };
    swap(&mut etcd, format!("cp -a {} {}", folder.display(), copy.display()));
    // Blocks that the copy does not have.
    for index in 1..15 {
        let container = format!("c{index}");
        wait_for("an address", || {
            matches!(give(&n1, &container), Answer::Assigned(_)).then_some(())
        });
    }
    // In production other clients write too, and the daemons read the store at least every ten
    // seconds: here the test writes now.
    cluster.lab.sh(&format!(
        "for i in $(seq 200); do curl -sf {}/v3/kv/put -d '{{\"key\":\"eA==\",\"value\":\"eA==\"}}' >/dev/null; done",
        etcd.endpoints()[0]
    ));
    for (daemon, container) in [(&n1, "e1"), (&n2, "e2")] {
        wait_for("another network's address", || daemon.assign(container).ok());
    }
    swap(&mut etcd, format!("rm -r {0} && cp -a {1} {0}", folder.display(), copy.display()));
    // The other node needs everything that is left, and requests it first.
    for index in 1..16 {
        let container = format!("d{index}");
        wait_for("an address", || match give(&n2, &container) {
            Answer::Assigned(_) => Some(()),
            Answer::Refused(refusal) if refusal.retry || refusal.code == 102 => {
                (refusal.code == 102).then_some(())
            }
            other => panic!("{other:?}"),
        });
    }
    wait_for("both to say it", || {
        let said = |daemon: &rig::Daemon| daemon.said().contains("put back to an earlier state");
        (said(&n1) && said(&n2)).then_some(())
    });
    for daemon in [&n1, &n2] {
        assert!(!daemon.said().contains("to another container"), "{}", daemon.said());
    }
}

#[test]
fn etcd_is_asked_over_tls_and_whoever_is_not_trusted_is_told() {
    testkit::require!("root", "program:etcd", "program:curl", "program:openssl");
    let cluster = Cluster::new("ipam-etcd-tls");
    let etcd = testkit::real::Etcd::start_secure(&cluster.lab);
    let text = |path: std::path::PathBuf| path.to_str().unwrap().to_owned();
    let flags = |authority: &str, name: &str| {
        let [certificate, key] = etcd.files(name).map(text);
        let authority = text(etcd.authority(authority));
        [
            "--etcd-ca".to_owned(),
            authority,
            "--etcd-cert".to_owned(),
            certificate,
            "--etcd-key".to_owned(),
            key,
        ]
    };
    let start = |node: &str, flags: &[String]| {
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        cluster.daemon_with_etcd(node, &etcd, &flags)
    };
    let n1 = start("n1", &flags("ca", "client"));
    assert_eq!(n1.assign("c0").unwrap().len(), 2);
    for (node, flags) in [
        ("stranger", flags("ca", "stranger").to_vec()),
        ("nameless", flags("ca", "client")[..2].to_vec()),
        ("misled", flags("other", "client").to_vec()),
    ] {
        let daemon = start(node, &flags);
        // If the server refuses the connection before it is used, the reason is not known yet.
        testkit::wait_until("the reason", || {
            let refusal = daemon.assign("c1").unwrap_err();
            assert!(refusal.retry, "{node}: {refusal}");
            let told = format!("{refusal} {}", refusal.details).to_lowercase();
            assert!(told.contains("etcd at https://127.0.0.1:"), "{node}: {told}");
            told.contains("certificate")
        });
    }
    // These requests have changed nothing.
    assert_eq!(n1.assign("c1").unwrap().len(), 2);

    // A certificate that is replaced needs no restart.
    let renewed = ["pem", "key"].map(|kind| cluster.lab.dir().join(format!("renewed.{kind}")));
    let renew = |name: &str| {
        for (from, to) in etcd.files(name).iter().zip(&renewed) {
            fs::copy(from, to).unwrap();
        }
    };
    renew("stranger");
    let [certificate, key] = renewed.clone().map(text);
    let mut flags = flags("ca", "client");
    (flags[3], flags[5]) = (certificate, key);
    let n2 = start("n2", &flags);
    assert!(n2.assign("c2").unwrap_err().retry);
    renew("client");
    let assigned = wait_for("its addresses", || n2.assign("c2").ok());
    assert_eq!(assigned.len(), 2);
}

#[test]
fn a_pod_keeps_its_addresses_until_somebody_frees_them() {
    testkit::require!("root");
    let cluster = Cluster::new("ipam-sticky");
    let (n1, n2) = (cluster.daemon("n1", &[]), cluster.daemon("n2", &[]));
    let add = |daemon: &rig::Daemon, container: &str| match assign_sticky(daemon, container) {
        Answer::Assigned(all) => Ok(all),
        other => Err(format!("{other:?}")),
    };
    let first = add(&n1, "c1").unwrap();
    assert!(add(&n2, "c2").unwrap_err().contains("still its container's on node n1"));
    let told = cluster.run(&["--release-sticky", "ns/web-0"]);
    let words = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(!told.status.success() && words.contains("delete it first"), "{words}");
    n1.release("c1");
    assert_eq!(wait_for("its address elsewhere", || add(&n2, "c2").ok()), first);
    n2.release("c2");
    wait_for("it to be free", || {
        cluster.run(&["--release-sticky", "ns/web-0"]).status.success().then_some(())
    });
    let told = cluster.run(&["--release-sticky", "ns/web-0"]);
    let words = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(words.contains("keeps no addresses"), "{words}");
}
