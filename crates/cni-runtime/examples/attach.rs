//! Attaches a network namespace to a network, or detaches it: `attach add|del NETWORK NETNS`.
//!
//! Configurations come from `/etc/cni/net.d` and plugins from `/opt/cni/bin`, unless `NETCONFPATH`
//! and `CNI_PATH` name others; attachments are recorded below `CNI_CACHE`, or `/var/lib/cni`.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example prints")]

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cni::{ContainerId, IfName};
use cni_invoke::Exec;
use netwright_cni_runtime::{Attachment, Cache, ConfigFolder, DEFAULT_CACHE_DIR, Runtime};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments.as_slice() {
        [verb @ ("add" | "del"), network, netns] => attach(verb, network, netns),
        _ => Err("usage: attach add|del NETWORK NETNS".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn attach(verb: &str, network: &str, netns: &str) -> Result<(), Box<dyn Error>> {
    let variable = |name: &str, default: &str| std::env::var(name).unwrap_or(default.to_owned());
    let plugins: Vec<PathBuf> =
        std::env::split_paths(&variable("CNI_PATH", "/opt/cni/bin")).collect();
    let networks = ConfigFolder::scan(variable("NETCONFPATH", "/etc/cni/net.d"))?;
    // The details list the files that were read, with reasons.
    let list = networks.find(network).map_err(|error| error.to_cni())?;

    let runtime = Runtime::new(plugins, Arc::new(Exec::new(std::env::vars_os())))
        .with_cache(Cache::new(variable("CNI_CACHE", DEFAULT_CACHE_DIR)))
        .with_stderr(|said| eprint!("{}", String::from_utf8_lossy(said.text)));

    let netns = std::path::absolute(netns)?;
    let attachment =
        Attachment::new(container_id(&netns)?, IfName::new("eth0")?, netns.to_string_lossy());
    let deadline = Some(Instant::now() + Duration::from_secs(60));
    if verb == "add" {
        let added =
            runtime.add_list(list, &attachment, deadline).map_err(|error| error.to_cni())?;
        println!("{}", added.document);
    } else {
        let deleted =
            runtime.del_list(list, &attachment, deadline).map_err(|error| error.to_cni())?;
        for notice in deleted.notices {
            eprintln!("{notice}");
        }
    }
    Ok(())
}

/// Derives a name for the container from its namespace, always the same.
fn container_id(netns: &Path) -> Result<ContainerId, cni::Error> {
    let hash = cni::owner::sha512_hex(netns.to_string_lossy().as_bytes(), 20);
    ContainerId::new(&format!("attach-{hash}"))
}
