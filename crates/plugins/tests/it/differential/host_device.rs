//! `host-device` beside the reference's.

use serde_json::{Value, json};

use super::{Case, PLAIN, tests};

const DEVICE: &str = "ip link add d0 address 02:00:00:00:01:01 type veth peer name d1 address 02:00:00:00:01:02 && \
    ip link set d0 up && ip link set d1 up";

fn ipam() -> Value {
    json!({
        "type": "static",
        "addresses": [
            { "address": "10.1.0.5/24", "gateway": "10.1.0.1" }, { "address": "fd00:1::5/64", "gateway": "fd00:1::1" },
        ],
        "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
    })
}

const CASES: &[Case] = &[
    Case {
        name: "host-device/name",
        host: DEVICE,
        chain: |_| vec![json!({ "type": "host-device", "device": "d0", "ipam": ipam() })],
        ..PLAIN
    },
    Case {
        name: "host-device/mac",
        host: DEVICE,
        version: "1.1.0",
        chain: |_| vec![json!({ "type": "host-device", "hwaddr": "02:00:00:00:01:01" })],
        ..PLAIN
    },
    Case {
        name: "host-device/missing",
        succeeds: false,
        chain: |_| vec![json!({ "type": "host-device", "device": "d7", "ipam": ipam() })],
        ..PLAIN
    },
    Case {
        name: "host-device/pci",
        host: "ip link add d0 address 02:00:00:00:01:01 type veth peer name d1 address 02:00:00:00:01:02 && \
            ip link set d0 up && ip link set d1 up && mount -t tmpfs bus /sys/bus && cd /sys/bus && \
            mkdir -p pci/drivers/ixgbe pci/devices/0000:3b:00.1/net/d0 && \
            cp /sys/class/net/d0/ifindex /sys/class/net/d0/address pci/devices/0000:3b:00.1/net/d0 && \
            ln -s ../../drivers/ixgbe pci/devices/0000:3b:00.1/driver",
        chain: |_| {
            vec![json!({ "type": "host-device", "pciBusID": "0000:3b:00.1", "ipam": ipam() })]
        },
        ..PLAIN
    },
    Case {
        name: "host-device/name-taken",
        host: DEVICE,
        later: "ip link add d0 address 02:00:00:00:01:03 type veth peer name d2 address 02:00:00:00:01:04",
        chain: |_| vec![json!({ "type": "host-device", "device": "d0", "ipam": ipam() })],
        ..PLAIN
    },
];
tests!(CASES);
