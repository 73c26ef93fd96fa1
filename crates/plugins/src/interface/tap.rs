//! `tap`: an Ethernet link whose other end is a program, most often a virtual machine.
//!
//! `/dev/net/tun` creates it in the container's namespace under its final name, with any keys. The
//! plugin runs `ip` only for `selinuxContext`, since a tap has the label of the process that
//! creates it. Frames carry offloading hints (`vnet_hdr`) until the program that opens the tap
//! decides otherwise.

mod selinux;

use cni::code;
use cni_plugin::{Call, Info, Role, codes};
use kernel::mac::MacAddr;
use kernel::route::{Change, Link, LinkSet, RouteSocket};
use kernel::tun::{self, NewTap};
use serde::Deserialize;

use super::single::{CreatedLink, Namespaces, SingleLink};
use crate::shared::container::Options;
use crate::shared::failure::Failure;
use crate::shared::mac::parse_mac;
use crate::shared::mtu::RawMtu;
use crate::shared::{drift, owner};

/// The MTU range that the kernel accepts for a tap: at least an IPv4 header with options, at most
/// 64 KiB with the Ethernet header (`linux drivers/net/tun.c`, MIN_MTU and MAX_MTU).
const MTU: std::ops::RangeInclusive<u32> = 68..=65_521;

/// The keys as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Raw {
    multi_queue: Option<bool>,
    mtu: RawMtu,
    mac: String,
    owner: Option<u32>,
    group: Option<u32>,
    selinux_context: String,
    bridge: String,
    runtime_config: RawRuntime,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawRuntime {
    mac: String,
}

/// The checked configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    multi_queue: Option<bool>,
    mtu: Option<u32>,
    mac: Option<MacAddr>,
    owner: Option<u32>,
    group: Option<u32>,
    selinux_context: Option<String>,
    bridge: Option<String>,
}

/// The plugin.
#[derive(Debug)]
pub struct Tap;

impl SingleLink for Tap {
    const INFO: Info = Info::new("tap").role(Role::Interface).capabilities(&["mac"]);
    const KINDS: &'static [&'static str] = &["tun"];
    type Raw = Raw;
    type Config = Config;
    /// The bridge in the container.
    type Observation = Option<Link>;

    /// MAC precedence, last wins: `mac`, `CNI_ARGS` `MAC`, `runtimeConfig.mac`.
    fn config(call: &Call<'_>) -> Result<Config, Failure> {
        let raw: Raw = call.read_config()?;
        let args = call.args(&["MAC"])?;
        let mac = [Some(raw.runtime_config.mac.as_str()), args.get("MAC"), Some(&raw.mac)]
            .into_iter()
            .flatten()
            .find(|text| !text.is_empty())
            .map(parse_mac)
            .transpose()?;
        let mtu = raw.mtu.within(&MTU)?;
        Ok(Config {
            multi_queue: raw.multi_queue,
            mtu,
            mac,
            owner: id("owner", raw.owner)?,
            group: id("group", raw.group)?,
            selinux_context: some(raw.selinux_context),
            bridge: some(raw.bridge),
        })
    }

    fn observe(
        _call: &Call<'_>,
        config: &Config,
        namespaces: &mut Namespaces,
    ) -> Result<Option<Link>, Failure> {
        usable(config)?;
        config.bridge.as_ref().map(|name| bridge(name, &mut namespaces.inside)).transpose()
    }

    fn make(
        call: &Call<'_>,
        config: &Config,
        bridge: &Option<Link>,
        namespaces: &mut Namespaces,
    ) -> Result<CreatedLink, Failure> {
        let ifname = call.ifname().as_str();
        let tap = NewTap {
            name: ifname.to_owned(),
            multi_queue: config.multi_queue.unwrap_or_default(),
            vnet_hdr: true,
            owner: config.owner,
            group: config.group,
        };
        match &config.selinux_context {
            Some(context) => selinux::create_tap(&namespaces.netns, &tap, context)?,
            None => tun::create_tap(&namespaces.netns, &tap).map_err(|error| {
                Failure::from_chain(codes::KERNEL, &error).context("failed to create tap")
            })?,
        }
        let inside = &mut namespaces.inside;
        let gone = || Failure::new(codes::KERNEL, format!("failed to refetch tap {ifname:?}"));
        let made = inside.link_by_name(ifname)?.ok_or_else(gone)?;
        let set = LinkSet {
            mac: config.mac,
            mtu: config.mtu,
            alias: Some(owner::alias(call.attachment())),
            master: bridge.as_ref().map(|bridge| Some(bridge.index)),
            ..LinkSet::default()
        };
        let change = Change::SetLink { ifindex: made.index, set };
        inside.apply_one(&change).map_err(|error| {
            Failure::from(error).context(format_args!("failed to set up tap {ifname:?}"))
        })?;
        let link = inside.link_by_index(made.index)?.ok_or_else(gone)?;
        Ok(CreatedLink::link(link))
    }

    fn mtu(config: &Config) -> Option<u32> {
        config.mtu
    }

    /// The other end has no program yet that could answer.
    fn options(_config: &Config) -> Options {
        Options::new(true)
    }

    fn verify(
        _call: &Call<'_>,
        config: &Config,
        link: Option<&Link>,
        namespaces: &mut Namespaces,
    ) -> Result<(), Failure> {
        let Some(link) = link else { return Err(drift("the tap is gone".to_owned())) };
        let name = &link.name;
        let Some(tap) = link.tun.filter(|tun| tun.tap) else {
            return Err(drift(format!("interface {name:?} is no longer a tap")));
        };
        // If the configuration leaves it open, the program that opens the tap chooses.
        for (key, is, asked) in
            [("owner", tap.owner, config.owner), ("group", tap.group, config.group)]
        {
            let Some(asked) = asked.filter(|asked| is != Some(*asked)) else { continue };
            let is = is.map_or("none".to_owned(), |id| id.to_string());
            return Err(drift(format!(
                "interface {name:?} has {key} {is}, the configuration asks for {asked}"
            )));
        }
        if let Some(asked) = config.multi_queue.filter(|asked| tap.multi_queue != *asked) {
            return Err(drift(format!(
                "interface {name:?} has multiQueue {}, the configuration asks for {asked}",
                tap.multi_queue
            )));
        }
        if let Some(wanted) = &config.bridge {
            let bridge = bridge(wanted, &mut namespaces.inside)
                .map_err(|error| drift(error.message().to_owned()))?;
            if link.master != Some(bridge.index) {
                return Err(drift(format!("interface {name:?} is not a port of {wanted:?}")));
            }
        }
        Ok(())
    }

    fn status(config: &Config, _host: &mut RouteSocket) -> Result<(), Failure> {
        usable(config)
    }
}

/// Checks what ADD needs of the host.
fn usable(config: &Config) -> Result<(), Failure> {
    if let Some(context) = &config.selinux_context {
        selinux::usable(context)?;
    }
    tun::available().map_err(|error| {
        Failure::new(codes::KERNEL, format!("failed to create tap: open {}: {error}", tun::DEVICE))
            .with_details("the kernel needs the driver tun (`modprobe tun`), and its device a node")
    })
}

fn bridge(name: &str, inside: &mut RouteSocket) -> Result<Link, Failure> {
    let link = if name.len() < 16 { inside.link_by_name(name)? } else { None };
    let link = link.ok_or_else(|| {
        invalid(
            format!("failed to find bridge {name:?}: Link not found"),
            "key \"bridge\" names a bridge of the container, which has no such link",
        )
    })?;
    if link.is_kind("bridge") {
        return Ok(link);
    }
    Err(invalid(
        format!("{name:?} already exists but is not a bridge"),
        "key \"bridge\" names a link of the container that is none",
    ))
}

/// Reads the number of a user or group. The kernel uses the largest number for "none", so it is
/// refused.
fn id(key: &str, id: Option<u32>) -> Result<Option<u32>, Failure> {
    match id {
        Some(u32::MAX) => Err(invalid(
            format!("invalid {key} {}", u32::MAX),
            format!("key {key:?} is a number below 4294967295"),
        )),
        id => Ok(id),
    }
}

fn some(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

fn invalid(message: impl Into<String>, details: impl Into<String>) -> Failure {
    Failure::new(code::INVALID_CONFIG, message.into()).with_details(details.into())
}
