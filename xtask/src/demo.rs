//! The README's first command: it shows that a container reaches the outside.

use std::cell::Cell;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use crate::ci::seconds;
use crate::executable::NETWRIGHT;

/// A line is printed for each so many crates of others.
const STRIDE: u32 = 20;

/// Builds the executable and runs its probe in a fresh namespace on the default network. Prints each
/// step and what it took, and at last what to try next.
///
/// # Errors
/// When the build fails or the container cannot be connected; the error has been printed.
pub(crate) fn run() -> Result<(), String> {
    let (began, netwright) = (Instant::now(), build()?);
    println!("==> a container\n# {} run\n", netwright.display());
    let connected = Instant::now();
    let status = Command::new(&netwright).arg("run").status();
    let status = status.map_err(|error| format!("{}: {error}", netwright.display()))?;
    if !status.success() {
        return Err(format!("netwright run ended with {status}"));
    }
    println!("\n    ok in {}, {} in all", seconds(connected.elapsed()), seconds(began.elapsed()));
    println!("==> what to try next");
    println!("# {} run -- sh     # a shell in such a container", netwright.display());
    println!("# {} doctor        # looks at the networks of this machine", netwright.display());
    Ok(())
}

/// Builds the executable, and says what is compiled: crates of others by their number, ours by their
/// name.
fn build() -> Result<PathBuf, String> {
    println!("==> build of target/dist/netwright: some minutes the first time");
    let (began, others) = (Instant::now(), Cell::new(0_u32));
    let built = NETWRIGHT.build_showing(|line| {
        let line = line.trim_start();
        let compiled = line.strip_prefix("Compiling ").and_then(|line| line.split(' ').next());
        let Some(name) = compiled else { return false };
        let (begun, at) = (others.get(), seconds(began.elapsed()));
        if !name.starts_with(NETWRIGHT.package) {
            others.set(begun + 1);
            if (begun + 1).is_multiple_of(STRIDE) {
                println!("    {at:>8}  crate {} of others", begun + 1);
            }
        } else if name == NETWRIGHT.package {
            println!("    {at:>8}  {name}; then all of it is optimised together");
        } else {
            println!("    {at:>8}  {name}");
        }
        false
    })?;
    println!("    ok in {}", seconds(began.elapsed()));
    Ok(built)
}
