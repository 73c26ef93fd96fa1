//! Logs, a line each, on standard error.
//!
//! `netwrightd: bound lease=lan/c1/eth0 address=192.0.2.9/24`. Where systemd reads them, the level stands before as
//! `<6>` (`man 3 sd-daemon`). `NETWRIGHT_LOG` chooses the lowest level: error, warn, info (the default), debug, trace.

use std::fmt::{self, Write as _};
use std::io::Write as _;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Writes events; spans are not used here.
struct Lines {
    lowest: Level,
    journal: bool,
}

/// Crates that log every request, and failures that we tell of ourselves.
const FOREIGN: [&str; 5] = ["hyper", "kube", "rustls", "tokio", "tower"];

/// Begins to log.
pub(crate) fn start(level: Option<&str>, journal: bool) {
    let lowest = level.and_then(|text| text.parse().ok()).unwrap_or(Level::INFO);
    // It fails when it was called before.
    let _ = tracing::subscriber::set_global_default(Lines { lowest, journal });
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // Others' words about each request are for who looks for everything.
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
        let mut line = Line { message: String::new(), fields: String::new() };
        event.record(&mut line);
        let mut text = String::new();
        if self.journal {
            text.push_str(priority(level));
        } else {
            let _ = write!(text, "{level:<5} ");
        }
        let _ = writeln!(text, "netwrightd: {}{}", line.message, line.fields);
        // Nobody is left to tell.
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
    fn put(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        if field.name() == "message" {
            let _ = write!(self.message, "{value}");
            return;
        }
        let value = value.to_string();
        let plain = !value.is_empty()
            && !value.contains(|c: char| c.is_whitespace() || c == '"' || c.is_control());
        let _ = if plain {
            write!(self.fields, " {}={value}", field.name())
        } else {
            write!(self.fields, " {}={value:?}", field.name())
        };
    }
}
