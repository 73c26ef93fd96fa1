//! The codes of our own errors. The specification leaves 100 and up to plugins.
//!
//! `docs/errors.md` lists each with cause and remedy. Codes below 100 are in [`cni::code`].

/// The kernel refused a change of links, addresses, routes or sysctls.
pub const KERNEL: u32 = 100;
/// The kernel or `iptables` refused a change of the packet filter.
pub const FIREWALL: u32 = 101;
/// No address is free, or the requested one is not.
pub const ADDRESS: u32 = 102;
/// A host port is held by another attachment.
pub const HOST_PORT: u32 = 103;
/// CHECK found something missing or different.
pub const DRIFT: u32 = 104;
/// A file of ours could not be read or written.
pub const STATE: u32 = 105;
/// Something of that name already exists.
pub const EXISTS: u32 = 106;
/// A delegated plugin could not be run.
pub const DELEGATE: u32 = 107;
/// Something outside our control conflicts: a foreign link, bridge or rule.
pub const CONFLICT: u32 = 108;
/// Several independent steps failed; the details hold each.
pub const SEVERAL: u32 = 109;
/// The DHCP daemon does not answer.
pub const DAEMON: u32 = 110;
/// A Docker driver is missing, refused, or gave an unusable answer.
pub const DRIVER: u32 = 111;
/// Open vSwitch is missing, refused, or gave an unusable answer.
pub const SWITCH: u32 = 112;
