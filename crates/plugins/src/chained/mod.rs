//! Plugins that change what others made.

pub mod tuning;
