//! Debian's Docker Engine on our networks: `netwrightd docker` beside it, containers of both kinds
//! on one network.

mod again;
mod bad;
mod circle;
mod compose;
mod crash;
mod holders;
mod journals;
pub(crate) mod life;
mod mended;
mod newest;
mod ovs;
mod proxy;
mod restore;
mod settled;
mod speed;
pub(crate) mod support;
