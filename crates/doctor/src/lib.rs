//! Reads a node, and sends the packets for which the rules of `diagnose` ask: the input and output
//! of `netwright doctor`, which shows what the rules conclude.
//!
//! [`observe`] makes a [`diagnose::model::Scene`] of the node and its containers, [`probe`] answers
//! [`diagnose::Question`]s. In between and after them `diagnose` decides, without I/O:
//!
//! ```no_run
//! # fn look(node: &doctor::Node<'_>) -> diagnose::Diagnosis {
//! let scene = doctor::observe::read(node, None, &mut |_step| {});
//! let none = diagnose::Answers::default();
//! let look = diagnose::Look { scene: &scene, answers: &none, only: None, to: None };
//! let answers = doctor::probe::ask(&scene, &diagnose::questions(look));
//! diagnose::diagnose(diagnose::Look { answers: &answers, ..look }, &[])
//! # }
//! ```
//!
//! The other modules are what both need of a node, and other commands too: [`node`], who has which
//! container ([`dockers`], [`runtime_names`], [`presence`]), whether ADD would succeed
//! ([`judgement`], [`trust`]), names ([`resolv`]), and [`programs`] with a deadline.
//!
//! The crate prints nothing, ends no process and knows no command line. It changes nothing on the
//! node, but for what following a probe takes while it lasts: a table of nftables of our own, and
//! an instance of tracefs.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod dns;
pub mod dockers;
pub mod judgement;
pub mod node;
pub mod observe;
pub mod presence;
pub mod probe;
pub mod programs;
pub mod resolv;
pub mod runtime_names;
pub mod trust;

pub use node::{Choice, Node};
