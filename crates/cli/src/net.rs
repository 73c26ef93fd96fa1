//! Code that the commands share.

pub(crate) mod attach;
pub(crate) mod attachments;
pub(crate) mod container;
pub(crate) mod default;
pub(crate) mod dns;
pub(crate) mod dockers;
pub(crate) mod forwarding;
pub(crate) mod judgement;
pub(crate) mod node;
pub(crate) mod ports;
pub(crate) mod presence;
pub(crate) mod probes;
pub(crate) mod programs;
pub(crate) mod resolv;
pub(crate) mod runtime_names;
pub(crate) mod runtimes;
pub(crate) mod scene;
pub(crate) mod session;
pub(crate) mod several;
pub(crate) mod spec;
pub(crate) mod taken;
pub(crate) mod trust;
