//! Plugins that change what others made.
