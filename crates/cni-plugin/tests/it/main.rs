//! The protocol's side of a plugin, shown with plugins that do no work of their own.

#![allow(clippy::unwrap_used, reason = "tests")]

mod answers;
mod checks;
mod collecting;
mod delegation;
mod fake;
mod guard;
#[path = "../../examples/herald.rs"]
#[allow(dead_code, reason = "its main is not called here")]
mod herald;
mod processes;
mod serving;
