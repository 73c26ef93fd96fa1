//! Plugins that assign addresses.

pub mod cluster_ipam;
pub mod dhcp;
pub mod host_local;
pub mod static_ipam;
