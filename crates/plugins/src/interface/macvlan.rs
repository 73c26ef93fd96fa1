//! `macvlan`: a link with a hardware address of its own on a parent.
//!
//! The link is created directly in the container's namespace with its final name. Duplicate address
//! detection is off unless `enabledad` asks for it, as with `bridge`: the IPAM plugin keeps
//! addresses unique, and detection delays every start by a second or more.

use cni::code;
use cni_plugin::{Call, Info, Role};
use kernel::mac::MacAddr;
use kernel::netlink::Errno;
use kernel::route::{
    Change, Link, LinkKind, LinkSet, MacvlanMode, MacvlanOptions, NewLink, RouteSocket,
};
use serde::Deserialize;

use super::on_parent::{self, Parent};
use super::single::{CreatedLink, Namespaces, SingleLink};
use crate::shared::container::Options;
use crate::shared::drift;
use crate::shared::failure::Failure;
use crate::shared::mac::parse_mac;
use crate::shared::mtu::{ETHERNET_MTU, RawMtu};
use crate::shared::parent::{RawParent, check_mtu};

/// The keys as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Raw {
    master: String,
    parent: Option<RawParent>,
    mode: String,
    mtu: RawMtu,
    mac: String,
    link_in_container: bool,
    bcqueuelen: u32,
    enabledad: bool,
    allow_address_conflict: bool,
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
    parent: Parent,
    mode: MacvlanMode,
    mtu: Option<u32>,
    mac: Option<MacAddr>,
    broadcast_queue_len: Option<u32>,
    detect_duplicates: bool,
}

impl Config {
    fn options(&self) -> MacvlanOptions {
        MacvlanOptions { mode: self.mode, broadcast_queue_len: self.broadcast_queue_len }
    }
}

/// The plugin.
#[derive(Debug)]
pub struct Macvlan;

impl SingleLink for Macvlan {
    const INFO: Info = Info::new("macvlan").role(Role::Interface).capabilities(&["mac"]);
    const KINDS: &'static [&'static str] = &["macvlan"];
    type Raw = Raw;
    type Config = Config;
    type Observation = Link;

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
        Ok(Config {
            parent: Parent::parse(&raw.master, raw.parent.as_ref(), raw.link_in_container)?,
            mode: mode(&raw.mode)?,
            mtu: raw.mtu.within(&ETHERNET_MTU)?,
            mac,
            broadcast_queue_len: (raw.bcqueuelen != 0).then_some(raw.bcqueuelen),
            detect_duplicates: raw.enabledad,
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
            mac: config.mac,
            mtu: config.mtu,
            ..config.parent.new_link(call, LinkKind::Macvlan(options), parent, namespaces)
        };
        let socket = config.parent.socket(namespaces);
        let mut link = socket.create_link(&new).map_err(|error| {
            let hint = hint(error.errno(), config.mode, parent, socket);
            Failure::from(error).context("failed to create macvlan").with_details(hint)
        })?;
        if let Some(mac) = config.mac.filter(|mac| link.mac != Some(*mac)) {
            // In mode passthru the kernel uses the parent's address and ignores the requested one.
            // If an address is set afterwards, the parent has it too until the link is deleted.
            let set = LinkSet { mac: Some(mac), ..LinkSet::default() };
            let change = Change::SetLink { ifindex: link.index, set };
            namespaces.inside.apply_one(&change)?;
            link.mac = Some(mac);
        }
        Ok(CreatedLink::link(link))
    }

    fn options(config: &Config) -> Options {
        Options::new(!config.detect_duplicates)
    }

    fn verify(
        call: &Call<'_>,
        config: &Config,
        link: Option<&Link>,
        namespaces: &mut Namespaces,
    ) -> Result<(), Failure> {
        let Some(link) = link else { return Err(drift("the macvlan link is gone".to_owned())) };
        config.parent.verify(call, Self::NAME, link, namespaces)?;
        if link.macvlan_mode != Some(config.mode) {
            return Err(drift(format!(
                "interface {:?} has macvlan mode {}, the configuration asks for {}",
                link.name,
                link.macvlan_mode.map_or("unknown", word),
                word(config.mode)
            )));
        }
        Ok(())
    }

    fn fits_host(config: &Config, host: &mut RouteSocket) -> Result<(), Failure> {
        config.parent.fits_host(config.mtu, host)
    }

    fn status(config: &Config, host: &mut RouteSocket) -> Result<(), Failure> {
        if config.parent.in_container {
            return Ok(());
        }
        let parent = config.parent.find(host)?;
        check_mtu(config.mtu, &parent)?;
        on_parent::refuse_port(Self::NAME, &parent, host)
    }

    fn kernel_kind(config: &Config) -> Option<(LinkKind, &'static str)> {
        Some((LinkKind::Macvlan(config.options()), "CONFIG_MACVLAN (`modprobe macvlan`)"))
    }
}

/// Explains what the kernel's errno leaves open.
fn hint(
    errno: Option<Errno>,
    mode: MacvlanMode,
    parent: &Link,
    socket: &mut RouteSocket,
) -> String {
    let name = &parent.name;
    match errno {
        Some(Errno::BUSY) => on_parent::port_of(parent, socket)
            .unwrap_or_else(|| format!("parent {name:?} serves an ipvlan already")),
        Some(Errno::INVAL) if mode == MacvlanMode::Passthru => {
            format!("mode passthru takes parent {name:?} whole, and it serves a macvlan already")
        }
        Some(Errno::INVAL) => {
            format!(
                "a macvlan in mode passthru has parent {name:?} for itself, or it is no Ethernet link"
            )
        }
        _ => String::new(),
    }
}

fn mode(text: &str) -> Result<MacvlanMode, Failure> {
    match text {
        "" | "bridge" => Ok(MacvlanMode::Bridge),
        "private" => Ok(MacvlanMode::Private),
        "vepa" => Ok(MacvlanMode::Vepa),
        "passthru" => Ok(MacvlanMode::Passthru),
        other => {
            Err(Failure::new(code::INVALID_CONFIG, format!("unknown macvlan mode: {other:?}"))
                .with_details("key \"mode\" is \"bridge\", \"private\", \"vepa\" or \"passthru\""))
        }
    }
}

fn word(mode: MacvlanMode) -> &'static str {
    match mode {
        MacvlanMode::Private => "private",
        MacvlanMode::Vepa => "vepa",
        MacvlanMode::Bridge => "bridge",
        MacvlanMode::Passthru => "passthru",
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use serde_json::json;

    use super::super::single::LinkPlugin;
    use super::*;
    use crate::engine::{Attachment, Wants as _, sample};

    /// The parent and the mode are no items: they are the host's, and repair leaves them.
    #[test]
    fn a_link_on_a_parent_wants_its_own_side() {
        let config = Config {
            parent: Parent::parse("eth1", None, false).unwrap(),
            mode: MacvlanMode::Bridge,
            mtu: Some(1400),
            mac: None,
            broadcast_queue_len: None,
            detect_duplicates: false,
        };
        let result = sample::result(
            vec![sample::interface()],
            &[("10.1.0.2/24", "10.1.0.1")],
            &["0.0.0.0/0", "10.9.0.0/16"],
        );
        let recorded = json!({ "parent": "eth1", "index": 7, "claims": ["claim"] });
        let (key, config, recorded) = (&sample::key(), &config, Some(&recorded));
        let attached = Attachment::<LinkPlugin<Macvlan>> {
            key,
            ifname: "eth0",
            result: &result,
            config,
            recorded,
        };
        let wanted = LinkPlugin::<Macvlan>::wanted(&attached, &());
        expect![[r#"
            container: interface "eth0" (macvlan) (ADD created it)
            container: interface "eth0", as ADD recorded it (it shows the owner)
            container: MAC address 02:00:00:00:00:03 of interface "eth0" (ADD created it)
            container: address 10.1.0.2/24 of interface "eth0" (the IPAM plugin assigned it)
            container: interface "eth0" up (ADD created it)
            container: route 0.0.0.0/0 via 10.1.0.1 of interface "eth0" (the IPAM plugin assigned it)
            container: route 10.9.0.0/16 via 10.1.0.1 of interface "eth0" (the IPAM plugin assigned it)
            host: the claim "claim" (it shows the owner)
        "#]]
        .assert_eq(&wanted.to_string());
    }
}
