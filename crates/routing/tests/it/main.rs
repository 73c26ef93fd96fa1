//! Routing as values: what the crate reads and refuses, which peers it uses, by which paths, with
//! which objects in which order, and what people read.

#![allow(clippy::unwrap_used, reason = "tests")]

mod alike;
mod annotation;
mod bad;
mod blocks;
mod cluster;
mod condition;
mod document;
mod earlier;
mod file;
mod flannel;
mod kept;
mod kernel;
mod leases;
mod overlap;
mod path;
mod plan;
mod render;
mod repair;
mod routing;
mod show;
mod size;
mod support;
