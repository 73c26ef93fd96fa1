//! What the attachments of one parent have agreed on: mode and reach, which the kernel stores once
//! per parent.
//!
//! A parent is a shared object, `ipvlan <parent>`, and its note holds both. A new link with another
//! mode would change the mode of all links of the parent. So ADD with another mode fails with code
//! 108 and names an attachment that uses the present one, unless all holders of the parent are
//! gone. DEL of the last attachment releases the parent.

use cni::AttachmentKey;
use cni_plugin::{Call, codes};
use kernel::living::Census;
use serde::{Deserialize, Serialize};
use serde_json::json;
use state::{Index, RestoreOutcome, SharedChange, SharedObject};

use super::Ipvlan;
use crate::interface::single::SingleLink;
use crate::shared::attachment;
use crate::shared::failure::Failure;

/// The note of a parent that is held.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Agreement {
    mode: String,
    flags: String,
}

fn object(parent: &str) -> String {
    format!("ipvlan {parent}")
}

/// Runs `create` with the parent held for the attachment, if its holders agree.
///
/// # Errors
/// Code 108 naming one that does not; 11 when the lock cannot be taken in time; the error of
/// `create`.
pub(super) fn join<T>(
    call: &Call<'_>,
    parent: &str,
    (mode, flags): (&str, &str),
    create: impl FnOnce() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let index = Index::new(call.roots());
    let object = SharedObject::new(&index, object(parent));
    let made = object.hold(call.attachment(), || {
        let wanted = Agreement { mode: mode.to_owned(), flags: flags.to_owned() };
        let found = object.note()?.and_then(|note| Agreement::deserialize(note).ok());
        if let Some(found) = found.filter(|found| *found != wanted) {
            forget_the_dead(&index, object.name())?;
            if let Some(holder) = index.holders(object.name()).found.first() {
                return Err(Failure::new(
                    codes::CONFLICT,
                    format!(
                        "parent {parent:?} serves ipvlans with mode {} and flags {}, not {mode} and {flags}",
                        found.mode, found.flags
                    ),
                )
                .with_details(format!(
                    "{holder} is one of them; the kernel has one mode for all ipvlans of a parent, \
                     and would change theirs"
                )));
            }
        }
        Ok(Some(SharedChange { note: Some(json!(wanted)), apply: create }))
    })?;
    Ok(made.expect("a parent is always held"))
}

/// Releases the parent; the last attachment ends the agreement.
///
/// # Errors
/// Code 105, 11 when the lock cannot be taken in time.
pub(super) fn leave(call: &Call<'_>, key: &AttachmentKey, parent: &str) -> Result<(), Failure> {
    let index = Index::new(call.roots());
    SharedObject::new(&index, object(parent)).release(key, || Ok(RestoreOutcome::Done))
}

/// Releases the holds of attachments whose record or namespace, and so their link, is gone.
fn forget_the_dead(index: &Index, object: &str) -> Result<(), Failure> {
    let census = Census::new();
    for key in index.holders(object).found {
        let record = index.get(&key, Ipvlan::NAME).found;
        let alive = record.is_some_and(|record| attachment::may_live(&record, &census));
        if !alive {
            index.release(object, &key)?;
        }
    }
    Ok(())
}
