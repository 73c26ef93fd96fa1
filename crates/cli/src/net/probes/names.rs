//! Asks a name server whether it answers.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use diagnose::Answer;

use super::{micros, of_error};
use crate::net::dns::{self, Kind, code};

/// A name that no host has (RFC 6761 §6.4).
const NOBODY: &str = "netwright.invalid";

/// The part that stands before a domain for a name that nobody gave to a host.
const UNLISTED: &str = "netwright-asks-for-a-name-that-nobody-gave";

/// Asks for a name that no host has.
pub(super) fn ask(server: IpAddr, timeout: Duration) -> Answer {
    let began = Instant::now();
    let mut replies = match dns::by_udp(server, NOBODY, &[Kind::A], timeout) {
        Ok(replies) => replies,
        Err(error) => return of_error(&error),
    };
    let Some(reply) = replies.pop().flatten() else { return Answer::Silent { hops: Vec::new() } };
    let error = match reply.code {
        code::NO_ERROR | code::NO_SUCH_NAME | code::REFUSED => None,
        code::SERVER_FAILURE => Some("it answers SERVFAIL: it gets no answer itself".to_owned()),
        other => Some(format!("it answers with error {other} (RFC 1035 §4.1.1)")),
    };
    Answer::Named { after_us: micros(began.elapsed()), error }
}

/// Asks for a name below a domain that nobody gave to a host.
pub(super) fn ask_below(server: IpAddr, domain: &str, timeout: Duration) -> Answer {
    let name = format!("{UNLISTED}.{domain}");
    let not_asked = |reason: String| Answer::NotAsked { reason };
    match dns::by_udp(server, &name, &[Kind::A], timeout) {
        Ok(mut replies) => match replies.pop().flatten() {
            Some(reply) => Answer::Addresses { all: reply.addresses.unwrap_or_default() },
            None => Answer::Silent { hops: Vec::new() },
        },
        // The domain is no name.
        Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => {
            not_asked(error.to_string())
        }
        Err(error) => of_error(&error),
    }
}

/// Builds the question of [`ask`].
pub(super) fn question(number: u16) -> Vec<u8> {
    dns::question(NOBODY, Kind::A, number).unwrap_or_default()
}
