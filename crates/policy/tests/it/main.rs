//! Network policy as values: what is read and refused, who may talk to whom, what a node's packet
//! filter holds, what changes cost, and what people are told.

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
