//! Plugins that make interfaces.
