//! The form of CNI's data, compared with golden files and with the reference's words.

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
