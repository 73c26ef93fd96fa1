//! `netwright doctor`.

mod scene;
