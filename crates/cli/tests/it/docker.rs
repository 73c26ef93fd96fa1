//! Debian's Docker Engine on our networks: `netwrightd docker` serves it, and containers of both
//! runtimes share one network.

mod again;
mod attacked;
mod bad;
mod circle;
mod compose;
mod crash;
mod holders;
mod journals;
mod leases;
pub(crate) mod life;
mod mended;
mod modules;
mod newest;
mod ovs;
mod proxy;
mod removed;
mod restore;
mod settled;
mod speed;
pub(crate) mod support;
