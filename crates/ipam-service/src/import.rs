//! Takes over what Whereabouts has given: prints it first, and writes it when asked to.

use std::fmt::Write as _;
use std::path::Path;

use cluster_client::objects::{NODE, ObjectKind, POD};
use cluster_ipam::import::{self, ImportReport, ImportSource, PLURALS, Plan};
use serde_json::json;
use service_kit::stdio;
use service_kit::stop::{Stop, failed};

use super::flags::{Flags, Import};
use super::{objects, store};

/// Reads and prints; writes if asked to.
pub(super) async fn run(flags: Flags, import: Import) -> Result<(), Stop> {
    let mut found = ImportSource::default();
    if import.files.is_empty() {
        let (group, version) = (import::GROUP, import::VERSION);
        let pools = PLURALS.map(|(kind, plural)| ObjectKind { group, version, kind, plural });
        let mut kinds = pools.to_vec();
        // Read after the pools: a pod that comes meanwhile is seen, and one that goes is not
        // needed.
        kinds.extend([NODE, POD]);
        let all = objects::foreign(flags.kubeconfig.as_deref(), &kinds).await.map_err(failed)?;
        found.that_is_all_pods();
        all.iter().for_each(|(kind, object)| found.object(object, kind));
    }
    for file in &import.files {
        read(&mut found, file)?;
    }
    let plan = import::plan(&found).map_err(failed)?;
    let applied = if import.apply {
        let store = store(&flags).await?;
        let of = plan.clone();
        let applied = tokio::task::spawn_blocking(move || import::apply(&*store, &of)).await;
        Some(applied.map_err(failed)?.map_err(failed)?)
    } else {
        None
    };
    let text = if import.json {
        let whole = json!({"plan": plan, "applied": applied});
        format!("{whole:#}\n")
    } else {
        shown(&plan, applied.as_ref())
    };
    let printed = stdio::print(&text);
    match applied {
        Some(applied) if !applied.refused.is_empty() => {
            Err(Stop::Failed(format!("{} addresses are in use by now", applied.refused.len())))
        }
        _ => printed.map_err(|error| Stop::Failed(format!("write to standard output: {error}"))),
    }
}

fn read(found: &mut ImportSource, file: &Path) -> Result<(), Stop> {
    let path = file.display();
    let bytes =
        std::fs::read(file).map_err(|error| Stop::Failed(format!("read {path}: {error}")))?;
    found.read(&bytes).map_err(|error| Stop::Failed(format!("{path}: {error}")))
}

/// Returns the plan for people to read.
fn shown(plan: &Plan, applied: Option<&ImportReport>) -> String {
    let mut text = String::new();
    for block in &plan.blocks {
        for (address, holder) in &block.held {
            let pod = holder.pod.as_ref();
            let pod = pod.map(|pod| format!("{}/{}", pod.namespace, pod.name)).unwrap_or_default();
            let (space, node, ifname) = (&block.space, &block.node, &holder.ifname);
            let _ = writeln!(text, "take over  {address}  of {space}: {ifname} of {pod} on {node}");
        }
    }
    for one in &plan.passed_over {
        let address = one.address.map(|address| address.to_string()).unwrap_or_default();
        let _ = writeln!(text, "pass over  {address}  of {}: {}", one.of, one.why);
    }
    for note in &plan.notes {
        let _ = writeln!(text, "note  {note}");
    }
    match applied {
        None => {
            let _ = writeln!(
                text,
                "{} addresses would be taken over; --apply writes them down",
                plan.blocks.len()
            );
        }
        Some(applied) => {
            for one in &applied.refused {
                let address = one.address.map(|address| address.to_string()).unwrap_or_default();
                let _ = writeln!(text, "not taken over  {address}  of {}: {}", one.of, one.why);
            }
            let (taken, known) = (applied.taken, applied.known);
            let _ = writeln!(text, "{taken} addresses taken over, {known} were before");
        }
    }
    text
}
