//! `host-local` does the same work with few reserved addresses and with many.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::support::Scratch;

/// A network in whose folder addresses are reserved.
struct Pool {
    scratch: Scratch,
    /// The ranges of both families.
    ranges: Value,
}

impl Pool {
    /// Makes a pool in which foreign containers hold this many addresses, in the reference's file
    /// format.
    fn holding(held: u32) -> Self {
        let scratch = Scratch::new();
        let folder = scratch.path("networks/n");
        fs::create_dir_all(&folder).unwrap();
        let first = u32::from(Ipv4Addr::new(10, 1, 0, 2));
        for number in 0..held {
            let address = Ipv4Addr::from(first + number);
            fs::write(folder.join(address.to_string()), format!("held{number}\r\neth0")).unwrap();
        }
        let last = Ipv4Addr::from(first + held - 1).to_string();
        fs::write(folder.join("last_reserved_ip.0"), last).unwrap();
        symlink(crate::support::EXECUTABLE, scratch.path("host-local")).unwrap();
        let ranges = json!([[{ "subnet": "10.1.0.0/16" }], [{ "subnet": "2001:db8::/64" }]]);
        Pool { scratch, ranges }
    }

    /// Calls the plugin through a program that starts it; returns its answer.
    fn call(&self, mut by: Command, verb: &str, id: &str, previous: &Value) -> Value {
        let mut config = json!({
            "cniVersion": "1.0.0", "name": "n", "type": "host-local",
            "ipam": { "type": "host-local", "dataDir": self.scratch.path("networks"), "ranges": self.ranges },
        });
        if !previous.is_null() {
            config["prevResult"] = previous.clone();
        }
        let mut child = by
            .env_clear()
            .envs([("CNI_COMMAND", verb), ("CNI_CONTAINERID", id), ("CNI_IFNAME", "eth0")])
            .envs([("CNI_NETNS", "/nonexistent/netns"), ("CNI_PATH", "/nonexistent/bin")])
            .env("NETWRIGHT_RUN_DIR", self.scratch.path("run"))
            .env("NETWRIGHT_STATE_DIR", self.scratch.path("lib"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(config.to_string().as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
    }

    /// Attaches once, so that the folder has been read.
    #[expect(clippy::disallowed_methods, reason = "the program is what is tested")]
    fn warm_up(&self) {
        let plugin = Command::new(self.scratch.path("host-local"));
        let added = self.call(plugin, "ADD", "first", &Value::Null);
        assert_eq!(added["ips"].as_array().map(Vec::len), Some(2), "{added}");
    }

    /// Calls the plugin and counts its system calls, by name.
    #[expect(clippy::disallowed_methods, reason = "the program is what is counted")]
    fn count(&self, verb: &str, id: &str, previous: &Value) -> (BTreeMap<String, u32>, Value) {
        let trace = self.scratch.path("trace");
        let mut strace = Command::new("strace");
        strace.args(["-f", "-qq", "-o"]).arg(&trace).arg(self.scratch.path("host-local"));
        let answer = self.call(strace, verb, id, previous);
        let mut calls = BTreeMap::new();
        for line in fs::read_to_string(trace).unwrap().lines() {
            // "PID name(arguments) = answer", and lines on signals and exits.
            let name = line.split_whitespace().nth(1).and_then(|call| call.split_once('('));
            if let Some((name, _)) = name {
                *calls.entry(name.to_owned()).or_insert(0) += 1;
            }
        }
        (calls, answer)
    }

    /// Counts the calls of an attachment's life after the folder has been indexed, and checks the
    /// results.
    fn life(&self) -> Vec<(&'static str, BTreeMap<String, u32>)> {
        self.warm_up();
        let (add, added) = self.count("ADD", "c1", &Value::Null);
        assert_eq!(added["ips"].as_array().map(Vec::len), Some(2), "{added}");
        let (again, refused) = self.count("ADD", "c1", &Value::Null);
        assert!(refused["msg"].as_str().unwrap().contains("duplicate allocation"), "{refused}");
        let (check, checked) = self.count("CHECK", "c1", &added);
        assert_eq!(checked, Value::Null);
        let (del, deleted) = self.count("DEL", "c1", &Value::Null);
        assert_eq!(deleted, Value::Null);
        let (again_del, deleted) = self.count("DEL", "c1", &Value::Null);
        assert_eq!(deleted, Value::Null);
        vec![
            ("ADD", add),
            ("ADD again", again),
            ("CHECK", check),
            ("DEL", del),
            ("DEL again", again_del),
        ]
    }
}

#[track_caller]
fn total(calls: &BTreeMap<String, u32>) -> u32 {
    assert!(!calls.contains_key("getdents64"), "the folder is not listed: {calls:?}");
    calls.values().sum()
}

#[test]
fn sixty_thousand_held_cost_as_many_system_calls_as_ten() {
    testkit::require!("program:strace");
    let (few, many) = (Pool::holding(10).life(), Pool::holding(60_000).life());
    for ((verb, few), (_, many)) in few.iter().zip(&many) {
        // A part of the index may be split between two reads.
        assert!(total(many) <= total(few) + 2, "{verb}: {few:?} against {many:?}");
    }
}

/// The search has reached the end of the range, and either everything after its beginning is taken,
/// or everything is.
#[test]
fn a_free_address_is_found_and_none_told_without_trying_all() {
    testkit::require!("program:strace");
    let mut pool = Pool::holding(4_000);
    pool.warm_up();
    fs::write(pool.scratch.path("networks/n/last_reserved_ip.0"), "10.1.255.254").unwrap();
    let (round, added) = pool.count("ADD", "c1", &Value::Null);
    assert_eq!(added["ips"][0]["address"], "10.1.15.163/16", "{added}");
    assert!(total(&round) < 200, "{round:?}");
    pool.ranges[0][0]["rangeEnd"] = json!("10.1.14.0");
    let (none, refused) = pool.count("ADD", "c2", &Value::Null);
    assert!(refused["msg"].as_str().unwrap().contains("no IP addresses available"), "{refused}");
    assert!(refused["details"].as_str().unwrap().contains("3583 of 3583"), "{refused}");
    // Before it fails it looks once at each reservation, and whether its container still exists.
    assert!(none.values().sum::<u32>() < 10 * 4_000, "{none:?}");
}
