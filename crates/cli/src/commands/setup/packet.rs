//! Shows that a container has a network: what was installed runs one, and sends packets.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cni::code;
use doctor::programs;

use crate::failure::Failure;

/// How long it may take: an attachment, and a name server that does not answer.
const TIMEOUT: Duration = Duration::from_secs(120);

/// What `netwright run` says that it found, at the start of a line.
const FOUND: [&str; 2] = ["gateway ", "outside "];

/// Runs the built-in probe in a new container on the default network, with the executable and the
/// plugins that were installed. Returns what it found.
pub(super) fn send(
    executable: &Path,
    plugins: &[PathBuf],
    conf_dir: &Path,
) -> Result<Vec<String>, Failure> {
    #[expect(clippy::disallowed_methods, reason = "what was installed is tried")]
    let mut command = Command::new(executable);
    command.arg("--conf-dir").arg(conf_dir).args(["--output", "text", "run"]);
    let path = std::env::join_paths(plugins).unwrap_or_default();
    let output = programs::output(command.env("CNI_PATH", path), TIMEOUT).map_err(|error| {
        Failure::of(code::IO_FAILURE, &error).context(format_args!("run {}", executable.display()))
    })?;
    let text = String::from_utf8_lossy(&output.stdout);
    let found = text.lines().filter(|line| FOUND.iter().any(|word| line.starts_with(word)));
    let found: Vec<String> =
        found.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    if output.status.success() {
        return Ok(found);
    }
    let failure = Failure::new(code::IO_FAILURE, "a new container's packets are not answered");
    let errors = String::from_utf8_lossy(&output.stderr);
    let causes = found.iter().map(String::as_str).chain(errors.lines());
    Err(causes
        .filter(|line| !line.trim().is_empty())
        .fold(failure, |failure, cause| failure.because(cause.trim_start_matches("error: ")))
        .hint("`netwright run` tries it again; --no-packet sets up without"))
}
