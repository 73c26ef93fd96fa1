//! `netwright doctor`.

mod counts;
mod crowd;
mod drifts;
mod findings;
mod firewalls;
mod follow;
mod input;
mod led;
mod luck;
mod scene;
mod segments;
mod situations;
mod sound;
mod unexamined;
mod untouched;
mod watch;
