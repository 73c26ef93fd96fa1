//! One executable, many names.

use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt;

use expect_test::expect;

use crate::support::{CommandOutput, EXECUTABLE, Scratch, said, said_with};

const VERBS: &[(&str, &str)] = &[("CNI_COMMAND", "VERSION")];

#[expect(clippy::disallowed_methods, reason = "the program is what is tested")]
fn call_as(
    program: &str,
    name: &str,
    args: &[&str],
    vars: &[(&str, &str)],
    input: &[u8],
) -> CommandOutput {
    let mut command = std::process::Command::new(program);
    command.arg0(name).args(args).env_clear().envs(vars.iter().copied());
    said_with(command, input)
}

#[test]
fn a_build_says_what_it_is_linked_with() {
    let said = Scratch::new().call(&["--version", "--verbose"]).succeeded();
    let lines: Vec<&str> = said.stdout.lines().collect();
    let version = concat!("netwright ", env!("CARGO_PKG_VERSION"));
    assert_eq!(lines[..2], [version, &format!("architecture: {}", std::env::consts::ARCH)]);
    let libraries = ["musl, by Rust's target for it", "musl, by Rust's target for GNU systems"];
    let library = lines[2].strip_prefix("C library: ").unwrap();
    assert!(libraries.contains(&library) || library == "the system's", "{library}");
}

#[test]
fn list_prints_every_plugin() {
    let scratch = Scratch::new();
    let said = scratch.call(&["--list"]).succeeded();
    let names: Vec<&str> = plugins::all().iter().map(|plugin| plugin.name()).collect();
    assert_eq!(said.stdout.lines().collect::<Vec<_>>(), names);
    let json = scratch.call(&["--list", "--output", "json"]).succeeded().json();
    assert_eq!(json["plugins"][0], names[0]);
}

#[test]
fn every_plugin_answers_under_its_name_and_as_first_argument() {
    let scratch = Scratch::new();
    for plugin in plugins::all() {
        let link = scratch.path(plugin.name());
        symlink(EXECUTABLE, &link).unwrap();
        let link = link.to_str().unwrap();
        let by_name = call_as(link, link, &[], VERBS, b"").succeeded();
        let by_argument =
            call_as(EXECUTABLE, "netwright", &[plugin.name()], VERBS, b"").succeeded();
        assert_eq!(by_name.stdout, by_argument.stdout);
        assert_eq!(by_name.json()["cniVersion"], "1.1.0", "{}", plugin.name());
        let asked = call_as(link, link, &[], VERBS, br#"{"cniVersion":"0.4.0"}"#).succeeded();
        assert_eq!(asked.json()["cniVersion"], "0.4.0", "{}", plugin.name());

        let about = call_as(link, plugin.name(), &[], &[], b"").succeeded();
        assert_eq!(about.stdout, "");
        assert!(about.stderr.starts_with(&format!("CNI {} plugin 0.1.0\n", plugin.name())));
    }
}

/// Many callers that ask for versions write nothing, and not all of them close standard input.
#[test]
#[expect(clippy::disallowed_methods, reason = "the program is what is tested")]
fn version_does_not_wait_for_a_caller_who_writes_nothing() {
    for input in ["", r#"{"cniVersion":"1.0.0"}"#] {
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(input.as_bytes()).unwrap();
        let mut command = std::process::Command::new(EXECUTABLE);
        command.arg("bridge").env_clear().envs(VERBS.iter().copied()).stdin(reader);
        let said = command.output().unwrap();
        let reply: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
        assert_eq!(reply["cniVersion"], if input.is_empty() { "1.1.0" } else { "1.0.0" });
        drop(writer);
    }
}

#[test]
fn a_plugin_logs_when_it_is_asked_to() {
    let call = |log: &'static str| {
        let vars = [
            ("CNI_COMMAND", "CHECK"),
            ("CNI_CONTAINERID", "c1"),
            ("CNI_NETNS", "/nowhere/c1"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", "/nowhere"),
            ("TRACEPARENT", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
            ("NETWRIGHT_LOG", log),
        ];
        let config = br#"{"cniVersion":"1.1.0","name":"n","type":"loopback"}"#;
        call_as(EXECUTABLE, "loopback", &[], &vars, config).failed(1).stderr
    };
    assert_eq!(call(""), "");
    let said = call("info");
    for part in
        ["ERROR", "plugin=\"loopback\"", "cmd=CHECK", "network=n", "container_id=\"c1\"", "code=8"]
    {
        assert!(said.contains(part), "{part} is not in: {said}");
    }
    assert!(said.contains("0af7651916cd43dd8448eb211c80319c"), "{said}");
    assert!(call("loud").contains("NETWRIGHT_LOG must be error, warn, info, debug or trace"));
}

#[test]
fn a_plugins_arguments_are_nobodys_business() {
    let said = call_as(EXECUTABLE, "bridge", &["--help", "--output", "nonsense"], VERBS, b"");
    assert_eq!(said.succeeded().json()["cniVersion"], "1.1.0");
}

#[test]
fn a_plugin_reports_errors_on_standard_output() {
    let vars = [
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_NETNS", "/nonexistent"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", "/nonexistent"),
    ];
    let said = call_as(EXECUTABLE, "bridge", &[], &vars, b"{").failed(1);
    assert_eq!(said.json()["code"], 6);
    assert_eq!(said.stderr, "");
}

#[test]
fn a_configuration_that_names_the_executable_gets_an_answer() {
    let vars = [("CNI_COMMAND", "ADD"), ("CNI_CONTAINERID", "c1")];
    let said = call_as(EXECUTABLE, "/opt/cni/bin/netwright", &[], &vars, b"{}").failed(1);
    assert_eq!(said.json()["code"], 7);
    assert_eq!(said.json()["msg"], "netwright is not the type of a plugin");
}

/// People copy or link a plugin under a name of their own. The error used to name the executable
/// and not what it was called by, and did not say what to do.
#[test]
fn a_plugin_by_another_name_says_which_and_what_to_do() {
    for (program, meant) in [
        ("/opt/cni/bin/flannel-wg", "flannel"),
        ("bridge2", "bridge"),
        ("host-local.v1", "host-local"),
        ("brigde", "bridge"),
    ] {
        for verb in ["ADD", "DEL", "VERSION"] {
            let vars = [("CNI_COMMAND", verb), ("CNI_CONTAINERID", "c1")];
            let said = call_as(EXECUTABLE, program, &[], &vars, b"{}").failed(1).json();
            let name = program.rsplit('/').next().unwrap();
            assert_eq!(said["msg"], format!("{name} is not the type of a plugin"));
            let details = said["details"].as_str().unwrap();
            assert!(details.starts_with(&format!("name the type {meant:?}")), "{details}");
        }
    }
}

/// An installed plugin is a file that names the executable: a copy of it, and a link to it, start the
/// executable with a path that is no plugin's name. The answer used to be that of the command line.
#[test]
fn a_copy_of_an_installed_plugin_says_which_and_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let line = cni_invoke::script_of(std::path::Path::new(EXECUTABLE)).unwrap();
    for name in ["flannel", "flannel-wg"] {
        std::fs::write(path(name), &line).unwrap();
        std::fs::set_permissions(path(name), std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    symlink("flannel", path("flannel-ln")).unwrap();
    for name in ["flannel-wg", "flannel-ln"] {
        let file = path(name);
        for verb in ["ADD", "DEL", "VERSION"] {
            let vars = [("CNI_COMMAND", verb), ("CNI_CONTAINERID", "c1")];
            let file = file.to_str().unwrap();
            let said = call_as(file, file, &[], &vars, b"{}").failed(1).json();
            assert_eq!(said["msg"], format!("{name} is not the type of a plugin"));
            let details = said["details"].as_str().unwrap();
            assert!(details.starts_with("name the type \"flannel\""), "{details}");
        }
        // A person is told by the command line.
        let file = file.to_str().unwrap();
        let said = call_as(file, file, &[], &[], b"").failed(2);
        assert!(said.stderr.contains("unrecognized subcommand"), "{said:#?}");
    }
}

#[test]
fn without_a_command_the_help_is_shown() {
    let said = said(Scratch::new().command(&[])).failed(2);
    assert!(said.stdout.contains("Usage: netwright"));
    let said = Scratch::new().call(&["lists"]).failed(2);
    expect![[r#"
        error: unrecognized subcommand 'lists'

          tip: some similar subcommands exist: 'status', 'lint', 'list'

        Usage: netwright [OPTIONS] [COMMAND]

        For more information, try '--help'.
    "#]]
    .assert_eq(&said.stderr);
}

#[test]
fn the_step_before_a_command_is_not_for_people() {
    assert_eq!(call_as(EXECUTABLE, "netwright-enter", &[], &[], b"").code, 125);
    // Not started by `run`: the named process is not the parent.
    assert_eq!(call_as(EXECUTABLE, "netwright-enter", &["1", "true"], &[], b"").code, 125);
}

/// The process ID and the descriptors stay, so that a service manager can pass sockets and knows
/// which process it started.
#[test]
fn the_dhcp_daemon_takes_this_processs_place() {
    let dir = tempfile::tempdir_in(std::path::Path::new(EXECUTABLE).parent().unwrap()).unwrap();
    let own = dir.path().join("netwright");
    std::fs::hard_link(EXECUTABLE, &own).unwrap();
    symlink("netwright", dir.path().join("dhcp")).unwrap();
    let start = |line: &str| {
        let script =
            format!("cd {} && echo $$ && exec 3</dev/null && exec {line}", dir.path().display());
        call_as("/bin/sh", "sh", &["-c", &script], &[("PATH", "/usr/bin:/bin")], b"")
    };
    let said = start("./dhcp daemon");
    assert_eq!(said.code, 127, "{said:?}");
    assert!(said.stderr.contains("netwrightd: No such file"), "{said:?}");
    let daemon = dir.path().join("netwrightd");
    std::fs::write(&daemon, "#!/bin/sh\necho $$ $*; readlink /proc/self/fd/3\n").unwrap();
    std::fs::set_permissions(&daemon, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    for line in ["./dhcp daemon -timeout 2s", "./netwright dhcp daemon -timeout 2s"] {
        let said = start(line).succeeded();
        let lines: Vec<&str> = said.stdout.lines().collect();
        assert_eq!(lines[1], format!("{} dhcp -timeout 2s", lines[0]), "{said:?}");
        assert_eq!(lines[2], "/dev/null");
    }
}
