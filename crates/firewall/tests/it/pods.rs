//! Network policy on the kernel: packets against verdicts, and the table against what others do
//! to it.

mod agree;
mod clusters;
mod cost;
mod damage;
mod flows;
mod inside;
mod ipvs;
mod lab;
mod links;
mod listing;
mod neighbours;
mod own_node;
mod services;
mod speed;
mod steps;
mod swap;

/// Whether there is time for large counts: the virtual machine is ten times slower.
fn has_time() -> bool {
    let is_slow = std::env::var_os(testkit::feature::VM_VARIABLE).is_some();
    testkit::feature::available("full") && !is_slow
}
