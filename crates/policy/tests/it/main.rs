//! Network policy as values: what the crate reads and refuses, which connections it allows, what a
//! node's packet filter has, what changes cost, and what people read.

#![allow(clippy::unwrap_used, reason = "tests")]

mod agree;
mod bad;
mod case;
mod cost;
mod evaluate;
mod explain;
mod labels;
mod mistakes;
mod networks;
mod program;
mod size;
mod support;
