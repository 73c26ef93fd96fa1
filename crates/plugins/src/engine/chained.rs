//! What chained plugins recorded of an attachment whose interface DEL removes.
//!
//! A runtime runs DEL of the chained plugins before DEL of the interface's. But since ADD another
//! project's plugin may have come in the place of one of ours: its DEL leaves what ours made, such
//! as a published port, and the next container that gets the address would get the port too. So the
//! interface's DEL removes all that ours recorded before it gives the address back.

use cni::Version;
use cni_plugin::{Call, Plugin, Role, respond};
use serde_json::json;
use state::Index;

use crate::shared::failures::Failures;

/// Runs DEL of each chained plugin that has a record of the call's attachment. The caller does not
/// have the attachment's lock: each of these plugins takes it.
pub(super) fn remove(call: &Call<'_>, index: &Index, failures: &mut Failures) {
    // An undo takes back what its own ADD made: no plugin behind it has run.
    if call.is_undo() {
        return;
    }
    let key = call.attachment();
    for plugin in index.recorders(key).iter().filter_map(|name| chained(name)) {
        let mut config = json!({
            "cniVersion": Version::CURRENT.as_str(), "name": key.network, "type": plugin.name(),
        });
        if let Some(gone) = &call.common().gone {
            config[cni::GONE] = json!(gone);
        }
        let config = config.to_string();
        let output = respond(plugin, call.env(), &mut config.as_bytes(), call.context());
        call.write_stderr(&output.stderr);
        let removed = output.into_stdout().map(drop);
        failures.note(format_args!("remove what {} left", plugin.name()), removed);
    }
}

/// Returns the plugin of that name if it only ever changes what others made.
fn chained(name: &str) -> Option<&'static dyn Plugin> {
    crate::find(name).filter(|plugin| plugin.info().role == Role::Chained)
}
