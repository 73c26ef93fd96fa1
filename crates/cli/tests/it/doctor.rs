//! `netwright doctor`.

mod drifts;
mod findings;
mod follow;
mod input;
mod scene;
mod situations;
mod sound;
mod untouched;
mod watch;
