//! `netwright doctor`.

mod findings;
mod input;
mod scene;
mod situations;
mod sound;
