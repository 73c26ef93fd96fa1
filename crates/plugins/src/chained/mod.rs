//! Plugins that change what others made.

pub mod firewall;
pub mod portmap;
pub mod tuning;
