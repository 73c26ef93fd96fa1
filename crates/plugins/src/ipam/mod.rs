//! Plugins that hand out addresses.

pub mod host_local;
