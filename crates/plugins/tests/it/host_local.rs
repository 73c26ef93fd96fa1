//! `host-local`, row by row, and its verbs beside the reference's own executable in one folder.

mod matrix;
mod reference;
mod stale;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use cni::{Version, code};
use cni_plugin::codes;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Answer, Run};

/// A folder of networks for one test, and folders for state. The plugin touches no others.
struct Place {
    dir: TempDir,
    roots: state::Roots,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let roots = state::Roots::new(dir.path().join("our/run"), dir.path().join("our/lib"));
        Place { dir, roots }
    }

    /// Makes a place without an index, where every lookup reads the files.
    fn without_index() -> Self {
        let roots = state::Roots::new("/dev/null/run", "/dev/null/lib");
        Place { roots, ..Place::new() }
    }

    /// The folder of the network `n`.
    fn network(&self) -> PathBuf {
        self.dir.path().join("n")
    }

    fn path(&self, file: &str) -> PathBuf {
        self.network().join(file)
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.path(file)).unwrap()
    }

    fn write(&self, file: &str, content: &str) {
        fs::create_dir_all(self.network()).unwrap();
        fs::write(self.path(file), content).unwrap();
    }

    /// The names of all files in the network's folder, sorted.
    fn files(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.network()) else { return Vec::new() };
        let names: BTreeSet<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.into_iter().collect()
    }

    /// The names of the files of addresses, sorted as text.
    fn addresses(&self) -> Vec<String> {
        let mut files = self.files();
        files.retain(|name| name.parse::<std::net::IpAddr>().is_ok());
        files
    }

    /// Prepares a call whose `ipam` has these keys, the type and the folder.
    fn run(&self, verb: &str, ipam: Value) -> Run<'static> {
        let mut whole = json!({ "type": "host-local", "dataDir": self.dir.path() });
        whole.as_object_mut().unwrap().extend(ipam.as_object().unwrap().clone());
        Run::bare("host-local", verb)
            .netns("/nonexistent/netns")
            .config(json!({ "ipam": whole }))
            .roots(&self.roots)
    }

    fn add(&self, id: &str, ipam: Value) -> Answer {
        self.run("ADD", ipam).id(id).call()
    }

    fn del(&self, id: &str, ipam: Value) -> Answer {
        self.run("DEL", ipam).id(id).call()
    }
}

/// One range set of one subnet.
fn one(subnet: &str) -> Value {
    json!({ "ranges": [[{ "subnet": subnet }]] })
}

fn addresses_of(result: &Value) -> Vec<&str> {
    result["ips"].as_array().unwrap().iter().map(|ip| ip["address"].as_str().unwrap()).collect()
}

/// The error of a call that must end soon.
#[track_caller]
fn call_within(run: Run<'_>, timeout: Duration) -> cni::Error {
    let mut env = cni::CallEnv::default();
    let run = run.env(|its| env = its.clone());
    let roots = state::Roots::new("/dev/null/run", "/dev/null/lib");
    let executor = cni_invoke::Exec::new(Vec::new());
    let context = cni_plugin::Context {
        roots: &roots,
        executor: &executor,
        deadline: Some(Instant::now() + timeout),
        build: crate::support::BUILD,
    };
    let plugin = plugins::find("host-local").unwrap();
    let output = cni_plugin::respond(plugin, &env, &mut run.document().as_slice(), &context);
    cni::Error::parse(&output.stdout).unwrap()
}

/// Asserts that ADD succeeds with these addresses.
#[track_caller]
fn gives(answer: Answer, addresses: &[&str]) {
    assert_eq!(addresses_of(&answer.ok()), addresses);
}

/// `host-local | state file`
#[test]
fn the_state_file_is_the_references_byte_for_byte() {
    let place = Place::new();
    let result = place.add("c1", one("192.0.2.0/29")).ok();
    assert_eq!(
        result,
        json!({
            "cniVersion": "1.1.0",
            "ips": [{ "address": "192.0.2.2/29", "gateway": "192.0.2.1" }],
        })
    );
    assert_eq!(place.read("192.0.2.2"), "c1\r\neth0");
    assert_eq!(place.files(), ["192.0.2.2", "last_reserved_ip.0", "lock"]);
    let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(place.path("192.0.2.2")), 0o600);
    assert_eq!(mode(place.path("last_reserved_ip.0")), 0o600);
    assert_eq!(mode(place.network()), 0o755);
    place.del("c1", one("192.0.2.0/29")).silent();
    assert_eq!(place.files(), ["last_reserved_ip.0", "lock"]);
    gives(place.add("c6", one("2001:db8::/64")), &["2001:db8::2/64"]);
    assert_eq!(place.read("2001:db8::2"), "c6\r\neth0");
}

/// `host-local | round robin`
#[test]
fn a_freed_address_waits_until_the_ring_comes_round() {
    let place = Place::new();
    let range = one("192.0.2.0/29");
    gives(place.add("c1", range.clone()), &["192.0.2.2/29"]);
    place.del("c1", range.clone()).silent();
    for (id, address) in [("c2", 3), ("c3", 4), ("c4", 5), ("c5", 6), ("c6", 2)] {
        gives(place.add(id, range.clone()), &[&format!("192.0.2.{address}/29")]);
    }
}

/// `host-local | last_reserved`
#[test]
fn the_last_address_is_noted_by_set() {
    let place = Place::new();
    let both =
        json!({ "ranges": [[{ "subnet": "192.0.2.0/24" }], [{ "subnet": "2001:db8::/64" }]] });
    place.write("last_reserved_ip.0", "192.0.2.199");
    gives(place.add("c1", both.clone()), &["192.0.2.200/24", "2001:db8::2/64"]);
    assert_eq!(place.read("last_reserved_ip.0"), "192.0.2.200");
    assert_eq!(place.read("last_reserved_ip.1"), "2001:db8::2");
    // A shorter text leaves no end of the longer one. A garbled file starts the ring anew, and so
    // does an address outside the set.
    place.write("last_reserved_ip.0", "192.0.2.254");
    gives(place.add("c2", both.clone()), &["192.0.2.2/24", "2001:db8::3/64"]);
    assert_eq!(place.read("last_reserved_ip.0"), "192.0.2.2");
    for (id, garbled, next) in [
        ("c3", "", "192.0.2.3/24"),
        ("c4", "garbled\0", "192.0.2.4/24"),
        ("c5", "198.51.100.7", "192.0.2.5/24"),
    ] {
        place.write("last_reserved_ip.0", garbled);
        assert_eq!(addresses_of(&place.add(id, both.clone()).ok())[0], next);
    }
}

/// `host-local | lock`
#[test]
fn parallel_adds_get_different_addresses() {
    let place = Place::new();
    let handles: Vec<_> = (0..50)
        .map(|index| {
            let run = place.run("ADD", one("192.0.2.0/26")).id(&format!("c{index}"));
            std::thread::spawn(move || run.call().ok()["ips"][0]["address"].clone().to_string())
        })
        .collect();
    let got: BTreeSet<String> = handles.into_iter().map(|handle| handle.join().unwrap()).collect();
    assert_eq!(got.len(), 50);
    assert_eq!(place.addresses().len(), 50);
}

/// `host-local | lock`: the error names a holder that keeps the lock, and nothing changes.
#[test]
#[expect(clippy::disallowed_methods, reason = "another process holds the lock")]
fn a_stuck_lock_is_reported_with_its_holder() {
    let place = Place::new();
    place.add("c1", one("192.0.2.0/29")).ok();
    let mut holder = std::process::Command::new("flock")
        .arg("--no-fork")
        .arg(place.path("lock"))
        .args(["sh", "-c", "echo held; exec sleep 600"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut output = std::io::BufReader::new(holder.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut output, &mut line).unwrap();
    let within = |verb| {
        call_within(place.run(verb, one("192.0.2.0/29")).id("c2"), Duration::from_millis(50))
    };
    let (add, del) = (within("ADD"), within("DEL"));
    let pid = holder.id().to_string();
    holder.kill().unwrap();
    holder.wait().unwrap();
    for error in [add, del] {
        assert_eq!(error.code, code::TRY_AGAIN_LATER, "{error}");
        assert!(
            error.msg.contains("lock") && error.msg.contains(&format!("process {pid}")),
            "{error}"
        );
    }
    assert_eq!(place.addresses(), ["192.0.2.2"]);
}

/// `host-local | exhaustion`
#[test]
fn an_empty_pool_says_so_and_never_gives_its_gateway() {
    let place = Place::new();
    let range = json!({ "ranges": [[
        { "subnet": "192.0.2.0/29", "rangeStart": "192.0.2.1", "rangeEnd": "192.0.2.3", "gateway": "192.0.2.2" },
        { "subnet": "198.51.100.0/30" },
    ]] });
    gives(place.add("c1", range.clone()), &["192.0.2.1/29"]);
    gives(place.add("c2", range.clone()), &["192.0.2.3/29"]);
    gives(place.add("c3", range.clone()), &["198.51.100.2/30"]);
    let error = place.add("c4", range).error();
    assert_eq!(error.code, codes::ADDRESS);
    assert_eq!(
        error.msg,
        "failed to allocate for range 0: no IP addresses available in range set: \
         192.0.2.1-192.0.2.3,198.51.100.1-198.51.100.2"
    );
    assert!(error.details.contains("3 of 3 addresses are reserved"), "{error}");
}

/// `host-local | duplicate`
#[test]
fn the_same_attachment_gets_no_second_address() {
    let place = Place::new();
    place.add("c1", one("192.0.2.0/29")).ok();
    place.add("c1", one("192.0.2.0/29")).fails(
        codes::ADDRESS,
        "192.0.2.2 has been allocated to c1, duplicate allocation is not allowed",
    );
    // The error for a requested address says that it is taken, as the reference's does, and names
    // the holder.
    let error = place.run("ADD", one("192.0.2.0/29")).args("IP=192.0.2.2").call().error();
    assert!(error.msg.contains("requested IP address 192.0.2.2 is not available"), "{error}");
    assert!(error.details.contains("container c1 interface eth0"), "{error}");
    assert_eq!(place.addresses(), ["192.0.2.2"]);
}

/// `host-local | same id, other ifname`
#[test]
fn another_interface_of_the_container_gets_its_own() {
    let place = Place::new();
    place.add("c1", one("192.0.2.0/29")).ok();
    gives(place.run("ADD", one("192.0.2.0/29")).ifname("eth1").call(), &["192.0.2.3/29"]);
    assert_eq!(place.read("192.0.2.3"), "c1\r\neth1");
    place.run("DEL", one("192.0.2.0/29")).ifname("eth1").call().silent();
    assert_eq!(place.addresses(), ["192.0.2.2"]);
}

/// `host-local | ranges`
#[test]
fn each_set_gives_one_address_from_any_of_its_subnets() {
    let place = Place::new();
    let ranges = json!({ "ranges": [
        [{ "subnet": "192.0.2.0/30" }, { "subnet": "192.0.2.4/30" }],
        [{ "subnet": "198.51.100.0/24", "rangeStart": "198.51.100.9", "gateway": "198.51.100.254" }],
    ] });
    gives(place.add("c1", ranges.clone()), &["192.0.2.2/30", "198.51.100.9/24"]);
    let second = place.add("c2", ranges).ok();
    assert_eq!(
        second["ips"],
        json!([
            { "address": "192.0.2.6/30", "gateway": "192.0.2.5" },
            { "address": "198.51.100.10/24", "gateway": "198.51.100.254" },
        ])
    );
}

/// `host-local | legacy subnet`
#[test]
fn a_subnet_beside_ipams_keys_is_set_zero() {
    let place = Place::new();
    let ipam = json!({
        "subnet": "192.0.2.0/24", "rangeStart": "192.0.2.7", "gateway": "192.0.2.9",
        "ranges": [[{ "subnet": "198.51.100.0/24" }]],
    });
    let result = place.add("c1", ipam).ok();
    assert_eq!(addresses_of(&result), ["192.0.2.7/24", "198.51.100.2/24"]);
    assert_eq!(result["ips"][0]["gateway"], "192.0.2.9");
    assert_eq!(place.read("last_reserved_ip.0"), "192.0.2.7");
}

/// `host-local | dual stack`, in every version's shape.
#[test]
fn dual_stack_in_every_version() {
    let place = Place::new();
    let ipam = json!({
        "ranges": [[{ "subnet": "192.0.2.0/24" }], [{ "subnet": "2001:db8::/64" }]],
        "routes": [{ "dst": "0.0.0.0/0", "mtu": 1400, "advmss": 1300, "priority": 3, "table": 5, "scope": 253 }],
    });
    for version in Version::ALL {
        let result = place.run("ADD", ipam.clone()).version(version.as_str()).call().ok();
        place.run("DEL", ipam.clone()).version(version.as_str()).call().silent();
        for file in ["last_reserved_ip.0", "last_reserved_ip.1"] {
            fs::remove_file(place.path(file)).unwrap();
        }
        let route = json!({ "dst": "0.0.0.0/0", "mtu": 1400, "advmss": 1300, "priority": 3, "table": 5, "scope": 253 });
        let expected = match version {
            Version::V0_1_0 | Version::V0_2_0 => json!({
                "cniVersion": version,
                "ip4": { "ip": "192.0.2.2/24", "gateway": "192.0.2.1", "routes": [{ "dst": "0.0.0.0/0" }] },
                "ip6": { "ip": "2001:db8::2/64", "gateway": "2001:db8::1" },
                "dns": {},
            }),
            Version::V0_3_0 | Version::V0_3_1 | Version::V0_4_0 => json!({
                "cniVersion": version,
                "ips": [
                    { "version": "4", "address": "192.0.2.2/24", "gateway": "192.0.2.1" },
                    { "version": "6", "address": "2001:db8::2/64", "gateway": "2001:db8::1" },
                ],
                "routes": [route],
                "dns": {},
            }),
            _ => json!({
                "cniVersion": version,
                "ips": [
                    { "address": "192.0.2.2/24", "gateway": "192.0.2.1" },
                    { "address": "2001:db8::2/64", "gateway": "2001:db8::1" },
                ],
                "routes": [route],
            }),
        };
        assert_eq!(result, expected);
    }
}

/// `host-local | overlap/validation errors`; the rest of the list is in the unit tests of
/// `ipam::range`.
#[test]
fn a_configuration_that_makes_no_sense_is_refused() {
    let place = Place::new();
    let cases = [
        (json!({}), "no IP ranges specified"),
        (json!({ "ranges": [[]] }), "invalid range set 0: empty range set"),
        (
            one("192.0.2.0/31"),
            "invalid range set 0: Network 192.0.2.0/31 too small to allocate from",
        ),
        (one("::ffff:192.0.2.0/120"), "invalid range set 0: IPNet IP and Mask version mismatch"),
        (
            one("192.0.2.1/24"),
            "invalid range set 0: Network has host bits set. For a subnet mask of length 24 the network address is 192.0.2.0",
        ),
        (
            json!({ "subnet": "192.0.2.0/24", "rangeStart": "192.0.3.1" }),
            "invalid range set 0: RangeStart 192.0.3.1 not in network 192.0.2.0/24",
        ),
        (
            json!({ "subnet": "192.0.2.0/24", "rangeEnd": "192.0.3.1" }),
            "invalid range set 0: RangeEnd 192.0.3.1 not in network 192.0.2.0/24",
        ),
        (
            json!({ "ranges": [[{ "subnet": "192.0.2.0/24" }, { "subnet": "2001:db8::/64" }]] }),
            "invalid range set 0: mixed address families",
        ),
        (
            json!({ "ranges": [[{ "subnet": "192.0.2.0/24" }, { "subnet": "192.0.2.0/25" }]] }),
            "invalid range set 0: subnets 192.0.2.1-192.0.2.254 and 192.0.2.1-192.0.2.126 overlap",
        ),
        (
            json!({ "ranges": [[{ "subnet": "192.0.2.0/24" }], [{ "subnet": "192.0.2.0/25" }]] }),
            "range set 0 overlaps with 1",
        ),
    ];
    for (ipam, message) in cases {
        let error = place.add("c1", ipam.clone()).error();
        assert_eq!((error.code, error.msg.as_str()), (code::INVALID_CONFIG, message), "{ipam}");
    }
    Run::bare("host-local", "ADD")
        .netns("/nonexistent/netns")
        .call()
        .fails(code::INVALID_CONFIG, "IPAM config missing 'ipam' key");
    place
        .add("c1", one("192.0.2.0"))
        .fails(code::DECODE_FAILURE, "invalid CIDR address: 192.0.2.0");
    let two =
        json!({ "ranges": [[{ "subnet": "192.0.2.0/24" }], [{ "subnet": "198.51.100.0/24" }]] });
    place.run("ADD", two).version("0.2.0").call().fails(
        code::INVALID_CONFIG,
        "CNI version 0.2.0 does not support more than 1 address per family",
    );
    assert_eq!(place.files(), [""; 0]);
}

/// `host-local | requested IP`
#[test]
fn addresses_can_be_asked_for_in_three_ways_at_once() {
    let place = Place::new();
    let ipam = json!({ "ranges": [
        [{ "subnet": "192.0.2.0/24" }], [{ "subnet": "198.51.100.0/24" }], [{ "subnet": "2001:db8::/64" }],
    ] });
    let answer = place
        .run("ADD", ipam.clone())
        .args("IgnoreUnknown=1;IP=198.51.100.77/32;K8S_POD_NAME=p")
        .config(json!({ "args": { "cni": { "ips": ["2001:db8::77/64", "192.0.2.77"] } } }))
        // podman sends its addresses here as well as in args.
        .config(json!({ "runtimeConfig": { "ips": ["192.0.2.77", "2001:db8::77", "192.0.2.77"] } }))
        .call();
    gives(answer, &["192.0.2.77/24", "198.51.100.77/24", "2001:db8::77/64"]);
    assert_eq!(place.read("last_reserved_ip.0"), "192.0.2.77");

    let ask = |ip: &str| place.run("ADD", ipam.clone()).id("c2").args(&format!("IP={ip}")).call();
    ask("198.51.100.1").fails(
        codes::ADDRESS,
        "failed to allocate for range 1: requested ip 198.51.100.1 is subnet's gateway",
    );
    ask("192.0.2.77").fails(
        codes::ADDRESS,
        "failed to allocate for range 0: requested IP address 192.0.2.77 is not available in range set 192.0.2.1-192.0.2.254",
    );
    ask("nonsense").fails(
        code::INVALID_ENVIRONMENT,
        "ARGS: error parsing value of pair \"IP=nonsense\": invalid IP address nonsense",
    );
    ask("192.0.2.9,nonsense")
        .fails(code::INVALID_ENVIRONMENT, "\"IP=192.0.2.9,nonsense\": invalid IP address nonsense");
    place
        .run("ADD", ipam.clone())
        .config(json!({ "runtimeConfig": { "ips": ["300.1.1.1"] } }))
        .call()
        .fails(code::DECODE_FAILURE, "invalid IP address 300.1.1.1");
    place
        .run("ADD", ipam)
        .args("K8S_POD_NAME=p")
        .call()
        .fails(code::INVALID_ENVIRONMENT, "ARGS: unknown args");
    assert_eq!(place.addresses(), ["192.0.2.77", "198.51.100.77", "2001:db8::77"]);
}

/// A pod that asks for an address of each family gets them by `IP` and by `ips` at once, from Multus
/// and from `netwright-multi`; the list was refused as one address.
#[test]
fn a_list_of_addresses_can_be_asked_for_by_an_argument() {
    let place = Place::new();
    let ipam =
        json!({ "ranges": [[{ "subnet": "192.0.2.0/24" }], [{ "subnet": "2001:db8::/64" }]] });
    for (id, v4, v6, by_ips) in [
        ("c1", "192.0.2.50/24", "2001:db8::50/64", true),
        ("c2", "192.0.2.51", "2001:db8::51", true),
        ("c3", "192.0.2.52", " 2001:db8::52/64", false),
    ] {
        let ips = if by_ips { vec![v4, v6] } else { Vec::new() };
        let run =
            place.run("ADD", ipam.clone()).id(id).args(&format!("IgnoreUnknown=1;IP={v4},{v6}"));
        let given = run.config(json!({ "runtimeConfig": { "ips": ips } })).call().ok();
        let last = id.as_bytes()[1] - b'1';
        let wanted = [format!("192.0.2.5{last}/24"), format!("2001:db8::5{last}/64")];
        assert_eq!(addresses_of(&given), wanted, "{id}");
    }
}

/// `host-local | unsatisfied request`
#[test]
fn a_request_that_cannot_be_met_leaves_nothing() {
    let place = Place::new();
    let ipam =
        json!({ "ranges": [[{ "subnet": "192.0.2.0/24" }], [{ "subnet": "198.51.100.0/30" }]] });
    // This call does not release what the attachment already has; the reference releases it.
    gives(place.run("ADD", one("203.0.113.0/24")).id("c2").call(), &["203.0.113.2/24"]);
    place
        .run("ADD", ipam.clone())
        .id("c2")
        .config(json!({ "runtimeConfig": { "ips": ["192.0.2.5", "192.0.2.6", "10.0.0.1"] } }))
        .call()
        .fails(codes::ADDRESS, "failed to allocate all requested IPs: 192.0.2.6 10.0.0.1");
    gives(place.run("ADD", ipam.clone()).call(), &["192.0.2.2/24", "198.51.100.2/30"]);
    place
        .run("ADD", ipam)
        .id("c2")
        .call()
        .fails(codes::ADDRESS, "failed to allocate for range 1: no IP");
    assert_eq!(place.addresses(), ["192.0.2.2", "198.51.100.2", "203.0.113.2"]);
}

/// `host-local | ipRanges`
#[test]
fn ranges_of_the_runtime_come_first() {
    let place = Place::new();
    let ipam = json!({ "subnet": "192.0.2.0/24", "ranges": [[{ "subnet": "198.51.100.0/24" }]] });
    let answer = place
        .run("ADD", ipam)
        .config(json!({ "runtimeConfig": { "ipRanges": [[{ "subnet": "203.0.113.0/24" }]] } }))
        .call();
    gives(answer, &["203.0.113.2/24", "192.0.2.2/24", "198.51.100.2/24"]);
    assert_eq!(place.read("last_reserved_ip.0"), "203.0.113.2");
}

/// `host-local | resolvConf`
#[test]
fn name_servers_come_from_a_file() {
    let place = Place::new();
    let file = place.dir.path().join("resolv.conf");
    let mut ipam = one("192.0.2.0/24");
    ipam["resolvConf"] = json!(file);
    let error = place.add("c1", ipam.clone()).error();
    assert_eq!(error.msg, format!("open {}: no such file or directory", file.display()));
    assert_eq!(place.files(), [""; 0]);
    fs::write(
        &file,
        "# x\nnameserver 192.0.2.53\ndomain d.example\nsearch a b\nsearch c\noptions ndots:1\n",
    )
    .unwrap();
    assert_eq!(
        place.add("c1", ipam).ok()["dns"],
        json!({
            "nameservers": ["192.0.2.53"], "domain": "d.example", "search": ["a", "b", "c"], "options": ["ndots:1"],
        })
    );
}

/// `host-local | dataDir`
#[test]
fn state_is_under_the_given_path() {
    let place = Place::new();
    let mut ipam = one("192.0.2.0/24");
    ipam["dataDir"] = json!(place.dir.path().join("deep/er"));
    place.add("c1", ipam.clone()).ok();
    assert!(place.dir.path().join("deep/er/n/192.0.2.2").exists());
    place.del("c1", ipam).silent();
    assert!(!place.dir.path().join("deep/er/n/192.0.2.2").exists());
}

/// `host-local | old file format`
#[test]
fn files_with_the_id_alone_are_honoured() {
    let place = Place::new();
    let range = one("192.0.2.0/24");
    place.write("192.0.2.2", "c1\n");
    place.write("192.0.2.3", "c2");
    place.run("CHECK", range.clone()).call().silent();
    place.add("c1", range.clone()).fails(codes::ADDRESS, "192.0.2.2 has been allocated to c1");
    place.del("c1", range.clone()).silent();
    assert_eq!(place.addresses(), ["192.0.2.3"]);
    // If the attachment has a file of its own, DEL leaves the container's old file.
    place.write("192.0.2.9", "c2\r\neth0");
    place.del("c2", range.clone()).silent();
    assert_eq!(place.addresses(), ["192.0.2.3"]);
    place.del("c2", range).silent();
    assert_eq!(place.addresses(), [""; 0]);
}

/// `host-local | DEL unknown id`
#[test]
fn releasing_what_is_not_held_is_success() {
    let place = Place::new();
    place.del("c1", one("192.0.2.0/24")).silent();
    assert!(!place.network().exists(), "DEL makes no folder");
    place.add("c2", one("192.0.2.0/24")).ok();
    place.del("c1", one("192.0.2.0/24")).silent();
    place.del("c2", one("192.0.2.0/24")).silent();
    place.del("c2", one("192.0.2.0/24")).silent();
    assert_eq!(place.addresses(), [""; 0]);
}

/// DEL needs the network's name and the folder, whatever happened to the rest (facts: "a
/// now-invalid config blocks release").
#[test]
fn del_works_with_a_configuration_that_makes_no_sense_any_more() {
    let place = Place::new();
    for broken in [
        json!({}),
        one("192.0.2.0/32"),
        json!({ "ranges": "all of them" }),
        json!({ "resolvConf": "/nonexistent" }),
        one("203.0.113.0/24"),
    ] {
        place.add("c1", one("192.0.2.0/24")).ok();
        place.run("DEL", broken.clone()).args("garbled").call().silent();
        assert_eq!(place.addresses(), [""; 0], "{broken}");
    }
}

/// `host-local | CHECK`
#[test]
fn check_fails_when_there_is_no_file_for_the_attachment() {
    let place = Place::new();
    let range = one("192.0.2.0/24");
    let check = || place.run("CHECK", range.clone());
    let missing = "host-local: Failed to find address added by container c1";
    check().call().fails(codes::DRIFT, missing);
    assert!(!place.network().exists(), "CHECK makes no folder");
    let result = place.add("c1", range.clone()).ok();
    check().call().silent();
    check().prev(&result).call().silent();
    check().ifname("eth1").call().fails(codes::DRIFT, missing);
    // Another attachment was given the address that the container uses.
    fs::remove_file(place.network().join("192.0.2.2")).unwrap();
    place.write("192.0.2.2", "c2\r\neth0");
    place.write("192.0.2.3", "c1\r\neth0");
    check().call().silent();
    check()
        .prev(&result)
        .call()
        .fails(codes::DRIFT, "address 192.0.2.2 is reserved by container c2 interface eth0");
}

/// `host-local | GC`
#[test]
fn gc_releases_what_no_valid_attachment_owns() {
    let place = Place::new();
    let range = one("192.0.2.0/24");
    for id in ["c1", "c2"] {
        place.add(id, range.clone()).ok();
    }
    place.run("ADD", range.clone()).ifname("eth1").call().ok();
    place.write("192.0.2.10", "c1");
    place.write("192.0.2.11", "c2");
    place.write("192.0.2.12", "");
    place.write("192.0.2.13", "\0\0\0\0");
    place.write("note", "nobody's");
    place.run("GC", range.clone()).valid(&[("c1", "eth0"), ("c9", "eth0")]).call().silent();
    let kept = ["192.0.2.10", "192.0.2.2", "last_reserved_ip.0", "lock", "note"];
    assert_eq!(place.files(), kept);
    // Without a list GC cannot know what is stale.
    place.run("GC", range.clone()).call().silent();
    assert_eq!(place.files(), kept);
    place.run("GC", range.clone()).valid(&[]).call().silent();
    assert_eq!(place.addresses(), [""; 0]);
    // A network without a folder, and one whose ranges are no longer valid.
    place.run("GC", range).network("other").valid(&[]).call().silent();
    place.run("GC", json!({})).valid(&[]).call().silent();
    assert!(!place.dir.path().join("other").exists());
}

/// `host-local | STATUS`
#[test]
fn status_tells_an_exhausted_set_with_its_numbers() {
    let place = Place::new();
    let ipam =
        json!({ "ranges": [[{ "subnet": "2001:db8::/64" }], [{ "subnet": "192.0.2.0/30" }]] });
    place.run("STATUS", ipam.clone()).call().silent();
    assert!(!place.network().exists(), "STATUS makes no folder");
    place.add("c1", ipam.clone()).ok();
    let error = place.run("STATUS", ipam.clone()).call().error();
    assert_eq!(error.code, code::PLUGIN_NOT_AVAILABLE);
    assert_eq!(error.msg, "no IP addresses available in range set: 192.0.2.1-192.0.2.2");
    assert!(error.details.contains("range set 1: 1 of 1 addresses are reserved"), "{error}");
    place.del("c1", ipam.clone()).silent();
    place.run("STATUS", ipam).call().silent();
    let mut ipam = one("192.0.2.0/24");
    ipam["resolvConf"] = json!("/nonexistent/resolv.conf");
    place.run("STATUS", ipam).call().fails(
        code::PLUGIN_NOT_AVAILABLE,
        "open /nonexistent/resolv.conf: no such file or directory",
    );
    place.run("STATUS", json!({})).call().fails(code::INVALID_CONFIG, "no IP ranges specified");
}

/// A crashed reference, or a power cut, leaves an empty file, which does not block its address.
#[test]
fn an_empty_file_is_nobodys() {
    let place = Place::new();
    let range = one("192.0.2.0/29");
    place.write("192.0.2.1", "");
    place.write("192.0.2.2", "");
    place.write("192.0.2.3", "\0\0\0\0");
    gives(place.add("c1", range.clone()), &["192.0.2.2/29"]);
    gives(place.add("c2", range.clone()), &["192.0.2.3/29"]);
}

/// A garbled file names no owner: its address is not assigned until the next GC.
#[test]
fn a_garbled_file_is_passed_over_and_collected() {
    let place = Place::new();
    let range = one("192.0.2.0/29");
    place.write("192.0.2.2", "c1\r\n\0\0");
    gives(place.add("c1", range.clone()), &["192.0.2.3/29"]);
    let error = place.run("ADD", range.clone()).id("c2").args("IP=192.0.2.2").call().error();
    assert!(error.details.contains("garbled"), "{error}");
    place.run("GC", range.clone()).valid(&[("c1", "eth0")]).call().silent();
    gives(place.run("ADD", range).id("c2").args("IP=192.0.2.2").call(), &["192.0.2.2/29"]);
}

/// `protocol | case-insensitive keys`, `protocol | null keeps default`
#[test]
fn keys_are_read_without_regard_to_case_and_unknown_ones_ignored() {
    let place = Place::new();
    let config = json!({
        "IPAM": {
            "Type": "host-local", "DATADIR": place.dir.path(), "SUBNET": "192.0.2.0/24", "rangestart": null,
            "RangeEnd": "", "unheard": { "of": 1 }, "resolvConf": "",
        },
        "RuntimeConfig": { "IPs": ["192.0.2.9"], "portMappings": [1] },
    });
    let answer = Run::bare("host-local", "ADD").netns("/nonexistent/netns").config(config).call();
    gives(answer, &["192.0.2.9/24"]);
}

/// `lint` gets unknown keys within `ipam` only: the delegating plugin reports the rest.
#[test]
fn unknown_keys_within_ipam_are_found() {
    let config = r#"{"bridge": "br0", "ipam": {"type": "host-local", "subnets": "x",
        "ranges": [[{"subnet": "192.0.2.0/24", "gatway": "192.0.2.1"}]]}}"#;
    let keys = plugins::find("host-local").unwrap().unknown_keys(config).unwrap();
    let keys: Vec<_> = keys.iter().map(|key| (key.parent.as_str(), key.key.as_str())).collect();
    assert_eq!(keys, [("ipam", "subnets"), ("ipam.ranges[0][0]", "gatway")]);
}
