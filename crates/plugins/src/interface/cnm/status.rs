//! STATUS.

use cni_plugin::Call;

use super::config::Config;
use super::driver::Timeouts;
use super::network::Drivers;
use crate::shared::attachment;
use crate::shared::failure::Failure;

/// Runs STATUS: whether the drivers answer, and are drivers of their kind.
pub(super) fn status(call: &Call<'_>) -> Result<(), Failure> {
    let config = Config::of_network(call)?;
    if let Some(ipam) = call.ipam() {
        ipam.status()?;
    }
    let timeouts = Timeouts::new(config.timeout, call.context().deadline);
    let there = Drivers::of(&config.network, &timeouts);
    there.map(drop).map_err(attachment::unavailable)
}
