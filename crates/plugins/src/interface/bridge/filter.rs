//! The bridge's part of the packet filter: masquerading and spoof checks.

use cni::{AddResult, AttachmentKey, Error};
use cni_plugin::Call;
use state::Index;

use super::config::Config;
use super::connect::Facts;

pub(super) fn remove(_: &Call<'_>, _: &Index, _: &AttachmentKey, _: &Facts) -> Result<(), Error> {
    Ok(())
}

pub(super) fn collect(_: &Call<'_>) -> Result<(), Error> {
    Ok(())
}

pub(super) fn check(_: &Call<'_>, _: &Config, _: &AddResult, _: &str) -> Result<(), Error> {
    Ok(())
}

pub(super) fn status(_: &Call<'_>, _: &Config) -> Result<(), Error> {
    Ok(())
}

pub(super) fn add(
    _: &Call<'_>,
    _: &Index,
    _: &Config,
    _: &[cni::IpConfig],
    _: kernel::MacAddr,
    _: &str,
) -> Result<(), Error> {
    Ok(())
}

pub(super) fn warn_if_blocked(_: &Call<'_>, _: &Config) {}
