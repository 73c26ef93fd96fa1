//! The keys, and the networks that they define.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use cni::json::Object;
use cni::{Args, IfName, NetworkList, PluginConfig, code};
use cni_plugin::Call;
use cni_runtime::{Attachment, ConfigFolder, LoadError, Member};
use ipnet::IpNet;
use kernel::mac::MacAddr;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::shared::failure::Failure;
use crate::shared::outer_args::{self, Interface, OuterArgs};

use super::default_route::DefaultRoute;

/// The default folder of network configurations, unless `confDir` names another.
const CONF_DIR: &str = "/etc/cni/net.d";

/// The prefix of the default names of further interfaces; the network's position follows.
const FURTHER_IFNAME: &str = "net";

/// Capabilities by which plugins take what is requested on a network (CNI conventions).
const IPS: &str = "ips";
const MAC: &str = "mac";

/// The keys as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Raw {
    runtime_config: BTreeMap<String, Box<RawValue>>,
    conf_dir: Option<PathBuf>,
    networks: Vec<RawNetwork>,
}

/// A network as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawNetwork {
    name: String,
    config: Option<Object>,
    ifname: String,
    ips: Vec<String>,
    mac: String,
    default_route: Option<RawDefaultRoute>,
    runtime_config: BTreeMap<String, Box<RawValue>>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum RawDefaultRoute {
    Own(bool),
    Gateways(Vec<IpAddr>),
}

/// The checked configuration.
#[derive(Debug)]
pub(super) struct Config {
    pub(super) members: Vec<Member>,
    pub(super) default_route: Option<DefaultRoute>,
}

impl Raw {
    fn of(call: &Call<'_>) -> Result<Self, Failure> {
        let raw: Raw = call.read_config()?;
        if raw.networks.is_empty() {
            return Err(invalid("\"networks\" of plugin \"multi\" names no network"));
        }
        Ok(raw)
    }

    fn lists(&self, call: &Call<'_>) -> Result<Vec<NetworkList>, Failure> {
        let folder = self.conf_dir.as_deref().unwrap_or(Path::new(CONF_DIR));
        let networks = self.networks.iter().enumerate();
        let lists = networks.map(|(place, network)| {
            let list = network.list(call, place, folder);
            list.map_err(|error| error.context(format_args!("networks[{place}]")))
        });
        lists.collect()
    }
}

/// Refuses what ADD would refuse, except for the networks themselves: each is checked separately.
pub(super) fn validate(call: &Call<'_>) -> Result<(), Failure> {
    Raw::of(call).map(drop)
}

/// Returns only the networks, for verbs that concern no container.
pub(super) fn lists(call: &Call<'_>) -> Result<Vec<NetworkList>, Failure> {
    Raw::of(call)?.lists(call)
}

impl Config {
    /// Reads and checks everything first, so that no network is changed if a later one is invalid.
    /// An interface without a configured name does not get one that is `taken`.
    pub(super) fn of(call: &Call<'_>, taken: impl Fn(&str) -> bool) -> Result<Self, Failure> {
        let raw = Raw::of(call)?;
        let lists = raw.lists(call)?;
        let args = OuterArgs::of(call)?;
        let mut config = Config { members: Vec::new(), default_route: None };
        let mut ifnames = BTreeSet::new();
        for (place, (network, list)) in raw.networks.into_iter().zip(lists).enumerate() {
            let within = |error: Failure| error.context(format_args!("networks[{place}]"));
            let is_free = |name: &str| !taken(name) && !ifnames.contains(name);
            let ifname = ifname(call, place, &network.ifname, is_free).map_err(within)?;
            if !ifnames.insert(ifname.to_string()) {
                let text = format!("networks[{place}]: interface {ifname} is another network's");
                return Err(invalid(text).with_details("name one of them otherwise: \"ifname\""));
            }
            let interface = if place == 0 { Interface::Runtimes } else { Interface::Further };
            let list = args.in_list(list, interface).map_err(within)?;
            let mut attachment = attachment(call, ifname.clone(), interface)?;
            if interface == Interface::Runtimes {
                // What the runtime requests is for the first network (NPWG standard,
                // "runtimeConfig").
                attachment.capability_args = raw.runtime_config.clone();
            }
            let gateways = network.ask(&list, &mut attachment).map_err(within)?;
            if let Some(gateways) = gateways
                && let Some(other) = config.default_route.replace(DefaultRoute { ifname, gateways })
            {
                let text =
                    format!("networks[{place}]: {} has the default route already", other.ifname);
                return Err(invalid(text));
            }
            config.members.push(Member { list, attachment });
        }
        Ok(config)
    }
}

impl RawNetwork {
    /// Returns the network's list: the one that is written here, or that of a file.
    fn list(&self, call: &Call<'_>, place: usize, folder: &Path) -> Result<NetworkList, Failure> {
        let list = match &self.config {
            Some(object) => self.written(object, call, place)?,
            None if self.name.is_empty() => {
                return Err(invalid("needs \"name\", a network of confDir, or \"config\""));
            }
            None => {
                let scanned = ConfigFolder::scan(folder)?;
                scanned.find(&self.name).cloned().map_err(|error| match error {
                    LoadError::NotFound { .. } => {
                        let text = format!("no network {:?} in {}", self.name, folder.display());
                        invalid(text).with_details("\"confDir\" says where networks are")
                    }
                    error => error.into(),
                })?
            }
        };
        if list.plugins.iter().any(|plugin| plugin.plugin_type == super::NAME) {
            let text = format!("network {:?} is one of several networks itself", list.name);
            return Err(invalid(text).with_details("name its networks here instead"));
        }
        Ok(list)
    }

    /// Reads a plugin's configuration or a list. Its name is its own, else the element's, else
    /// derived from ours and the position; so is the version.
    fn written(
        &self,
        object: &Object,
        call: &Call<'_>,
        place: usize,
    ) -> Result<NetworkList, Failure> {
        let mut object = object.clone();
        if object.get("name").is_none() {
            let made = || format!("{}-{place}", call.network().as_str());
            let name = if self.name.is_empty() { made() } else { self.name.clone() };
            object.set_value("name", &name);
        }
        if object.get("cniVersion").is_none() {
            object.set_value("cniVersion", call.version().as_str());
        }
        let text = object.to_vec();
        match object.get("plugins") {
            Some(_) => Ok(NetworkList::parse(&text)?),
            None => Ok(NetworkList::from_plugin(&text)?),
        }
    }

    /// Adds what is requested on the network; returns the gateways if this network gets the default
    /// route.
    fn ask(
        &self,
        list: &NetworkList,
        attachment: &mut Attachment,
    ) -> Result<Option<Vec<IpAddr>>, Failure> {
        let mut asked = self.runtime_config.clone();
        if !self.ips.is_empty() {
            for ip in &self.ips {
                if IpAddr::from_str(ip).is_err() && IpNet::from_str(ip).is_err() {
                    return Err(invalid(format!("\"ips\": {ip:?} is not an address")));
                }
            }
            asked.insert(IPS.to_owned(), to_raw(&self.ips));
        }
        if !self.mac.is_empty() {
            let mac: MacAddr = self.mac.parse().map_err(|_| {
                invalid(format!("\"mac\": {:?} is not a hardware address", self.mac))
            })?;
            asked.insert(MAC.to_owned(), to_raw(&mac.to_string()));
        }
        for name in asked.keys() {
            let has = |plugin: &PluginConfig| plugin.capabilities.iter().any(|has| has == name);
            if !list.plugins.iter().any(has) {
                let text = format!("network {:?} cannot serve {name:?}", list.name);
                return Err(invalid(text).with_details(format!(
                    "none of its plugins has the capability: \"capabilities\": {{{name:?}: true}}"
                )));
            }
        }
        attachment.capability_args.append(&mut asked);
        Ok(match &self.default_route {
            None | Some(RawDefaultRoute::Own(false)) => None,
            Some(RawDefaultRoute::Own(true)) => Some(Vec::new()),
            Some(RawDefaultRoute::Gateways(gateways)) if gateways.is_empty() => {
                return Err(invalid(
                    "\"defaultRoute\" names no gateway: write true for the network's own",
                ));
            }
            Some(RawDefaultRoute::Gateways(gateways)) => Some(gateways.clone()),
        })
    }
}

/// Returns the container's interface on the network at this position: the first is the one that the
/// runtime named.
fn ifname(
    call: &Call<'_>,
    place: usize,
    chosen: &str,
    is_free: impl Fn(&str) -> bool,
) -> Result<IfName, Failure> {
    match (place, chosen) {
        (0, "") => Ok(call.ifname().clone()),
        (0, _) => Err(invalid("\"ifname\" of the first network is the runtime's (CNI_IFNAME)")),
        (_, "") => {
            let mut names = (place..).map(|number| format!("{FURTHER_IFNAME}{number}"));
            Ok(IfName::new(&names.find(|name| is_free(name)).expect("there is no end of numbers"))?)
        }
        (_, name) => Ok(IfName::new(name).map_err(|error| error.context("\"ifname\""))?),
    }
}

/// Creates an attachment of the container, with the arguments that the runtime gave for it.
fn attachment(
    call: &Call<'_>,
    ifname: IfName,
    interface: Interface,
) -> Result<Attachment, Failure> {
    let netns = call.env().netns.clone();
    let args = Args::parse(&call.env().args)?;
    let args = Args::from_pairs(outer_args::pairs(&args, interface));
    Ok(Attachment::new(call.container_id().clone(), ifname, netns).with_args(args))
}

fn to_raw<T: serde::Serialize + ?Sized>(value: &T) -> Box<RawValue> {
    serde_json::value::to_raw_value(value).expect("texts can be written as JSON")
}

fn invalid(text: impl Into<String>) -> Failure {
    Failure::new(code::INVALID_CONFIG, text)
}
