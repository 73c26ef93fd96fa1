//! Asks a name server whether it answers.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use diagnose::Answer;
use diagnose::model::Transport;

use super::{local_ports, micros, of_error};
use crate::dns::{self, Kind, Reply, code};

/// A name that no host has (RFC 6761 §6.4).
const NOBODY: &str = "netwright.invalid";

/// The part that stands before a domain for a name that nobody gave to a host.
const UNLISTED: &str = "netwright-asks-for-a-name-that-nobody-gave";

/// Asks for both kinds of addresses of a name that no host has, at once from one socket, as programs
/// do (getaddrinfo).
pub(super) fn ask(server: IpAddr, timeout: Duration) -> Answer {
    let began = Instant::now();
    let replies = match dns::by_udp(server, NOBODY, &[Kind::A, Kind::Aaaa], timeout) {
        Ok(replies) => replies,
        Err(error) => return of_udp(&error, server),
    };
    of_replies(&replies, micros(began.elapsed()))
}

/// Returns what the answers to questions for `A` and `AAAA` mean.
fn of_replies(replies: &[Option<Reply>], after_us: u64) -> Answer {
    let half = |answered: &str, lost: &str| Answer::OneKind {
        after_us,
        answered: answered.to_owned(),
        lost: lost.to_owned(),
    };
    match replies {
        [Some(a), Some(aaaa)] => {
            Answer::Named { after_us, error: error(a).or_else(|| error(aaaa)) }
        }
        [Some(a), None] => error(a).map_or_else(
            || half("A", "AAAA"),
            |error| Answer::Named { after_us, error: Some(error) },
        ),
        [None, Some(_)] => half("AAAA", "A"),
        _ => Answer::Silent { hops: Vec::new() },
    }
}

fn error(reply: &Reply) -> Option<String> {
    match reply.code {
        code::NO_ERROR | code::NO_SUCH_NAME | code::REFUSED => None,
        code::SERVER_FAILURE => Some("it answers SERVFAIL: it gets no answer itself".to_owned()),
        other => Some(format!("it answers with error {other} (RFC 1035 §4.1.1)")),
    }
}

fn of_udp(error: &std::io::Error, server: IpAddr) -> Answer {
    let to = SocketAddr::new(server, dns::PORT);
    local_ports::used_up(error, Transport::Udp, to).unwrap_or_else(|| of_error(error))
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
        Err(error) => of_udp(&error, server),
    }
}

/// Builds the question of [`ask`].
pub(super) fn question(number: u16) -> Vec<u8> {
    dns::question(NOBODY, Kind::A, number).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_answers_one_kind_of_question_makes_programs_wait() {
        let reply = |code: u8| Some(Reply { code, is_cut: false, addresses: Some(Vec::new()) });
        let told = |replies: &[Option<Reply>]| match of_replies(replies, 7) {
            Answer::OneKind { answered, lost, after_us: 7 } => format!("{answered}, not {lost}"),
            Answer::Named { error, after_us: 7 } => error.unwrap_or_else(|| "named".to_owned()),
            Answer::Silent { .. } => "silent".to_owned(),
            other => panic!("{other:?}"),
        };
        assert_eq!(told(&[reply(3), reply(3)]), "named");
        assert_eq!(told(&[reply(0), None]), "A, not AAAA");
        assert_eq!(told(&[None, reply(0)]), "AAAA, not A");
        assert_eq!(told(&[None, None]), "silent");
        let failed = "it answers SERVFAIL: it gets no answer itself";
        assert_eq!(told(&[reply(2), None]), failed);
        assert_eq!(told(&[reply(0), reply(2)]), failed);
    }
}
