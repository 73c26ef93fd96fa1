//! `subnet.env`: what flanneld tells plugins.

use ipnet::IpNet;

use crate::refused::Cause;

/// Its contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubnetEnv {
    /// The ranges of the cluster: at most one of each family is written, any number is read.
    pub networks: Vec<IpNet>,
    /// The node's prefixes, without host bits, at most one of each family.
    pub subnets: Vec<IpNet>,
    /// The MTU of pods, in bytes.
    pub mtu: u32,
    /// The daemon masquerades, and plugins do not.
    pub ip_masq: bool,
}

impl SubnetEnv {
    /// Writes the file, byte for byte as flanneld does.
    #[must_use]
    pub fn write(&self) -> String {
        todo!()
    }

    /// Reads the file as flannel's plugin does: other keys are passed over.
    ///
    /// # Errors
    /// What is missing or wrong, after its key.
    pub fn read(text: &str) -> Result<Self, (String, Cause)> {
        todo!()
    }
}
