//! What may come of a packet in a base chain.

use std::net::{IpAddr, SocketAddr};

use super::place::Place;

/// What a translation makes of a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NewDestination {
    /// An address, or the same one, and a port, or the same one.
    To(Option<IpAddr>, Option<u16>),
    /// This host, with this port or the same one.
    Here(Option<u16>),
    /// That is not known.
    Unknown,
}

impl NewDestination {
    /// Returns where it leads what is for an address; `None` if that is this host, or not known.
    pub(crate) fn end(&self, to: SocketAddr) -> Option<SocketAddr> {
        match self {
            Self::To(address, port) => {
                Some(SocketAddr::new(address.unwrap_or(to.ip()), port.unwrap_or(to.port())))
            }
            Self::Here(_) | Self::Unknown => None,
        }
    }
}

/// What a hook makes of how many hops a packet may take: its TTL, or hop limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hops {
    /// It leaves that as it is.
    Kept,
    /// A rule has surely set it.
    Set(u8, Place),
    /// Rules have surely taken so many from it; the last of them.
    Fewer(u8, Place),
    /// That is not known.
    Unknown,
}

/// What may come of a base chain.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    /// It may pass.
    pub(crate) accepts: bool,
    /// It may be stopped here, and refused with these words.
    pub(crate) stop: Option<(Place, Option<String>)>,
    stop_is_sure: bool,
    /// What may come of it here is not known.
    pub(crate) doubt: Option<Place>,
    /// Its destination may be translated here.
    pub(crate) destinations: Vec<(Place, NewDestination)>,
    /// All destinations to which it may be led here: of a map each that it has.
    pub(crate) choices: Vec<(Place, NewDestination)>,
    /// Its source may be translated here, and to what, if that is known.
    pub(crate) source: Option<(Place, Option<IpAddr>)>,
}

impl Ends {
    /// Notes that it may be stopped, and keeps the place where it surely is.
    pub(crate) fn stop(&mut self, place: Place, reject: Option<String>, sure: bool) {
        if self.stop.is_none() || (sure && !self.stop_is_sure) {
            self.stop = Some((place, reject));
            self.stop_is_sure = sure;
        }
    }

    /// Says whether the packet has surely not left the base chain yet, unless it was stopped.
    pub(crate) fn is_open(&self) -> bool {
        !self.accepts
            && self.doubt.is_none()
            && self.destinations.is_empty()
            && self.source.is_none()
    }

    pub(crate) fn doubt(&mut self, place: Place) {
        self.doubt.get_or_insert(place);
    }
}
