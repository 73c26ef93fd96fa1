//! The multi-network standard as data: what the crate reads, what it refuses in which words, what
//! it writes.

#![allow(clippy::unwrap_used, reason = "tests")]

mod annotation;
mod definition;
mod device;
mod malformed;
mod policy;
mod request;
mod status;
