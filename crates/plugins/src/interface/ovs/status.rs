//! STATUS.

use cni_plugin::{Call, codes};
use ovsdb::vswitch::{Bridge, DATABASE, TypedRow as _};
use ovsdb::{Condition, Transaction};

use crate::shared::failure::Failure;

use super::config::Config;
use super::database::Switch;
use super::remove::unavailable;

/// Runs STATUS: the IPAM plugin's, whether the database answers and has what is needed, and whether
/// the bridge exists and the switch is running.
pub(super) fn status(call: &Call<'_>) -> Result<(), Failure> {
    if let Some(ipam) = call.ipam() {
        ipam.status()?;
    }
    let config = Config::of(call)?;
    let mut switch = Switch::connect(call, &config.remote).map_err(unavailable)?;
    switch.check_schema().map_err(unavailable)?;
    let failed = |message: String| unavailable(Failure::new(codes::SWITCH, message));
    if !switch.is_alive().map_err(unavailable)? {
        return Err(failed("ovs-vswitchd is not at work".to_owned())
            .with_details("the database answers: is ovs-vswitchd running?"));
    }
    let mut look = Transaction::new(DATABASE);
    let by_name = vec![Condition::equals("name", config.bridge.as_str())];
    let bridge = look.select(Bridge::TABLE, by_name, &["name"]);
    let outcome = switch.transact(&look).map_err(unavailable)?;
    if outcome.rows(bridge).is_empty() && config.create.is_none() {
        return Err(failed(format!("failed to find bridge {:?}", config.bridge))
            .with_details("make it (ovs-vsctl add-br), or set \"createBridge\""));
    }
    switch.refuse_unmade(&config.bridge).map_err(unavailable)
}
