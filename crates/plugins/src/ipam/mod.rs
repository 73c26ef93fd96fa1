//! Plugins that hand out addresses.
