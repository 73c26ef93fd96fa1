//! A plugin's answer, and checks on it.

use serde_json::Value;

use crate::case::{Outcome, fail};
use crate::process::ProgramOutput;

/// How much of a text a report shows.
const SHOWN: usize = 1500;

/// One answer, with the call in words for readers of a report.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) finished: ProgramOutput,
    /// The call in words: `ADD`, `DEL without CNI_NETNS`.
    pub(crate) question: String,
}

/// An error object.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) code: u64,
    pub(crate) msg: String,
    pub(crate) details: String,
    pub(crate) value: Value,
}

impl Refusal {
    /// Returns the message and the details.
    pub(crate) fn words(&self) -> String {
        format!("{}; {}", self.msg, self.details)
    }
}

impl Answer {
    /// Expects exit code 0.
    pub(crate) fn succeeded(&self) -> Outcome {
        self.orderly()?;
        if self.finished.code == Some(0) {
            return Ok(());
        }
        fail(format!("{} succeeds", self.question), self.ending())
    }

    /// Expects exit code 0 and one JSON object on standard output.
    pub(crate) fn result(&self) -> Outcome<Value> {
        self.succeeded()?;
        match serde_json::from_slice::<Value>(&self.finished.stdout) {
            Ok(value) if value.is_object() => Ok(value),
            _ => fail(
                format!("{} prints one JSON object on standard output", self.question),
                format!("standard output: {}", shown(&self.finished.stdout)),
            ),
        }
    }

    /// Expects another exit code and an error object on standard output.
    pub(crate) fn refused(&self) -> Outcome<Refusal> {
        self.failed()?;
        let object: Value = serde_json::from_slice(&self.finished.stdout).unwrap_or_default();
        let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default();
        match object.get("code").and_then(Value::as_u64) {
            Some(code) if !text("msg").is_empty() => Ok(Refusal {
                code,
                msg: text("msg").to_owned(),
                details: text("details").to_owned(),
                value: object,
            }),
            _ => fail(
                format!("{} fails with an error object: `code`, `msg`", self.question),
                self.ending(),
            ),
        }
    }

    /// Expects another exit code, with any output.
    pub(crate) fn failed(&self) -> Outcome {
        self.orderly()?;
        if self.finished.code == Some(0) {
            return fail(format!("{} fails", self.question), "exit code 0");
        }
        Ok(())
    }

    /// Expects an error object with a code.
    pub(crate) fn refused_with(&self, code: u64) -> Outcome<Refusal> {
        let refusal = self.refused()?;
        if refusal.code == code {
            return Ok(refusal);
        }
        fail(
            format!("{} fails with code {code}", self.question),
            format!("code {}: {}", refusal.code, refusal.words()),
        )
    }

    /// Expects that it ended by itself, in time, with bounded output.
    pub(crate) fn orderly(&self) -> Outcome {
        match &self.finished.trouble {
            None => Ok(()),
            Some(trouble) => {
                fail(format!("the plugin answers {}", self.question), trouble.to_string())
            }
        }
    }

    /// Describes how it ended, in a line or two.
    fn ending(&self) -> String {
        let finished = &self.finished;
        let mut text = format!("exit code {}", finished.code.unwrap_or(-1));
        for (name, bytes) in [("output", &finished.stdout), ("error", &finished.stderr)] {
            if !bytes.is_empty() {
                text.push_str(&format!(", standard {name}: {}", shown(bytes)));
            }
        }
        text
    }
}

/// Returns a text from outside, cut and on one line.
pub(crate) fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN)]);
    let mut line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line = line.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if SHOWN < bytes.len() {
        line.push_str(&format!(" … ({} bytes)", bytes.len()));
    }
    if line.is_empty() { "nothing".to_owned() } else { line }
}
