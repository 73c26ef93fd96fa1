//! `cnm` against a driver that is not ours.

mod matrix;
