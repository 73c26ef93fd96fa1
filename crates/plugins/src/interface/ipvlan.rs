//! `ipvlan`: a link that shares its parent's hardware address.
//!
//! It may be chained: without `master` the parent is the one named interface of `prevResult`, and
//! without `ipam` the parent's addresses move to the new link, which is then the only one in the
//! result.
//!
//! The kernel has one mode and one reach for all ipvlans of a parent, and the newest link decides
//! for all. So that a container cannot change another's network, attachments hold the parent
//! together with the mode and reach that they agreed on.

mod agreement;

use cni::{AddResult, AttachmentKey, Command, code};
use cni_plugin::{Call, Info, Role};
use kernel::netlink::Errno;
use kernel::netns::Netns;
use kernel::route::{IpvlanMode, IpvlanOptions, IpvlanReach, Link, LinkKind, NewLink, RouteSocket};
use serde::Deserialize;

use super::on_parent::{self, Parent, RecordData};
use super::single::{self, Addressing, CreatedLink, Namespaces, SingleLink};
use crate::shared::container::Options;
use crate::shared::drift;
use crate::shared::failure::Failure;
use crate::shared::mtu::{ETHERNET_MTU, RawMtu};
use crate::shared::parent::{RawParent, Selector, check_mtu};

/// The keys as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Raw {
    master: String,
    parent: Option<RawParent>,
    mode: String,
    flags: String,
    mtu: RawMtu,
    link_in_container: bool,
    enabledad: bool,
    allow_address_conflict: bool,
}

/// The checked configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    parent: Parent,
    /// Neither `master` nor `parent` is configured: the parent may have been the chain's.
    unnamed: bool,
    mode: IpvlanMode,
    reach: IpvlanReach,
    mtu: Option<u32>,
    detect_duplicates: bool,
}

impl Config {
    fn options(&self) -> IpvlanOptions {
        IpvlanOptions { mode: self.mode, reach: Some(self.reach) }
    }
}

/// The plugin.
#[derive(Debug)]
pub struct Ipvlan;

impl SingleLink for Ipvlan {
    const INFO: Info = Info::new("ipvlan").role(Role::Either);
    const KINDS: &'static [&'static str] = &["ipvlan"];
    type Raw = Raw;
    type Config = Config;
    type Observation = Link;

    fn config(call: &Call<'_>) -> Result<Config, Failure> {
        let raw: Raw = call.read_config()?;
        let mut parent = Parent::parse(&raw.master, raw.parent.as_ref(), raw.link_in_container)?;
        let unnamed = parent.selector == Selector::DefaultRoute;
        if let (true, Command::Add, Some(previous)) = (unnamed, call.command(), call.prev_result()?)
        {
            parent.selector = Selector::Name(chained_parent(&previous)?);
        }
        Ok(Config {
            parent,
            unnamed,
            mode: mode(&raw.mode)?,
            reach: reach(&raw.flags)?,
            mtu: raw.mtu.within(&ETHERNET_MTU)?,
            detect_duplicates: raw.enabledad,
        })
    }

    /// Only ADD sees whether the chain provides addresses.
    fn addressing(call: &Call<'_>, _config: &Config) -> Result<Addressing, Failure> {
        if call.ipam().is_some() || call.command() != Command::Add {
            return Ok(Addressing::Ipam);
        }
        let previous = call.prev_result()?.filter(|previous| !previous.ips.is_empty());
        Ok(match previous {
            Some(previous) => Addressing::Previous(Box::new(previous)),
            None => Addressing::RequiredIpam("no plugin name provided"),
        })
    }

    fn observe(
        _call: &Call<'_>,
        config: &Config,
        namespaces: &mut Namespaces,
    ) -> Result<Link, Failure> {
        let parent = config.parent.find(config.parent.socket(namespaces))?;
        check_mtu(config.mtu, &parent)?;
        Ok(parent)
    }

    fn to_record(_config: &Config, parent: &Link) -> serde_json::Value {
        on_parent::to_record(parent, None)
    }

    fn make(
        call: &Call<'_>,
        config: &Config,
        parent: &Link,
        namespaces: &mut Namespaces,
    ) -> Result<CreatedLink, Failure> {
        let options = config.options();
        let new = NewLink {
            mtu: config.mtu,
            ..config.parent.new_link(call, LinkKind::Ipvlan(options), parent, namespaces)
        };
        let socket = config.parent.socket(namespaces);
        let mut create = || {
            socket.create_link(&new).map_err(|error| {
                let busy = error.errno() == Some(Errno::BUSY);
                let mut told = Failure::from(error).context("failed to create ipvlan");
                if busy {
                    let hint = on_parent::port_of(parent, socket).unwrap_or_else(|| {
                        format!("parent {:?} serves a macvlan already", parent.name)
                    });
                    told = told.with_details(hint);
                }
                told
            })
        };
        let made = if config.parent.in_container {
            create()
        } else {
            agreement::join(call, &parent.name, (word(config.mode), flag(config.reach)), create)
        };
        made.map(CreatedLink::link)
    }

    fn options(config: &Config) -> Options {
        Options::new(!config.detect_duplicates)
    }

    fn remove_link(
        call: &Call<'_>,
        key: &AttachmentKey,
        netns: Option<&Netns>,
        recorded: Option<&serde_json::Value>,
    ) -> Result<(), Failure> {
        if let Some(netns) = netns {
            single::delete_link(call, key, netns, Self::KINDS, recorded)?;
        }
        let recorded: Option<RecordData> =
            recorded.and_then(|recorded| serde_json::from_value(recorded.clone()).ok());
        match recorded {
            Some(recorded) => agreement::leave(call, key, &recorded.parent),
            None => Ok(()),
        }
    }

    fn verify(
        call: &Call<'_>,
        config: &Config,
        link: Option<&Link>,
        namespaces: &mut Namespaces,
    ) -> Result<(), Failure> {
        let Some(link) = link else { return Err(drift("the ipvlan link is gone".to_owned())) };
        // Only the record tells which parent the chain had.
        if !config.unnamed || on_parent::recorded(call, Self::NAME).is_some() {
            config.parent.verify(call, Self::NAME, link, namespaces)?;
        }
        if link.ipvlan_mode != Some(config.mode) {
            return Err(drift(format!(
                "interface {:?} has ipvlan mode {}, the configuration asks for {}",
                link.name,
                link.ipvlan_mode.map_or("unknown", word),
                word(config.mode)
            )));
        }
        if link.ipvlan_reach.is_some_and(|found| found != config.reach) {
            return Err(drift(format!(
                "interface {:?} has ipvlan flags {}, the configuration asks for {}",
                link.name,
                link.ipvlan_reach.map_or("unknown", flag),
                flag(config.reach)
            )));
        }
        Ok(())
    }

    /// Without `master` the parent may be the chain's, which STATUS does not know.
    fn fits_host(config: &Config, host: &mut RouteSocket) -> Result<(), Failure> {
        match config.unnamed {
            // In a chain the previous plugin creates it.
            true => Ok(()),
            false => config.parent.fits_host(config.mtu, host),
        }
    }

    fn status(config: &Config, host: &mut RouteSocket) -> Result<(), Failure> {
        if config.unnamed || config.parent.in_container {
            return Ok(());
        }
        let parent = config.parent.find(host)?;
        check_mtu(config.mtu, &parent)?;
        on_parent::refuse_port(Self::NAME, &parent, host)
    }

    fn kernel_kind(config: &Config) -> Option<(LinkKind, &'static str)> {
        Some((LinkKind::Ipvlan(config.options()), "CONFIG_IPVLAN (`modprobe ipvlan`)"))
    }
}

/// Returns the parent that a chain's result names.
fn chained_parent(previous: &AddResult) -> Result<String, Failure> {
    match previous.interfaces.as_slice() {
        [only] if !only.name.is_empty() => Ok(only.name.clone()),
        _ => Err(Failure::new(
            code::INVALID_CONFIG,
            "chained master failure. PrevResult lacks a single named interface",
        )
        .with_details("give the parent with \"master\"")),
    }
}

fn mode(text: &str) -> Result<IpvlanMode, Failure> {
    match text {
        "" | "l2" => Ok(IpvlanMode::L2),
        "l3" => Ok(IpvlanMode::L3),
        "l3s" => Ok(IpvlanMode::L3s),
        other => Err(Failure::new(code::INVALID_CONFIG, format!("unknown ipvlan mode: {other:?}"))
            .with_details("key \"mode\" is \"l2\", \"l3\" or \"l3s\"")),
    }
}

fn word(mode: IpvlanMode) -> &'static str {
    match mode {
        IpvlanMode::L2 => "l2",
        IpvlanMode::L3 => "l3",
        IpvlanMode::L3s => "l3s",
    }
}

fn reach(text: &str) -> Result<IpvlanReach, Failure> {
    match text {
        "" | "bridge" => Ok(IpvlanReach::Bridge),
        "private" => Ok(IpvlanReach::Private),
        "vepa" => Ok(IpvlanReach::Vepa),
        other => {
            Err(Failure::new(code::INVALID_CONFIG, format!("unknown ipvlan flags: {other:?}"))
                .with_details("key \"flags\" is \"bridge\", \"private\" or \"vepa\""))
        }
    }
}

fn flag(reach: IpvlanReach) -> &'static str {
    match reach {
        IpvlanReach::Bridge => "bridge",
        IpvlanReach::Private => "private",
        IpvlanReach::Vepa => "vepa",
    }
}
