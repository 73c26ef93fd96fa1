//! Tests of the package.

mod smoke;
