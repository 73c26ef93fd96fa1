//! `subnet.env`: what flanneld writes for plugins.

use ipnet::IpNet;

use crate::reader::next_address;
use crate::refused::Cause;
use net::IpFamily;

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

/// The keys of a family.
fn keys(family: IpFamily) -> (&'static str, &'static str) {
    match family {
        IpFamily::V4 => ("FLANNEL_NETWORK", "FLANNEL_SUBNET"),
        IpFamily::V6 => ("FLANNEL_IPV6_NETWORK", "FLANNEL_IPV6_SUBNET"),
    }
}

impl SubnetEnv {
    /// Writes the file, byte for byte as flanneld does.
    #[must_use]
    pub fn write(&self) -> String {
        let mut text = String::new();
        for family in IpFamily::ALL {
            let of = |prefix: &&IpNet| IpFamily::of_prefix(**prefix) == family;
            let network = self.networks.iter().find(of);
            if let (Some(network), Some(subnet)) = (network, self.subnets.iter().find(of)) {
                let (network_key, subnet_key) = keys(family);
                // The first address that can be used stands for the prefix.
                let first = next_address(subnet.network());
                let length = subnet.prefix_len();
                text.push_str(&format!("{network_key}={network}\n{subnet_key}={first}/{length}\n"));
            }
        }
        text.push_str(&format!("FLANNEL_MTU={}\nFLANNEL_IPMASQ={}\n", self.mtu, self.ip_masq));
        text
    }

    /// Reads the file as flannel's plugin does: other keys are passed over.
    ///
    /// # Errors
    /// What is missing or wrong, after its key.
    pub fn read(text: &str) -> Result<Self, (String, Cause)> {
        let get = |key: &str| {
            let pairs = text.lines().filter_map(|line| line.split_once('='));
            pairs.filter(|(there, _)| *there == key).map(|(_, value)| value).next_back()
        };
        let missing = |key: &str| (key.to_owned(), Cause::Missing);
        let (mut networks, mut subnets) = (Vec::new(), Vec::new());
        for family in IpFamily::ALL {
            let (network_key, subnet_key) = keys(family);
            for (key, list) in [(network_key, &mut networks), (subnet_key, &mut subnets)] {
                for text in get(key).into_iter().flat_map(|list| list.split(',')) {
                    let prefix =
                        read_prefix(text, family).map_err(|cause| (key.to_owned(), cause))?;
                    if !list.contains(&prefix) {
                        list.push(prefix);
                    }
                }
            }
        }
        if networks.is_empty() {
            return Err(missing("FLANNEL_NETWORK"));
        }
        if subnets.is_empty() {
            return Err(missing("FLANNEL_SUBNET"));
        }
        let mtu = get("FLANNEL_MTU").ok_or_else(|| missing("FLANNEL_MTU"))?;
        let mtu = mtu
            .parse()
            .map_err(|_| ("FLANNEL_MTU".to_owned(), Cause::not_a(mtu, "a number of bytes")))?;
        let ip_masq = get("FLANNEL_IPMASQ").ok_or_else(|| missing("FLANNEL_IPMASQ"))? == "true";
        Ok(SubnetEnv { networks, subnets, mtu, ip_masq })
    }
}

fn read_prefix(text: &str, family: IpFamily) -> Result<IpNet, Cause> {
    let prefix = cni::text::parse_cidr(text)
        .ok_or_else(|| Cause::not_a(text, "a prefix such as 10.244.1.1/24"))?;
    if IpFamily::of_prefix(prefix) != family {
        return Err(Cause::WrongFamily { value: text.to_owned(), family });
    }
    Ok(prefix.trunc())
}
