#![doc = include_str!("../README.md")]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod cluster_policy;
pub mod compile;
pub mod evaluate;
pub mod explain;
pub mod interpret;
pub mod isolation;
pub mod labels;
pub mod multi_policy;
pub mod network_policy;
pub mod networks;
pub mod object;
pub mod policy;
pub mod program;
mod reader;
pub mod refused;
pub mod world;

pub use compile::merge::{MOST_LISTS, too_many_lists};
pub use compile::{Compiler, compile};
pub use evaluate::{Verdict, verdict, verdict_by_service};
pub use explain::{Explanation, explain};

pub use net::IpFamily;
pub use networks::Networks;
pub use object::{Namespace, Node, Pod};
pub use policy::{Direction, PerDirection, Policy, PolicyId, Protocol, Traffic};
pub use program::{Name, Program, Step};
pub use refused::Refusal;
pub use world::{Change, World};
