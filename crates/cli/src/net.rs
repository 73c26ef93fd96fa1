//! Code that the commands share.

pub(crate) mod attach;
pub(crate) mod attachments;
pub(crate) mod container;
pub(crate) mod default;
pub(crate) mod forwarding;
pub(crate) mod ports;
pub(crate) mod runtimes;
pub(crate) mod session;
pub(crate) mod several;
pub(crate) mod spec;
pub(crate) mod taken;
