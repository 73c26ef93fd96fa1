//! Tests call plugins as runtimes do: an environment and a configuration in, an answer out.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::print_stderr, reason = "skips are announced on stderr")]

extern crate netwright_plugins as plugins;

mod bandwidth;
mod bridge;
mod chain;
mod claims;
mod cluster_ipam;
mod cnm;
mod dhcp;
mod differential;
mod doubles;
mod dummy;
mod firewall;
mod first_packet;
mod flannel;
mod host_device;
mod host_local;
mod ipvlan;
mod loopback;
mod macvlan;
mod multi;
mod netwright_multi;
mod orphans;
mod ovs;
mod ovs_mirror_consumer;
mod ovs_mirror_producer;
mod policy;
mod portmap;
mod protocol;
mod ptp;
mod readiness;
mod repair;
mod routers;
mod rows;
mod sbr;
mod security;
mod spec;
mod static_ipam;
mod support;
mod tap;
mod tuning;
mod vlan;
mod vrf;
