//! Calling the executable, and looking at what it says.
