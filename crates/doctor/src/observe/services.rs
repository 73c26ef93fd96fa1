//! Asks the services of `netwrightd` at their status sockets (docs/files.md, "Services of
//! `netwrightd`").

use std::io::{ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use agent::Config;
use agent::change::{Change, for_running};
use agent::load::{self, Surroundings};
use agent::report::{AGENT, LogLine, Report, State, Status};
use agent::{accepted, keys, rights};
use diagnose::model::Service;
use node_api::socket::{self as sockets, ConnectFailure};
use state::Roots;

/// How long a service may take to answer.
const TIMEOUT: Duration = Duration::from_secs(1);
/// How long the agent, which answers for all services, may take.
const LONG_TIMEOUT: Duration = Duration::from_secs(3);
/// How much of an answer is read.
const LONGEST: u64 = 16 << 20;

/// Reads the services that are enabled or that have a socket.
///
/// # Errors
/// Why it is not known which are enabled.
pub(super) fn read(roots: &Roots) -> Result<Vec<Service>, String> {
    read_with(roots, Path::new(load::FILE))
}

fn read_with(roots: &Roots, file: &Path) -> Result<Vec<Service>, String> {
    if let Ok(status) = ask::<Status>(&socket(roots, AGENT), LONG_TIMEOUT)
        && status.agent.is_some()
    {
        return Ok(status.services.iter().map(service).collect());
    }
    let standing = accepted::standing(file, roots, Surroundings::default());
    let config = standing.map(|standing| standing.loaded.config).map_err(|problems| {
        let lines: Vec<String> = problems.iter().map(agent::problem::Problem::line).collect();
        lines.join("; ")
    })?;
    let wanted: Vec<(&str, bool)> = keys::services()
        .map(|service| (service, keys::is_enabled(&config, service)))
        .filter(|(service, enabled)| *enabled || socket(roots, service).exists())
        .collect();
    let found: Vec<Service> = thread::scope(|scope| {
        let asked: Vec<_> = wanted
            .into_iter()
            .map(|(name, enabled)| scope.spawn(move || of(roots, name, enabled)))
            .collect();
        asked.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    // A service that was killed and is no longer enabled has left its socket.
    Ok(found.into_iter().filter(|one| one.enabled || one.ready == Some(true)).collect())
}

/// Returns what the services that run have not read of a configuration; nothing starts by it. A
/// service that does not answer within a second counts as one that does not run.
#[must_use]
pub fn unread(roots: &Roots, config: &Config) -> Change {
    let said = keys::services().filter_map(|name| ask(&socket(roots, name), TIMEOUT).ok());
    // A container has a configuration of its own.
    let services = said.filter(|report: &Report| !report.contained).collect();
    Change { start: Vec::new(), ..for_running(&Status { agent: None, services }, config) }
}

fn of(roots: &Roots, name: &str, enabled: bool) -> Service {
    match ask::<Report>(&socket(roots, name), TIMEOUT) {
        Ok(report) => service(&Report { enabled, service: name.to_owned(), ..report }),
        Err(NoAnswer::Nobody) => Service {
            name: name.to_owned(),
            enabled,
            // systemd starts it when a program connects.
            ready: if waits_for_a_connection(roots, name) { None } else { Some(false) },
            lacks: Some(last_words(roots, name).unwrap_or_else(|| "it does not run".to_owned())),
        },
        Err(NoAnswer::Refused(reason)) => {
            Service { name: name.to_owned(), enabled, ready: None, lacks: Some(reason) }
        }
        Err(NoAnswer::Failed(reason)) => {
            Service { name: name.to_owned(), enabled, ready: Some(false), lacks: Some(reason) }
        }
    }
}

fn service(report: &Report) -> Service {
    let ready = match report.state {
        State::Ready => Some(true),
        // It may be so in a moment.
        State::Starting => None,
        _ => Some(false),
    };
    let lacks = report.trouble().map(|trouble| match &report.failed {
        Some(failed) if !trouble.contains(&failed.text) => format!("{trouble}; {}", failed.text),
        _ => trouble,
    });
    Service { name: report.service.clone(), enabled: report.enabled, ready, lacks }
}

/// Says whether a service that does not run has a socket unit whose socket is there.
fn waits_for_a_connection(roots: &Roots, name: &str) -> bool {
    let config = accepted::standing(Path::new(load::FILE), roots, Surroundings::default());
    let config = config.map(|standing| standing.loaded.config).unwrap_or_default();
    let unit = agent::units::socket(name, &config);
    Path::new("/run/systemd/system").is_dir() && unit.is_some_and(|(_, path)| path.exists())
}

fn home(roots: &Roots, name: &str) -> PathBuf {
    let folder = roots.run.join("agent");
    match rights::of(name).and_then(|rights| rights.user) {
        Some(_) => folder.join(name),
        None => folder,
    }
}

fn socket(roots: &Roots, name: &str) -> PathBuf {
    home(roots, name).join(format!("{name}.sock"))
}

/// Returns the error with which a service ended last.
fn last_words(roots: &Roots, name: &str) -> Option<String> {
    let path = home(roots, name).join(format!("{name}.error"));
    let text = state::read_optional(&path).ok()??;
    serde_json::from_slice::<LogLine>(&text).ok().map(|said| said.text)
}

/// Why there is no answer.
#[derive(Debug)]
enum NoAnswer {
    /// No process listens.
    Nobody,
    /// This caller may not ask.
    Refused(String),
    /// A process listens, but does not answer, or its answer makes no sense.
    Failed(String),
}

fn ask<T: serde::de::DeserializeOwned>(path: &Path, timeout: Duration) -> Result<T, NoAnswer> {
    let mut stream = sockets::connect_now(path).map_err(|error| match error {
        ConnectFailure::Nobody => NoAnswer::Nobody,
        ConnectFailure::Full => NoAnswer::Failed("it does not answer".to_owned()),
        ConnectFailure::Failed(error) if error.kind() == ErrorKind::PermissionDenied => {
            NoAnswer::Refused(error.to_string())
        }
        other => NoAnswer::Failed(other.to_string()),
    })?;
    let mut talk = || -> std::io::Result<Vec<u8>> {
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        stream
            .write_all(b"GET /status HTTP/1.1\r\nHost: netwrightd\r\nConnection: close\r\n\r\n")?;
        let mut answer = Vec::new();
        (&stream).take(LONGEST).read_to_end(&mut answer)?;
        Ok(answer)
    };
    let answer = talk().map_err(|error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            NoAnswer::Failed("it does not answer".to_owned())
        }
        // It ended meanwhile.
        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => NoAnswer::Nobody,
        _ => NoAnswer::Failed(error.to_string()),
    })?;
    let body = body(&answer).ok_or_else(|| NoAnswer::Failed("its answer is cut off".to_owned()))?;
    serde_json::from_slice(body).map_err(|error| NoAnswer::Failed(error.to_string()))
}

/// Returns what is behind the head of an answer; the connection ends with it.
fn body(answer: &[u8]) -> Option<&[u8]> {
    const END: &[u8] = b"\r\n\r\n";
    let at = answer.windows(END.len()).position(|window| window == END)?;
    answer.get(at + END.len()..)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_service_is_what_it_says_at_its_socket() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::new(folder.path().join("run"), folder.path().join("lib"));
        let name = keys::services().find(|name| home(&roots, name) == roots.run.join("agent"));
        let name = name.unwrap();
        let file = folder.path().join("netwrightd.toml");
        std::fs::create_dir_all(roots.run.join("agent")).unwrap();
        assert_eq!(read_with(&roots, &file), Ok(Vec::new()));

        let listener = UnixListener::bind(socket(&roots, name)).unwrap();
        let report = Report { state: State::Ready, ..Report::stopped(name) };
        let json = serde_json::to_string(&report).unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut question = [0; 512];
            let read = stream.read(&mut question).unwrap();
            assert!(question[..read].starts_with(b"GET /status "));
            write!(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{json}").unwrap();
        });
        let found = read_with(&roots, &file).unwrap();
        server.join().unwrap();
        let service =
            Service { name: name.to_owned(), enabled: false, ready: Some(true), lacks: None };
        assert_eq!(found, [service]);
        // Its socket is left, and it is not enabled.
        assert_eq!(read_with(&roots, &file), Ok(Vec::new()));
        std::fs::write(&file, "nonsense = [").unwrap();
        assert!(read_with(&roots, &file).unwrap_err().contains("netwrightd.toml"));
    }

    #[test]
    fn what_it_lacks_is_told_with_its_last_error() {
        let failed = Some(LogLine { at: String::new(), text: "no route".to_owned() });
        let report = Report {
            state: State::Waiting,
            why: Some("API server".to_owned()),
            failed,
            ..Report::stopped("routing")
        };
        let service = service(&report);
        assert_eq!(service.ready, Some(false));
        assert_eq!(service.lacks.as_deref(), Some("waiting: API server; no route"));
        assert_eq!(body(b"HTTP/1.1 200 OK\r\nA: b"), None);
        assert_eq!(body(b"x\r\n\r\n{}"), Some(&b"{}"[..]));
    }
}
