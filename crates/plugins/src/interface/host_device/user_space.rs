//! Records which attachment has a device that a program drives. There is no link that could show
//! it, so the attachment holds the device as a shared object of the host. One look at the device's
//! holders, and not at every record of the node, tells whether it is free.

use cni::AttachmentKey;
use cni_plugin::{Call, codes};
use kernel::living::Census;
use state::{Index, RestoreOutcome, SharedChange, SharedObject};

use super::HostDevice;
use super::config::Config;
use crate::interface::single::SingleLink as _;
use crate::shared::attachment::may_live;
use crate::shared::failure::Failure;

/// Names the device: by its address on the bus, or, without one, by the key and the text that
/// select it.
pub(super) fn object(address: &str, selection: (&str, &str)) -> String {
    match (address, selection) {
        ("", (key, text)) => format!("device {key} {text}"),
        (address, _) => format!("device {address}"),
    }
}

/// Names the device that a configuration asks for, if a program may drive it.
pub(super) fn object_of(config: &Config) -> Option<String> {
    let (key, text) = config.selection();
    let address = config.pci.as_ref().map(super::config::Bus::id);
    let may_be = address.is_some() || config.dpdk;
    may_be.then(|| object(address.unwrap_or_default(), (key, &text)))
}

/// Finds the attachment that has the device and whose namespace exists.
pub(super) fn holder(index: &Index, object: &str) -> Option<AttachmentKey> {
    let census = Census::new();
    index.holders(object).found.into_iter().find(|key| {
        let record = index.get(key, HostDevice::NAME).found;
        record.is_some_and(|record| may_live(&record, &census))
    })
}

/// Returns the error that another attachment has the device.
pub(super) fn in_use(config: &Config, holder: &AttachmentKey) -> Failure {
    let (key, text) = config.selection();
    let message = format!("failed to find host device: {key} {text} is in use by {holder}");
    Failure::new(codes::CONFLICT, message).with_details("a device is in one container at a time")
}

/// Takes the device for an attachment.
///
/// # Errors
/// Code 108 if another one was faster, 105 or 11 when our own files fail.
pub(super) fn take(call: &Call<'_>, config: &Config, object: &str) -> Result<(), Failure> {
    let (index, own) = (&config.index, call.attachment());
    let taken = SharedObject::new(index, object).hold(own, || match holder(index, object) {
        Some(other) if other != *own => Err(in_use(config, &other)),
        _ => Ok(Some(SharedChange { note: None, apply: || Ok(()) })),
    });
    taken.map(drop)
}

/// Releases the device. It is not an error if it is not held.
///
/// # Errors
/// Code 105 or 11 when our own files fail.
pub(super) fn let_go(index: &Index, key: &AttachmentKey, object: &str) -> Result<(), Failure> {
    SharedObject::new(index, object).release(key, || Ok(RestoreOutcome::Done))
}
