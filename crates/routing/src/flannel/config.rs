//! flanneld's network configuration: `net-conf.json`, or etcd's `config`.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};

use crate::refused::Cause;
use crate::settings::Settings;

/// The configuration, with flanneld's defaults, checked as flanneld checks it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The IPv4 network.
    pub network: Option<Ipv4Net>,
    /// The IPv6 network.
    pub network6: Option<Ipv6Net>,
    /// The length of a node's IPv4 prefix.
    pub subnet_len: u8,
    /// The length of a node's IPv6 prefix.
    pub subnet_len6: u8,
    /// The first and last IPv4 prefix that nodes lease.
    pub subnets: Option<(Ipv4Addr, Ipv4Addr)>,
    /// The first and last IPv6 prefix that nodes lease.
    pub subnets6: Option<(Ipv6Addr, Ipv6Addr)>,
    /// The backend.
    pub backend: crate::settings::Backend,
    /// The network identifier of its tunnels.
    pub vni: u32,
    /// Their port.
    pub port: u16,
    /// No tunnel within a segment.
    pub direct_routing: bool,
}

impl Config {
    /// Reads and checks it.
    ///
    /// # Errors
    /// What is wrong, after its key.
    pub fn read(text: &str) -> Result<Self, (String, Cause)> {
        todo!()
    }

    /// Returns the settings of a node in such a cluster; annotations begin with `prefix`.
    #[must_use]
    pub fn settings(&self, prefix: &str) -> Settings {
        todo!()
    }
}
