//! What plugins share.
