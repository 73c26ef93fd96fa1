//! Network policy on the kernel: packets against verdicts, and the table against what somebody does
//! to it.

mod agree;
mod clusters;
mod cost;
mod damage;
mod flows;
mod lab;
mod listing;
mod steps;
mod swap;
