//! Mirrors: rows of a bridge that ports join as source or as output. The first port creates one and
//! the last removes it.

use cni_plugin::codes;
use ovsdb::{Condition, Handle, Mutation, Outcome, Row, Transaction, Uuid, Value, WaitCondition};

use crate::shared::failure::Failure;

use super::extras::Mirror;
use super::rows::{ids, named};

/// The table.
const TABLE: &str = "Mirror";

/// The columns with which ports use a mirror.
pub(super) const USES: &[&str] = &["select_src_port", "select_dst_port", "output_port"];

/// A mirror as it was found; `None` if there is none of that name.
#[derive(Debug, Clone)]
pub(super) struct SeenMirror {
    row: Option<(Uuid, Row)>,
}

impl SeenMirror {
    /// Returns whether a column of it lists a port.
    pub(super) fn has(&self, column: &str, port: &Uuid) -> bool {
        self.row.as_ref().is_some_and(|(_, row)| row.uuids(column).contains(port))
    }
}

/// Reads the mirrors of these names.
pub(super) fn look(look: &mut Transaction, mirrors: &[Mirror]) -> Vec<Handle> {
    let columns = ["_uuid", "select_src_port", "select_dst_port", "output_port"];
    let select = |mirror: &Mirror| {
        look.select(TABLE, vec![Condition::equals("name", mirror.name.as_str())], &columns)
    };
    mirrors.iter().map(select).collect()
}

/// Interprets the outcome. `own` is the port that is to join, if it exists already.
///
/// # Errors
/// Code 108 when a mirror has another output already.
pub(super) fn seen(
    found: &Outcome,
    handles: &[Handle],
    mirrors: &[Mirror],
    own: Option<&Uuid>,
) -> Result<Vec<SeenMirror>, Failure> {
    let mut all = Vec::new();
    for (handle, mirror) in handles.iter().zip(mirrors) {
        let row = found.rows(*handle).first();
        let row = row.and_then(|row| Some((row.uuid("_uuid")?, row.clone())));
        let output = row.as_ref().and_then(|(_, row)| row.uuid("output_port"));
        if mirror.output && output.is_some_and(|output| Some(&output) != own) {
            return Err(Failure::new(
                codes::CONFLICT,
                format!("mirror {:?} has an output port already", mirror.name),
            )
            .with_details("a mirror has one output; choose another mirror"));
        }
        all.push(SeenMirror { row });
    }
    Ok(all)
}

/// Makes a port join the mirrors of a bridge; `port` is its row.
pub(super) fn join(
    transaction: &mut Transaction,
    bridge: &str,
    mirrors: &[Mirror],
    port: &Value,
    seen: &[SeenMirror],
) {
    for (number, (mirror, seen)) in mirrors.iter().zip(seen).enumerate() {
        match &seen.row {
            Some((uuid, _)) => {
                let row = [Row::new().with("name", mirror.name.as_str())];
                let this = || vec![Condition::is(uuid)];
                transaction.assume(TABLE, this(), &["name"], WaitCondition::Equal, &row);
                let insert: Vec<_> =
                    columns(mirror).map(|column| Mutation::insert(column, port.clone())).collect();
                transaction.mutate(TABLE, this(), &insert);
            }
            None => {
                let row = Row::new()
                    .with("name", mirror.name.as_str())
                    .with("external_ids", Value::map([(ids::MADE, "true")]));
                let row = columns(mirror).fold(row, |row, column| row.with(column, port.clone()));
                let name = format!("mirror{number}");
                transaction.insert(TABLE, &name, &row);
                let insert = [Mutation::insert("mirrors", named(&name))];
                let bridge = vec![Condition::equals("name", bridge)];
                transaction.mutate("Bridge", bridge, &insert);
            }
        }
    }
}

/// Returns the columns of a mirror that list a port.
pub(super) fn columns(mirror: &Mirror) -> impl Iterator<Item = &'static str> {
    let columns = [
        ("select_src_port", mirror.ingress),
        ("select_dst_port", mirror.egress),
        ("output_port", mirror.output),
    ];
    columns.into_iter().filter(|(_, stands)| *stands).map(|(column, _)| column)
}

/// Makes a port leave these columns of the mirrors of these names.
pub(super) fn leave(
    transaction: &mut Transaction,
    names: &[String],
    columns: &[&str],
    port: &Uuid,
) {
    for name in names {
        let gone = columns.iter().map(|column| Mutation::delete(column, Value::Atom(port.into())));
        let this = vec![Condition::equals("name", name.as_str())];
        transaction.mutate(TABLE, this, &gone.collect::<Vec<_>>());
    }
}

/// Reads the mirrors that we have created.
pub(super) fn look_at_made(look: &mut Transaction) -> Handle {
    let made = vec![super::rows::has_id(ids::MADE, "true")];
    look.select(
        TABLE,
        made,
        &["_uuid", "name", "select_src_port", "select_dst_port", "output_port"],
    )
}

/// Removes those of them that only the leaving ports use, in these columns. Mirrors that are in use
/// by then stay.
pub(super) fn remove_unused(
    transaction: &mut Transaction,
    made: &[Row],
    columns: &[&str],
    going: &[Uuid],
) {
    for row in made {
        let stays =
            |column: &&str, uuid: &Uuid| !(columns.contains(column) && going.contains(uuid));
        let left =
            USES.iter().any(|column| row.uuids(column).iter().any(|uuid| stays(column, uuid)));
        let (Some(uuid), false) = (row.uuid("_uuid"), left) else { continue };
        let as_read = USES.iter().fold(Row::new(), |as_read, column| {
            as_read.with(column, row.get(column).cloned().unwrap_or(Value::Set(Vec::new())))
        });
        let this = vec![Condition::is(&uuid)];
        transaction.assume(TABLE, this, USES, WaitCondition::Equal, &[as_read]);
        transaction.mutate(
            "Bridge",
            vec![],
            &[Mutation::delete("mirrors", Value::Atom(uuid.into()))],
        );
    }
}
