//! Networks of one container that ask for the same ports.
//!
//! Podman passes a container's published ports to each of its networks. The first network that is
//! attached publishes them; the others wait, and when the first is detached (`podman network
//! disconnect`) one of them takes over. With the reference each network adds its rules and the
//! first in the chain wins, which has the same effect.

use cni::AttachmentKey;
use cni_plugin::Call;
use firewall::Firewall;
use kernel::living::Census;
use state::{Index, LOCK_TIMEOUT};

use super::NAME;
use super::recorded::RecordData;
use crate::shared::failure::Failure;

/// Records that an attachment waits for its container's ports to become free.
pub(super) fn wait(index: &Index, key: &AttachmentKey) -> Result<(), Failure> {
    let object = object(key);
    let _lock = index.lock(&object, LOCK_TIMEOUT)?;
    Ok(index.hold(&object, key).map(drop)?)
}

/// Gives the ports that an attachment released to those attachments of its container that wait.
pub(super) fn take_over(
    call: &Call<'_>,
    index: &Index,
    gone: &AttachmentKey,
) -> Result<(), Failure> {
    let object = object(gone);
    // The usual case: no lock is needed.
    if !index.may_exist(&object)? {
        return Ok(());
    }
    let lock = index.lock(&object, LOCK_TIMEOUT)?;
    let passed = pass_on(call, index, gone, &object);
    // Each container has one: it does not stay after its container.
    index.end_lock(&object, lock);
    passed
}

fn pass_on(
    call: &Call<'_>,
    index: &Index,
    gone: &AttachmentKey,
    object: &str,
) -> Result<(), Failure> {
    let census = Census::new();
    for key in index.holders(object).found {
        let record = index.get(&key, NAME).found;
        let recorded = record
            .as_ref()
            .filter(|record| firewall::is_live(record, &census))
            .and_then(RecordData::of);
        let still_waits = match recorded.filter(|_| key != *gone) {
            Some(recorded) => {
                let mut firewall = Firewall::open(index)?;
                match firewall.add(&key, &recorded.plan) {
                    Ok(()) => firewall.passed_over(),
                    Err(error) => {
                        // Another attachment was faster: that is not a failure of the attachment
                        // that leaves.
                        call.warn(format_args!("{key} does not get its host ports: {error}"));
                        true
                    }
                }
            }
            None => false,
        };
        if !still_waits {
            index.release(object, &key)?;
        }
    }
    // An ADD that was killed before it waited has left an empty folder.
    Ok(index.release(object, gone).map(drop)?)
}

fn object(key: &AttachmentKey) -> String {
    format!("hostports of {}", key.container_id)
}
