//! The README's first command: it shows that a container reaches the outside.

use std::process::Command;

use crate::executable;

/// Builds the executable and runs its probe in a fresh namespace on the default network.
///
/// # Errors
/// When the build fails or the container cannot be connected; the error has been printed.
pub(crate) fn run() -> Result<(), String> {
    println!("building target/dist/netwright, a minute or two the first time …");
    let netwright = executable::NETWRIGHT.build()?;
    println!("# {} run\n", netwright.display());
    let status = Command::new(&netwright).arg("run").status();
    let status = status.map_err(|error| format!("{}: {error}", netwright.display()))?;
    if status.success() { Ok(()) } else { Err(format!("netwright run ended with {status}")) }
}
