//! Writes logs: one line for each event on standard error, or one event with fields in the journal.
//!
//! A line looks like `netwrightd: bound lease=lan/c1/eth0 address=192.0.2.9/24`. As JSON and in the
//! journal the fields have the same names: `lease`, and `NETWRIGHT_LEASE`. `NETWRIGHT_LOG` chooses
//! the lowest level, before the configuration does.

use std::cell::RefCell;
use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use agent::config::{Log, LogFormat, LogLevel};
use cni::text::one_line;
use jiff::Timestamp;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::health::Health;

thread_local! {
    /// What the thread is working on.
    static ABOUT: RefCell<Subject> = const { RefCell::new(Vec::new()) };
}

/// What a piece of work is about: names and values, in the order in which they are shown.
pub type Subject = Vec<(&'static str, String)>;

/// Adds `subject` to every line that this thread logs until the guard is dropped. Then the subject
/// from before applies again.
#[must_use]
pub fn about(subject: Subject) -> Context {
    Context { before: ABOUT.replace(subject) }
}

/// See [`about`].
#[derive(Debug)]
pub struct Context {
    before: Subject,
}

impl Drop for Context {
    fn drop(&mut self) {
        ABOUT.set(std::mem::take(&mut self.before));
    }
}

/// How lines are written.
enum Form {
    /// Each begins with its level in words.
    Text,
    /// Each begins with its level as systemd reads it from standard error (`man 3 sd-daemon`).
    Prefixed,
    /// To the journal, with fields of their own (systemd's "Native Journal Protocol").
    Journal(UnixDatagram),
    /// One JSON object for each event.
    Json,
}

/// Writes events; spans are not used here.
struct Lines {
    settings: Arc<RwLock<Settings>>,
    service: &'static str,
    /// What a line of text begins with.
    begin: String,
    /// Learns what was logged last.
    health: Option<Health>,
}

/// What may change while the process runs.
struct Settings {
    lowest: Level,
    form: Form,
}

/// Changes how the process logs.
#[derive(Clone)]
pub struct Control {
    settings: Arc<RwLock<Settings>>,
    /// The environment's level, which takes precedence over the configuration's.
    level: Option<Level>,
    /// Whether the journal reads standard error.
    journal: bool,
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").finish_non_exhaustive()
    }
}

impl Control {
    /// Logs as this configuration says from now on.
    pub fn change(&self, log: &Log) {
        let new = Settings::of(log, self.level, self.journal);
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = new;
        tracing::callsite::rebuild_interest_cache();
    }
}

/// Crates that log every request, and failures that we report ourselves.
const FOREIGN: [&str; 5] = ["hyper", "kube", "rustls", "tokio", "tower"];

/// Where the journal takes events with fields.
const JOURNAL: &str = "/run/systemd/journal/socket";

/// Starts logging for a service. `level` is the environment's, which takes precedence over the
/// configuration's; `journal` says that the journal reads standard error; a line of text begins
/// with `label` after the program's name. Only the first call counts.
pub fn start(
    service: &'static str,
    label: Option<&str>,
    log: &Log,
    level: Option<&str>,
    journal: bool,
    health: Option<Health>,
) -> Control {
    let level = level.and_then(|text| text.parse().ok());
    let settings = Arc::new(RwLock::new(Settings::of(log, level, journal)));
    let begin = label.map_or("netwrightd".to_owned(), |label| format!("netwrightd {label}"));
    let lines = Lines { settings: Arc::clone(&settings), service, begin, health };
    // It fails when a subscriber is already set.
    let _ = tracing::subscriber::set_global_default(lines);
    Control { settings, level, journal }
}

impl Settings {
    fn of(log: &Log, level: Option<Level>, journal: bool) -> Self {
        let lowest = level.unwrap_or(match log.level.0 {
            LogLevel::Error => Level::ERROR,
            LogLevel::Warn => Level::WARN,
            LogLevel::Info => Level::INFO,
            LogLevel::Debug => Level::DEBUG,
            LogLevel::Trace => Level::TRACE,
        });
        let native = || {
            let socket = UnixDatagram::unbound().ok()?;
            socket.connect(JOURNAL).ok()?;
            Some(Form::Journal(socket))
        };
        let form = match log.format.0 {
            LogFormat::Text => Form::Text,
            LogFormat::Json => Form::Json,
            LogFormat::Auto if !journal => Form::Text,
            LogFormat::Auto | LogFormat::Journal => native().unwrap_or(Form::Prefixed),
        };
        Settings { lowest, form }
    }
}

impl Lines {
    fn settings(&self) -> RwLockReadGuard<'_, Settings> {
        self.settings.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // Messages of other crates about each request appear only at level trace.
        let foreign = FOREIGN.iter().any(|begin| metadata.target().starts_with(begin));
        let lowest = self.settings().lowest;
        *metadata.level() <= lowest && (!foreign || lowest == Level::TRACE)
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let level = *event.metadata().level();
        let line = Line::of(event);
        if let Some(health) = &self.health {
            health.logged(level, &line.text());
        }
        let settings = self.settings();
        let text = match &settings.form {
            Form::Text => format!("{level:<5} {}: {}\n", self.begin, line.text()),
            Form::Prefixed => format!("<{}>{}: {}\n", priority(level), self.begin, line.text()),
            Form::Json => line.json(level, self.service),
            Form::Journal(socket) => {
                match socket.send(&line.journal(level, self.service)) {
                    Ok(_) => return,
                    // The journal is being restarted, or the event is too long for a datagram.
                    Err(_) => format!("<{}>{}: {}\n", priority(level), self.begin, line.text()),
                }
            }
        };
        // Ignore write errors: there is no other place to report them.
        let _ = std::io::stderr().write_all(text.as_bytes());
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// `man 3 sd-daemon` SD_ERR and so on.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

/// An event: its message, and its fields with their values.
#[derive(Default)]
struct Line {
    message: String,
    fields: Vec<(&'static str, String)>,
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}"));
    }
}

impl Line {
    /// Reads an event, and what the thread is working on.
    fn of(event: &Event<'_>) -> Self {
        let mut line = Line::default();
        event.record(&mut line);
        ABOUT.with_borrow(|subject| line.fields.extend(subject.iter().cloned()));
        line
    }

    fn put(&mut self, field: &Field, value: String) {
        match field.name() {
            "message" => self.message.push_str(&value),
            name => self.fields.push((name, value)),
        }
    }

    /// Returns it as one line: `bound lease=lan/c1/eth0`.
    fn text(&self) -> String {
        let mut text = one_line(&self.message);
        for (name, value) in &self.fields {
            let plain = !value.is_empty()
                && !value.contains(|c: char| c.is_whitespace() || c == '"')
                && one_line(value) == *value;
            let _ = if plain {
                write!(text, " {name}={value}")
            } else {
                write!(text, " {name}={}", one_line(format_args!("{value:?}")))
            };
        }
        text
    }

    /// Returns it as a line with one JSON object (RFC 8259).
    fn json(&self, level: Level, service: &str) -> String {
        let mut object = Map::new();
        object.insert("time".to_owned(), Timestamp::now().to_string().into());
        object.insert("level".to_owned(), level.as_str().to_lowercase().into());
        object.insert("service".to_owned(), service.into());
        object.insert("message".to_owned(), self.message.as_str().into());
        for (name, value) in &self.fields {
            object.entry(*name).or_insert_with(|| value.as_str().into());
        }
        format!("{}\n", Value::Object(object))
    }

    /// Returns it as the journal takes it: a line for each field, or the length of its value where
    /// the value has lines.
    fn journal(&self, level: Level, service: &str) -> Vec<u8> {
        let mut octets = Vec::new();
        let mut put = |name: &str, value: &str| {
            octets.extend(name.as_bytes());
            if value.contains('\n') {
                octets.push(b'\n');
                octets.extend(u64::try_from(value.len()).unwrap_or_default().to_le_bytes());
            } else {
                octets.push(b'=');
            }
            octets.extend(value.as_bytes());
            octets.push(b'\n');
        };
        put("MESSAGE", &self.text());
        put("PRIORITY", &priority(level).to_string());
        put("SYSLOG_IDENTIFIER", "netwrightd");
        put("NETWRIGHT_SERVICE", service);
        for (name, value) in &self.fields {
            put(&format!("NETWRIGHT_{}", name.to_uppercase().replace('.', "_")), value);
        }
        octets
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Stores what would be logged.
    struct Buffer(Arc<Mutex<String>>);

    impl Subscriber for Buffer {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, event: &Event<'_>) {
            let line = Line::of(event);
            *self.0.lock().unwrap() = line.text();
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn lines_name_what_the_thread_works_for() {
        let said = Arc::new(Mutex::new(String::new()));
        let logged = || {
            tracing::info!(ms = 3, "done");
            said.lock().unwrap().clone()
        };
        tracing::subscriber::with_default(Buffer(Arc::clone(&said)), || {
            let outer = about(vec![("network", "n".to_owned()), ("endpoint", "a b".to_owned())]);
            assert_eq!(logged(), r#"done ms=3 network=n endpoint="a b""#);
            let inner = about(vec![("endpoint", "other".to_owned())]);
            assert_eq!(logged(), "done ms=3 endpoint=other");
            drop(inner);
            assert_eq!(logged(), r#"done ms=3 network=n endpoint="a b""#);
            drop(outer);
            assert_eq!(logged(), "done ms=3");
        });
    }

    #[test]
    fn a_terminal_obeys_nothing_of_a_log() {
        let said = Arc::new(Mutex::new(String::new()));
        let name = "web\u{1b}[2J\u{9b}31m\u{202e}";
        tracing::subscriber::with_default(Buffer(Arc::clone(&said)), || {
            tracing::info!(container = name, other = ?name, order = %"\u{202e}x", "of {name}\nforged");
        });
        assert_eq!(
            *said.lock().unwrap(),
            r#"of web\u{1b}[2J\u{9b}31m\u{202e}\nforged container="web\u{1b}[2J\u{9b}31m\u{202e}" "#
                .to_owned()
                + r#"other="\"web\\u{1b}[2J\\u{9b}31m\\u{202e}\"" order="\u{202e}x""#
        );
    }

    #[test]
    fn the_same_fields_in_every_form() {
        let line = Line {
            message: "removed\nforged".to_owned(),
            fields: vec![("network", "n".to_owned()), ("cause", "a\nb".to_owned())],
        };
        assert_eq!(line.text(), r#"removed\nforged network=n cause="a\nb""#);
        let json: Value = serde_json::from_str(&line.json(Level::WARN, "repair")).unwrap();
        assert_eq!((&json["level"], &json["service"]), (&"warn".into(), &"repair".into()));
        assert_eq!((&json["network"], &json["cause"]), (&"n".into(), &"a\nb".into()));
        let octets = line.journal(Level::WARN, "repair");
        let text = String::from_utf8_lossy(&octets);
        assert!(
            text.contains("\nPRIORITY=4\n") && text.contains("\nNETWRIGHT_NETWORK=n\n"),
            "{text}"
        );
        assert!(text.ends_with("\nNETWRIGHT_CAUSE\n\u{3}\0\0\0\0\0\0\0a\nb\n"), "{text:?}");
    }
}
