//! Plugins that change what others created.

pub mod bandwidth;
pub mod firewall;
pub mod policy;
pub mod portmap;
pub mod sbr;
pub mod tuning;
pub mod vrf;
