//! Refuses ports that programs of this host have, and ports at addresses that the host does not
//! have. Here we are the runtime, so we refuse before we make anything.

use cni::{Error, NetworkList};
use cni_plugin::codes;
use cni_runtime::Attachment;
use firewall::taken::{self, Families};

use super::attach::PORT_MAPPINGS;
use crate::failure::Failure;

/// Refuses ports that cannot be published, whether they are requested or named by the network's
/// list.
///
/// # Errors
/// Code 103 with the port and the program that has it.
pub(crate) fn refuse(list: &NetworkList, attachment: &Attachment) -> Result<(), Failure> {
    let asked = attachment.capability_args.get(PORT_MAPPINGS).map(|asked| asked.get());
    match taken::find(&taken::of_list(list, asked), Families::ALL).first() {
        None => Ok(()),
        Some(taken) => Err(Failure::from(Error::new(codes::HOST_PORT, taken.to_string()))
            .hint("choose another port or address of the host, or end the program")),
    }
}
