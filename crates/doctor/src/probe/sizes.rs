//! Finds the size up to which an address answers.

use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use diagnose::Answer;
use kernel::echo::{self, Echo};
use kernel::route::RouteSocket;

use super::{TIMEOUT, micros, of_error};

/// How long to wait for the answer to each size, after a small packet was answered.
const EACH: Duration = Duration::from_millis(500);

/// How often sizes between one that was answered and one that was lost are tried: enough for the
/// largest MTU.
const ROUNDS: u32 = 8;

/// How many sizes are tried at once.
const SIZES: u32 = 8;

/// How many bytes are sent at once: what waits in a socket, or in a queue on the way, is dropped if
/// it is much more.
const BYTES: u32 = 100_000;

/// What every link carries, in bytes (RFC 791 §3.1, RFC 8200 §5).
const ALWAYS_V4: u32 = 576;
const ALWAYS_V6: u32 = 1280;

/// Finds the size up to which packets are answered. A router that reports which size fits is no
/// black hole: the kernel then knows the path's MTU.
pub(super) fn ask(to: IpAddr, up_to: u32) -> Answer {
    let always = if to.is_ipv4() { ALWAYS_V4 } else { ALWAYS_V6 };
    let began = Instant::now();
    match answered(to, &[always.min(up_to)], TIMEOUT / 2) {
        Ok(sizes) if sizes.is_empty() => return Answer::Silent { hops: Vec::new() },
        Ok(_) => {}
        Err(error) => return of_error(&error),
    }
    let reached = Answer::Reached { after_us: micros(began.elapsed()) };
    let passes = |size: u32, timeout: Duration| {
        answered(to, &[size], timeout).is_ok_and(|sizes| !sizes.is_empty())
    };
    if up_to <= always || passes(up_to, EACH) || is_told(to, up_to) {
        return reached;
    }
    let (mut fits, mut lost) = (always, up_to);
    for _ in 0..ROUNDS {
        let sizes = between(fits, lost);
        if sizes.is_empty() {
            break;
        }
        let passed = answered(to, &sizes, EACH).unwrap_or_default();
        fits = passed.iter().copied().max().unwrap_or(fits);
        lost = sizes.into_iter().find(|size| fits < *size).unwrap_or(lost);
    }
    // A network that loses some packets, or that delays them, loses them at every size.
    if passes(lost, TIMEOUT) || !passes(fits, TIMEOUT) || is_told(to, up_to) {
        return reached;
    }
    Answer::UpTo { answered: fits, lost }
}

/// Returns sizes between two, in order and at equal distances.
fn between(fits: u32, lost: u32) -> Vec<u32> {
    let at_once = (BYTES / lost.max(1) / 2).clamp(1, SIZES);
    let step = (lost - fits).div_ceil(at_once + 1).max(1);
    (1..=at_once).map(|number| fits + number * step).take_while(|size| *size < lost).collect()
}

/// Asks with packets of all these sizes at once, of each twice, since any single packet may be lost.
/// Returns the sizes that were answered.
fn answered(to: IpAddr, sizes: &[u32], timeout: Duration) -> io::Result<Vec<u32>> {
    let question = |size: &u32| echo::Question { size: *size, ..echo::Question::small(to) };
    let questions: Vec<_> = sizes.iter().chain(sizes).map(question).collect();
    let echoes = echo::ask_all(&questions, timeout)?;
    let (first, second) = echoes.split_at(sizes.len().min(echoes.len()));
    let is_answered = |echo: &Echo| matches!(echo, Echo::Answered(_));
    let heard = sizes.iter().zip(first.iter().zip(second));
    Ok(heard
        .filter(|(_, (first, second))| is_answered(first) || is_answered(second))
        .map(|(size, _)| *size)
        .collect())
}

/// Says whether the kernel has heard of a smaller MTU on the way.
fn is_told(to: IpAddr, up_to: u32) -> bool {
    let route = RouteSocket::open().and_then(|mut socket| socket.route_to(to));
    route.ok().flatten().and_then(|route| route.mtu).is_some_and(|mtu| mtu < up_to)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Finds the limit of a way as [`ask`] does.
    fn found(up_to: u32, limit: u32) -> (u32, u32) {
        let (mut fits, mut lost) = (ALWAYS_V4, up_to);
        for _ in 0..ROUNDS {
            let sizes = between(fits, lost);
            assert!(sizes.iter().all(|size| fits < *size && *size < lost), "{sizes:?}");
            assert!(sizes.iter().sum::<u32>() * 2 <= 2 * BYTES.max(lost), "{sizes:?}");
            fits = sizes.iter().copied().filter(|size| *size <= limit).max().unwrap_or(fits);
            lost = sizes.into_iter().find(|size| limit < *size).unwrap_or(lost);
        }
        (fits, lost)
    }

    #[test]
    fn the_limit_is_found_to_the_byte() {
        for limit in 576..1500 {
            assert_eq!(found(1500, limit), (limit, limit + 1));
        }
        for limit in [576, 1400, 8950, 8999] {
            assert_eq!(found(9000, limit), (limit, limit + 1));
        }
        for limit in [1500, 8999, 65000] {
            let (fits, lost) = found(65535, limit);
            assert!(fits <= limit && limit < lost && lost - fits < 300, "{fits} {lost}");
        }
    }

    #[test]
    fn loopback_carries_what_its_mtu_says() {
        let answer = ask("127.0.0.1".parse().unwrap(), 9000);
        assert!(!matches!(answer, Answer::UpTo { .. }), "{answer:?}");
    }
}
