//! `vlan`: the tagged frames of a parent.
//!
//! A parent has each VLAN once, so two containers cannot share one; the error names the holder. The
//! link keeps the parent's hardware address. Duplicate address detection is off unless `enabledad`
//! asks for it, as with `bridge`.

use cni::{AttachmentKey, code};
use cni_plugin::{Call, Info, Role, codes};
use kernel::living::Census;
use kernel::route::{Link, LinkKind, NewLink, RouteSocket, VlanOptions, VlanProtocol};
use serde::Deserialize;
use state::Index;

use super::on_parent::{self, Parent, RecordData};
use super::single::{Addressing, CreatedLink, Namespaces, SingleLink};
use crate::shared::container::Options;
use crate::shared::failure::Failure;
use crate::shared::mtu::RawMtu;
use crate::shared::parent::{RawParent, Selector, check_mtu};
use crate::shared::{attachment, drift, owner};

/// The highest VLAN ID (IEEE 802.1Q; 4095 is reserved).
const ID_MAX: u16 = 4094;

/// The keys as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Raw {
    master: String,
    parent: Option<RawParent>,
    vlan_id: i64,
    vlan_protocol: String,
    mtu: RawMtu,
    link_in_container: bool,
    enabledad: bool,
    allow_address_conflict: bool,
}

/// The MTU range that the kernel accepts (linux net/8021q/vlan_dev.c `vlan_setup`).
const MTU: std::ops::RangeInclusive<u32> = 1..=65_535;

/// The checked configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    parent: Parent,
    id: u16,
    protocol: VlanProtocol,
    mtu: Option<u32>,
    detect_duplicates: bool,
}

/// The plugin.
#[derive(Debug)]
pub struct Vlan;

impl SingleLink for Vlan {
    const INFO: Info = Info::new("vlan").role(Role::Interface);
    const KINDS: &'static [&'static str] = &["vlan"];
    type Raw = Raw;
    type Config = Config;
    type Observation = Link;

    fn config(call: &Call<'_>) -> Result<Config, Failure> {
        Config::check(&call.read_config()?)
    }

    fn addressing(_call: &Call<'_>, _config: &Config) -> Result<Addressing, Failure> {
        Ok(Addressing::RequiredIpam("no plugin name provided"))
    }

    fn observe(
        _call: &Call<'_>,
        config: &Config,
        namespaces: &mut Namespaces,
    ) -> Result<Link, Failure> {
        config.find_parent(config.parent.socket(namespaces))
    }

    fn to_record(config: &Config, parent: &Link) -> serde_json::Value {
        on_parent::to_record(parent, Some(config.id))
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
            ..config.parent.new_link(call, LinkKind::Vlan(options), parent, namespaces)
        };
        let socket = config.parent.socket(namespaces);
        let made = socket.create_link(&new).map_err(|error| {
            if error.is_exists() {
                taken(call, config, parent, socket)
            } else if error.is_unsupported() {
                Failure::from(error).context("failed to create vlan").with_details(format!(
                    "parent {:?} carries no VLANs, or this kernel has none (8021q)",
                    parent.name
                ))
            } else {
                Failure::from(error).context("failed to create vlan")
            }
        });
        made.map(CreatedLink::link)
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
        let Some(link) = link else { return Err(drift("the vlan link is gone".to_owned())) };
        config.parent.verify(call, Self::NAME, link, namespaces)?;
        let found = link.vlan.map(|vlan| (vlan.id, vlan.protocol));
        if found != Some((config.id, config.protocol.number())) {
            let found = found.map_or("none".to_owned(), |(id, protocol)| {
                format!("{id} with protocol {protocol:#06x}")
            });
            return Err(drift(format!(
                "interface {:?} has VLAN {found}, the configuration asks for {} with protocol {:#06x}",
                link.name,
                config.id,
                config.protocol.number()
            )));
        }
        Ok(())
    }

    fn mtu(config: &Config) -> Option<u32> {
        config.mtu
    }

    fn fits_host(config: &Config, host: &mut RouteSocket) -> Result<(), Failure> {
        config.parent.fits_host(config.mtu, host)
    }

    fn status(config: &Config, host: &mut RouteSocket) -> Result<(), Failure> {
        if config.parent.in_container {
            return Ok(());
        }
        config.find_parent(host).map(drop)
    }

    fn kernel_kind(config: &Config) -> Option<(LinkKind, &'static str)> {
        Some((LinkKind::Vlan(config.options()), "CONFIG_VLAN_8021Q (`modprobe 8021q`)"))
    }
}

impl Config {
    fn options(&self) -> VlanOptions {
        VlanOptions { id: self.id, protocol: self.protocol }
    }

    fn check(raw: &Raw) -> Result<Self, Failure> {
        let parent = Parent::parse(&raw.master, raw.parent.as_ref(), raw.link_in_container)?;
        if parent.selector == Selector::DefaultRoute {
            return Err(invalid(
                "\"master\" field is required. It specifies the host interface name to create the VLAN for",
                "a \"parent\" with one of mac, pciBusID, driver, routeTo will do too",
            ));
        }
        let id = u16::try_from(raw.vlan_id).ok().filter(|id| *id <= ID_MAX).ok_or_else(|| {
            invalid(
                &format!(
                    "invalid VLAN ID {} (must be between 0 and {ID_MAX} inclusive)",
                    raw.vlan_id
                ),
                "key \"vlanId\"",
            )
        })?;
        Ok(Config {
            parent,
            id,
            protocol: protocol(&raw.vlan_protocol)?,
            mtu: raw.mtu.within(&MTU)?,
            detect_duplicates: raw.enabledad,
        })
    }

    /// Finds the parent, which must be up: a VLAN link on a parent that is down cannot come up.
    fn find_parent(&self, socket: &mut RouteSocket) -> Result<Link, Failure> {
        let parent = self.parent.find(socket)?;
        check_mtu(self.mtu, &parent)?;
        if !parent.up() {
            let name = &parent.name;
            return Err(Failure::new(
                codes::CONFLICT,
                format!("failed to create vlan: parent {name:?} is down"),
            )
            .with_details(format!("bring it up: ip link set {name} up")));
        }
        Ok(parent)
    }
}

fn invalid(message: &str, details: &str) -> Failure {
    Failure::new(code::INVALID_CONFIG, message).with_details(details)
}

fn protocol(text: &str) -> Result<VlanProtocol, Failure> {
    match text.to_ascii_lowercase().as_str() {
        "" | "802.1q" => Ok(VlanProtocol::Dot1Q),
        "802.1ad" => Ok(VlanProtocol::Dot1Ad),
        _ => Err(invalid(
            &format!("unknown VLAN protocol {text:?}"),
            "key \"vlanProtocol\" is \"802.1q\" or \"802.1ad\"",
        )),
    }
}

/// Names the holder of the VLAN: a link in the parent's namespace, or an attachment of ours whose
/// link is in its container.
fn taken(call: &Call<'_>, config: &Config, parent: &Link, socket: &mut RouteSocket) -> Failure {
    let beside = socket.links().unwrap_or_default().into_iter().find(|link| {
        link.peer_index == Some(parent.index)
            && link.link_netnsid.is_none()
            && link.vlan.is_some_and(|vlan| {
                vlan.id == config.id && vlan.protocol == config.protocol.number()
            })
    });
    let who = match beside {
        Some(link) => {
            let mark = link.alias.as_deref().and_then(|alias| alias.strip_prefix(owner::PREFIX));
            let of = mark.map(|key| format!(" of {key}")).unwrap_or_default();
            format!("it is link {:?}{of}", link.name)
        }
        None => match holder(call, config, parent) {
            Some(key) => format!("attachment {key} has it"),
            None => {
                "it is in a namespace that cannot be seen from here; one that is being removed \
                     keeps it for a moment"
                    .to_owned()
            }
        },
    };
    Failure::new(
        codes::EXISTS,
        format!("failed to create vlan: VLAN {} on {:?} exists already", config.id, parent.name),
    )
    .with_details(format!("{who}; a parent has each VLAN once"))
}

/// Finds the attachment of ours that has the VLAN. It reads every record, but only for an error
/// message.
fn holder(call: &Call<'_>, config: &Config, parent: &Link) -> Option<AttachmentKey> {
    let records = Index::new(call.roots()).list().found;
    let mut others = records
        .into_iter()
        .filter(|record| record.plugin == Vlan::NAME && record.attachment != *call.attachment());
    let census = Census::new();
    let found = others.find(|record| {
        let recorded: Option<RecordData> = serde_json::from_value(record.data.clone()).ok();
        recorded.is_some_and(|recorded| {
            recorded.index == parent.index && recorded.vlan == Some(config.id)
        }) && attachment::may_live(record, &census)
    });
    found.map(|record| record.attachment)
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn check(json: &str, expected: Expect) {
        let raw: Raw = cni::json::from_str(json).unwrap();
        let text = match Config::check(&raw) {
            Ok(config) => format!("{} {:?} {:?}", config.id, config.protocol, config.mtu),
            Err(error) => format!("{} {error}", error.code()),
        };
        expected.assert_eq(&text);
    }

    #[test]
    fn identifiers_and_protocols() {
        check(r#"{"master":"eth0"}"#, expect!["0 Dot1Q None"]);
        check(
            r#"{"master":"eth0","vlanId":4094,"vlanProtocol":"802.1AD","mtu":1400}"#,
            expect!["4094 Dot1Ad Some(1400)"],
        );
        for id in ["4095", "-1", "65536"] {
            let raw: Raw =
                cni::json::from_str(&format!(r#"{{"master":"eth0","vlanId":{id}}}"#)).unwrap();
            let error = Config::check(&raw).unwrap_err();
            assert_eq!(error.code(), code::INVALID_CONFIG);
            assert_eq!(
                error.message(),
                format!("invalid VLAN ID {id} (must be between 0 and 4094 inclusive)")
            );
        }
        check(
            r#"{"master":"eth0","vlanProtocol":"qinq"}"#,
            expect![[
                r#"7 unknown VLAN protocol "qinq"; key "vlanProtocol" is "802.1q" or "802.1ad""#
            ]],
        );
        check(
            "{}",
            expect![[
                r#"7 "master" field is required. It specifies the host interface name to create the VLAN for; a "parent" with one of mac, pciBusID, driver, routeTo will do too"#
            ]],
        );
    }
}
