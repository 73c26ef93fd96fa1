//! The multi-network standard as data: what is read, what is refused with which words, what is
//! written.

#![allow(clippy::unwrap_used, reason = "tests")]

mod annotation;
mod definition;
mod device;
mod malformed;
mod policy;
mod request;
mod status;
