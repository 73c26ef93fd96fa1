//! What CNI's data looks like, against golden files and against the reference's words.

#![allow(clippy::unwrap_used)]

mod args;
mod config;
mod error;
mod golden;
mod hostile;
mod json;
mod names;
mod network_list;
mod previous;
mod properties;
mod request;
mod result;
mod strategies;
mod text;
mod unknown;
mod version;
