//! Decides what this process is to be.
//!
//! The base name of `argv[0]` decides first, so that `/opt/cni/bin/bridge` can be a link to this
//! executable; then the first argument (`netwright bridge`). If `/opt/cni/bin/bridge` is a file that
//! names this executable, its path is the first argument ([`cni_invoke::script_of`]); a copy of that
//! file under another name is no plugin, and a runtime that calls it is told so. Only one
//! command has a plugin's name, `policy`; a test checks that. As the first argument, without a path,
//! it means the plugin only if a runtime calls.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use cni_plugin::Plugin;

/// The name under which the executable starts the command of `netwright run`; see
/// [`crate::commands::run::enter`].
pub(crate) const ENTER: &str = "netwright-enter";

/// The command that has a plugin's name.
const COMMAND_AND_PLUGIN: &str = "policy";

/// What this process is to be.
#[derive(Debug)]
pub(crate) enum Role {
    /// A plugin.
    Plugin(&'static dyn Plugin),
    /// The reference's DHCP daemon, `dhcp daemon …`; the number of arguments that make up its name.
    DhcpDaemon(usize),
    /// Called by a runtime, but by this name or path, which is not a plugin's.
    NotAPlugin(OsString),
    /// The last step of `netwright run` before the command it runs.
    Enter,
    /// The reference's test tool.
    Cnitool,
    /// The command line.
    CommandLine,
}

/// Decides what this process is to be. `has_verb` says whether `CNI_COMMAND` is set, which only
/// runtimes do.
pub(crate) fn role(program: &OsStr, arguments: &[OsString], has_verb: bool) -> Role {
    let base = Path::new(program).file_name().and_then(OsStr::to_str).unwrap_or_default();
    // The reference reads its first argument before anything else.
    let at = |index: usize| arguments.get(index).and_then(|argument| argument.to_str());
    let of_file = at(0).and_then(|first| Some(first.rsplit_once('/')?.1));
    let of_file = of_file.filter(|name| plugins::find(name).is_some());
    match (base, of_file.or(at(0)), at(1)) {
        ("dhcp", Some("daemon"), _) => return Role::DhcpDaemon(1),
        (base, Some("dhcp"), Some("daemon")) if plugins::find(base).is_none() => {
            return Role::DhcpDaemon(2);
        }
        _ => {}
    }
    if let Some(plugin) = plugins::find(base) {
        return Role::Plugin(plugin);
    }
    match base {
        ENTER => return Role::Enter,
        "cnitool" => return Role::Cnitool,
        _ => {}
    }
    match of_file.or(at(0)) {
        Some(COMMAND_AND_PLUGIN) if !has_verb && of_file.is_none() => Role::CommandLine,
        Some(first) => match plugins::find(first) {
            Some(plugin) => Role::Plugin(plugin),
            None if has_verb && first.contains('/') => Role::NotAPlugin(first.into()),
            None => Role::CommandLine,
        },
        None if has_verb => {
            Role::NotAPlugin(arguments.first().map_or(program, OsString::as_os_str).to_owned())
        }
        None => Role::CommandLine,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(program: &str, arguments: &[&str], has_verb: bool) -> String {
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        match role(OsStr::new(program), &arguments, has_verb) {
            Role::Plugin(plugin) => plugin.name().to_owned(),
            Role::NotAPlugin(called) => format!("not {}", called.display()),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn every_plugin_is_found_by_either_way() {
        for plugin in plugins::all() {
            let own = plugin.name();
            assert_eq!(name(own, &[], true), own);
            assert_eq!(name(&format!("/opt/cni/bin/{own}"), &["--help"], false), own);
            assert_eq!(name("./netwright", &[own], true), own);
            assert_eq!(name("/a/netwright", &[&format!("/opt/cni/bin/{own}")], true), own);
            assert_eq!(name("/a/netwright", &[&format!("./{own}"), "--help"], false), own);
            let without_verb = if own == COMMAND_AND_PLUGIN { "CommandLine" } else { own };
            assert_eq!(name("netwright", &[own], false), without_verb);
        }
    }

    #[test]
    fn other_names_are_the_command_line() {
        assert_eq!(name("netwright", &[], false), "CommandLine");
        assert_eq!(name("netwright", &["list"], true), "CommandLine");
        assert_eq!(name("/usr/bin/nw", &["--list"], false), "CommandLine");
        assert_eq!(name("", &[], false), "CommandLine");
        assert_eq!(name("/usr/local/bin/cnitool", &["add"], false), "Cnitool");
        assert_eq!(name("netwright", &[], true), "not netwright");
        assert_eq!(name("netwright-enter", &["1", "sh"], false), "Enter");
        assert_eq!(name("netwright", &["/bin/tea"], false), "CommandLine");
        assert_eq!(name("/a/netwright", &["/opt/cni/bin/tea"], true), "not /opt/cni/bin/tea");
        assert_eq!(name("/a/netwright", &["./tea"], true), "not ./tea");
        assert_eq!(name("netwright", &["--config", "/a"], true), "CommandLine");
    }

    #[test]
    fn the_dhcp_daemon_is_started_as_the_references_is() {
        assert_eq!(
            name("/opt/cni/bin/dhcp", &["daemon", "-timeout", "2s"], false),
            "DhcpDaemon(1)"
        );
        assert_eq!(name("netwright", &["dhcp", "daemon"], true), "DhcpDaemon(2)");
        assert_eq!(name("netwright", &["/opt/cni/bin/dhcp", "daemon"], false), "DhcpDaemon(2)");
        assert_eq!(name("dhcp", &["deamon"], true), "dhcp");
        assert_eq!(name("bridge", &["dhcp", "daemon"], true), "bridge");
        assert_eq!(name("netwright", &["daemon"], false), "CommandLine");
    }

    #[test]
    fn no_other_command_has_a_plugins_name() {
        let command = crate::args::command();
        let names = command.get_subcommands().map(clap::Command::get_name);
        let both: Vec<&str> = names.filter(|name| plugins::find(name).is_some()).collect();
        assert_eq!(both, [COMMAND_AND_PLUGIN]);
    }
}
