#![doc = include_str!("../README.md")]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod alike;
pub mod annotation;
mod backends;
pub mod blocks;
mod claims;
pub mod cluster;
pub mod condition;
pub mod document;
pub mod earlier;
mod family;
pub mod file;
pub mod flannel;
pub mod identity;
mod ids;
pub mod kubernetes;
mod mac;
pub mod mtu;
pub mod node;
pub mod object;
pub mod overlap;
pub mod path;
pub mod plan;
mod reader;
pub mod refused;
pub mod render;
pub mod routing;
mod sealed;
pub mod settings;
pub mod show;
pub mod source_node;
pub mod time;
pub mod wanted;

pub use blocks::Block;
pub use cluster::{Cluster, Event, NodeRecord, Peer};
pub use mac::mac_of_tunnel;
pub use net::{IpFamily, MacAddr, PerFamily};
pub use node::Node;
pub use path::Path;
pub use refused::Refusal;
pub use routing::{Routing, Todo};
pub use settings::{OwnNode, Settings};
pub use source_node::SourceNode;
pub use time::Time;
