//! Both network namespaces of an attachment: the host's and the container's.

use super::failure::Failure;
use kernel::netns::Netns;
use kernel::route::RouteSocket;

/// The host's side and the container's side.
#[derive(Debug)]
pub struct Namespaces {
    /// The container's namespace.
    pub netns: Netns,
    /// A socket in the namespace the plugin was called in.
    pub host: RouteSocket,
    /// A socket in the container's namespace.
    pub inside: RouteSocket,
}

impl Namespaces {
    /// Opens both sides.
    ///
    /// # Errors
    /// Code 100 when the kernel refuses.
    pub fn open(netns: Netns) -> Result<Self, Failure> {
        let host = RouteSocket::open()?;
        let inside = RouteSocket::open_in(&netns)?;
        Ok(Namespaces { netns, host, inside })
    }
}
