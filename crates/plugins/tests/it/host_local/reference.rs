//! Our plugin and the reference's executable in one folder, alternating and at once.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use super::*;

/// Where Debian's package `containernetworking-plugins` puts it.
const REFERENCE: &str = "/usr/lib/cni/host-local";

/// Newer versions of the specification are unknown to the reference of Debian 12.
const VERSION: &str = "1.0.0";

fn is_here(test: &str) -> bool {
    let here = Path::new(REFERENCE).exists();
    if !here {
        eprintln!("SKIP {test}: there is no {REFERENCE}");
    }
    here
}

/// Calls the reference's executable; returns its result, or its error's message.
#[expect(clippy::disallowed_methods, reason = "the reference is a program")]
fn reference(run: Run<'_>) -> Result<Value, String> {
    let mut env = cni::CallEnv::default();
    let run = run.env(|its| env = its.clone()).version(VERSION);
    let mut child = Command::new(REFERENCE)
        .env_clear()
        .envs(env.to_vars())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&run.document()).unwrap();
    let output = child.wait_with_output().unwrap();
    let value = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    if output.status.success() { Ok(value) } else { Err(value["msg"].as_str().unwrap().to_owned()) }
}

fn ours(run: Run<'_>) -> Result<Value, String> {
    let answer = run.version(VERSION).call();
    if answer.succeeded() {
        Ok(serde_json::from_slice(&answer.output.stdout).unwrap_or(Value::Null))
    } else {
        Err(answer.error().msg)
    }
}

#[test]
fn each_releases_and_checks_what_the_other_reserved() {
    if !is_here("each_releases_and_checks_what_the_other_reserved") {
        return;
    }
    in_turns(&Place::new());
}

#[test]
fn without_an_index_each_releases_and_checks_what_the_other_reserved() {
    if !is_here("without_an_index_each_releases_and_checks_what_the_other_reserved") {
        return;
    }
    in_turns(&Place::without_index());
}

fn in_turns(place: &Place) {
    let ipam =
        json!({ "ranges": [[{ "subnet": "192.0.2.0/29" }], [{ "subnet": "2001:db8::/64" }]] });
    let run = |verb: &str, id: &str| place.run(verb, ipam.clone()).id(id);
    // The same folder, the next address: each continues where the other stopped.
    let first = reference(run("ADD", "go1")).unwrap();
    let second = ours(run("ADD", "us1")).unwrap();
    let third = reference(run("ADD", "go2")).unwrap();
    assert_eq!(addresses_of(&first), ["192.0.2.2/29", "2001:db8::2/64"]);
    assert_eq!(addresses_of(&second), ["192.0.2.3/29", "2001:db8::3/64"]);
    assert_eq!(addresses_of(&third), ["192.0.2.4/29", "2001:db8::4/64"]);
    assert_eq!(
        first["ips"][0].as_object().unwrap().len(),
        second["ips"][0].as_object().unwrap().len()
    );
    reference(run("CHECK", "us1")).unwrap();
    ours(run("CHECK", "go1")).unwrap();
    // Each refuses a duplicate of the other's in the same words.
    assert_eq!(reference(run("ADD", "us1")), ours(run("ADD", "us1")));
    assert_eq!(reference(run("ADD", "go1")), ours(run("ADD", "go1")));
    // Each releases the other's address.
    reference(run("DEL", "us1")).unwrap();
    ours(run("DEL", "go1")).unwrap();
    assert_eq!(place.addresses(), ["192.0.2.4", "2001:db8::4"]);
    // Both continue the same ring.
    assert_eq!(addresses_of(&ours(run("ADD", "us2")).unwrap())[0], "192.0.2.5/29");
    assert_eq!(addresses_of(&reference(run("ADD", "go3")).unwrap())[0], "192.0.2.6/29");
    assert_eq!(addresses_of(&reference(run("ADD", "go4")).unwrap())[0], "192.0.2.2/29");
    assert_eq!(addresses_of(&ours(run("ADD", "us3")).unwrap())[0], "192.0.2.3/29");
    assert_eq!(reference(run("ADD", "x")), ours(run("ADD", "x")));
}

#[test]
fn both_at_once_never_give_the_same_address() {
    if !is_here("both_at_once_never_give_the_same_address") {
        return;
    }
    let place = Place::new();
    let threads: Vec<_> = (0..40)
        .map(|index| {
            let run = place.run("ADD", one("192.0.2.0/25")).id(&format!("c{index}"));
            std::thread::spawn(move || {
                let result = if index % 2 == 0 { reference(run) } else { ours(run) };
                result.unwrap()["ips"][0]["address"].to_string()
            })
        })
        .collect();
    let got: BTreeSet<String> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert_eq!(got.len(), 40);
}

/// The reference changes the folder between two calls of ours, or while one waits for its lock:
/// each call sees the change.
#[test]
fn what_the_reference_did_is_noticed_however_soon() {
    if !is_here("what_the_reference_did_is_noticed_however_soon") {
        return;
    }
    let place = Place::new();
    let range =
        json!({ "ranges": [[{ "subnet": "192.0.2.0/26" }], [{ "subnet": "2001:db8::/64" }]] });
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let calls = |turn: usize| {
                let run =
                    |verb: &str| place.run(verb, range.clone()).id(&format!("c{thread}-{turn}"));
                [run("ADD"), run("ADD"), run("DEL")]
            };
            let calls: Vec<_> = (0..12).map(calls).collect();
            std::thread::spawn(move || {
                for (turn, [first, again, del]) in calls.into_iter().enumerate() {
                    // One makes it, the other refuses and releases it, and the other way round.
                    if (turn + thread) % 2 == 0 {
                        reference(first).unwrap();
                        let refused = ours(again).unwrap_err();
                        assert!(refused.contains("duplicate allocation"), "{refused}");
                        ours(del).unwrap();
                    } else {
                        ours(first).unwrap();
                        let refused = reference(again).unwrap_err();
                        assert!(refused.contains("duplicate allocation"), "{refused}");
                        reference(del).unwrap();
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(place.addresses(), [""; 0]);
}

#[test]
fn refusals_have_the_references_words() {
    if !is_here("refusals_have_the_references_words") {
        return;
    }
    let place = Place::new();
    let documents = [
        json!({}),
        json!({ "ranges": [[]] }),
        json!({ "ranges": [[{}]] }),
        one("192.0.2.0/31"),
        one("2001:db8::/127"),
        one("192.0.2.7/24"),
        json!({ "subnet": "192.0.2.0/24", "rangeStart": "192.0.3.1" }),
        json!({ "subnet": "192.0.2.0/24", "rangeStart": "2001:db8::1" }),
        json!({ "subnet": "192.0.2.0/24", "rangeEnd": "192.0.3.1" }),
        json!({ "ranges": [[{ "subnet": "192.0.2.0/24" }, { "subnet": "2001:db8::/64" }]] }),
        json!({ "ranges": [[{ "subnet": "192.0.2.0/24" }, { "subnet": "192.0.2.0/25" }]] }),
        json!({ "ranges": [[{ "subnet": "192.0.2.0/24" }], [{ "subnet": "192.0.2.0/25" }]] }),
        json!({ "subnet": "192.0.2.0/24", "resolvConf": "/nonexistent/file" }),
    ];
    for ipam in documents {
        let run = || place.run("ADD", ipam.clone());
        assert_eq!(ours(run()).unwrap_err(), reference(run()).unwrap_err(), "{ipam}");
    }
    let ask = |args: &str| {
        let run = || place.run("ADD", one("192.0.2.0/29")).id("c2").args(args);
        let (ours, reference) = (ours(run()).unwrap_err(), reference(run()).unwrap_err());
        assert_eq!(ours, reference, "{args}");
    };
    ours(place.run("ADD", one("192.0.2.0/29")).id("c1")).unwrap();
    ask("IP=192.0.2.1");
    ask("IP=192.0.2.2");
    ask("IP=203.0.113.1");
    ask("IP=nonsense");
    ask("ip=192.0.2.4");
    ask("IP=192.0.2.4;IP=192.0.2.1");
    ask("OTHER=1");
    ask("IP");
    // An empty value requests nothing. (.3 was in a request of the reference that it could not meet
    // in the end.)
    let empty = |id: &str| place.run("ADD", one("192.0.2.0/29")).id(id).args("IP=");
    assert_eq!(addresses_of(&reference(empty("c3")).unwrap()), ["192.0.2.4/29"]);
    assert_eq!(addresses_of(&ours(empty("c4")).unwrap()), ["192.0.2.5/29"]);
    let check = || place.run("CHECK", one("192.0.2.0/29")).id("c2");
    assert_eq!(ours(check()), reference(check()));
}

#[test]
fn files_of_the_reference_are_the_same_files() {
    if !is_here("files_of_the_reference_are_the_same_files") {
        return;
    }
    let (theirs, own) = (Place::new(), Place::new());
    let ipam = json!({ "ranges": [[{ "subnet": "192.0.2.0/29" }], [{ "subnet": "2001:db8:0:0:1::/80" }]] });
    reference(theirs.run("ADD", ipam.clone())).unwrap();
    ours(own.run("ADD", ipam)).unwrap();
    assert_eq!(theirs.files(), own.files());
    for file in theirs.files() {
        assert_eq!(theirs.read(&file), own.read(&file), "{file}");
    }
}
