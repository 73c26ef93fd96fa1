//! Plugins that assign addresses.

pub mod cluster;
pub mod dhcp;
pub mod host_local;
pub mod static_ipam;
