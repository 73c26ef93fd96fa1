//! Taps with an SELinux label.
//!
//! A tap has the label of the process that creates it (`linux security/selinux/hooks.c`,
//! `selinux_tun_dev_alloc_security`); the label for sockets does not count. So the plugin runs `ip`
//! under the label, as the reference does, and with the same permissions: policies for the
//! reference suit this plugin too.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use cni::code;
use cni_plugin::codes;
use kernel::netns::{Netns, within};
use kernel::tun::NewTap;

use crate::shared::failure::Failure;

/// This file exists while SELinux is on.
const ENFORCE: &str = "/sys/fs/selinux/enforce";

/// The label of the program that this thread executes next (`man 5 proc_pid_attr`).
const EXEC_LABEL: &str = "/proc/thread-self/attr/exec";

/// The folders in which `ip` is looked up: libraries do not read the environment.
const FOLDERS: [&str; 4] = ["/usr/sbin/", "/sbin/", "/usr/bin/", "/bin/"];

/// Refuses a label on a host that would ignore it.
pub(super) fn usable(context: &str) -> Result<(), Failure> {
    if Path::new(ENFORCE).exists() {
        return Ok(());
    }
    Err(Failure::new(
        code::UNSUPPORTED_FIELD,
        format!("failed set socket label: selinuxContext {context:?} on a host without SELinux"),
    )
    .with_details("remove key \"selinuxContext\", or switch SELinux on"))
}

/// Creates a tap with a label. The label applies to this thread and one execution only; the IPAM
/// plugin runs without it.
pub(super) fn create_tap(netns: &Netns, tap: &NewTap, context: &str) -> Result<(), Failure> {
    let made = within(netns, || {
        let label = |text: &str| fs::write(EXEC_LABEL, text);
        if let Err(error) = label(context) {
            return Err(Failure::new(
                code::INVALID_CONFIG,
                format!("failed set socket label: {context:?}: {error}"),
            )
            .with_details("key \"selinuxContext\" is no label that the policy knows"));
        }
        let ran = ip(&arguments(tap));
        // An empty line clears the label; after a successful execution it is already gone.
        let _ = label("\n");
        finish(ran)
    });
    made.map_err(|error| Failure::from_chain(code::INVALID_NETNS, &error))?
}

fn finish(ran: io::Result<Output>) -> Result<(), Failure> {
    let output = ran.map_err(|error| {
        Failure::new(codes::KERNEL, format!("failed to run command ip tuntap: {error}"))
            .with_details("a tap with \"selinuxContext\" is made by iproute2's ip under that label")
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    Err(Failure::new(codes::KERNEL, format!("failed to run command ip tuntap: {said}"))
        .with_details(output.status.to_string()))
}

fn arguments(tap: &NewTap) -> Vec<String> {
    let mut arguments =
        ["tuntap", "add", "mode", "tap", "name", &tap.name].map(str::to_owned).to_vec();
    let flags = [(tap.multi_queue, "multi_queue"), (tap.vnet_hdr, "vnet_hdr")];
    arguments.extend(flags.into_iter().filter(|(on, _)| *on).map(|(_, flag)| flag.to_owned()));
    for (key, id) in [("user", tap.owner), ("group", tap.group)] {
        if let Some(id) = id {
            arguments.extend([key.to_owned(), id.to_string()]);
        }
    }
    arguments
}

#[expect(clippy::disallowed_methods, reason = "nothing else can give a tap a label: see above")]
fn ip(arguments: &[String]) -> io::Result<Output> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for folder in FOLDERS {
        let ran = Command::new(format!("{folder}ip"))
            .args(arguments)
            .env_clear()
            .stdin(Stdio::null())
            .output();
        match ran {
            Err(error) if error.kind() == io::ErrorKind::NotFound => last = error,
            ran => return ran,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ip_is_asked_for() {
        let tap = NewTap {
            name: "eth0".to_owned(),
            multi_queue: true,
            vnet_hdr: true,
            owner: Some(0),
            group: Some(107),
        };
        assert_eq!(
            arguments(&tap).join(" "),
            "tuntap add mode tap name eth0 multi_queue vnet_hdr user 0 group 107"
        );
    }
}
