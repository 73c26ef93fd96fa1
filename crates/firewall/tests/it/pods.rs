//! Network policy in the kernel: packets compared with verdicts, and the table after damage by
//! other programs.

mod agree;
mod clusters;
mod cost;
pub(crate) mod damage;
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

/// Whether a run tries large counts; the virtual machine does not, because it is ten times slower.
fn has_time() -> bool {
    let is_slow = std::env::var_os(testkit::feature::VM_VARIABLE).is_some();
    testkit::feature::available("full") && !is_slow
}
