//! The rules and routes of the container's namespace.

use cni::{Error, code};
use kernel::netns::Netns;
use kernel::route::{IpFamily, Link, Route, RouteFilter, RouteSocket, Rule};

use crate::shared::kernel_error as kernel;

/// Both families.
pub(super) const FAMILIES: [IpFamily; 2] = [IpFamily::V4, IpFamily::V6];

/// The container's namespace, seen from its interface.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) socket: RouteSocket,
    pub(super) link: Link,
    pub(super) state: State,
}

/// Rules and routes of a namespace.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) rules: Vec<Rule>,
    /// Of all tables and links.
    pub(super) routes: Vec<Route>,
}

impl Node {
    /// Reads everything.
    ///
    /// # Errors
    /// Code 7 in the reference's words if there is no such interface.
    pub(super) fn observe(netns: &Netns, ifname: &str) -> Result<Self, Error> {
        let mut socket = RouteSocket::open_in(netns).map_err(kernel)?;
        let link = socket.link_by_name(ifname).map_err(kernel)?.ok_or_else(|| {
            Error::new(
                code::INVALID_CONFIG,
                format!("Cannot find network interface {ifname}: Link not found"),
            )
            .with_details("sbr changes an interface that a plugin before it in the list made")
        })?;
        let state = State::read(&mut socket)?;
        Ok(Self { socket, link, state })
    }
}

impl State {
    /// Reads the rules and routes of a namespace. A family that the kernel lacks has none.
    pub(super) fn read(socket: &mut RouteSocket) -> Result<Self, Error> {
        let mut state = Self::default();
        for family in FAMILIES {
            let all = RouteFilter { family, table: None, oif: None };
            match socket.rules(family) {
                Ok(rules) => state.rules.extend(rules),
                Err(error) if family == IpFamily::V6 && error.is_unsupported() => continue,
                Err(error) => return Err(kernel(error)),
            }
            state.routes.extend(socket.routes(all).map_err(kernel)?);
        }
        Ok(state)
    }
}
