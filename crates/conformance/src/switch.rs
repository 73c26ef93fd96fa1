//! The Open vSwitch that the suite provides to a plugin that needs one: Debian's programs, with the
//! datapath in user space.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::case::{OrBroken as _, Outcome, Stop};

/// The folder of its files.
const FOLDER: &str = "/run/conformance/ovs";

/// The socket of its database.
pub(crate) const SOCKET: &str = "/run/conformance/ovs/db.sock";

/// The bridge that exists in it.
pub(crate) const BRIDGE: &str = "ovsbr0";

/// The path of the database's schema.
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

/// Options of both programs. `--detach` returns when each is ready; everything has a timeout.
const QUIET: &str = "-vconsole:off -vsyslog:off --no-chdir --detach --pidfile --log-file";

/// Starts its database, with a bridge, and no switch: what is written there changes no link.
pub(crate) fn start_database() -> Outcome {
    if !Path::new(SCHEMA).exists() {
        return Err(Stop::Skipped("Open vSwitch is not installed on this machine".to_owned()));
    }
    run(&format!(
        "mkdir -p {FOLDER} && cd {FOLDER} && \
         export OVS_RUNDIR={FOLDER} OVS_LOGDIR={FOLDER} OVS_DBDIR={FOLDER} && \
         ovsdb-tool create conf.db {SCHEMA} && \
         timeout 20 ovsdb-server conf.db --remote=punix:{SOCKET} {QUIET} && \
         ovs-vsctl --timeout=20 --db=unix:{SOCKET} --no-wait init && \
         ovs-vsctl --timeout=20 --db=unix:{SOCKET} --no-wait add-br {BRIDGE} -- set bridge {BRIDGE} datapath_type=netdev"
    ))
}

/// Starts it, or skips the case if it is not installed. Its processes end with the case's.
pub(crate) fn start() -> Outcome {
    start_database()?;
    run(&format!(
        "cd {FOLDER} && export OVS_RUNDIR={FOLDER} OVS_LOGDIR={FOLDER} OVS_DBDIR={FOLDER} && \
         timeout 20 ovs-vswitchd unix:{SOCKET} --disable-system {QUIET} && \
         ovs-vsctl --timeout=20 --db=unix:{SOCKET} set bridge {BRIDGE} external_ids:ready=yes"
    ))
}

/// Makes a link a port of the bridge.
pub(crate) fn add_port(link: &str) -> Outcome {
    run(&format!(
        "ovs-vsctl --timeout=20 --no-wait --db=unix:{SOCKET} --may-exist add-port {BRIDGE} {link}"
    ))
}

/// Removes every mirror from the bridge.
pub(crate) fn remove_mirrors() -> Outcome {
    run(&format!(
        "ovs-vsctl --timeout=20 --no-wait --db=unix:{SOCKET} clear bridge {BRIDGE} mirrors"
    ))
}

/// Removes every container's port from the bridge, as a careless administrator does.
pub(crate) fn remove_ports() -> Outcome {
    let vsctl = format!("ovs-vsctl --timeout=20 --db=unix:{SOCKET}");
    run(&format!("for port in $({vsctl} list-ports {BRIDGE}); do {vsctl} del-port $port; done"))
}

#[expect(clippy::disallowed_methods, reason = "no plugin is started here, but what one needs")]
fn run(script: &str) -> Outcome {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]).env_clear();
    command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").stdin(Stdio::null());
    // A process that stays must not hold the case's own outputs.
    let Output { status, .. } =
        command.stdout(Stdio::null()).stderr(Stdio::null()).output().or_broken("start a shell")?;
    match status.success() {
        true => Ok(()),
        false => Err(Stop::Broken(format!("Open vSwitch: `{script}` ended with {status}"))),
    }
}
