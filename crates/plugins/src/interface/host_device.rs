//! `host-device`: a device of the host, moved into the container and back to the host.
//!
//! | when | what |
//! |---|---|
//! | ADD | the device is recorded as it is, then moved, renamed and marked in one message |
//! | inside | its alias is its old name, as with the reference plugin, so either plugin can undo the other's ADD; our record identifies the link, since a container may give any link that alias |
//! | DEL | links that the container made on the device are deleted; the device returns under its name and with its alias, hardware address, MTU and other settings, and up if it was; the host must add its own addresses again; a tap that a program opened since ADD stays |
//! | namespace gone | the kernel moved hardware to the initial namespace under the container's name: it is found there |
//!
//! A device bound to a userspace driver (DPDK) is not a link: the plugin moves nothing and only
//! reserves addresses. A shared object records the device's holder.

mod config;
mod find;
mod home;
mod settings;
mod upper;
mod user_space;

use cni::{AttachmentKey, code};
use cni_plugin::{Call, Info, Role, codes};
use kernel::netns::Netns;
use kernel::route::{Change, Link, LinkSet, RouteSocket};
use kernel::tun;
use serde::Deserialize as _;
use state::Index;

pub use config::{Config, Raw};
pub use find::{HostLink, ObservedDevice};
use home::RecordData;

use super::single::{CreatedLink, Namespaces, SingleLink};
use crate::shared::container::Options;
use crate::shared::failure::Failure;
use crate::shared::{attachment, drift};

/// Where the kernel shows devices.
const SYSFS: &str = "/sys";

/// The plugin.
#[derive(Debug)]
pub struct HostDevice;

impl SingleLink for HostDevice {
    const INFO: Info = Info::new("host-device").role(Role::Interface).capabilities(&["deviceID"]);
    /// Any.
    const KINDS: &'static [&'static str] = &[];
    type Raw = Raw;
    type Config = Config;
    type Observation = ObservedDevice;

    fn config(call: &Call<'_>) -> Result<Config, Failure> {
        Config::read(call)
    }

    /// Takes the device over from an attachment whose namespace is gone: it is first moved back to
    /// the host.
    fn observe(
        call: &Call<'_>,
        config: &Config,
        namespaces: &mut Namespaces,
    ) -> Result<ObservedDevice, Failure> {
        let seen = find::look(config, &mut namespaces.host);
        let suspicious = match &seen {
            // A link with an alias that could be our mark may have come back from a container under
            // another identity.
            Ok(ObservedDevice::Link(found)) => home::original_name(&found.link).is_some(),
            Ok(ObservedDevice::UserSpace { .. }) => false,
            Err(_) => true,
        };
        let holder = if suspicious { find::holder(config) } else { None };
        let mut found = match holder {
            Some(holder) if !holder.alive && !holder.recorded.user_space => {
                home::bring(call, &holder.attachment, None, Some(&holder.recorded))?;
                attachment::remove_record(&config.index, &holder.attachment, Self::NAME)?;
                find::look(config, &mut namespaces.host)
            }
            None if seen.is_err() && home::bring_late(call, config, &mut namespaces.host)? => {
                find::look(config, &mut namespaces.host)
            }
            _ => seen,
        }?;
        if let ObservedDevice::Link(found) = &mut found
            && found.link.tun.is_some()
        {
            let here = Netns::current();
            found.open = here.is_ok_and(|here| tun::is_open(&here, &found.link).unwrap_or(false));
        }
        Ok(found)
    }

    fn to_record(config: &Config, seen: &ObservedDevice) -> serde_json::Value {
        let recorded = RecordData::new(config, seen);
        serde_json::to_value(recorded).expect("a record has string keys only")
    }

    fn device(seen: &ObservedDevice) -> Option<&Link> {
        match seen {
            ObservedDevice::Link(found) => Some(&found.link),
            ObservedDevice::UserSpace { .. } => None,
        }
    }

    /// Moves the device: it changes namespace, name and alias in one message, so a link with its
    /// old name in the container or with its new name on the host does not conflict.
    fn make(
        call: &Call<'_>,
        config: &Config,
        seen: &ObservedDevice,
        namespaces: &mut Namespaces,
    ) -> Result<CreatedLink, Failure> {
        let found = match seen {
            ObservedDevice::Link(found) => found,
            ObservedDevice::UserSpace { pci_id } => {
                if let Some(object) = user_space::object_of(config) {
                    user_space::take(call, config, &object)?;
                }
                return Ok(CreatedLink { link: None, pci_id: pci_id.clone() });
            }
        };
        let ifname = call.ifname().as_str();
        let set = LinkSet {
            netns: Some(namespaces.netns.clone()),
            name: Some(ifname.to_owned()),
            alias: Some(found.link.name.clone()),
            ..LinkSet::default()
        };
        let moved = namespaces.host.apply_one(&Change::SetLink { ifindex: found.link.index, set });
        moved.map_err(|error| {
            Failure::from(error).context(format_args!("failed to move link {:?}", found.link.name))
        })?;
        let link = namespaces.inside.link_by_name(ifname)?.ok_or_else(|| {
            Failure::new(
                codes::KERNEL,
                format!(
                    "failed to move link {:?}: {ifname:?} is not in the container",
                    found.link.name
                ),
            )
        })?;
        Ok(CreatedLink { link: Some(link), pci_id: found.pci_id.clone() })
    }

    /// The IPAM plugin keeps addresses unique; detection delays every start by a second.
    fn options(_config: &Config) -> Options {
        Options::new(true)
    }

    fn remove_link(
        call: &Call<'_>,
        key: &AttachmentKey,
        netns: Option<&Netns>,
        recorded: Option<&serde_json::Value>,
    ) -> Result<(), Failure> {
        let recorded = recorded.and_then(|recorded| RecordData::deserialize(recorded).ok());
        let object = match &recorded {
            Some(recorded) => recorded.object(),
            None => Config::read(call).ok().and_then(|config| user_space::object_of(&config)),
        };
        if let Some(object) = object {
            user_space::let_go(&Index::new(call.roots()), key, &object)?;
        }
        home::bring(call, key, netns, recorded.as_ref())
    }

    fn verify(
        call: &Call<'_>,
        config: &Config,
        link: Option<&Link>,
        _sites: &mut Namespaces,
    ) -> Result<(), Failure> {
        let ifname = call.ifname().as_str();
        let user_space =
            find::driven_by_program(config).map_err(|error| drift(error.to_string()))?;
        let Some(link) = link else {
            return if user_space.is_some() {
                Ok(())
            } else {
                Err(drift(format!("interface {ifname:?} is gone from the container")))
            };
        };
        let index = Index::new(call.roots());
        let recorded: Option<RecordData> =
            attachment::recorded(&index, call.attachment(), Self::NAME);
        if recorded.is_some_and(|recorded| recorded.contradicts_inside(link)) {
            return Err(drift(format!("interface {ifname:?} is another device than ADD moved")));
        }
        Ok(())
    }

    fn status(config: &Config, host: &mut RouteSocket) -> Result<(), Failure> {
        find::look(config, host).map(drop)
    }
}

fn invalid(message: impl Into<String>, details: impl Into<String>) -> Failure {
    Failure::new(code::INVALID_CONFIG, message.into()).with_details(details.into())
}
