#![doc = include_str!("../README.md")]
//!
//! | module | what it is |
//! |---|---|
//! | `api_server` | the API server: connections, credentials that are renewed, and errors |
//! | `objects` | kinds of objects, and requests for single ones |
//! | `follow` | the objects of a kind, followed: list, watch, silence |
//! | `etcd` | etcd: members, questions, pages and watches. The only file that knows its protocol |
//!
//! Everything here is asynchronous.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod api_server;
pub mod etcd;
pub mod follow;
pub mod objects;
