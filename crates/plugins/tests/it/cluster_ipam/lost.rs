//! A daemon that is away, silent, or gives an invalid answer.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use node_api::Refusal;
use node_api::ipam::{Answer, AssignedAddress, Request};
use serde_json::json;
use testkit::Place;

use super::{addresses, both, bridge, call, given};
use crate::support::Node;
use crate::support::cluster::{Daemon, left, says, socket};
use crate::support::listener::Reply;
use crate::support::ready::Ready;

/// The limit for a call that must not wait: much more than the call takes, much less than the
/// timeout.
const AT_ONCE: Duration = Duration::from_secs(8);

#[test]
fn without_a_daemon_add_fails_and_del_and_gc_do_not() {
    testkit::require!("root");
    let node = Node::new("cluster-alone");
    let c1 = node.container("c1");
    let words = "netwrightd does not say which addresses are free: connect to";
    bridge(&node, "ADD", &c1, &both()).deadline(Duration::from_secs(5)).call().fails(11, words);
    // The same with a socket that stayed behind.
    std::fs::create_dir_all(&node.roots.run).unwrap();
    drop(UnixListener::bind(socket(&node)).unwrap());
    bridge(&node, "ADD", &c1, &both()).deadline(Duration::from_secs(5)).call().fails(11, words);
    assert_eq!(c1.sh("ip -o link show | grep -v ' lo:' | wc -l").trim(), "0");
    // If no daemon was asked, there is nothing to give back.
    assert_eq!(left(&node), []);
    call(&node, "ADD", &c1, &both()).deadline(Duration::from_secs(5)).call().fails(11, words);
    assert_eq!(left(&node), []);
    call(&node, "STATUS", &c1, &both()).call().fails(50, words);
    // A daemon that is being replaced does not make the node "not ready"; one that stays away does.
    let ready = Ready::of(&socket(&node));
    ready.said_before(Duration::from_secs(5));
    call(&node, "STATUS", &c1, &both()).call().silent();
    ready.said_before(Duration::from_secs(61));
    call(&node, "STATUS", &c1, &both()).call().fails(50, words);
    let prev = json!({ "cniVersion": "1.1.0" });
    let check = call(&node, "CHECK", &c1, &both()).prev(&prev).deadline(Duration::from_secs(5));
    check.call().fails(11, words);

    let started = Instant::now();
    call(&node, "DEL", &c1, &both()).call().silent();
    call(&node, "DEL", &c1, &json!(null)).netns("").call().silent();
    call(&node, "GC", &c1, &both()).valid(&[("c9", "eth0")]).call().silent();
    assert!(started.elapsed() < AT_ONCE);
    let found = left(&node);
    // The inbox does not get GC: the list of valid attachments may have changed by the time the
    // daemon reads it.
    let [Request::Release(owner)] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!((owner.container.as_str(), owner.ifname.as_str()), ("c1", "eth0"));
}

/// An address stays reserved until the daemon learns that it is free: the container no longer uses
/// it, but no other can have it before.
#[test]
fn what_nobody_heard_is_done_later() {
    testkit::require!("root");
    let node = Node::new("cluster-later");
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    let daemon = Daemon::start(&node);
    let result = bridge(&node, "ADD", &c1, &both()).call().ok();
    drop(daemon);
    bridge(&node, "DEL", &c1, &both()).prev(&result).call().silent();
    assert_eq!(given(&node).len(), 2);
    let daemon = Daemon::start(&node);
    assert_eq!((given(&node), left(&node)), (vec![], vec![]));
    assert_eq!(addresses(&bridge(&node, "ADD", &c2, &both()).call().ok()), addresses(&result));
    drop(daemon);
}

#[test]
fn a_daemon_that_is_gone_is_not_waited_for() {
    testkit::require!("root");
    let node = Node::new("cluster-gone");
    let c1 = node.container("c1");
    Ready::of(&socket(&node)).said_before(Duration::from_secs(61));
    let begin = Instant::now();
    call(&node, "ADD", &c1, &both()).call().fails(11, "connect to");
    assert!(begin.elapsed() < AT_ONCE, "it waited for {:?}", begin.elapsed());
}

#[test]
fn a_daemon_that_comes_is_waited_for() {
    testkit::require!("root");
    let node = Node::new("cluster-comes");
    let c1 = node.container("c1");
    Ready::of(&socket(&node)).said_before(Duration::from_secs(5));
    std::thread::scope(|scope| {
        let added = scope.spawn(|| call(&node, "ADD", &c1, &both()).call().ok());
        let daemon = Daemon::start(&node);
        added.join().unwrap();
        assert_eq!(daemon.words(), ["assign"]);
    });
}

/// If the daemon is silent, dies or gives an impossible answer, ADD fails, gives back what the
/// daemon may have assigned, and leaves nothing in the container.
#[test]
fn an_answer_that_is_no_use_changes_nothing() {
    testkit::require!("root");
    let node = Node::new("cluster-lies");
    let c1 = node.container("c1");
    let assigned = |all: &[(&str, Option<&str>)]| {
        let one = |(address, gateway): &(&str, Option<&str>)| AssignedAddress {
            address: address.parse().unwrap(),
            gateway: gateway.map(|gateway| gateway.parse().unwrap()),
        };
        says(&Answer::Assigned(all.iter().map(one).collect()))
    };
    let mut long = br#"{"version":1,"assigned":[],"x":""#.to_vec();
    long.resize(node_api::line::MAX_MESSAGE + 1, b' ');
    let v6 = ("fd00:1::2/64", None);
    let replies = [
        ("silent", Reply::KeepsSilent, 11, "no answer on"),
        ("dead", Reply::Dies, 11, "no answer on"),
        ("half", Reply::Writes(br#"{"version":1,"assigned":[{"addr"#.to_vec()), 11, "no answer on"),
        ("nonsense", Reply::Writes(b"tea\n".to_vec()), 110, "is not valid: not a message"),
        ("nothing", Reply::Writes(b"\n".to_vec()), 110, "is not valid"),
        ("binary", Reply::Writes(b"\xff\x00\n".to_vec()), 110, "is not valid"),
        (
            "newer",
            Reply::Writes(b"{\"version\":2,\"ok\":{}}\n".to_vec()),
            110,
            "a message of version 2",
        ),
        ("too long", Reply::Writes(long), 110, "is not valid: a message of"),
        ("done", says(&Answer::Ok), 110, "it names no addresses"),
        ("none", assigned(&[]), 110, "it gives 0 addresses of 2 ranges"),
        ("one", assigned(&[("10.1.0.2/24", None)]), 110, "it gives 1 addresses of 2 ranges"),
        (
            "foreign",
            assigned(&[("10.2.0.2/24", None), v6]),
            110,
            "it gives 10.2.0.2/24 of the range of 10.1.0.0/24",
        ),
        (
            "other order",
            assigned(&[v6, ("10.1.0.2/24", None)]),
            110,
            "it gives fd00:1::2/64 of the range",
        ),
        ("network", assigned(&[("10.1.0.0/24", None), v6]), 110, "it gives 10.1.0.0/24"),
        ("gateway", assigned(&[("10.1.0.1/24", None), v6]), 110, "it gives 10.1.0.1/24"),
        ("prefix", assigned(&[("10.1.0.2/16", None), v6]), 110, "it gives 10.1.0.2/16"),
    ];
    for (what, reply, code, words) in replies {
        let daemon = Daemon::but(&node, move |request| match request {
            Request::Assign(_) => Some(reply.clone()),
            _ => None,
        });
        let add = bridge(&node, "ADD", &c1, &both()).deadline(Duration::from_secs(6));
        let error = add.call().error();
        assert_eq!(
            (error.code, error.to_string().contains(words)),
            (code, true),
            "{what}: {error:?}"
        );
        assert_eq!(c1.sh("ip -o link show | grep -v ' lo:' | wc -l").trim(), "0", "{what}");
        let found = left(&node);
        assert!(matches!(found.as_slice(), [Request::Release(_)]), "{what}: {found:?}");
        drop(daemon);
    }
    // The daemon must assign what was requested, and each address only once.
    let daemon = Daemon::but(&node, move |request| match request {
        Request::Assign(_) => Some(assigned(&[("10.1.0.2/24", None), v6])),
        _ => None,
    });
    let wanted = call(&node, "ADD", &c1, &both()).args("IP=10.1.0.9/24").call();
    wanted.fails(110, "it does not give 10.1.0.9, which was asked for");
    drop(daemon);
    let _daemon = Daemon::but(&node, |request| match request {
        Request::Assign(_) => {
            let address =
                || AssignedAddress { address: "10.1.0.2/24".parse().unwrap(), gateway: None };
            Some(says(&Answer::Assigned(vec![address(), address()])))
        }
        _ => None,
    });
    let twice = json!({ "type": "cluster-ipam", "ipRanges": [{ "range": "10.1.0.0/24" }, { "range": "10.1.0.0/24" }] });
    call(&node, "ADD", &c1, &twice).call().fails(110, "it gives 10.1.0.2 twice");
}

/// Another user behind the socket could give two containers one address.
#[test]
fn a_stranger_behind_the_socket_is_not_asked() {
    testkit::require!("root", "program:setpriv", "program:socat");
    let node = Node::new("cluster-stranger");
    let c1 = node.container("c1");
    let open =
        |dir: &Path, mode| fs::set_permissions(dir, fs::Permissions::from_mode(mode)).unwrap();
    open(node.lab.dir(), 0o755);
    fs::create_dir_all(&node.roots.run).unwrap();
    open(&node.roots.run, 0o777);
    let listen = format!("UNIX-LISTEN:{},fork", socket(&node).display());
    let args = ["--reuid", "65534", "--clear-groups", "socat", &listen, "EXEC:cat"];
    let _stranger = node.lab.start("setpriv", &args);
    // The socket appears before it is listened on.
    testkit::wait_for("the stranger", || UnixStream::connect(socket(&node)).ok());
    let words = "is served by user 65534, which is neither root nor ours";
    Ready::of(&socket(&node)).said_before(Duration::ZERO);
    call(&node, "STATUS", &c1, &both()).call().fails(50, words);
    bridge(&node, "ADD", &c1, &both()).call().fails(110, words);
    assert_eq!(c1.sh("ip -o link show | grep -v ' lo:' | wc -l").trim(), "0");
}

#[test]
fn refusals_are_the_daemons_words() {
    testkit::require!("root");
    let node = Node::new("cluster-refused");
    let c1 = node.container("c1");
    let prev = json!({ "cniVersion": "1.1.0" });
    for (refusal, code, status) in [
        (
            Refusal::new(102, "no address of 10.1.0.0/24 is free").with_details("7 of 7 are given"),
            102,
            50,
        ),
        (Refusal::for_now("etcd does not answer"), 11, 50),
        (Refusal { retry: true, ..Refusal::new(0, "wait") }, 11, 50),
        (Refusal::new(0, "no"), 7, 50),
        (Refusal::new(51, "half of the store is gone"), 51, 51),
    ] {
        let words = refusal.msg.clone();
        let daemon = Daemon::but(&node, move |request| match request {
            Request::Release(_) | Request::Collect(_) => None,
            _ => Some(says(&Answer::Refused(refusal.clone()))),
        });
        bridge(&node, "ADD", &c1, &both()).call().fails(code, &words);
        assert_eq!(left(&node), [], "it has given nothing");
        call(&node, "STATUS", &c1, &both()).call().fails(status, &words);
        call(&node, "CHECK", &c1, &both()).prev(&prev).call().fails(code, &words);
        drop(daemon);
    }
}

#[test]
fn del_and_gc_do_not_wait_for_a_daemon_that_does_not_answer() {
    testkit::require!("root");
    let node = Node::new("cluster-deaf");
    let c1 = node.container("c1");
    let not_now = says(&Answer::Refused(Refusal::for_now("not now")));
    for (reply, gc) in [
        (Reply::KeepsSilent, None),
        (Reply::Dies, None),
        (Reply::Writes(b"tea\n".to_vec()), Some((110, "is not valid"))),
        (says(&Answer::Assigned(Vec::new())), Some((110, "it names addresses"))),
        (not_now, Some((11, "not now"))),
    ] {
        let daemon = Daemon::but(&node, move |_| Some(reply.clone()));
        let started = Instant::now();
        call(&node, "DEL", &c1, &both()).call().silent();
        assert!(started.elapsed() < AT_ONCE);
        assert!(matches!(left(&node).as_slice(), [Request::Release(_)]));
        let collect = call(&node, "GC", &c1, &both()).valid(&[]).deadline(Duration::from_secs(6));
        match gc {
            None => collect.call().silent(),
            Some((code, words)) => collect.call().fails(code, words),
        }
        assert!(matches!(left(&node).as_slice(), [Request::Release(_)]));
        drop(daemon);
        drop(Daemon::start(&node));
        assert_eq!(left(&node), []);
    }
    // If DEL cannot write to the inbox either, it fails: the address would be lost.
    std::fs::write(node_api::inbox::folder(&socket(&node)), "").unwrap();
    let error = call(&node, "DEL", &c1, &both()).call().error();
    assert_eq!(error.code, 105, "{error:?}");
    assert!(error.details.contains("cannot be told later"), "{error:?}");
}
