//! The node agent `netwrightd` as data: its configuration, its services, and what each of them may
//! do.
//!
//! | file | what it is |
//! |---|---|
//! | `config` | the settings as types, with their defaults |
//! | `keys` | each key of the configuration: its name, what it means, where its value is |
//! | `setting` | what a value may be, and how it is read and written |
//! | `reachable` | which ends isolated pods may talk to, as such a value |
//! | `rules` | settings that exclude or need each other |
//! | `document` | one file: every problem in it, each with its place |
//! | `load` | the file and its drop-ins |
//! | `accepted` | the configuration that was accepted last |
//! | `change` | what a new configuration changes, and for which services |
//! | `report` | what a service says of itself |
//! | `installed` | which folders `netwright install` filled, and what became of them |
//! | `man` | pages of the manual, of the configuration and of the agent |
//! | `metrics` | what services count, as Prometheus reads it |
//! | `show` | the defaults and the effective values, as TOML |
//! | `schema` | the JSON schema |
//! | `rights` | what each service may do |
//! | `units` | the same as settings of systemd |
//! | `chart` | the same, and the keys, for the Helm chart |
//!
//! [`keys::KEYS`] is the only list of keys. The checks, the flags of `netwrightd SERVICE`, its help,
//! the defaults, the schema and the documentation are made from it.
//!
//! This crate knows no service: it starts nothing and opens no socket.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod accepted;
pub mod change;
pub mod chart;
pub mod config;
mod document;
pub mod installed;
pub mod keys;
pub mod load;
pub mod man;
pub mod metrics;
pub mod problem;
pub mod reachable;
pub mod report;
pub mod rights;
mod rules;
pub mod schema;
pub mod setting;
pub mod show;
pub mod units;

pub use config::Config;
pub use load::{LoadedConfig, load};
pub use problem::Problem;
