//! Plugins that make interfaces.

pub mod bridge;
pub mod loopback;
