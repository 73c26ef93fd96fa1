//! Networks of one container that ask for the same ports.
//!
//! Podman passes a container's published ports to each of its networks. The first that is attached publishes them;
//! the others wait, and when the first goes (`podman network disconnect`) one of them takes over. With the reference
//! each makes its rules and the first in the chain wins, which comes to the same.

use cni::{AttachmentKey, Error};
use cni_plugin::Call;
use firewall::Firewall;
use kernel::living::Census;
use state::Index;

use super::NAME;
use super::facts::Facts;
use crate::shared::filter::filter_error;
use crate::shared::shared_object::{LOCK_TIMEOUT, file_error, lock_error};

/// Notes that an attachment would have its container's ports if they were free.
pub(super) fn wait(index: &Index, key: &AttachmentKey) -> Result<(), Error> {
    let object = object(key);
    let _lock = index.lock(&object, LOCK_TIMEOUT).map_err(|error| lock_error(&error))?;
    index.hold(&object, key).map(drop).map_err(|error| file_error(&error))
}

/// Gives what an attachment has left to those of its container that wait.
pub(super) fn take_over(call: &Call<'_>, index: &Index, gone: &AttachmentKey) -> Result<(), Error> {
    let object = object(gone);
    // Nearly always: then there is no lock to take.
    if index.holders(&object).found.is_empty() {
        return Ok(());
    }
    let _lock = index.lock(&object, LOCK_TIMEOUT).map_err(|error| lock_error(&error))?;
    let census = Census::new();
    for key in index.holders(&object).found {
        let record = index.get(&key, NAME).found;
        let facts =
            record.as_ref().filter(|record| firewall::is_live(record, &census)).and_then(Facts::of);
        let still_waits = match facts.filter(|_| key != *gone) {
            Some(facts) => {
                let mut firewall = Firewall::open(index).map_err(|error| filter_error(&error))?;
                match firewall.add(&key, &facts.plan) {
                    Ok(()) => firewall.passed_over(),
                    Err(error) => {
                        // Somebody else was quicker: that is no failure of the one who goes.
                        call.warn(format_args!("{key} does not get its host ports: {error}"));
                        true
                    }
                }
            }
            None => false,
        };
        if !still_waits {
            index.release(&object, &key).map_err(|error| file_error(&error))?;
        }
    }
    Ok(())
}

fn object(key: &AttachmentKey) -> String {
    format!("hostports of {}", key.container_id)
}
