//! `dummy`: a link that leads nowhere, for addresses under which a container answers packets that
//! come in by any interface.

use cni_plugin::{Call, Info, Role};
use kernel::mac::MacAddr;
use kernel::route::{Link, LinkKind, NewLink, RouteSocket};
use serde::Deserialize;

use super::single::{Addressing, CreatedLink, Namespaces, SingleLink};
use crate::shared::container::Options;
use crate::shared::failure::Failure;
use crate::shared::mac::parse_mac;
use crate::shared::mtu::RawMtu;
use crate::shared::{drift, owner};

/// The keys as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Raw {
    mtu: RawMtu,
    mac: String,
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
    mtu: Option<u32>,
    mac: Option<MacAddr>,
}

/// The plugin.
#[derive(Debug)]
pub struct Dummy;

impl SingleLink for Dummy {
    const INFO: Info = Info::new("dummy").role(Role::Interface).capabilities(&["mac"]);
    const KINDS: &'static [&'static str] = &["dummy"];
    type Raw = Raw;
    type Config = Config;
    type Observation = ();

    /// Reads `mtu` and `mac`, and `runtimeConfig.mac`, which takes precedence; the reference has
    /// neither.
    fn config(call: &Call<'_>) -> Result<Config, Failure> {
        let raw: Raw = call.read_config()?;
        let mac = [&raw.runtime_config.mac, &raw.mac];
        let mac = mac.into_iter().find(|text| !text.is_empty()).map(|text| parse_mac(text));
        Ok(Config { mtu: raw.mtu.bytes()?, mac: mac.transpose()? })
    }

    fn addressing(_call: &Call<'_>, _config: &Config) -> Result<Addressing, Failure> {
        Ok(Addressing::RequiredIpam("dummy interface requires an IPAM configuration"))
    }

    fn observe(_call: &Call<'_>, _config: &Config, _sites: &mut Namespaces) -> Result<(), Failure> {
        Ok(())
    }

    fn make(
        call: &Call<'_>,
        config: &Config,
        (): &(),
        namespaces: &mut Namespaces,
    ) -> Result<CreatedLink, Failure> {
        let new = NewLink {
            mac: config.mac,
            mtu: config.mtu,
            alias: Some(owner::alias(call.attachment())),
            ..NewLink::new(call.ifname().as_str(), LinkKind::Dummy)
        };
        let made = namespaces.inside.create_link(&new);
        made.map(CreatedLink::link).map_err(|error| {
            let missing = error.errno() == Some(kernel::Errno::OPNOTSUPP);
            let error = Failure::from(error).context("failed to create dummy");
            if missing { error.with_details(format!("the kernel needs {NEEDED}")) } else { error }
        })
    }

    /// No other host is on the link that could have the same address.
    fn options(_config: &Config) -> Options {
        Options::new(true)
    }

    fn verify(
        _call: &Call<'_>,
        _config: &Config,
        link: Option<&Link>,
        _sites: &mut Namespaces,
    ) -> Result<(), Failure> {
        link.map(drop).ok_or_else(|| drift("the dummy link is gone".to_owned()))
    }

    fn mtu(config: &Config) -> Option<u32> {
        config.mtu
    }

    fn kernel_kind(_config: &Config) -> Option<(LinkKind, &'static str)> {
        Some((LinkKind::Dummy, NEEDED))
    }

    fn status(_config: &Config, _host: &mut RouteSocket) -> Result<(), Failure> {
        Ok(())
    }
}

/// What the kernel needs for such links.
const NEEDED: &str = "the driver dummy (CONFIG_DUMMY, `modprobe dummy`)";
