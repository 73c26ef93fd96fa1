//! `macvlan`: a link with a hardware address of its own on a parent.
//!
//! The link is made directly in the container's namespace with its final name. Duplicate address detection is
//! off unless `enabledad` asks for it, as with `bridge`: the addresses are IPAM's to keep apart, and detection takes a
//! second or more of every start.

use cni::{Error, code};
use cni_plugin::Call;
use kernel::mac::MacAddr;
use kernel::route::{Link, LinkKind, MacvlanMode, MacvlanOptions, NewLink, RouteSocket};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::single::{Made, SingleLink, Sites, drift};
use crate::shared::container::Options;
use crate::shared::mac::parse_mac;
use crate::shared::parent::{RawParent, Selector, check_mtu, parse_mtu};
use crate::shared::{kernel_error as kernel, owner};

/// The keys as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Raw {
    cni_version: String,
    name: String,
    r#type: String,
    master: String,
    parent: Option<RawParent>,
    mode: String,
    mtu: i64,
    mac: String,
    link_in_container: bool,
    bcqueuelen: u32,
    enabledad: bool,
    runtime_config: RawRuntime,
    ipam: Option<IgnoredAny>,
    dns: Option<IgnoredAny>,
    args: Option<IgnoredAny>,
    capabilities: Option<IgnoredAny>,
    prev_result: Option<IgnoredAny>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawRuntime {
    mac: String,
}

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    parent: Selector,
    in_container: bool,
    mode: MacvlanMode,
    mtu: Option<u32>,
    mac: Option<MacAddr>,
    broadcast_queue_len: Option<u32>,
    detect_duplicates: bool,
}

/// The plugin.
#[derive(Debug)]
pub struct Macvlan;

impl SingleLink for Macvlan {
    const NAME: &'static str = "macvlan";
    const KINDS: &'static [&'static str] = &["macvlan"];
    type Raw = Raw;
    type Config = Config;
    type Seen = Link;

    /// MAC precedence, last wins: `mac`, `CNI_ARGS` `MAC`, `runtimeConfig.mac`.
    fn config(call: &Call<'_>) -> Result<Config, Error> {
        let raw: Raw = call.read_config()?;
        let args = call.args(&["MAC"])?;
        let mac = [Some(raw.runtime_config.mac.as_str()), args.get("MAC"), Some(&raw.mac)]
            .into_iter()
            .flatten()
            .find(|text| !text.is_empty())
            .map(parse_mac)
            .transpose()?;
        Ok(Config {
            parent: Selector::parse(&raw.master, raw.parent.as_ref())?,
            in_container: raw.link_in_container,
            mode: mode(&raw.mode)?,
            mtu: parse_mtu(raw.mtu)?,
            mac,
            broadcast_queue_len: (raw.bcqueuelen != 0).then_some(raw.bcqueuelen),
            detect_duplicates: raw.enabledad,
        })
    }

    fn observe(_call: &Call<'_>, config: &Config, sites: &mut Sites) -> Result<Link, Error> {
        let socket = if config.in_container { &mut sites.inside } else { &mut sites.host };
        let parent = config.parent.find(socket)?;
        check_mtu(config.mtu, &parent)?;
        Ok(parent)
    }

    fn make(
        call: &Call<'_>,
        config: &Config,
        parent: &Link,
        sites: &mut Sites,
    ) -> Result<Made, Error> {
        let options =
            MacvlanOptions { mode: config.mode, broadcast_queue_len: config.broadcast_queue_len };
        let new = NewLink {
            parent: Some(parent.index),
            mac: config.mac,
            mtu: config.mtu,
            alias: Some(owner::alias(call.attachment())),
            netns: (!config.in_container).then(|| sites.netns.clone()),
            ..NewLink::new(call.ifname().as_str(), LinkKind::Macvlan(options))
        };
        let socket = if config.in_container { &mut sites.inside } else { &mut sites.host };
        let link = socket.create_link(&new).map_err(|error| {
            let busy = error.errno() == Some(kernel::Errno::BUSY);
            let error = kernel(error).context("failed to create macvlan");
            if busy {
                error.with_details(format!(
                    "parent {:?} serves an ipvlan, or a macvlan in passthru mode has it alone",
                    parent.name
                ))
            } else {
                error
            }
        })?;
        Ok(Made::link(link))
    }

    fn options(config: &Config) -> Options {
        Options { skip_dad: !config.detect_duplicates }
    }

    fn verify(
        _call: &Call<'_>,
        config: &Config,
        link: Option<&Link>,
        sites: &mut Sites,
    ) -> Result<(), Error> {
        let Some(link) = link else { return Err(drift("the macvlan link is gone".to_owned())) };
        let socket = if config.in_container { &mut sites.inside } else { &mut sites.host };
        let parent = config.parent.find(socket)?;
        if link.peer_index != Some(parent.index) {
            return Err(drift(format!("interface {:?} is not on {:?}", link.name, parent.name)));
        }
        if link.macvlan_mode != Some(config.mode) {
            return Err(drift(format!(
                "interface {:?} has macvlan mode {:?}, the configuration asks for {:?}",
                link.name, link.macvlan_mode, config.mode
            )));
        }
        Ok(())
    }

    fn status(config: &Config, host: &mut RouteSocket) -> Result<(), Error> {
        if config.in_container {
            return Ok(());
        }
        let parent = config.parent.find(host)?;
        check_mtu(config.mtu, &parent)
    }
}

fn mode(text: &str) -> Result<MacvlanMode, Error> {
    match text {
        "" | "bridge" => Ok(MacvlanMode::Bridge),
        "private" => Ok(MacvlanMode::Private),
        "vepa" => Ok(MacvlanMode::Vepa),
        "passthru" => Ok(MacvlanMode::Passthru),
        other => Err(Error::new(code::INVALID_CONFIG, format!("unknown macvlan mode: {other:?}"))
            .with_details("key \"mode\" is \"bridge\", \"private\", \"vepa\" or \"passthru\"")),
    }
}
