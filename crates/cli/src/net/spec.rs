//! Which network, and with which names and addresses:
//! `blue:ifname=eth1,ip=10.1.0.5,mac=02:00:00:00:00:01,default-route`.

use std::net::IpAddr;
use std::str::FromStr;

use clap::Args;
use cni::IfName;
use kernel::mac::MacAddr;

/// The option that gives a network the default route.
const DEFAULT_ROUTE: &str = "default-route";

/// What may be asked for on one network.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(crate) struct Addresses {
    /// Ask for this address; may be repeated, one per family.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) ip: Vec<IpOrCidr>,
    /// Ask for this hardware address.
    #[arg(long, value_name = "ADDRESS", value_parser = mac)]
    pub(crate) mac: Option<MacAddr>,
    /// The interface's name in the container [default: CNI_IFNAME, or eth0; further networks: eth1,
    /// eth2, …].
    #[arg(long, value_name = "NAME", value_parser = ifname)]
    pub(crate) ifname: Option<IfName>,
}

/// A network and what is requested of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NetworkSpec {
    pub(crate) name: String,
    pub(crate) addresses: Addresses,
    /// The container's default route uses this network: through these gateways, or, if there are
    /// none, through the network's own.
    pub(crate) default_route: Option<Vec<IpAddr>>,
}

/// An address, perhaps with a prefix length, kept as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IpOrCidr(pub(crate) String);

impl FromStr for IpOrCidr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| format!("{text:?} is not an address"))?;
        let longest = if address.is_ipv4() { 32 } else { 128 };
        if length.is_some_and(|length| !length.parse::<u8>().is_ok_and(|bits| bits <= longest)) {
            return Err(format!("{text:?} has no prefix length of 0 to {longest}"));
        }
        Ok(IpOrCidr(text.to_owned()))
    }
}

fn mac(text: &str) -> Result<MacAddr, String> {
    text.parse().map_err(|_| format!("{text:?} is not a hardware address"))
}

fn ifname(text: &str) -> Result<IfName, String> {
    IfName::new(text).map_err(|error| error.to_string())
}

impl NetworkSpec {
    pub(crate) fn new(name: impl Into<String>) -> Self {
        NetworkSpec { name: name.into(), addresses: Addresses::default(), default_route: None }
    }

    fn set(&mut self, option: &str) -> Result<(), String> {
        if option == DEFAULT_ROUTE {
            self.default_route.get_or_insert_default();
            return Ok(());
        }
        let (key, value) = option
            .split_once('=')
            .ok_or_else(|| format!("{option:?} is not of the form KEY=VALUE"))?;
        match key {
            "ip" => self.addresses.ip.push(value.parse()?),
            "mac" => self.addresses.mac = Some(mac(value)?),
            "ifname" => self.addresses.ifname = Some(ifname(value)?),
            DEFAULT_ROUTE => {
                let gateway =
                    value.parse().map_err(|_| format!("{value:?} is not a gateway's address"))?;
                self.default_route.get_or_insert_default().push(gateway);
            }
            _ => return Err(format!("{key:?} is not default-route, ifname, ip or mac")),
        }
        Ok(())
    }
}

impl FromStr for NetworkSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, options) = text.split_once(':').unwrap_or((text, ""));
        if name.is_empty() {
            return Err("the network's name is missing".to_owned());
        }
        let mut spec = NetworkSpec::new(name);
        for option in options.split(',').filter(|option| !option.is_empty()) {
            spec.set(option)?;
        }
        Ok(spec)
    }
}

/// Reads a list separated by commas, as annotations have it. An item with an equals sign before any
/// colon belongs to the network before it, and so does `default-route`.
pub(crate) fn parse_list(text: &str) -> Result<Vec<NetworkSpec>, String> {
    let mut specs: Vec<NetworkSpec> = Vec::new();
    for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        let head = item.split(':').next().unwrap_or_default();
        if !head.contains('=') && item != DEFAULT_ROUTE {
            specs.push(item.parse()?);
            continue;
        }
        match specs.last_mut() {
            Some(spec) => spec.set(item)?,
            None => return Err(format!("{item:?} stands before any network's name")),
        }
    }
    Ok(specs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        let specs = match parse_list(text) {
            Ok(specs) => specs,
            Err(error) => return format!("error: {error}"),
        };
        let one = |spec: &NetworkSpec| {
            let Addresses { ip, mac, ifname } = &spec.addresses;
            let ips: Vec<_> = ip.iter().map(|ip| ip.0.as_str()).collect();
            let route = spec.default_route.as_ref().map(|via| format!("|via {via:?}"));
            let ifname = ifname.as_ref().map(IfName::to_string).unwrap_or_default();
            let mac = mac.map(|mac| mac.to_string()).unwrap_or_default();
            format!("{}[{ifname}|{}|{mac}{}]", spec.name, ips.join("+"), route.unwrap_or_default())
        };
        specs.iter().map(one).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn annotations_are_read() {
        assert_eq!(shown("blue"), "blue[||]");
        assert_eq!(shown(" blue , green "), "blue[||] green[||]");
        assert_eq!(
            shown("a:ifname=net0,ip=10.0.0.5,ip=fd00::5/64,mac=02:00:00:00:00:01,b,c:ip=10.1.0.1"),
            "a[net0|10.0.0.5+fd00::5/64|02:00:00:00:00:01] b[||] c[|10.1.0.1|]"
        );
        assert_eq!(shown("a,default-route,b"), "a[|||via []] b[||]");
        assert_eq!(
            shown("a,b:default-route=10.0.0.1,default-route=fd00::1"),
            "a[||] b[|||via [10.0.0.1, fd00::1]]"
        );
        assert_eq!(shown(""), "");
    }

    #[test]
    fn hostile_annotations_are_refused() {
        assert_eq!(shown("ip=10.0.0.1"), "error: \"ip=10.0.0.1\" stands before any network's name");
        assert_eq!(shown(":ip=10.0.0.1"), "error: the network's name is missing");
        assert_eq!(
            shown("a:colour=red"),
            "error: \"colour\" is not default-route, ifname, ip or mac"
        );
        assert_eq!(shown("a:ip=10.0.0"), "error: \"10.0.0\" is not an address");
        assert_eq!(
            shown("a:ip=10.0.0.1/33"),
            "error: \"10.0.0.1/33\" has no prefix length of 0 to 32"
        );
        assert_eq!(
            shown("default-route"),
            "error: \"default-route\" stands before any network's name"
        );
        assert_eq!(shown("a:default-route=x"), "error: \"x\" is not a gateway's address");
        assert!(shown("a:ifname=../../x").starts_with("error: interface name contains"));
        assert!(shown("a:mac=zz").starts_with("error: \"zz\" is not a hardware address"));
    }
}
