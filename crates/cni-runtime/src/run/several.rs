//! Several networks for one container.

use std::time::Instant;

use cni::{Error, NetworkList};

use super::AddedAttachment;
use crate::error::{AddError, DelError};
use crate::{Attachment, Runtime};

/// One of a container's networks.
#[derive(Debug, Clone)]
pub struct Member {
    /// The network.
    pub list: NetworkList,
    /// The container's interface on it.
    pub attachment: Attachment,
}

/// Says why a container could not be attached to all of its networks.
#[derive(Debug, thiserror::Error)]
#[error("network {network:?}, interface {ifname}: {cause}")]
pub struct SeveralError {
    /// The network that failed.
    pub network: String,
    /// The interface that it would have had.
    pub ifname: cni::IfName,
    /// The error of ADD.
    pub cause: AddError,
    /// What could not be undone; every other network is as if nothing had happened.
    pub left: FailedNetworks,
}

/// The networks whose DEL failed, and why.
#[derive(Debug)]
pub struct FailedNetworks(pub Vec<(String, DelError)>);

impl FailedNetworks {
    /// Says whether DEL succeeded on all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds them to the details of the error because of which they were undone.
    #[must_use]
    pub fn tell(&self, error: Error) -> Error {
        self.0.iter().fold(error, |error, (network, left)| {
            error.with_left(format!("undoing network {network:?} failed: {left}"))
        })
    }
}

impl SeveralError {
    /// Returns the error object: the plugin's own code and message; its details list what could not
    /// be undone.
    #[must_use]
    pub fn to_cni(&self) -> Error {
        self.left.tell(self.cause.to_cni())
    }
}

impl Runtime<'_> {
    /// Attaches a container to several networks, one after the other: to all or to none. Each is a
    /// transaction as [`Runtime::add_list`] is; when one fails, DEL is run on those before it, the
    /// last first.
    ///
    /// # Errors
    /// [`SeveralError`].
    pub fn add_several(
        &self,
        members: &[Member],
        deadline: Option<Instant>,
    ) -> Result<Vec<AddedAttachment>, Box<SeveralError>> {
        let mut added = Vec::with_capacity(members.len());
        for (place, member) in members.iter().enumerate() {
            match self.add_list(&member.list, &member.attachment, deadline) {
                Ok(one) => added.push(one),
                Err(cause) => {
                    let undoing = Instant::now().checked_add(self.cleanup_time);
                    return Err(Box::new(SeveralError {
                        network: member.list.name.clone(),
                        ifname: member.attachment.ifname.clone(),
                        cause,
                        left: self.clone().undoing().del_several(&members[..place], undoing),
                    }));
                }
            }
        }
        Ok(added)
    }

    /// Detaches a container from several networks, the last first; a failure does not stop the
    /// others.
    pub fn del_several(&self, members: &[Member], deadline: Option<Instant>) -> FailedNetworks {
        let delete = |member: &Member| {
            let deleted = self.del_list(&member.list, &member.attachment, deadline);
            deleted.err().map(|error| (member.list.name.clone(), error))
        };
        FailedNetworks(members.iter().rev().filter_map(delete).collect())
    }
}
