//! Debian's Docker Engine on our networks: `netwrightd docker` beside it, containers of both kinds on one network.

mod life;
mod support;
