//! The only file that speaks D-Bus.
//!
//! `zbus` is asynchronous inside. Its single-threaded runtime runs on one thread of ours for one
//! conversation, and nothing outside this file awaits anything.

use std::io::ErrorKind;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use zbus::connection::Builder;
use zbus::{Connection, Error};

use super::{Answer, FirewalldError, Method};

/// The bus's default address (D-Bus specification, "System message bus").
const SYSTEM_BUS: &str = "unix:path=/var/run/dbus/system_bus_socket";
/// firewalld on the bus (`man 5 firewalld.dbus`).
const NAME: &str = "org.fedoraproject.FirewallD1";
const PATH: &str = "/org/fedoraproject/FirewallD1";
const ZONE: &str = "org.fedoraproject.FirewallD1.zone";
/// The bus itself.
const BUS: &str = "org.freedesktop.DBus";
const BUS_PATH: &str = "/org/freedesktop/DBus";

/// Has one conversation: one question for each pair of zone and source.
///
/// It runs on a thread, so that the caller's wait ends in every step, even if the other side is
/// silent. A thread that is given up is left alone: it ends when the other side ends, or with the
/// process.
pub(super) fn ask(
    address: Option<String>,
    timeout: Duration,
    method: Method,
    questions: Vec<(String, String)>,
) -> Result<Vec<Answer>, FirewalldError> {
    let (answers, answered) = mpsc::sync_channel(1);
    let conversation = move || {
        let outcome = zbus::block_on(async {
            let address = address.as_deref().unwrap_or(SYSTEM_BUS);
            let connection = Builder::address(address).method_timeout(timeout).build().await?;
            converse(&connection, method, &questions).await
        });
        // After the timeout the receiver is gone.
        let _ = answers.send(outcome);
    };
    thread::Builder::new()
        .name("d-bus".to_owned())
        .spawn(conversation)
        .map_err(|error| FirewalldError::Bus(Box::new(error)))?;
    match answered.recv_timeout(timeout) {
        Ok(Ok(answers)) => Ok(answers),
        Ok(Err(error)) => Err(failed(error, timeout)),
        Err(mpsc::RecvTimeoutError::Timeout) => Err(FirewalldError::Late { timeout }),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            Err(FirewalldError::Bus("the conversation broke off".into()))
        }
    }
}

async fn converse(
    bus: &Connection,
    method: Method,
    questions: &[(String, String)],
) -> Result<Vec<Answer>, Error> {
    // Asked first, because a call would start the service.
    let reply = bus.call_method(Some(BUS), BUS_PATH, Some(BUS), "NameHasOwner", &NAME).await?;
    if !reply.body().deserialize::<bool>()? {
        return Err(absent());
    }
    let mut answers = Vec::with_capacity(questions.len());
    for question in questions {
        let reply = bus.call_method(Some(NAME), PATH, Some(ZONE), method.name(), question).await;
        answers.push(match reply {
            Ok(reply) if method == Method::Query => Answer::Is(reply.body().deserialize()?),
            Ok(_) => Answer::Done,
            // firewalld has one error for everything; its code is the first word of the message.
            Err(Error::MethodError(_, message, _)) => Answer::Refused(message.unwrap_or_default()),
            Err(error) => return Err(error),
        });
    }
    Ok(answers)
}

fn absent() -> Error {
    std::io::Error::from(ErrorKind::NotFound).into()
}

fn failed(error: Error, timeout: Duration) -> FirewalldError {
    let kind = match &error {
        Error::InputOutput(error) => Some(error.kind()),
        Error::Connection(error, _) => Some(error.kind()),
        Error::FDO(fdo) if matches!(**fdo, zbus::fdo::Error::ServiceUnknown(_)) => {
            Some(ErrorKind::NotFound)
        }
        _ => None,
    };
    match kind {
        Some(ErrorKind::NotFound | ErrorKind::ConnectionRefused) => FirewalldError::Absent,
        Some(ErrorKind::TimedOut) => FirewalldError::Late { timeout },
        _ => FirewalldError::Bus(Box::new(error)),
    }
}
