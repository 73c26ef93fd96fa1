//! A whole plugin: passes on the result of the plugins before it, and prints on standard error how
//! many addresses it has.
//!
//! Build it, put it into a folder of `CNI_PATH`, and list it after another plugin:
//!
//! ```json
//! { "cniVersion": "1.1.0", "name": "n", "plugins": [
//!     { "type": "bridge", "ipam": { "type": "host-local", "subnet": "192.0.2.0/24" } },
//!     { "type": "herald", "refuse": ["192.0.2.13/24"] } ] }
//! ```

use std::process::ExitCode;

use netwright_cni_plugin::cni::{AddResult, Error, code};
use netwright_cni_plugin::state::Roots;
use netwright_cni_plugin::{Call, Info, Plugin, ProcessIo, Role, serve};

/// The plugin. It keeps nothing, so it has nothing to remove, to verify or to collect.
#[derive(Debug)]
pub(crate) struct Herald;

/// What the plugin is.
const INFO: Info = Info::new("herald").role(Role::Chained);

/// What the plugin reads of its configuration, beside the keys that every plugin has.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
struct Config {
    /// Addresses that no container may have.
    refuse: Vec<String>,
}

impl Plugin for Herald {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn add(&self, call: &Call<'_>) -> Result<AddResult, Error> {
        let config: Config = call.read_config()?;
        let result = call.require_prev_result("herald must be called as a chained plugin")?;
        for ip in &result.ips {
            if config.refuse.contains(&ip.address.to_string()) {
                return Err(Error::new(
                    code::INVALID_CONFIG,
                    format!("address {} is refused", ip.address),
                ));
            }
        }
        call.warn(format_args!("{} now has {} addresses", call.attachment(), result.ips.len()));
        Ok(result)
    }

    fn del(&self, _: &Call<'_>) -> Result<(), Error> {
        Ok(())
    }

    fn check(&self, _: &Call<'_>) -> Result<(), Error> {
        Ok(())
    }

    fn gc(&self, _: &Call<'_>) -> Result<(), Error> {
        Ok(())
    }

    fn status(&self, _: &Call<'_>) -> Result<(), Error> {
        Ok(())
    }
}

fn main() -> ExitCode {
    serve(
        &Herald,
        ProcessIo {
            environment: std::env::vars_os().collect(),
            stdin: &mut std::io::stdin(),
            stdout: &mut std::io::stdout(),
            stderr: &mut std::io::stderr(),
            roots: Roots::default(),
            build: env!("CARGO_PKG_VERSION"),
        },
    )
}
