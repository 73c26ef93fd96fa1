//! Plugins that create interfaces.

pub mod bridge;
pub mod cnm;
pub mod dummy;
pub mod host_device;
pub mod ipvlan;
pub mod loopback;
pub mod macvlan;
pub mod on_parent;
pub mod ovs;
pub mod ptp;
pub mod single;
pub mod tap;
pub mod vlan;
