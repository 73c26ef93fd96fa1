#![doc = include_str!("../README.md")]
//!
//! | module | what it is |
//! |---|---|
//! | `service` | what the daemon knows of a service: its name, its flags, and how it runs |
//! | `command_line` | a service's flags, made from the keys of the configuration (the crate `agent`) |
//! | `process` | what a service finds when it starts, and its configuration when that is read again |
//! | `stop` | why a service ends |
//! | `health` | what a service knows of itself |
//! | `attendant` | the thread beside a service's loop: status, and SIGHUP |
//! | `exchange`, `talks` | how services are asked, and the clients of such a socket |
//! | `asynchronous`, `line_server` | what asynchronous services run on, and the socket of messages by line |
//! | `event_loop` | the loop of a service that one thread runs |
//! | `poll`, `bell`, `outlet`, `folders` | what a loop waits for |
//! | `pace`, `ready`, `counts` | when a service looks again, the record that it could do its work, and what it counts |
//! | `listen`, `notify`, `clock`, `log`, `stdio` | the rest of the system around a service |
//! | `own_user` | what root does for a service that runs as a user of its own |

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod asynchronous;
pub mod attendant;
pub mod bell;
pub mod clock;
pub mod command_line;
pub mod counts;
pub mod event_loop;
pub mod exchange;
pub mod folders;
pub mod health;
pub mod line_server;
pub mod listen;
pub mod log;
mod notify;
pub mod outlet;
pub mod own_user;
pub mod pace;
pub mod poll;
pub mod process;
pub mod ready;
pub mod service;
pub mod stdio;
pub mod stop;
pub mod talks;
