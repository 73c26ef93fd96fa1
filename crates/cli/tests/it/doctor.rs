//! `netwright doctor`.

mod findings;
mod follow;
mod input;
mod scene;
mod situations;
mod sound;
