//! Sends the probes for which the rules of `diagnose` ask.
//!
//! Each probe has a socket of our own in the sender's namespace: we touch no flow of other
//! programs, and mark none of their packets. A TCP probe connects and resets, and sends no byte. No
//! wait is longer than two seconds. A probe that is not answered is sent once more, and followed
//! (`follow`).

mod follow;
mod local_ports;
mod names;
mod queue_drops;
mod refusers;
mod sizes;
mod who_has;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use diagnose::model::{Container, Scene, Transport};
use diagnose::{Answer, Answers, Probe, Question};
use kernel::echo;
use kernel::netns::{Netns, within};
use kernel::refusals::RefusalListener;
use rustix::net::sockopt;

use crate::resolv::{self, ResolvConf};
use crate::{dns, observe};

pub use queue_drops::DropCounters;

/// How long to wait for an answer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// How many namespaces send at the same time.
const AT_ONCE: usize = 32;

/// Sends all questions, those of different namespaces at the same time. What they send: echo
/// requests, TCP connections, questions to name servers, and ARP and neighbour requests.
///
/// **Namespace**: that of the node. A thread of our own enters each container's.
///
/// **Privileges**: `CAP_SYS_ADMIN` to enter, `CAP_NET_RAW` for hardware addresses, and
/// `CAP_NET_ADMIN` to follow a probe. A probe that cannot be sent is [`Answer::NotAsked`] with the
/// reason; one that cannot be followed says less.
///
/// **Idempotence**: nothing is left. While probes are followed, there are a table of nftables in
/// each namespace that they pass, and a tracing instance; if the process is killed, the kernel
/// removes the tables, and the next call the instance.
#[must_use]
pub fn ask(scene: &Scene, questions: &[Question]) -> Answers {
    let mut by_sender: BTreeMap<Option<&str>, Vec<&Question>> = BTreeMap::new();
    for question in questions {
        by_sender.entry(question.from.as_deref()).or_default().push(question);
    }
    let senders: Vec<(Option<&str>, Vec<&Question>)> = by_sender.into_iter().collect();
    let mut all = Vec::new();
    for some in senders.chunks(AT_ONCE) {
        std::thread::scope(|scope| {
            let threads: Vec<_> = some
                .iter()
                .map(|(from, questions)| scope.spawn(move || ask_from(scene, *from, questions)))
                .collect();
            for thread in threads {
                all.extend(thread.join().unwrap_or_default());
            }
        });
    }
    follow::follow(scene, &mut all);
    let more = by_tcp(scene, &all);
    all.extend(more);
    Answers { all }
}

/// How many servers of names that do not answer by UDP are tried by TCP.
const BY_TCP: usize = 8;

/// Tries servers of names by TCP that did not answer by UDP, and returns those that take a connection:
/// the way to them is there.
fn by_tcp(scene: &Scene, all: &[(Question, Answer)]) -> Vec<(Question, Answer)> {
    let again = all.iter().filter_map(|(question, answer)| match &question.asked {
        Probe::Name { server } if answer.is_lost() || *answer == Answer::Refused => {
            let asked = Probe::NameByTcp { server: *server };
            Some(Question { asked, ..question.clone() })
        }
        _ => None,
    });
    let again: Vec<Question> = again.take(BY_TCP).collect();
    std::thread::scope(|scope| {
        let ask = |question: &Question| ask_from(scene, question.from.as_deref(), &[question]);
        let threads: Vec<_> =
            again.iter().map(|question| scope.spawn(move || ask(question))).collect();
        let answers = threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default());
        answers.filter(|(_, answer)| matches!(answer, Answer::Reached { .. })).collect()
    })
}

fn ask_from(scene: &Scene, from: Option<&str>, questions: &[&Question]) -> Vec<(Question, Answer)> {
    let Some(id) = from else { return at_once(scene, questions) };
    let not_asked = |reason: String| -> Vec<(Question, Answer)> {
        let answer = Answer::NotAsked { reason };
        questions.iter().map(|question| ((*question).clone(), answer.clone())).collect()
    };
    let Some(container) = scene.container(id) else {
        return not_asked(format!("there is no container {id}"));
    };
    match Netns::open(Path::new(&container.netns)) {
        Err(error) => not_asked(error.to_string()),
        Ok(netns) => match within(&netns, || at_once(scene, questions)) {
            Ok(answers) => answers,
            Err(error) => not_asked(error.to_string()),
        },
    }
}

/// Sends the questions of the namespace in which the calling thread is. A new thread is in the
/// namespace of the one that starts it.
fn at_once(scene: &Scene, questions: &[&Question]) -> Vec<(Question, Answer)> {
    // Without it, who refuses is not known.
    let listener = RefusalListener::open().ok();
    let mut all = send_all(questions);
    let heard = listener.map(|listener| listener.heard()).unwrap_or_default();
    refusers::tell(scene, &heard, &mut all);
    all
}

fn send_all(questions: &[&Question]) -> Vec<(Question, Answer)> {
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            questions.iter().map(|question| scope.spawn(move || send(&question.asked))).collect();
        let answers = threads.into_iter().map(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Answer::NotAsked { reason: "a bug of ours".to_owned() })
        });
        questions.iter().map(|question| (*question).clone()).zip(answers).collect()
    })
}

fn send(asked: &Probe) -> Answer {
    match asked {
        Probe::Echo { to } => echo_to(*to),
        Probe::EchoBy { to, link } => of_ping(&echo::ping_by(link, *to, TIMEOUT / 2, 2)),
        Probe::Connect { to } => connect(*to),
        Probe::RarePort { to } => connect(SocketAddr::new(*to, Probe::RARE_PORT)),
        Probe::NameByTcp { server } => connect(SocketAddr::new(*server, dns::PORT)),
        Probe::Size { to, up_to } => sizes::ask(*to, *up_to),
        Probe::HopsLeft { to } => match echo::hops_left(*to, TIMEOUT / 2) {
            Ok(Some(left)) => Answer::HopsLeft { left },
            Ok(None) => Answer::Silent { hops: Vec::new() },
            Err(error) => of_error(&error),
        },
        Probe::Name { server } => names::ask(*server, TIMEOUT),
        Probe::NameBelow { server, domain } => names::ask_below(*server, domain, TIMEOUT),
        Probe::WhoHas { address, link } => who_has::ask(*address, link),
        _ => Answer::NotAsked { reason: "this program does not know how".to_owned() },
    }
}

/// Finds the address of a host as the programs of a container do, by its hosts file and its servers,
/// which are asked from its namespace. Without a container, or if it has no servers, this node's
/// files count.
///
/// # Errors
/// Why no address is known, in words.
pub fn address(host: &str, container: Option<&Container>) -> Result<IpAddr, String> {
    if let Ok(address) = host.parse() {
        return Ok(address);
    }
    let servers = container.and_then(|container| container.nameservers.as_deref());
    let found = match (container, servers) {
        (Some(container), Some(servers)) if !servers.is_empty() => {
            let netns = Netns::open(Path::new(&container.netns)).map_err(|one| one.to_string())?;
            let conf = ResolvConf {
                servers: servers.to_vec(),
                search: container.names.search.clone(),
                ndots: container.names.ndots,
                by_tcp: container.names.by_tcp,
            };
            let hosts = observe::hosts_of(&netns);
            within(&netns, || resolv::resolve_with(host, &hosts, &conf))
                .map_err(|error| error.to_string())??
        }
        _ => resolv::resolve(host)?,
    };
    found.addresses.first().copied().ok_or_else(|| "it has no address".to_owned())
}

fn micros(took: Duration) -> u64 {
    u64::try_from(took.as_micros()).unwrap_or(u64::MAX)
}

/// Returns what an error of a socket means for a probe.
fn of_error(error: &io::Error) -> Answer {
    use io::ErrorKind as Kind;
    match error.kind() {
        Kind::ConnectionRefused => Answer::Refused,
        Kind::TimedOut | Kind::WouldBlock => Answer::Silent { hops: Vec::new() },
        Kind::HostUnreachable | Kind::NetworkUnreachable | Kind::PermissionDenied => {
            Answer::Unreachable { error: error.to_string(), hops: Vec::new() }
        }
        kind => Answer::NotAsked { reason: reason(kind, error) },
    }
}

/// Why the kernel sends nothing, with the cause that its error stands for.
fn reason(kind: io::ErrorKind, error: &io::Error) -> String {
    use io::ErrorKind as Kind;
    let cause = match kind {
        Kind::AddrNotAvailable => "it has no address from which it may send there",
        Kind::NetworkDown => "the link by which it leaves is down",
        _ => match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
            Some(rustix::io::Errno::NOBUFS) => {
                "the queue of the link by which it leaves has dropped it, or the table of neighbours is full"
            }
            Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => {
                "this program may open no more files"
            }
            _ => return error.to_string(),
        },
    };
    format!("{error}: {cause}")
}

fn echo_to(to: IpAddr) -> Answer {
    of_ping(&echo::ping(to, 0, TIMEOUT / 2, 2))
}

fn of_ping(done: &io::Result<Option<Duration>>) -> Answer {
    match done {
        Ok(Some(took)) => Answer::Reached { after_us: micros(*took) },
        Ok(None) => Answer::Silent { hops: Vec::new() },
        Err(error) => of_error(error),
    }
}

fn connect(to: SocketAddr) -> Answer {
    let began = Instant::now();
    match TcpStream::connect_timeout(&to, TIMEOUT) {
        Ok(stream) => {
            // Without this the connection would be closed in order, and stay for a while.
            let _ = sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
            Answer::Reached { after_us: micros(began.elapsed()) }
        }
        Err(error) => {
            let used_up = local_ports::used_up(&error, Transport::Tcp, to);
            used_up.unwrap_or_else(|| of_error(&error))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_connection_is_made_and_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        assert!(matches!(connect(to), Answer::Reached { .. }));
        drop(listener);
        assert_eq!(connect(to), Answer::Refused);
    }

    #[test]
    fn the_cause_of_an_error_is_told() {
        let of = |errno: rustix::io::Errno| match of_error(&errno.into()) {
            Answer::NotAsked { reason } => reason,
            other => panic!("{other:?}"),
        };
        assert!(of(rustix::io::Errno::NETDOWN).ends_with(": the link by which it leaves is down"));
        assert!(of(rustix::io::Errno::NOBUFS).contains("the table of neighbours is full"));
        assert!(!of(rustix::io::Errno::INVAL).contains(": the"));
    }

    #[test]
    fn a_container_that_is_unknown_is_not_asked() {
        let to = "127.0.0.1".parse().unwrap();
        let question = Question { from: Some("c1".to_owned()), asked: Probe::Echo { to } };
        let answers = ask(&Scene::default(), std::slice::from_ref(&question));
        assert!(matches!(answers.to(&question), Some(Answer::NotAsked { .. })));
    }
}
