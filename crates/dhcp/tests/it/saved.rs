//! Leases on disk: a later version must read what is written today.

use std::time::Duration;

use netwright_dhcp::v4::{Client, ProbeTiming, SavedLease, Start, Timing};
use netwright_dhcp::v6;
use proptest::prelude::*;
use serde_json::json;

use crate::support::*;
use crate::support6;

/// Format version 1, as it is on disks. Never change it: a later version gets a text of its own.
const V1: &str = r#"{
  "version": 1,
  "mac": "02:00:00:00:00:01",
  "client_id": "006331",
  "lease": {
    "address": "192.0.2.50/24",
    "server": "192.0.2.1",
    "server_mac": "02:00:00:00:00:fe",
    "gateway": "192.0.2.1",
    "routes": [{ "destination": "0.0.0.0/0", "gateway": "192.0.2.1" }],
    "dns": ["192.0.2.5"],
    "domain": "example.org",
    "search": ["example.org"],
    "mtu": 1400,
    "host_name": null,
    "broadcast": null,
    "obtained": { "at_ms": 1000000, "wall_ms": 1700000000000, "boot_id": "boot-1" },
    "lease_s": 7200,
    "t1_s": 3600,
    "t2_s": 6300,
    "options": [{ "code": 53, "value": "05" }]
  }
}"#;

#[test]
fn version_1_is_read_and_written_as_ever() {
    let saved: SavedLease = serde_json::from_str(V1).unwrap();
    assert_eq!(saved.client_id.as_deref(), Some(&b"\0c1"[..]));
    assert_eq!(saved.lease.option(53), Some(&[5][..]));
    let written: serde_json::Value = serde_json::to_value(&saved).unwrap();
    assert_eq!(written, serde_json::from_str::<serde_json::Value>(V1).unwrap());
}

#[test]
fn what_a_client_saves_another_starts_from() {
    let bench = Bench::bound(plain(), 7200);
    let text = serde_json::to_string(&bench.client.saved()).unwrap();
    let saved: SavedLease = serde_json::from_str(&text).unwrap();
    let mut again = Bench::at(plain(), Start::Reboot(Box::new(saved)), seconds(60));
    assert_eq!(again.took(), ["DHCPREQUEST requested 192.0.2.50"]);
}

#[test]
fn other_versions_and_garbage_are_refused_in_words() {
    let refusal = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut value: serde_json::Value = serde_json::from_str(V1).unwrap();
        change(&mut value);
        serde_json::from_value::<SavedLease>(value).unwrap_err().to_string()
    };
    let version = refusal(&|value| value["version"] = json!(2));
    assert_eq!(version, "saved lease has format version 2, this program reads 1");
    let id = refusal(&|value| value["client_id"] = json!("0"));
    assert_eq!(id, "not an even number of hexadecimal digits");
    let mac = refusal(&|value| value["mac"] = json!("02:00"));
    assert_eq!(mac, "\"02:00\" is not a hardware address such as 02:00:00:00:00:01");
    refusal(&|value| value["lease"]["address"] = json!("192.0.2.50/33"));
    refusal(&|value| *value = json!(null));
}

/// Nothing, a little, anything, for ever.
fn number() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), 1_u32..100, any::<u32>(), Just(u32::MAX)]
}

proptest! {
    /// The disk may contain any times. `Bench::run` fails when a timer stays due.
    #[test]
    fn no_times_on_disk_make_a_client_spin(
        times in (number(), number(), prop::option::of(number())),
        at_ms in any::<u64>(),
        wall_ms in any::<u64>(),
        boot in any::<bool>(),
    ) {
        let mut saved = Bench::bound(plain(), 7200).saved();
        let text = json!({ "at_ms": at_ms, "wall_ms": wall_ms, "boot_id": boot.then_some("boot-1") });
        saved.lease.obtained = serde_json::from_value(text.clone()).unwrap();
        (saved.lease.t1_s, saved.lease.t2_s, saved.lease.lease_s) = times;
        let mut bench = Bench::at(plain(), Start::Reboot(saved), seconds(10));
        bench.run(seconds(1000));

        let mut saved = support6::Bench::bound(|reply| reply).saved();
        saved.lease.obtained = serde_json::from_value(text).unwrap();
        (saved.lease.t1_s, saved.lease.t2_s) = (Some(times.0), times.2);
        saved.lease.addresses[0].valid_s = times.2;
        let start = v6::Start::Reboot(saved);
        let mut bench = support6::Bench::at(support6::plain(), start, seconds(10));
        bench.run(seconds(1000));
    }
}

#[test]
fn no_configured_times_make_a_client_spin_or_panic() {
    let wild = [Duration::ZERO, Duration::from_millis(1), Duration::MAX];
    for case in 0..27 {
        let (initial, longest, jitter) = (wild[case % 3], wild[case / 3 % 3], wild[case / 9]);
        let mut config = plain();
        config.timing = Timing {
            initial,
            longest,
            jitter,
            request_tries: 0,
            acquire: None,
            renew_shortest: longest,
            after_decline: initial,
        };
        config.probe = Some(ProbeTiming {
            wait: jitter,
            probes: 3,
            shortest: initial,
            longest,
            announce_wait: initial,
            announcements: 3,
            announce_interval: initial,
        });
        let mut bench = Bench::new(config, Start::Fresh);
        bench.reply(&Reply::new(OFFER, &bench.last()));
        bench.reply(&Reply::new(ACK, &bench.last()).lasting(100));
        bench.run(seconds(150));
        bench.with(Client::release);
    }
}
