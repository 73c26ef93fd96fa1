//! The only access to the standard files.
//!
//! Data goes to standard output, as text for people or as one JSON document; everything else goes
//! to standard error. When a reader goes away, the writing ends but not the work: an attachment
//! half undone because a user quit a pager would be worse than unread text. Only ADD's
//! answer must be read, or the caller does not know what was made: a command that attaches asks
//! [`Shell::unread`], and undoes its work.
//!
//! Names, paths and messages come from files and programs of others. All text for people passes
//! [`cni::text::lines`] or [`cni::text::one_line`] here, so that a terminal obeys nothing of it;
//! JSON has its own escapes.

use std::fmt::Display;
use std::io::{ErrorKind, Read, Write};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cni::text::{lines, one_line};
use serde::Serialize;

use crate::failure::Failure;

/// How data is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// Text and tables for people.
    #[default]
    Text,
    /// One JSON document.
    Json,
}

/// The standard files, as `main` found them.
pub(crate) struct Stdio {
    pub(crate) input: Box<dyn Read + Send>,
    pub(crate) output: Box<dyn Write + Send>,
    pub(crate) errors: Box<dyn Write + Send>,
    /// Standard input is a terminal.
    pub(crate) answers: bool,
    /// Standard error is a terminal.
    pub(crate) terminal: bool,
    /// Standard error takes colours.
    pub(crate) colour: bool,
}

/// The standard files, in use.
pub(crate) struct Shell {
    input: Box<dyn Read + Send>,
    output: Option<Box<dyn Write + Send>>,
    errors: Arc<Mutex<Box<dyn Write + Send>>>,
    answers: bool,
    terminal: bool,
    colour: bool,
    lost: bool,
    /// How data is written.
    pub(crate) format: Format,
}

/// What a command found or did, for people and for programs.
pub(crate) trait Report: Serialize {
    /// Returns the text for people, with its line ends.
    fn text(&self) -> String;
}

/// A longer answer does not count as an answer.
const ANSWER: usize = 64;

/// How long something may take before a message mentions it.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The most letters of such a message: with the seconds it fits into a terminal of 40 columns. We
/// could not write over a line that the terminal has folded.
const MENTIONED: usize = 30;

impl Shell {
    pub(crate) fn new(stdio: Stdio) -> Self {
        Shell {
            input: stdio.input,
            output: Some(stdio.output),
            errors: Arc::new(Mutex::new(stdio.errors)),
            answers: stdio.answers,
            terminal: stdio.terminal,
            colour: stdio.colour,
            lost: false,
            format: Format::Text,
        }
    }

    /// Reads standard input to its end, at most `limit` bytes.
    pub(crate) fn read_input(&mut self, limit: u64) -> std::io::Result<Vec<u8>> {
        let mut text = Vec::new();
        (&mut self.input).take(limit).read_to_end(&mut text)?;
        Ok(text)
    }

    /// Says whether a user can be asked.
    pub(crate) fn can_ask(&self) -> bool {
        self.answers && self.terminal
    }

    /// Asks, and says whether the answer is yes.
    pub(crate) fn ask(&mut self, question: &str) -> bool {
        write(&self.errors, question);
        let mut answer = Vec::new();
        let mut letter = [0];
        while answer.len() < ANSWER && matches!(self.input.read(&mut letter), Ok(1)) {
            if letter == *b"\n" {
                break;
            }
            answer.push(letter[0]);
        }
        let answer = String::from_utf8_lossy(&answer).trim().to_lowercase();
        matches!(answer.as_str(), "y" | "yes")
    }

    /// Writes a report, as text or as JSON.
    pub(crate) fn print<R: Report>(&mut self, report: &R) {
        match self.format {
            Format::Text => self.raw(lines(report.text()).as_bytes()),
            Format::Json => {
                let mut document = Vec::new();
                let formatter = serde_json::ser::PrettyFormatter::with_indent(b"    ");
                let mut serializer =
                    serde_json::Serializer::with_formatter(&mut document, formatter);
                report.serialize(&mut serializer).expect("reports have string keys only");
                document.push(b'\n');
                self.raw(&document);
            }
        }
    }

    /// Writes one of several reports that come one after another: as text with an empty line
    /// between them, or each as a line of JSON.
    pub(crate) fn print_next<R: Report>(&mut self, report: &R, is_first: bool) {
        match self.format {
            Format::Text => {
                let between = if is_first { "" } else { "\n" };
                self.raw(format!("{between}{}", lines(report.text())).as_bytes());
            }
            Format::Json => {
                let mut line = serde_json::to_vec(report).expect("reports have string keys only");
                line.push(b'\n');
                self.raw(&line);
            }
        }
    }

    /// Confirms what was done: a message for people, a document for programs.
    pub(crate) fn confirm<R: Report>(&mut self, report: &R) {
        match self.format {
            Format::Text => self.say(report.text().trim_end()),
            Format::Json => self.print(report),
        }
    }

    /// Writes bytes to standard output as they are. A reader that is gone is not an error; any
    /// other failure is.
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        let Some(output) = &mut self.output else { return };
        if let Err(error) = output.write_all(bytes).and_then(|()| output.flush()) {
            self.output = None;
            if error.kind() != ErrorKind::BrokenPipe {
                self.lost = true;
                self.say(format_args!("error: write to standard output\ncause: {error}"));
            }
        }
    }

    /// Says whether something was not written to standard output although there was a reader.
    pub(crate) fn lost(&self) -> bool {
        self.lost
    }

    /// Says whether something was not written to standard output, for any reason: no process has
    /// read it.
    pub(crate) fn unread(&self) -> bool {
        self.output.is_none()
    }

    /// Writes a message to standard error.
    pub(crate) fn say(&self, message: impl Display) {
        write(&self.errors, &format!("{}\n", lines(message)));
    }

    /// Writes something that the user should know although the command continued.
    pub(crate) fn warn(&self, message: impl Display) {
        let warning = self.paint(Colour::Yellow, "warning:");
        write(&self.errors, &format!("{warning} {}\n", one_line(message)));
    }

    /// Writes why the command failed: as text on standard error, or as the error object on standard
    /// output.
    pub(crate) fn fail(&mut self, failure: &Failure) {
        match self.format {
            Format::Json => {
                let mut document = failure.to_cni().to_json();
                document.push(b'\n');
                self.raw(&document);
            }
            Format::Text => {
                let mut text = failure.text();
                if self.colour {
                    for (word, colour) in [
                        ("error:", Colour::Red),
                        ("cause:", Colour::Yellow),
                        ("hint:", Colour::Green),
                    ] {
                        text = paint_line_starts(&text, word, colour);
                    }
                }
                write(&self.errors, &text);
            }
        }
    }

    /// Mentions on a terminal what the command waits for, if it takes longer than a second. The
    /// message ends when the value is dropped.
    pub(crate) fn waiting(&self, what: impl Into<String>) -> WaitMessage {
        let what = Arc::new(Mutex::new(one_line(what.into())));
        if !self.terminal {
            return WaitMessage { what, stop: None, thread: None };
        }
        let (errors, now) = (Arc::clone(&self.errors), Arc::clone(&what));
        let (stop, stopped) = channel::<()>();
        let thread = std::thread::spawn(move || {
            let began = Instant::now();
            let mut shown = false;
            while stopped.recv_timeout(TIMEOUT) == Err(RecvTimeoutError::Timeout) {
                shown = true;
                let what = cut(&now.lock().unwrap_or_else(PoisonError::into_inner));
                write(&errors, &format!("\r{what} ({} s)\x1b[K", began.elapsed().as_secs()));
            }
            if shown {
                write(&errors, "\r\x1b[K");
            }
        });
        WaitMessage { what, stop: Some(stop), thread: Some(thread) }
    }

    /// Returns a way to standard error for text that plugins wrote.
    pub(crate) fn sink(&self) -> impl Fn(&str) + Send + Sync + 'static {
        let errors = Arc::clone(&self.errors);
        move |text| write(&errors, &lines(text))
    }

    fn paint(&self, colour: Colour, text: &str) -> String {
        if self.colour { colour.paint(text) } else { text.to_owned() }
    }
}

/// A message while the command waits; see [`Shell::waiting`].
pub(crate) struct WaitMessage {
    /// What it mentions.
    what: Arc<Mutex<String>>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl WaitMessage {
    /// Mentions something else from now on.
    pub(crate) fn now(&self, what: &str) {
        *self.what.lock().unwrap_or_else(PoisonError::into_inner) = one_line(what);
    }
}

impl Drop for WaitMessage {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Colour {
    Red,
    Yellow,
    Green,
}

impl Colour {
    /// Wraps text in SGR sequences (ECMA-48 §8.3.117), bold.
    fn paint(self, text: &str) -> String {
        let number = match self {
            Colour::Red => 31,
            Colour::Green => 32,
            Colour::Yellow => 33,
        };
        format!("\x1b[1;{number}m{text}\x1b[0m")
    }
}

fn paint_line_starts(text: &str, word: &str, colour: Colour) -> String {
    let lines = text.lines().map(|line| match line.strip_prefix(word) {
        Some(rest) => format!("{}{rest}\n", colour.paint(word)),
        None => format!("{line}\n"),
    });
    lines.collect()
}

/// Cuts a message that is too long to be written over.
fn cut(what: &str) -> String {
    match what.char_indices().nth(MENTIONED) {
        None => what.to_owned(),
        Some(_) => {
            let kept: String = what.chars().take(MENTIONED - 3).collect();
            format!("{kept}...")
        }
    }
}

/// Writes to standard error. Ignores failures: there is no other place to report them.
fn write(errors: &Mutex<Box<dyn Write + Send>>, text: &str) {
    let mut errors = errors.lock().unwrap_or_else(PoisonError::into_inner);
    let _ = errors.write_all(text.as_bytes()).and_then(|()| errors.flush());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    /// A writer whose text the test reads afterwards, or that has no reader.
    #[derive(Clone, Default)]
    struct TestWriter {
        text: Arc<Mutex<Vec<u8>>>,
        closed: bool,
    }

    impl Write for TestWriter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.closed {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            self.text.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl TestWriter {
        fn text(&self) -> String {
            String::from_utf8(self.text.lock().unwrap().clone()).unwrap()
        }
    }

    fn shell(output: &TestWriter, errors: &TestWriter, terminal: bool, colour: bool) -> Shell {
        Shell::new(Stdio {
            input: Box::new(io::empty()),
            output: Box::new(output.clone()),
            errors: Box::new(errors.clone()),
            answers: false,
            terminal,
            colour,
        })
    }

    #[test]
    fn only_a_yes_is_a_yes() {
        let errors = TestWriter::default();
        for (answer, is_yes) in
            [("y\n", true), (" Yes \nno", true), ("n\n", false), ("\ny\n", false), ("", false)]
        {
            let mut shell = shell(&TestWriter::default(), &errors, true, false);
            shell.input = Box::new(answer.as_bytes());
            assert_eq!(shell.ask("Do it? "), is_yes, "{answer:?}");
        }
        assert_eq!(errors.text(), "Do it? ".repeat(5));
    }

    #[test]
    fn colour_stresses_words_that_are_there_anyhow() {
        let (output, plain, coloured) =
            (TestWriter::default(), TestWriter::default(), TestWriter::default());
        let failure = Failure::usage("no").because("yes").hint("try");
        shell(&output, &plain, false, false).fail(&failure);
        shell(&output, &coloured, true, true).fail(&failure);
        assert_eq!(plain.text(), "error: no\ncause: yes\nhint: try\n");
        let expected =
            "\x1b[1;31merror:\x1b[0m no\n\x1b[1;33mcause:\x1b[0m yes\n\x1b[1;32mhint:\x1b[0m try\n";
        assert_eq!(coloured.text(), expected);
        assert_eq!(output.text(), "");
    }

    #[test]
    fn a_reader_that_is_gone_stops_nothing() {
        let gone = TestWriter { closed: true, ..TestWriter::default() };
        let mut shell = shell(&gone, &gone, false, false);
        shell.raw(b"one");
        assert!(shell.unread() && !shell.lost());
        shell.raw(b"two");
        shell.say("three");
        assert_eq!(gone.text(), "");
    }

    #[test]
    fn reports_that_follow_each_other_can_be_told_apart() {
        #[derive(Serialize)]
        struct ExampleReport {
            what: &'static str,
        }
        impl Report for ExampleReport {
            fn text(&self) -> String {
                format!("{}\n", self.what)
            }
        }
        for (format, expected) in [
            (Format::Text, "one\n\ntwo\n"),
            (Format::Json, "{\"what\":\"one\"}\n{\"what\":\"two\"}\n"),
        ] {
            let output = TestWriter::default();
            let mut shell = shell(&output, &TestWriter::default(), false, false);
            shell.format = format;
            shell.print_next(&ExampleReport { what: "one" }, true);
            shell.print_next(&ExampleReport { what: "two" }, false);
            assert_eq!(output.text(), expected);
        }
    }

    #[test]
    fn what_is_mentioned_fits_into_a_narrow_terminal() {
        assert_eq!(cut("looking at the node"), "looking at the node");
        let long = cut("checking 0123456789abcdef0123456789abcdef, 3 of 12");
        assert_eq!(long, "checking 0123456789abcdef01...");
        assert_eq!(long.len(), MENTIONED);
        assert_eq!(cut(&"ä".repeat(MENTIONED)).chars().count(), MENTIONED);
    }

    #[test]
    fn waiting_is_mentioned_on_a_terminal_once_it_takes_long() {
        let (output, errors) = (TestWriter::default(), TestWriter::default());
        drop(shell(&output, &errors, true, false).waiting("attaching"));
        assert_eq!(errors.text(), "", "it took no time");
        let shell = shell(&output, &errors, true, false);
        let waiting = shell.waiting("looking");
        waiting.now("attaching");
        let end = Instant::now() + TIMEOUT * 20;
        while errors.text().is_empty() && Instant::now() < end {
            std::thread::yield_now();
        }
        drop(waiting);
        assert!(errors.text().starts_with("\rattaching (1 s)"), "{:?}", errors.text());
        assert!(errors.text().ends_with("\r\x1b[K"), "{:?}", errors.text());
    }
}
