//! Writes logs to standard error, one line for each event.
//!
//! A line looks like `netwrightd: bound lease=lan/c1/eth0 address=192.0.2.9/24`. Where systemd
//! reads the lines, each begins with its level, such as `<6>` (`man 3 sd-daemon`). `NETWRIGHT_LOG`
//! chooses the lowest level: error, warn, info (the default), debug, trace.

use std::cell::RefCell;
use std::fmt::{self, Write as _};
use std::io::Write as _;

use cni::text::one_line;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

thread_local! {
    /// What the thread is working on.
    static ABOUT: RefCell<Subject> = const { RefCell::new(Vec::new()) };
}

/// What a piece of work is about: names and values, in the order in which they are shown.
pub(crate) type Subject = Vec<(&'static str, String)>;

/// Adds `subject` to every line that this thread logs until the guard is dropped. Then the subject
/// from before applies again.
#[must_use]
pub(crate) fn about(subject: Subject) -> About {
    About { before: ABOUT.replace(subject) }
}

/// See [`about`].
#[derive(Debug)]
pub(crate) struct About {
    before: Subject,
}

impl Drop for About {
    fn drop(&mut self) {
        ABOUT.set(std::mem::take(&mut self.before));
    }
}

/// Writes events; spans are not used here.
struct Lines {
    lowest: Level,
    journal: bool,
}

/// Crates that log every request, and failures that we report ourselves.
const FOREIGN: [&str; 5] = ["hyper", "kube", "rustls", "tokio", "tower"];

/// Starts logging.
pub(crate) fn start(level: Option<&str>, journal: bool) {
    let lowest = level.and_then(|text| text.parse().ok()).unwrap_or(Level::INFO);
    // It fails when a subscriber is already set.
    let _ = tracing::subscriber::set_global_default(Lines { lowest, journal });
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // Messages of other crates about each request appear only at level trace.
        let foreign = FOREIGN.iter().any(|begin| metadata.target().starts_with(begin));
        *metadata.level() <= self.lowest && (!foreign || self.lowest == Level::TRACE)
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let level = *event.metadata().level();
        let line = Line::of(event);
        let mut text = String::new();
        if self.journal {
            text.push_str(priority(level));
        } else {
            let _ = write!(text, "{level:<5} ");
        }
        let _ = writeln!(text, "netwrightd: {}{}", line.message, line.fields);
        // Ignore write errors: there is no other place to report them.
        let _ = std::io::stderr().write_all(text.as_bytes());
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// `man 3 sd-daemon` SD_ERR and so on.
fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        _ => "<7>",
    }
}

struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format_args!("{value:?}"));
    }
}

impl Line {
    /// Reads an event, and what the thread is working on.
    fn of(event: &Event<'_>) -> Self {
        let mut line = Line { message: String::new(), fields: String::new() };
        event.record(&mut line);
        ABOUT.with_borrow(|subject| {
            for (name, value) in subject {
                line.put_field(name, value);
            }
        });
        line
    }

    fn put(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        if field.name() == "message" {
            self.message.push_str(&one_line(value));
            return;
        }
        self.put_field(field.name(), &value.to_string());
    }

    fn put_field(&mut self, name: &str, value: &str) {
        let plain = !value.is_empty()
            && !value.contains(|c: char| c.is_whitespace() || c == '"')
            && one_line(value) == value;
        let _ = if plain {
            write!(self.fields, " {name}={value}")
        } else {
            write!(self.fields, " {name}={}", one_line(format_args!("{value:?}")))
        };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Stores what would be logged.
    struct Kept(Arc<Mutex<String>>);

    impl Subscriber for Kept {
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
            *self.0.lock().unwrap() = line.message + &line.fields;
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
        tracing::subscriber::with_default(Kept(Arc::clone(&said)), || {
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
        tracing::subscriber::with_default(Kept(Arc::clone(&said)), || {
            tracing::info!(container = name, other = ?name, order = %"\u{202e}x", "of {name}\nforged");
        });
        assert_eq!(
            *said.lock().unwrap(),
            r#"of web\u{1b}[2J\u{9b}31m\u{202e}\nforged container="web\u{1b}[2J\u{9b}31m\u{202e}" "#
                .to_owned()
                + r#"other="\"web\\u{1b}[2J\\u{9b}31m\\u{202e}\"" order="\u{202e}x""#
        );
    }
}
