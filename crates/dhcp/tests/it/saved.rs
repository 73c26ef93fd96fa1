//! Leases on disk: what is written today is read tomorrow.

use netwright_dhcp::v4::{SavedLease, Start};
use serde_json::json;

use crate::support::*;

/// Format version 1, as it is on disks. Never to be changed: a later version gets a text of its own.
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
    assert_eq!(mac, "\"02:00\" is not a hardware address of the form 02:00:00:00:00:01");
    refusal(&|value| value["lease"]["address"] = json!("192.0.2.50/33"));
    refusal(&|value| *value = json!(null));
}
