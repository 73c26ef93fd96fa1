//! What the daemon does, a module each.

pub(crate) mod dhcp;
