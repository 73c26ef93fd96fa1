//! An acceptance suite for CNI plugins.
//!
//! It tests plugins of any project: it takes a folder of executables and tests each against what
//! the specification, the conventions and the reference implementation demand of a plugin. A
//! [`Case`] is one such requirement, as data; [`cases()`] lists them all. [`Suite`] runs them and
//! returns a [`Report`], which can be written as a table, JUnit's XML, JSON, Markdown or HTML.
//!
//! Every case runs in its own process ([`serve_case`]) on a private machine: its own network, mount
//! and PID namespaces, empty `/run`, `/var` and `/tmp`, everything else read-only. A plugin that
//! hangs, prints without end, or leaves processes behind costs its case and nothing else, and the
//! machine's own network is never touched.
//!
//! The suite must not share the mistakes of the plugins that are written beside it: of this
//! workspace it uses only the `kernel` crate, for namespaces and links and for reading them.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod addresses;
mod again;
mod answer;
mod bench;
mod case;
mod cases;
mod child;
mod delegate;
mod driver;
mod lab;
pub mod ledger;
mod process;
mod profile;
mod report;
mod runner;
mod schedule;
mod shape;
mod snapshot;
mod subjects;
mod switch;
mod traffic;

pub use bench::Bench;
pub use case::{Case, Kind, Level, Verdict};
pub use cases::{cases, find};
pub use child::serve_case;
pub use report::{CaseReport, PluginReport, Report, Tally, VerbCost, side_by_side};
pub use runner::{Launcher, Suite, SuiteError};
