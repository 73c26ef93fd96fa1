//! Finds ports of ours whose containers are gone, without a runtime's help: for a service that
//! maintains the switch.

use std::collections::HashMap;
use std::time::Instant;

use cni::AttachmentKey;
use kernel::living::{Census, Life, NetnsNote};
use kernel::route::RouteSocket;
use ovsdb::vswitch::{DATABASE, Interface, Port, TypedRow as _};
use ovsdb::{Client, Condition, Limits, Remote, Transaction, Uuid, Value, WaitCondition};
use state::{Index, Roots};

use crate::shared::failure::Failure;

use super::NAME;
use super::connect::remove_ports;
use super::mirrors;
use super::rows::{self, ids};

/// Removes ports of ours that no container uses, and returns a line for each: created in an earlier
/// boot, without the link that is their interface, or, if the switch creates that link, without the
/// container's namespace.
///
/// DEL and GC remove everything else that such an attachment has left.
///
/// # Errors
/// Code 112 when the database does not answer, 100 when the kernel does not.
///
/// # Namespace
/// That of the switch.
pub fn sweep(remote: &Remote, roots: &Roots, until: Instant) -> Result<Vec<String>, Failure> {
    let (index, census) = (Index::new(roots), Census::new());
    let boot = state::boot_id()?;
    let mut client = Client::connect(remote, Limits::default(), until)?;
    let mut look = Transaction::new(DATABASE);
    let ours = vec![rows::has_id(ids::PLUGIN, ids::REFERENCE)];
    let ports = look.select(Port::TABLE, ours.clone(), Port::COLUMNS);
    let interfaces = look.select(Interface::TABLE, ours, &["name", "type"]);
    let made = mirrors::look_at_made(&mut look);
    let found = client.transact(&look, until)?;

    let kinds: HashMap<&str, &str> =
        found.rows(interfaces).iter().map(|row| (row.text("name"), row.text("type"))).collect();
    let host = RouteSocket::open()?;
    let mut dead = Vec::new();
    let mut lines = Vec::new();
    for port in found.rows(ports).iter().map(Port::read) {
        let Some(key) = rows::owner_of(&port.external_ids) else { continue };
        let Some(uuid) = port.uuid.clone() else { continue };
        let why = if port.external_ids.get(ids::BOOT) != Some(&boot) {
            "made in an earlier boot"
        } else if kinds.get(&*port.name) == Some(&"internal") {
            match port.external_ids.get(ids::NETNS) {
                Some(path) if is_gone(&index, &census, &key, path) => "its container is gone",
                _ => continue,
            }
        } else if host.link_index(&port.name)?.is_none() {
            "its link is gone"
        } else {
            continue;
        };
        lines.push(format!("port {:?} of {key} ({why})", port.name));
        dead.push((uuid, Some(key.hash())));
    }
    if dead.is_empty() {
        return Ok(lines);
    }
    let going: Vec<Uuid> = dead.iter().map(|(uuid, _)| uuid.clone()).collect();
    let mut plan = Transaction::new(DATABASE);
    // Only the rows that were read: an ADD that writes them anew gives them other UUIDs.
    for uuid in &going {
        let row = [ovsdb::Row::new().with("_uuid", Value::Atom(uuid.into()))];
        plan.assume(Port::TABLE, vec![Condition::is(uuid)], &["_uuid"], WaitCondition::Equal, &row);
    }
    mirrors::remove_unused(&mut plan, found.rows(made), mirrors::USES, &going);
    remove_ports(&mut plan, &dead);
    plan.comment("netwright: remove ports of containers that are gone");
    match client.transact(&plan, until) {
        Ok(_) => Ok(lines),
        // Another call is working on it; the next sweep sees the result.
        Err(error) if error.is_conflict() => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}

/// Reports whether the namespace that a port was created for is known to be gone. The plugin's
/// record tells, since the database has only the path.
fn is_gone(index: &Index, census: &Census, key: &AttachmentKey, netns: &str) -> bool {
    let recorded = index.get(key, NAME).found.and_then(|record| record.noted());
    let noted =
        recorded.unwrap_or_else(|| NetnsNote { path: netns.into(), ..NetnsNote::default() });
    census.life(&noted) == Life::Gone
}
