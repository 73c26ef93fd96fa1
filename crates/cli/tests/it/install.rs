//! `install` and `uninstall`.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use expect_test::expect;
use testkit::{Lab, Place, share};

use crate::support::{CommandOutput, EXECUTABLE, Scratch, listing, said};

/// Everything in a folder, with content and mode, to show that nothing was changed.
fn whole(dir: &Path) -> BTreeMap<String, (u32, Vec<u8>)> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().map(Result::unwrap) {
        let name = entry.file_name().to_string_lossy().into_owned();
        let metadata = entry.path().symlink_metadata().unwrap();
        if metadata.is_dir() {
            for (below, content) in whole(&entry.path()) {
                found.insert(format!("{name}/{below}"), content);
            }
        }
        let content = if metadata.is_symlink() {
            std::fs::read_link(entry.path()).unwrap().into_os_string().into_encoded_bytes()
        } else if metadata.is_dir() {
            Vec::new()
        } else {
            std::fs::read(entry.path()).unwrap()
        };
        found.insert(name, (metadata.mode(), content));
    }
    found
}

fn install(scratch: &Scratch, more: &[&str]) -> CommandOutput {
    let dir = scratch.path("opt/bin");
    let mut args = vec!["install", "--bin-dir", dir.to_str().unwrap()];
    args.extend(more);
    install_from(&LoneExecutable::new(), scratch, &args)
}

/// The executable, in a folder of its own: in the build folder there are other executables beside
/// it, perhaps the daemon.
struct LoneExecutable(tempfile::TempDir);

impl LoneExecutable {
    fn new() -> Self {
        let built = Path::new(EXECUTABLE);
        let dir = tempfile::tempdir_in(built.parent().unwrap()).unwrap();
        std::fs::hard_link(built, dir.path().join("netwright")).unwrap();
        LoneExecutable(dir)
    }
}

#[expect(clippy::disallowed_methods, reason = "the program is what is tested")]
fn install_from(alone: &LoneExecutable, scratch: &Scratch, args: &[&str]) -> CommandOutput {
    let mut command = Command::new(alone.0.path().join("netwright"));
    command.args(args).env_clear();
    for (key, value) in scratch.command(&[]).get_envs() {
        command.env(key, value.unwrap());
    }
    said(command)
}

/// Uninstalls inside a laboratory, because `uninstall` also cleans the packet filter.
fn uninstall(scratch: &Scratch, lab: &Lab, more: &[&str]) -> CommandOutput {
    let dir = scratch.path("opt/bin");
    let mut command = lab.command(EXECUTABLE);
    command.args(["uninstall", "--bin-dir", dir.to_str().unwrap()]).args(more);
    for (key, value) in scratch.command(&[]).get_envs() {
        command.env(key, value.unwrap());
    }
    said(command)
}

/// Runs a script in another process: if this process has a file open for writing, its children
/// briefly have it open too.
#[expect(clippy::disallowed_methods, reason = "the test needs a copy that no process has open")]
fn call_sh(script: &str) -> std::process::ExitStatus {
    Command::new("sh").args(["-c", script]).status().unwrap()
}

#[expect(clippy::disallowed_methods, reason = "the program is what is tested")]
fn version(plugin: &Path) -> std::io::Result<std::process::Output> {
    Command::new(plugin).env("CNI_COMMAND", "VERSION").stdin(Stdio::null()).output()
}

#[test]
fn every_plugin_is_there_and_answers() {
    let scratch = Scratch::new();
    let said = install(&scratch, &[]).succeeded();
    assert_eq!(said.stdout, "");
    assert!(said.stderr.contains("wrote the default network to "), "{said:#?}");
    let bin = scratch.path("opt/bin");
    let mut expected: Vec<String> =
        plugins::all().iter().map(|plugin| plugin.name().to_owned()).collect();
    expected.extend([".netwright-replaced/".to_owned(), "netwright".to_owned()]);
    expected.sort();
    assert_eq!(listing(&bin), expected);
    for plugin in plugins::all() {
        assert!(version(&bin.join(plugin.name())).unwrap().status.success());
    }
    let mode = std::fs::metadata(bin.join("netwright")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o755);
    assert_eq!(listing(&scratch.path("net.d")), ["99-netwright.conflist"]);
    scratch.call(&["lint", "--strict"]).succeeded();
}

/// Another project's plugin keeps its name unless the command line gives it to ours.
#[test]
fn names_of_other_projects_are_taken_when_asked_for() {
    let scratch = Scratch::new();
    let foreign = scratch.write("opt/bin/whereabouts", "#!/bin/sh\n");
    install(&scratch, &[]).succeeded();
    assert_eq!(std::fs::read_to_string(&foreign).unwrap(), "#!/bin/sh\n");
    install(&scratch, &["--also", "tea"]).failed(2);
    install(&scratch, &["--also", "whereabouts"]).succeeded();
    assert_ne!(std::fs::read_to_string(&foreign).unwrap(), "#!/bin/sh\n");
    assert!(!scratch.path("opt/bin/multus").exists());
    let output = version(&foreign).unwrap();
    assert!(output.status.success(), "{output:?}");
    let lab = testkit::Lab::new("cli-install-also");
    uninstall(&scratch, &lab, &[]).succeeded();
    assert_eq!(std::fs::read_to_string(&foreign).unwrap(), "#!/bin/sh\n");
}

#[test]
fn no_config_means_no_config() {
    let scratch = Scratch::new();
    install(&scratch, &["--no-config"]).succeeded();
    assert!(!scratch.path("net.d").exists());
}

#[test]
fn an_existing_network_of_that_name_is_left_alone() {
    let scratch = Scratch::new();
    let document = r#"{"cniVersion": "1.1.0", "name": "netwright", "plugins": [{"type": "x"}]}"#;
    scratch.write("net.d/10-mine.conflist", document);
    let json = install(&scratch, &["-o", "json"]).succeeded().json();
    assert!(json["config"].is_null(), "{json}");
    assert_eq!(listing(&scratch.path("net.d")), ["10-mine.conflist"]);
}

#[test]
fn install_and_uninstall_leave_everything_as_it_was() {
    let scratch = Scratch::new();
    let lab = Lab::new("cli-uninstall");
    let bridge = scratch.write("opt/bin/bridge", "#!/bin/sh\necho theirs\n");
    std::fs::set_permissions(&bridge, std::fs::Permissions::from_mode(0o750)).unwrap();
    scratch.write("opt/bin/whereabouts", "somebody's");
    symlink("/usr/lib/cni/portmap", scratch.path("opt/bin/portmap")).unwrap();
    scratch.write("net.d/10-podman.conflist", r#"{"name": "podman", "plugins": [{"type": "x"}]}"#);
    let before = whole(&scratch.path(""));

    let json = install(&scratch, &["-o", "json"]).succeeded().json();
    assert_eq!(json["replaced"], serde_json::json!(["bridge", "portmap"]));
    // The command runs a second time: the kept file is the other project's, not our own link.
    let json = install(&scratch, &["-o", "json"]).succeeded().json();
    assert_eq!(json["replaced"], serde_json::json!([]));

    let said = uninstall(&scratch, &lab, &[]).succeeded();
    let removed: Vec<&str> = plugins::all()
        .iter()
        .map(|plugin| plugin.name())
        .filter(|name| !["bridge", "portmap"].contains(name))
        .chain(["netwright", "SCRATCH/net.d/99-netwright.conflist", "SCRATCH/lib"])
        .collect();
    assert_eq!(
        scratch.plain(&said.stderr),
        format!("removed: {}\nput back: bridge, portmap\n", removed.join(", "))
    );
    assert_eq!(whole(&scratch.path("")), before);
    let said = uninstall(&scratch, &lab, &[]).failed(1);
    assert!(said.stderr.starts_with("error: nothing was installed in "), "{said:#?}");
}

#[test]
fn the_daemon_is_placed_when_it_is_there() {
    let scratch = Scratch::new();
    let lab = Lab::new("cli-install-daemon");
    let bin = scratch.path("opt/bin");
    let args = ["install", "--no-config", "--bin-dir", bin.to_str().unwrap()];
    let alone = LoneExecutable::new();
    scratch.write("opt/bin/netwrightd", "theirs");
    let said = install_from(&alone, &scratch, &args).succeeded();
    assert!(said.stderr.contains("the plugin dhcp has no daemon"), "{said:#?}");
    std::fs::write(alone.0.path().join("netwrightd"), "ours").unwrap();
    for _ in 0..2 {
        let said = install_from(&alone, &scratch, &args).succeeded();
        assert!(said.stderr.contains(" and netwrightd in "), "{said:#?}");
        assert_eq!(std::fs::read_to_string(bin.join("netwrightd")).unwrap(), "ours");
    }
    let said = uninstall(&scratch, &lab, &[]).succeeded();
    assert!(said.stderr.contains("put back: netwrightd"), "{said:#?}");
    assert_eq!(std::fs::read_to_string(bin.join("netwrightd")).unwrap(), "theirs");
}

#[test]
fn uninstall_removes_a_folder_that_install_made() {
    let scratch = Scratch::new();
    let lab = Lab::new("cli-uninstall-dir");
    install(&scratch, &["--no-config"]).succeeded();
    uninstall(&scratch, &lab, &[]).succeeded();
    assert!(!scratch.path("opt/bin").exists());
    assert!(!scratch.path("run").exists());
}

/// If the folder that a runtime watches is removed, the runtime notices no configuration until it
/// is started again.
#[test]
fn uninstall_leaves_the_folder_of_configurations() {
    let scratch = Scratch::new();
    let lab = Lab::new("cli-uninstall-conf-dir");
    install(&scratch, &[]).succeeded();
    let said = uninstall(&scratch, &lab, &[]).succeeded();
    assert!(said.stderr.contains("net.d: runtimes may watch this folder"), "{said:#?}");
    assert_eq!(listing(&scratch.path("net.d")), [""; 0]);
    assert!(!scratch.path("opt/bin").exists());
}

#[test]
fn what_others_changed_since_is_left_and_told() {
    let scratch = Scratch::new();
    let lab = Lab::new("cli-uninstall-others");
    scratch.write("opt/bin/tuning", "the old one");
    install(&scratch, &[]).succeeded();
    std::fs::remove_file(scratch.path("opt/bin/tuning")).unwrap();
    scratch.write("opt/bin/tuning", "a new one");
    scratch.write("net.d/99-netwright.conflist", "{\"name\": \"mine\"}");
    let json = uninstall(&scratch, &lab, &["-o", "json"]).succeeded().json();
    let left = json["left"].to_string();
    assert!(
        left.contains(
            "another program replaced our link; the file from before the installation is still kept"
        ),
        "{left}"
    );
    assert!(left.contains("99-netwright.conflist: it was changed since we wrote it"), "{left}");
    assert_eq!(std::fs::read_to_string(scratch.path("opt/bin/tuning")).unwrap(), "a new one");
    let kept = scratch.path("opt/bin/.netwright-replaced/tuning");
    assert_eq!(std::fs::read_to_string(kept).unwrap(), "the old one");
}

#[test]
fn uninstall_refuses_while_containers_are_attached_unless_forced() {
    testkit::require!("root");
    let lab = Lab::new("cli-uninstall-attached");
    lab.sh("mkdir -p /etc/cni/net.d");
    let before = testkit::Snapshot::take(&lab);
    let call = |args: &[&str]| crate::support::call_in(&lab, args);
    call(&["install", "--bin-dir", "/opt/cni/bin"]).succeeded();
    let c1 = lab.container("c1");
    call(&["add", "netwright", "c1", "--container-id", "web", "-p", "8080:80"]).succeeded();
    let said = call(&["uninstall", "--bin-dir", "/opt/cni/bin"]).failed(1);
    expect![[r#"
        error: containers are still attached
        cause: netwright/web/eth0
        hint: stop them first, or give --force to detach them now
    "#]]
    .assert_eq(&said.stderr);
    testkit::traffic::assert_pings(&c1, "10.63.0.1");
    lab.sh("test -x /opt/cni/bin/bridge");

    let json = call(&["uninstall", "--bin-dir", "/opt/cni/bin", "--force", "-o", "json"])
        .succeeded()
        .json();
    assert_eq!(json["detached"], serde_json::json!(["netwright/web/eth0"]));
    assert_eq!(c1.sh("ip -br link | wc -l").trim(), "1");
    drop(c1);
    crate::support::assert_as_before(&before, &lab);
}

/// A runtime whose hook is not there starts no container that the hook is for.
#[test]
fn the_hook_of_a_runtime_is_named_before_its_executable_goes() {
    testkit::require!("root");
    let lab = Lab::new("cli-uninstall-hook");
    lab.sh("mkdir -p /etc/cni/net.d /etc/containers/oci/hooks.d /etc/containers/containers.conf.d /etc/hooks");
    lab.sh("printf '[engine]\\nhooks_dir = [\"/etc/hooks\"]\\n' >/etc/containers/containers.conf.d/hooks.conf");
    let call = |args: &[&str]| crate::support::call_in(&lab, args);
    let there = ["--bin-dir", "/opt/cni/bin"];
    let hook = |path: &str| format!(r#"{{"version": "1.0.0", "hook": {{"path": "{path}"}}}}"#);
    let files = ["/etc/containers/oci/hooks.d/netwright.json", "/etc/hooks/ours.json"];
    for file in files {
        call(&[&["install"][..], &there].concat()).succeeded();
        lab.sh(&format!("echo '{}' >{file}", hook("/opt/cni/bin/netwright")));
        for more in [&[][..], &["--keep-state"], &["--wait"]] {
            let said = call(&[&["uninstall"][..], &there, more].concat()).failed(1);
            assert!(said.stderr.contains(file), "{more:?}: {said:#?}");
            lab.sh("test -x /opt/cni/bin/bridge");
        }
        let said = call(&[&["uninstall", "--force"][..], &there].concat()).succeeded();
        assert!(said.stderr.contains(&format!("left: {file}")), "{said:#?}");
        // Another program's hook is nothing of ours.
        lab.sh(&format!("echo '{}' >{file}", hook("/usr/bin/netwright-of-others")));
        call(&[&["install"][..], &there].concat()).succeeded();
        call(&[&["uninstall"][..], &there].concat()).succeeded();
    }
}

/// crun calls a container's hook when it deletes the container, which may be long after its end.
#[test]
fn the_executable_stays_while_a_runtime_is_to_call_it() {
    testkit::require!("root");
    let lab = Lab::new("cli-uninstall-called");
    lab.sh("mkdir -p /etc/cni/net.d /run/crun/web");
    let call = |args: &[&str]| crate::support::call_in(&lab, args);
    let there = ["--bin-dir", "/opt/cni/bin"];
    let hooks = r#"{"hooks": {"poststop": [{"path": "/opt/cni/bin/netwright"}]}}"#;
    lab.sh(&format!("echo '{hooks}' >/run/crun/web/config.json"));
    for more in [&["--force"][..], &["--keep-state", "--force"], &[]] {
        call(&[&["install"][..], &there].concat()).succeeded();
        let said = call(&[&["uninstall"][..], &there, more].concat()).succeeded();
        let left = "left: /opt/cni/bin/netwright: the runtime of web calls it as a hook";
        assert!(said.stderr.contains(left), "{more:?}: {said:#?}");
        assert_eq!(lab.sh("ls /opt/cni/bin"), "netwright\n", "{more:?}");
        lab.sh(
            "echo '{\"id\": \"web\", \"status\": \"stopped\"}' | /opt/cni/bin/netwright oci-hook",
        );
        lab.sh("rm -r /opt/cni/bin");
    }
    // The command that waits waits for that call.
    call(&[&["install"][..], &there].concat()).succeeded();
    let log = std::fs::File::create(lab.dir().join("wait.log")).unwrap();
    let mut waiting = lab.command(EXECUTABLE);
    waiting.args(["uninstall", "--wait"]).args(there).stderr(log);
    let mut waiting = waiting.spawn().unwrap();
    let said = || std::fs::read_to_string(lab.dir().join("wait.log")).unwrap();
    testkit::wait_until("it waits", || said().contains("waiting for the end of web"));
    lab.sh("test -x /opt/cni/bin/netwright && rm -r /run/crun/web");
    assert!(waiting.wait().unwrap().success(), "{}", said());
    lab.sh("test ! -e /opt/cni/bin");
}

/// Other plugins' DEL leaves a published port and the masquerade: nothing is given back while
/// containers have them, unless somebody says so and has read what stays.
#[test]
fn plugins_are_given_back_once_nothing_is_left_that_others_would_leave() {
    testkit::require!("root");
    let lab = Lab::new("cli-uninstall-package");
    lab.sh("mkdir -p /etc/cni/net.d /opt/cni/bin && echo theirs >/opt/cni/bin/bridge");
    let before = testkit::Snapshot::take(&lab);
    let call = |args: &[&str]| crate::support::call_in(&lab, args);
    let there = ["--bin-dir", "/opt/cni/bin"];
    let install = || call(&[&["install", "--linked"][..], &there].concat()).succeeded();
    let give_back =
        |more: &[&str]| call(&[&["uninstall", "--keep-state"][..], &there, more].concat());
    install();
    let c1 = lab.container("c1");
    call(&["add", "netwright", "c1", "--container-id", "web", "-p", "8080:80"]).succeeded();
    let attached = testkit::Snapshot::take(&lab);
    for more in [&[][..], &["--dry-run"]] {
        let said = give_back(more).failed(1);
        expect![[r#"
            error: containers are still attached
            cause: netwright/web/eth0
            cause: other plugins do not remove their published ports and masquerade
            hint: stop them first, or detach them by `netwright gc --all`; --force leaves them attached (for a package: NETWRIGHT_LEAVE_ATTACHED=1 in the environment)
        "#]]
        .assert_eq(&said.stderr);
        attached.assert_same(&testkit::Snapshot::take(&lab));
    }
    give_back(&["--force", "--dry-run"]).succeeded();
    attached.assert_same(&testkit::Snapshot::take(&lab));
    let said = give_back(&["--force"]).succeeded();
    let line =
        "left: netwright/web/eth0 are attached, and keep their networks; their published ports";
    assert!(said.stderr.contains(line), "{said:#?}");
    assert_eq!(lab.sh("ls -A /opt/cni/bin; cat /opt/cni/bin/bridge"), "bridge\ntheirs\n");
    testkit::traffic::assert_pings(&c1, "10.63.0.1");
    // The container ends as with other plugins, and what was printed removes the rest.
    drop(c1);
    assert!(lab.sh("nft list ruleset").contains("8080"), "it stays, as was said");
    let printed = said.stderr.split('`').nth(1).unwrap();
    assert!(printed.starts_with("/var/lib/netwright/netwright gc --all && rm "), "{printed}");
    lab.sh(printed);
    assert_eq!(lab.sh("rm /etc/cni/net.d/* 2>/dev/null; ls -A /opt/cni/bin"), "bridge\n");
    crate::support::assert_as_before(&before, &lab);

    // The other way: what is attached is detached, and nothing is left.
    install();
    let c1 = lab.container("c1");
    call(&["add", "netwright", "c1", "--container-id", "web", "-p", "8080:80"]).succeeded();
    call(&["gc", "--all"]).succeeded();
    drop(c1);
    give_back(&[]).succeeded();
    lab.sh("rm -rf /run/netwright /var/lib/netwright");
    crate::support::assert_as_before(&before, &lab);
    // There is nothing left to give back: a package may be removed that was never configured.
    give_back(&[]).succeeded();
    for what in ["--keep-state", "--wait"] {
        call(&["uninstall", what]).succeeded();
    }
}

/// A list whose plugins only we have stays in its folder, and runtimes use it.
#[test]
fn configurations_that_lose_their_plugins_are_named_before() {
    testkit::require!("root");
    let lab = Lab::new("cli-uninstall-lists");
    lab.sh("mkdir -p /etc/cni/net.d /opt/cni/bin && echo theirs >/opt/cni/bin/bridge");
    let call = |args: &[&str]| crate::support::call_in(&lab, args);
    call(&["install", "--bin-dir", "/opt/cni/bin"]).succeeded();
    lab.sh(r#"cat >/etc/cni/net.d/05-dum.conflist <<'E'
{"cniVersion": "1.0.0", "name": "dum", "plugins": [{"type": "bridge", "ipam": {"type": "cluster-ipam"}}, {"type": "policy"}]}
E"#);
    let line = r#"/etc/cni/net.d/05-dum.conflist: the network "dum" needs "cluster-ipam", "policy", which only Netwright has: runtimes will say: failed to find plugin "cluster-ipam""#;
    let uninstall =
        |more: &[&str]| call(&[&["uninstall", "--bin-dir", "/opt/cni/bin"][..], more].concat());
    for more in [&[][..], &["--wait"]] {
        let said = uninstall(more).failed(1);
        assert!(said.stderr.contains(line), "{more:?}: {said:#?}");
        lab.sh("test -x /opt/cni/bin/policy");
    }
    // A package goes, and has said it.
    let said = uninstall(&["--keep-state", "--dry-run"]).succeeded();
    assert!(said.stderr.contains(line), "{said:#?}");
    let said = uninstall(&["--force"]).succeeded();
    assert!(said.stderr.contains(line), "{said:#?}");
    assert_eq!(lab.sh("ls -A /opt/cni/bin"), "bridge\n");
    assert_eq!(lab.sh("ls -A /etc/cni/net.d"), "05-dum.conflist\n");
}

/// Runtimes use a list of a version that the plugins which come back do not speak, too.
#[test]
fn a_version_that_the_former_plugins_do_not_speak_is_named_before() {
    testkit::require!("root", "file:/usr/lib/cni/bridge");
    let lab = Lab::new("cli-uninstall-version");
    lab.sh("mkdir -p /etc/cni/net.d /opt/cni/bin && cp /usr/lib/cni/bridge /usr/lib/cni/static /opt/cni/bin/");
    let call = |args: &[&str]| crate::support::call_in(&lab, args);
    call(&["install", "--linked", "--bin-dir", "/opt/cni/bin"]).succeeded();
    let list = |version: &str| {
        lab.sh(&format!(
            r#"cat >/etc/cni/net.d/05-lan.conflist <<'E'
{{"cniVersion": "{version}", "name": "lan", "plugins": [{{"type": "bridge", "bridge": "lan0", "ipam": {{"type": "static", "addresses": [{{"address": "10.97.0.2/24"}}]}}}}]}}
E"#
        ));
    };
    list("1.1.0");
    let c1 = lab.container("c1");
    call(&["add", "lan", "c1", "--container-id", "web"]).succeeded();
    let uninstall =
        |more: &[&str]| call(&[&["uninstall", "--bin-dir", "/opt/cni/bin"][..], more].concat());
    let line = r#"/etc/cni/net.d/05-lan.conflist: the network "lan" has cniVersion 1.1.0, and "bridge", which comes back, speaks 1.0.0 at most, and no other plugin can detach what is attached: lan/web/eth0"#;
    let said = uninstall(&[]).failed(1);
    assert!(said.stderr.contains(line), "{said:#?}");
    let said = uninstall(&["--keep-state", "--force", "--dry-run"]).succeeded();
    assert!(said.stderr.contains(&format!("warning: {line}\n")), "{said:#?}");
    call(&["del", "lan", "c1", "--container-id", "web"]).succeeded();
    drop(c1);
    list("1.0.0");
    uninstall(&[]).succeeded();
}

/// Where runtimes have no folder in common, `install` fills several. What they share goes with the
/// last.
#[test]
fn several_folders_go_together_or_one_after_the_other() {
    testkit::require!("root");
    let lab = Lab::new("cli-uninstall-folders");
    lab.sh("mkdir -p /etc/cni/net.d /etc/containerd /run/cni/tuning");
    lab.sh(r#"printf 'version = 2\n[plugins."io.containerd.grpc.v1.cri".cni]\nbin_dir = "/opt/other/bin"\n' >/etc/containerd/config.toml"#);
    let before = testkit::Snapshot::take(&lab);
    let call = |args: &[&str]| crate::support::call_in(&lab, args);
    let install = || {
        for dir in ["/opt/cni/bin", "/opt/other/bin"] {
            call(&["install", "--linked", "--bin-dir", dir]).succeeded();
        }
    };
    install();
    let said = call(&["uninstall", "--dry-run"]).succeeded();
    for words in [
        "would remove: ",
        "/opt/cni if it is empty then, /opt/cni/bin if it is empty then, /opt/other if it is empty then",
        "99-netwright.conflist",
        "would leave: /run/cni/tuning: ",
    ] {
        assert!(said.stderr.contains(words), "{words}: {said:#?}");
    }
    lab.sh("test -x /opt/cni/bin/bridge && test -x /opt/other/bin/bridge");
    let said = call(&["uninstall"]).succeeded();
    assert!(said.stderr.contains("left: /run/cni/tuning: "), "{said:#?}");
    crate::support::assert_as_before(&before, &lab);

    for keep_state in [&[][..], &["--keep-state"]] {
        install();
        let one = |dir: &str| {
            call(&[&["uninstall", "--bin-dir", dir][..], keep_state].concat()).succeeded()
        };
        let said = one("/opt/cni/bin");
        let left = "left: /etc/cni/net.d/99-netwright.conflist: for the plugins in /opt/other/bin";
        assert!(said.stderr.contains(left), "{said:#?}");
        lab.sh("test -e /etc/cni/net.d/99-netwright.conflist && test ! -e /opt/cni");
        let recorded = lab.sh("cat /var/lib/netwright/installed/*");
        assert!(recorded.contains("/opt/other/bin"), "{recorded}");
        if keep_state.is_empty() {
            let left = "`netwright uninstall --bin-dir /opt/other/bin` removes it too";
            assert!(said.stderr.contains(left), "{said:#?}");
        }
        one("/opt/other/bin");
        lab.sh("rm -rf /run/netwright /var/lib/netwright");
        crate::support::assert_as_before(&before, &lab);
    }

    // The second folder was filled without a configuration: it gets that of the first.
    call(&["install", "--linked", "--bin-dir", "/opt/cni/bin"]).succeeded();
    call(&["install", "--linked", "--bin-dir", "/opt/other/bin", "--no-config"]).succeeded();
    call(&["uninstall", "--bin-dir", "/opt/cni/bin"]).succeeded();
    call(&["uninstall", "--bin-dir", "/opt/other/bin"]).succeeded();
    crate::support::assert_as_before(&before, &lab);
}

/// A container may be attached by a record that nobody can read.
#[test]
fn a_damaged_record_counts_as_a_container() {
    testkit::require!("root");
    let lab = Lab::new("cli-uninstall-damaged");
    lab.sh("mkdir -p /etc/cni/net.d");
    let call = |args: &[&str]| crate::support::call_in(&lab, args);
    call(&["install", "--linked", "--bin-dir", "/opt/cni/bin"]).succeeded();
    let file = "/run/netwright/owners/0123456789abcdef/bridge.json";
    lab.sh(&format!("mkdir -p $(dirname {file}) && echo '{{' >{file}"));
    for more in [&[][..], &["--keep-state"], &["--dry-run"]] {
        let said = call(&[&["uninstall"][..], more].concat()).failed(1);
        assert!(said.stderr.contains(&format!("cause: {file} (damaged)\n")), "{said:#?}");
        lab.sh("test -x /opt/cni/bin/bridge");
    }
    call(&["uninstall", "--force"]).succeeded();
    lab.sh("test ! -e /opt/cni && test ! -e /run/netwright");
}

/// A service that runs would restore what is removed.
#[test]
fn services_that_restore_are_named_before() {
    testkit::require!("root");
    let lab = Lab::new("cli-uninstall-services");
    lab.sh("mkdir -p /etc/cni/net.d /run/netwright/agent");
    let call = |args: &[&str]| crate::support::call_in(&lab, args);
    call(&["install", "--linked", "--bin-dir", "/opt/cni/bin"]).succeeded();
    let socket = lab.path("/run/netwright/agent/repair.sock");
    let service = std::os::unix::net::UnixListener::bind(socket).unwrap();
    let said = call(&["uninstall"]).failed(1);
    expect![[r#"
        error: netwrightd repair would restore what is removed
        hint: stop it first, as by `systemctl stop netwright.target`; --wait waits for its end, and --force goes on
    "#]]
    .assert_eq(&said.stderr);
    lab.sh("test -x /opt/cni/bin/bridge");
    drop(service);
    call(&["uninstall"]).succeeded();
}

/// The calls that change a folder.
const CHANGES: &str =
    "rename,renameat,renameat2,link,linkat,symlink,symlinkat,unlink,unlinkat,mkdir,mkdirat,rmdir";

/// How many moments of each command a run tries, with other ones in each round.
const MOMENTS: usize = 10;

/// A call of a kind, by its number: `strace` counts the calls of each kind by themselves.
type Moment = (String, usize);

/// Runs a command that is killed at a moment, or not at all. Says whether it was killed, and which
/// moments it reached.
fn killed(lab: &Lab, args: &[&str], moment: Option<&Moment>) -> (bool, Vec<Moment>) {
    let log = lab.dir().join("trace");
    let mut command = lab.command("strace");
    command.args(["-f", "-qq", "-e", &format!("trace={CHANGES}"), "-o"]).arg(&log);
    if let Some((call, number)) = moment {
        command.args(["-e", &format!("inject={call}:signal=KILL:when={number}")]);
    }
    command.arg(EXECUTABLE).args(args);
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    let ended = said(command);
    let trace = std::fs::read_to_string(&log).unwrap();
    // `PID CALL(ARGUMENTS) = RESULT`
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut reached = Vec::new();
    for (made, _) in trace.lines().filter_map(|line| line.split_once('(')) {
        let count = counts.entry(made).or_default();
        *count += 1;
        reached.push((made.split_whitespace().next_back().unwrap().to_owned(), *count));
    }
    (ended.code != 0, reached)
}

/// As with a package of rpm whose script is killed, and that is removed then: `uninstall` alone has
/// to finish what either command has begun. Other programs have a file and a link with the names of
/// plugins, and a file with the name of our executable.
#[test]
fn a_removal_finishes_what_was_killed_anywhere() {
    testkit::require!("full", "root", "ptrace", "program:strace");
    let lab = Lab::new("cli-install-killed");
    lab.sh("mkdir -p /opt/cni/bin && cd /opt/cni/bin && echo theirs >bridge && \
            echo their command >netwright && ln -s /etc/alternatives/cni-vrf vrf");
    let list = "cd /opt/cni/bin && find . -mindepth 1 -printf '%p %y %l\\n' | sort && \
                cat bridge netwright";
    let before = lab.sh(list);
    let there = ["--bin-dir", "/opt/cni/bin"];
    let install = [&["install", "--no-config"][..], &there].concat();
    let link = [&["install", "--linked", "--no-config"][..], &there].concat();
    let remove = [&["uninstall", "--keep-state"][..], &there].concat();
    let call = |args: &[&str]| crate::support::call_in(&lab, args).succeeded();
    let cases = [(false, &install), (false, &link), (true, &link), (true, &remove)];
    for (is_installed, command) in cases {
        let prepare = || {
            if is_installed {
                call(&link);
            }
        };
        prepare();
        let (failed, all) = killed(&lab, command, None);
        assert!(!failed && 50 < all.len(), "{command:?}: {all:?}");
        call(&remove);
        let mut count = 0;
        for moment in share::of_this_round(all, MOMENTS) {
            prepare();
            count += usize::from(killed(&lab, command, Some(&moment)).0);
            call(&remove);
            assert_eq!(lab.sh(list), before, "{command:?}, killed at {moment:?}");
        }
        assert!(MOMENTS / 2 < count, "{command:?} was killed {count} times");
    }
}

/// A removal that takes our state and the tables along is found to be done only at its end.
#[test]
fn a_whole_removal_finishes_what_was_killed_anywhere() {
    testkit::require!("full", "root", "ptrace", "program:strace");
    let lab = Lab::new("cli-uninstall-killed");
    lab.sh("mkdir -p /etc/cni/net.d /opt/cni/bin && echo theirs >/opt/cni/bin/bridge");
    let list = "ls -A /opt/cni/bin && cat /opt/cni/bin/bridge && nft list tables && \
                find /run/netwright /var/lib/netwright 2>/dev/null; true";
    let before = lab.sh(list);
    let there = ["--bin-dir", "/opt/cni/bin"];
    let remove = [&["uninstall"][..], &there].concat();
    let call = |args: &[&str]| crate::support::call_in(&lab, args);
    let _c1 = lab.container("c1");
    let prepare = || {
        call(&[&["install"][..], &there].concat()).succeeded();
        for verb in ["add", "del"] {
            call(&[verb, "netwright", "c1", "--container-id", "web"]).succeeded();
        }
    };
    prepare();
    let (failed, all) = killed(&lab, &remove, None);
    assert!(!failed && 50 < all.len(), "{all:?}");
    assert_eq!(lab.sh(list), before);
    let mut count = 0;
    for moment in share::of_this_round(all, MOMENTS) {
        prepare();
        count += usize::from(killed(&lab, &remove, Some(&moment)).0);
        // It fails if nothing was left but an empty folder.
        call(&remove);
        assert_eq!(lab.sh(list), before, "killed at {moment:?}");
    }
    assert!(MOMENTS / 2 < count, "it was killed {count} times");
}

/// What `netwrightd multinet` writes.
const CONFLIST: &str = r#"{"cniVersion": "1.0.0", "name": "netwright-multi", "plugins": [{"type": "netwright-multi", "clusterNetwork": "cluster"}]}"#;

#[test]
fn the_daemons_configuration_goes_only_where_pods_get_the_right_network() {
    let scratch = Scratch::new();
    let lab = Lab::new("cli-uninstall-conflist");
    scratch.write("opt/bin/host-local", "theirs");
    install(&scratch, &["--no-config"]).succeeded();
    let conflist = scratch.write("net.d/00-netwright.conflist", CONFLIST);
    let conflist = conflist.to_str().unwrap().to_owned();
    let list = |name: &str, plugin: &str| {
        format!(
            r#"{{"cniVersion": "1.0.0", "name": "{name}", "plugins": [{{"type": "{plugin}", "ipam": {{"type": "host-local"}}}}]}}"#
        )
    };
    let refused = |want: &str, more: &[&str]| {
        let before = whole(&scratch.path(""));
        for wait in [&[][..], &["--wait"]] {
            let flags = [&["--conflist", &conflist], more, wait].concat();
            let said = uninstall(&scratch, &lab, &flags).failed(1);
            assert!(scratch.plain(&said.stderr).contains(want), "{want}: {said:#?}");
        }
        assert_eq!(whole(&scratch.path("")), before);
    };
    refused(
        "there is no network in SCRATCH/net.d\nhint: put the configuration of the cluster's own",
        &[],
    );
    scratch.write("net.d/10-cluster.conflist", &list("cluster", "bridge"));
    refused("needs the plugin \"bridge\", which only Netwright has in SCRATCH/opt/bin", &[]);
    // A file that sorts before it, whatever its extension.
    scratch
        .write("net.d/05-other.conf", r#"{"cniVersion": "1.0.0", "name": "other", "type": "x"}"#);
    refused(
        "runtimes use the network \"other\" of SCRATCH/net.d/05-other.conf, and not \"cluster\"",
        &[],
    );
    refused("runtimes use the network \"other\"", &["--next-network", "third"]);
    scratch.write("net.d/00-netwright.conflist", &list("cluster", "bridge"));
    refused("00-netwright.conflist is none of netwrightd multinet", &[]);
    scratch.write("net.d/00-netwright.conflist", CONFLIST);
    refused(
        "needs the plugin \"x\", which is not in SCRATCH/opt/bin",
        &["--next-network", "other"],
    );
    scratch.write("opt/bin/x", "theirs");
    let flags = ["--conflist", &conflist, "--next-network", "other"];
    let said = uninstall(&scratch, &lab, &flags).succeeded();
    assert!(said.stderr.contains("put back: host-local\n"), "{said:#?}");
    assert_eq!(listing(&scratch.path("net.d")), ["05-other.conf", "10-cluster.conflist"]);
    // Nothing is left to do, which is a success.
    uninstall(&scratch, &lab, &[&flags[..], &["--wait"]].concat()).succeeded();
    uninstall(&scratch, &lab, &flags).failed(1);
}

/// A node whose network `netwrightd routing` made keeps it, until new pods have another. What would
/// restore the network is waited for.
#[test]
fn the_network_of_routing_goes_only_where_there_is_another() {
    testkit::require!("root", "program:socat");
    let lab = Lab::new("cli-uninstall-routing");
    let call = |args: &[&str]| crate::support::call_in(&lab, args);
    lab.sh("mkdir -p /etc/cni/net.d /opt/cni/bin && echo theirs >/opt/cni/bin/host-local");
    call(&["install", "--no-config", "--bin-dir", "/opt/cni/bin"]).succeeded();
    let write = |name: &str, network: &str, plugin: &str| {
        lab.sh(&format!(
            r#"echo '{{"cniVersion": "1.0.0", "name": "{network}", "plugins": [{{"type": "{plugin}", "ipam": {{"type": "host-local"}}}}]}}' >/etc/cni/net.d/{name}"#
        ));
    };
    write("10-pods.conflist", "pods", "ptp");
    lab.sh(&format!(
        "echo '{}' >/etc/cni/net.d/00-netwright.conflist",
        CONFLIST.replace("\"cluster\"", "\"pods\"")
    ));
    let files = ["00-netwright.conflist", "10-pods.conflist"];
    let flags = [
        "uninstall",
        "--wait",
        "--bin-dir",
        "/opt/cni/bin",
        "--conflist",
        "/etc/cni/net.d/00-netwright.conflist",
        "--routing-conflist",
        "/etc/cni/net.d/10-pods.conflist",
    ];
    let refused = |want: &str, others: &[&str]| {
        let said = call(&flags).failed(1);
        assert!(said.stderr.contains(want), "{want}: {said:#?}");
        let names = lab.sh("ls /etc/cni/net.d");
        assert_eq!(names.lines().collect::<Vec<_>>(), [&files[..], others].concat());
        lab.sh("CNI_COMMAND=VERSION /opt/cni/bin/ptp </dev/null");
    };
    refused("there is no network in /etc/cni/net.d", &[]);
    // The other half of the way off: a network whose plugins go too.
    write("20-next.conflist", "next", "bridge");
    refused("needs the plugin \"bridge\", which only Netwright has", &["20-next.conflist"]);
    write("20-next.conflist", "next", "theirs");
    refused("needs the plugin \"theirs\", which is not in", &["20-next.conflist"]);
    lab.sh("cp /bin/true /opt/cni/bin/theirs");
    lab.sh("mkdir -p /run/netwright/agent");
    let socket = "UNIX-LISTEN:/run/netwright/agent/routing.sock,fork";
    let service = lab.start("socat", &[socket, "EXEC:true"]);
    testkit::wait_until("it to listen", || lab.path("/run/netwright/agent/routing.sock").exists());
    let log = std::fs::File::create(lab.dir().join("log")).unwrap();
    let mut command = crate::support::command_in(&lab, &flags);
    let mut child = command.stdin(Stdio::null()).stderr(log).spawn().unwrap();
    let log = || std::fs::read_to_string(lab.dir().join("log")).unwrap();
    testkit::wait_until("it to wait", || log().contains("for the end of netwrightd routing\n"));
    assert_eq!(lab.sh("ls /etc/cni/net.d | wc -l").trim(), "3");
    drop(service);
    assert!(child.wait().unwrap().success(), "{}", log());
    assert_eq!(lab.sh("ls /etc/cni/net.d"), "20-next.conflist\n");
    // The container that removes may be started again.
    call(&flags).succeeded();
}

#[test]
fn what_is_attached_is_waited_for() {
    testkit::require!("root");
    let lab = Lab::new("cli-uninstall-wait");
    lab.sh("mkdir -p /etc/cni/net.d /opt/cni/bin && echo theirs | tee /opt/cni/bin/bridge >/opt/cni/bin/static");
    lab.sh(r#"cat >/etc/cni/net.d/10-cluster.conflist <<'E'
{"cniVersion": "1.0.0", "name": "cluster", "plugins": [{"type": "bridge", "bridge": "pods0", "isGateway": true, "ipMasq": true, "ipam": {"type": "static", "addresses": [{"address": "10.97.0.2/24"}]}}]}
E"#);
    let before = testkit::Snapshot::take(&lab);
    let call = |args: &[&str]| crate::support::call_in(&lab, args);
    call(&["install", "--no-config", "--bin-dir", "/opt/cni/bin"]).succeeded();
    lab.sh(&format!("cat >/etc/cni/net.d/00-netwright.conflist <<'E'\n{CONFLIST}\nE"));
    let [c1, c2] = ["c1", "c2"].map(|name| lab.container(name));
    call(&["add", "cluster", "c1", "--container-id", "web"]).succeeded();
    let flags = [
        "uninstall",
        "--wait",
        "--bin-dir",
        "/opt/cni/bin",
        "--conflist",
        "/etc/cni/net.d/00-netwright.conflist",
    ];
    let start = || {
        let log = std::fs::File::create(lab.dir().join("log")).unwrap();
        let mut command = crate::support::command_in(&lab, &flags);
        command.stdin(Stdio::null()).stderr(log).spawn().unwrap()
    };
    let log = || std::fs::read_to_string(lab.dir().join("log")).unwrap();
    let waits = || {
        testkit::wait_until("it to wait", || {
            log().contains("waiting for the end of cluster/web/eth0\n")
        });
    };
    let mut child = start();
    waits();
    // New containers get the former plugins; the old container keeps everything that its end needs.
    assert_eq!(lab.sh("cat /opt/cni/bin/bridge").trim(), "theirs");
    assert_eq!(lab.sh("ls /etc/cni/net.d").trim(), "10-cluster.conflist");
    lab.sh("test -x /opt/cni/bin/host-local && test -x /opt/cni/bin/netwright");
    // A command that was killed continues when it is started again.
    child.kill().unwrap();
    child.wait().unwrap();
    let mut child = start();
    waits();
    drop(c1);
    assert!(child.wait().unwrap().success(), "{}", log());
    assert!(!log().contains("left: /opt/cni/bin/bridge"), "{}", log());
    drop(c2);
    crate::support::assert_as_before(&before, &lab);
}

/// Another runtime attached the containers, and `CNI_PATH` names the folder where other plugins are
/// back.
#[test]
fn what_ours_recorded_goes_whichever_plugins_the_path_names() {
    testkit::require!("root");
    let lab = Lab::new("cli-uninstall-path");
    let theirs = "#!/bin/sh\ncat >/dev/null\n\
                  echo '{\"code\":1,\"msg\":\"incompatible CNI versions\"}'\nexit 1\n";
    lab.sh("mkdir -p /opt/cni/bin");
    for name in ["bridge", "host-local", "portmap"] {
        std::fs::write(lab.path(format!("/opt/cni/bin/{name}")), theirs).unwrap();
    }
    lab.sh("chmod +x /opt/cni/bin/*");
    let command = |args: &[&str]| {
        let mut command = crate::support::command_in(&lab, args);
        command.env("CNI_PATH", "/opt/cni/bin");
        command
    };
    let call = |args: &[&str]| said(command(args)).succeeded();
    let attached = || {
        call(&["install", "--no-config", "--bin-dir", "/opt/cni/bin"]);
        let c1 = lab.container("c1");
        call(&["add", "netwright", "c1", "--container-id", "web", "-p", "8080:80"]);
        lab.sh("rm -r /var/lib/cni/results");
        c1
    };
    let left = || {
        lab.sh(
            "find /var/lib/cni/networks -name '10.*'; ls -d /run/netwright /var/lib/netwright 2>/dev/null
             nft list tables; ip -br link | grep -v ^lo || true",
        )
    };
    let uninstall = ["uninstall", "--bin-dir", "/opt/cni/bin"];

    let c1 = attached();
    let log = || std::fs::read_to_string(lab.dir().join("log")).unwrap();
    let mut waiting = command(&[&uninstall[..], &["--wait"]].concat());
    waiting.stdin(Stdio::null()).stderr(std::fs::File::create(lab.dir().join("log")).unwrap());
    let mut waiting = waiting.spawn().unwrap();
    testkit::wait_until("it to wait", || {
        log().contains("waiting for the end of netwright/web/eth0")
    });
    drop(c1);
    assert!(waiting.wait().unwrap().success(), "{}", log());
    assert!(log().contains("detached: netwright/web/eth0"), "{}", log());
    assert!(!log().contains("left: netwright/web/eth0"), "{}", log());
    let empty = "left: /var/lib/cni: folders without results or reserved addresses";
    assert!(log().contains(empty), "{}", log());
    assert!(log().contains(", /var/lib/netwright\n"), "{}", log());
    assert_eq!(left(), "", "{}", log());

    let c1 = attached();
    let said = call(&[&uninstall[..], &["--keep-state", "--force"]].concat());
    let printed = said.stderr.split('`').nth(1).unwrap();
    drop(c1);
    lab.sh(&format!("export CNI_PATH=/opt/cni/bin; {printed}"));
    assert_eq!(left(), "", "{printed}");
}

#[test]
fn what_cannot_be_done_is_refused_before_anything_is_changed() {
    let scratch = Scratch::new();
    scratch.write("opt/bin/bridge", "theirs");
    std::fs::create_dir_all(scratch.path("opt/bin/tuning")).unwrap();
    let before = whole(&scratch.path(""));
    let said = install(&scratch, &[]).failed(3);
    expect![[r#"
        error: SCRATCH/opt/bin/tuning is a folder, where a plugin should be
        hint: move it away, or choose another folder with --bin-dir
    "#]]
    .assert_eq(&scratch.plain(&said.stderr));
    assert_eq!(whole(&scratch.path("")), before);

    // The path of a folder that cannot be made.
    let said = scratch.call(&["install", "--bin-dir", "/proc/nwt-none"]).failed(3);
    assert!(said.stderr.starts_with("error: /proc/nwt-none cannot be written: "), "{said:#?}");
    assert!(said.stderr.contains("\nhint: choose with --bin-dir another folder"), "{said:#?}");
}

#[test]
fn a_failure_at_the_last_step_puts_everything_back() {
    let scratch = Scratch::new();
    scratch.write("opt/bin/bridge", "theirs");
    let before = whole(&scratch.path(""));
    let mut command = scratch.command(&["install", "--bin-dir"]);
    command.arg(scratch.path("opt/bin")).env("NETCONFPATH", "/proc/nwt-none/net.d");
    let said = said(command).failed(3);
    assert!(said.stderr.contains("\ncause: everything was put back as it was\n"), "{said:#?}");
    assert_eq!(whole(&scratch.path("")), before);
}

#[test]
fn an_older_version_does_not_replace_a_newer() {
    let scratch = Scratch::new();
    install(&scratch, &["--no-config"]).succeeded();
    let path = scratch.path("opt/bin/.netwright-replaced/manifest.json");
    let manifest = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, manifest.replace("\"0.1.0\"", "\"99.0.0\"")).unwrap();
    let said = install(&scratch, &["--no-config"]).failed(1);
    assert!(said.stderr.starts_with("error: version 99.0.0 is installed in "), "{said:#?}");
    install(&scratch, &["--no-config", "--allow-downgrade"]).succeeded();
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the program is what is tested")]
fn a_package_links_to_its_own_executable() {
    let scratch = Scratch::new();
    scratch.write("opt/bin/tuning", "theirs");
    let alone = LoneExecutable::new();
    let dir = scratch.path("opt/bin");
    let args = ["install", "--no-config", "--bin-dir", dir.to_str().unwrap()];
    let target = || std::fs::read_link(dir.join("netwright")).unwrap().canonicalize().unwrap();
    let own = alone.0.path().join("netwright").canonicalize().unwrap();
    install_from(&alone, &scratch, &[&args[..], &["--linked"]].concat()).succeeded();
    assert_eq!(target(), own);
    assert!(version(&dir.join("bridge")).unwrap().status.success());
    // It also stays without the flag, as when `setup` has installed the plugins.
    install_from(&alone, &scratch, &args).succeeded();
    assert_eq!(target(), own);
    // After a failure the link is restored.
    let mut command = Command::new(&own);
    command.args(["install", "--linked", "--bin-dir"]).arg(&dir).env_clear();
    for (key, value) in scratch.command(&[]).get_envs() {
        command.env(key, value.unwrap());
    }
    command.env("NETCONFPATH", "/proc/nwt-none/net.d");
    said(command).failed(3);
    assert_eq!(target(), own);
    // An executable that does not belong to a package there is copied over the link.
    install(&scratch, &["--no-config"]).succeeded();
    assert!(std::fs::read_link(dir.join("netwright")).is_err(), "a copy");
    assert!(own.exists());
}

/// An upgrade of the package `kubernetes-cni` does this: it empties the folder, and puts its own
/// plugins there.
#[test]
fn what_another_package_took_is_told_and_put_back() {
    testkit::require!("root");
    let lab = Lab::new("cli-install-emptied");
    lab.sh("mkdir -p /etc/cni/net.d");
    let call = |args: &[&str]| crate::support::call_in(&lab, args);
    call(&["status"]).succeeded();
    let said = call(&["install", "--put-back"]).failed(1);
    assert!(said.stderr.starts_with("error: no installation is recorded\n"), "{said:#?}");
    let install = ["install", "--no-config", "--linked", "--bin-dir"];
    call(&[&install[..], &["/opt/cni/bin"]].concat()).succeeded();
    call(&[&install[..], &["/opt/cni/two", "--also", "multus"]].concat()).succeeded();
    call(&["status"]).succeeded();
    let list = "find /opt/cni -mindepth 2 -maxdepth 2 -printf '%p %y %m %l\\n' | sort";
    let before = lab.sh(list);

    lab.sh("cd /opt/cni/two && rm bridge multus portmap && echo theirs >portmap");
    lab.sh("rm -r /opt/cni/bin && mkdir /opt/cni/bin && echo theirs >/opt/cni/bin/bridge");
    let said = call(&["status"]).failed(3);
    let told = |dir: &str| said.stdout.lines().find(|line| line.contains(dir)).unwrap_or_default();
    let (first, second) = (told("plugins: /opt/cni/bin: "), told("plugins: /opt/cni/two: "));
    assert!(first.contains(" more are gone, bridge is replaced by another file"), "{said:#?}");
    assert!(second.contains(": bridge, multus are gone, portmap is replaced"), "{said:#?}");
    assert!(second.ends_with("; `netwright install --put-back` puts ours back"), "{said:#?}");
    let json = call(&["status", "-o", "json"]).failed(3).json();
    assert_eq!(json["disturbed"][0]["dir"], "/opt/cni/bin");
    assert_eq!(json["disturbed"][1]["gone"], serde_json::json!(["bridge", "multus"]));
    assert_eq!(json["disturbed"][1]["replaced"], serde_json::json!(["portmap"]));

    let said = call(&["install", "--put-back", "--bin-dir", "/opt/cni/two"]).succeeded();
    let line = "put back in /opt/cni/two: bridge, multus, portmap\n";
    assert!(said.stderr.starts_with(line), "{said:#?}");
    lab.sh("test -x /opt/cni/two/multus && ! test -e /opt/cni/bin/vlan");
    call(&["install", "--put-back"]).succeeded();
    call(&["status"]).succeeded();
    let said = call(&["install", "--put-back"]).succeeded();
    assert_eq!(said.stderr, "everything is as it was installed\n");
    assert_eq!(lab.sh(list), before);
    lab.sh("cd /opt/cni/bin/.netwright-replaced && grep theirs bridge");

    // After the plugins are given back, nothing looks for them any longer, even if there was
    // nothing to give back.
    call(&["uninstall", "--keep-state", "--bin-dir", "/opt/cni/bin"]).succeeded();
    lab.sh("rm -r /opt/cni/two/* /opt/cni/two/.netwright-replaced");
    call(&["status"]).failed(3);
    call(&["uninstall", "--bin-dir", "/opt/cni/two"]).succeeded();
    call(&["status"]).succeeded();
    lab.sh("! test -e /var/lib/netwright");
}

/// How other projects put their plugin where a name of ours is. The last three leave no executable.
const WRITES: [&str; 9] = [
    "cp -f /bin/true flannel",
    "cp --remove-destination /bin/true flannel",
    "cat /bin/true >flannel",
    "install -m 755 /bin/true flannel",
    "cp /bin/true /tmp/$$ && mv -f /tmp/$$ flannel",
    "ln -sf /bin/true flannel",
    "dd if=/bin/true of=flannel conv=notrunc status=none",
    "truncate -s 0 flannel",
    "rm flannel",
];

/// flannel's own manifest copies its plugin over whatever has that name, at each start: through a
/// link it wrote into the executable that has every plugin of the node.
#[test]
fn what_writes_over_one_name_leaves_all_others() {
    testkit::require!("root");
    let lab = Lab::new("cli-install-written");
    let call = |args: &[&str]| crate::support::call_in(&lab, args);
    let names = lab.sh(&format!("{EXECUTABLE} --list"));
    let others: Vec<&str> = names.lines().filter(|name| *name != "flannel").collect();
    let package = lab.dir().join("netwright");
    std::fs::copy(EXECUTABLE, &package).unwrap();
    let package = package.display();
    for (dir, command) in [
        ("/opt/cni/bin", format!("{EXECUTABLE} install --no-config")),
        ("/opt/cni/linked", format!("{package} install --no-config --linked")),
    ] {
        lab.sh(&format!("{command} --bin-dir {dir} 2>/dev/null"));
        let sums = format!(
            "stat -Lc '%n %s %y %i' {package} $(printf '{dir}/%s ' netwright {})",
            others.join(" ")
        );
        let before = lab.sh(&format!("cp {dir}/flannel {dir}.ours; {sums}"));
        for write in WRITES {
            lab.sh(&format!("cd {dir} && {write}"));
            assert_eq!(lab.sh(&sums), before, "{write}");
            for name in ["bridge", "portmap"] {
                lab.sh(&format!("CNI_COMMAND=VERSION {dir}/{name} </dev/null"));
            }
            let status = call(&["status"]);
            let told = status.stdout.lines().find(|line| line.contains(&format!("{dir}: ")));
            assert!(told.is_some_and(|line| line.contains("flannel is ")), "{write}: {status:#?}");
            lab.sh(&format!("cp --remove-destination {dir}.ours {dir}/flannel"));
        }
        lab.sh(&format!("cd {dir} && {}", WRITES[0]));
        lab.sh(&format!("{package} install --put-back 2>/dev/null"));
        lab.sh(&format!("CNI_COMMAND=VERSION {dir}/flannel </dev/null | grep -q 1.1.0"));
        lab.sh(&format!("cmp /bin/true {dir}/.netwright-replaced/flannel"));
    }
}

/// The service notices it, and puts back what its configuration names.
#[test]
fn repair_keeps_the_plugins_of_a_folder() {
    testkit::require!("root");
    let lab = Lab::new("cli-install-kept");
    let bin = crate::system::install(&lab);
    let netwrightd = crate::system::netwrightd().display().to_string();
    let keep = ["repair", "--netwright", EXECUTABLE, "--keep-plugins", bin];
    let _repair = lab.start(&netwrightd, &keep);
    let status = || lab.sh(&format!("{netwrightd} agent status repair 2>&1; true"));
    testkit::wait_until("the service", || status().contains("repair  ready"));
    // Long before the minute is over.
    for change in
        ["cp -f /bin/true /opt/cni/bin/flannel", "rm -r /opt/cni/bin/* /opt/cni/bin/.netw*"]
    {
        lab.sh(change);
        testkit::wait_until("the plugins", || {
            let is_ready = status().contains("repair  ready");
            crate::support::call_in(&lab, &["status"]).code == 0 && is_ready
        });
        lab.sh("CNI_COMMAND=VERSION /opt/cni/bin/flannel </dev/null");
    }
}

/// The service says which are gone, and leaves them to the administrator.
#[test]
fn the_agent_names_plugins_that_are_gone() {
    testkit::require!("root");
    let lab = Lab::new("cli-install-gone");
    crate::system::install(&lab);
    let netwrightd = crate::system::netwrightd().display().to_string();
    let _repair = lab.start(&netwrightd, &["repair", "--interval", "100ms"]);
    let status = || lab.sh(&format!("{netwrightd} agent status repair 2>&1; true"));
    testkit::wait_until("the service", || status().contains("repair  ready"));
    lab.sh("rm /opt/cni/bin/vrf");
    testkit::wait_until("the service to say so", || {
        status().contains("/opt/cni/bin: vrf is gone; ")
    });
    assert!(status().contains("netwright install --put-back"), "{}", status());
    crate::support::call_in(&lab, &["install", "--put-back"]).succeeded();
    testkit::wait_until("the service to be ready again", || status().contains("repair  ready"));
}

#[test]
fn plugins_can_be_called_at_any_moment_of_an_installation() {
    const INSTALLATIONS: usize = 10;
    let scratch = Scratch::new();
    // A foreign plugin was there before. It is not a script: the kernel opens a script's
    // interpreter a second time, by name.
    let theirs = scratch.path("opt/bin/bridge");
    std::fs::create_dir_all(scratch.path("opt/bin")).unwrap();
    let copied = call_sh(&format!("cp {EXECUTABLE} {}", theirs.display()));
    assert!(copied.success());
    let stop = AtomicBool::new(false);
    let calls = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let output = version(&theirs).expect("the plugin can be executed");
                    assert!(output.status.success(), "{output:?}");
                    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
                    assert_eq!(answer["cniVersion"], "1.1.0");
                    calls.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for _ in 0..INSTALLATIONS {
            install(&scratch, &["--no-config"]).succeeded();
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(INSTALLATIONS < calls.load(Ordering::Relaxed), "the plugin was called meanwhile");
}

/// The kernel has a script open until it has opened the executable that the script names. A reader
/// stands for a call that the kernel has interrupted in between.
#[test]
fn the_executable_stays_for_calls_that_have_begun() {
    testkit::require!("root");
    let lab = Lab::new("cli-install-begun");
    lab.sh("mkdir -p /opt/cni/bin && cp /bin/true /opt/cni/bin/bridge");
    // Names that nothing was kept of stay for attached containers, where those are waited for.
    for (way, last) in [("--keep-state", "test ! -e vrf && echo yes"), ("--wait", "echo yes")] {
        let bin = crate::system::install(&lab);
        let mut reader = lab.start("sh", &["-c", &format!("exec sleep 60 <{bin}/bridge")]);
        let open = format!("/proc/{}/fd/0", reader.child().id());
        testkit::wait_until("it to have the file", || {
            std::fs::read_link(&open).is_ok_and(|file| file.ends_with("cni/bin/bridge"))
        });
        let args = ["uninstall", "--bin-dir", bin, way];
        let mut command = crate::support::command_in(&lab, &args);
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let names = || lab.sh(&format!("cd {bin} && ls bridge netwright 2>/dev/null; true"));
        testkit::wait_until("the names to be given back", || {
            lab.sh(&format!("cd {bin} && cmp -s /bin/true bridge && {last}; true")) == "yes\n"
        });
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert_eq!(names(), "bridge\nnetwright\n", "{way}");
        drop(reader);
        assert!(child.wait().unwrap().success());
        assert_eq!(names(), "bridge\n", "{way}");
    }
}

/// A network that an older version wrote is upgraded if unchanged; one that an administrator
/// changed is left.
#[test]
fn a_network_of_an_older_version_is_brought_up_to_date() {
    let scratch = Scratch::new();
    install(&scratch, &[]).succeeded();
    let file = scratch.path("net.d/99-netwright.conflist");
    let new = std::fs::read_to_string(&file).unwrap();
    let list: serde_json::Value = serde_json::from_str(&new).unwrap();
    assert_eq!(list["cniVersion"], "1.0.0", "what containerd 1.6 and podman 4 read");
    assert_eq!(list["cniVersions"], serde_json::json!(["0.4.0", "1.0.0", "1.1.0"]));
    let old = new.replacen("1.0.0", "1.1.0", 1);
    let manifest = scratch.path("opt/bin/.netwright-replaced/manifest.json");
    let digest = |text: &str| cni::owner::sha512_hex(text, 32);
    let text = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(&manifest, text.replace(&digest(&new), &digest(&old))).unwrap();
    std::fs::write(&file, &old).unwrap();
    install(&scratch, &[]).succeeded();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), new);
    std::fs::write(&file, old + " ").unwrap();
    let said = install(&scratch, &[]).succeeded();
    assert!(said.stderr.contains("existed before and was left as it is"), "{said:#?}");
    assert!(std::fs::read_to_string(&file).unwrap().ends_with(' '));
}

/// In a chroot, tables of nftables are the host's, where another version may run.
#[test]
fn tables_are_renewed_only_where_our_state_is() {
    testkit::require!("root");
    let lab = Lab::new("cli-install-tables");
    lab.sh("nft add table inet netwright");
    let install = || {
        let args = ["install", "--no-config", "--bin-dir", "/opt/cni/bin"];
        crate::support::call_in(&lab, &args).succeeded()
    };
    let tables = || lab.sh("nft list ruleset");
    let before = tables();
    let told = |said: &CommandOutput| said.stderr.contains("have this version's rules now");
    assert!(!told(&install()));
    assert_eq!(tables(), before);
    lab.sh("mkdir /run/netwright");
    assert!(told(&install()));
    assert_ne!(tables(), before);
}

/// `uninstall` names what is not as before, and how to restore it.
#[test]
fn forwarding_that_stays_on_is_told() {
    testkit::require!("root");
    let lab = Lab::new("cli-forwarding-left");
    lab.sh("sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0");
    let call = |args: &[&str]| crate::support::call_in(&lab, args);
    let told = |text: &str| {
        ["net.ipv4.ip_forward=0", "net.ipv6.conf.all.forwarding=0"]
            .map(|setting| text.contains(&format!("sysctl -w {setting}")))
    };
    call(&["install", "--bin-dir", "/opt/cni/bin"]).succeeded();
    let c1 = lab.container("c1");
    call(&["add", "netwright", "c1"]).succeeded();
    lab.sh("ip link add up0 type veth peer name up1 && sysctl -qw net.ipv6.conf.up0.accept_ra=2");
    let said = call(&["gc", "--all"]).succeeded();
    assert_eq!(told(&said.stderr), [true; 2], "{said:#?}");
    assert!(said.stderr.contains("=0 net.ipv6.conf.up0.accept_ra=1"), "{said:#?}");
    drop(c1);
    // A second call gives the same answer again; it does not mention what is off by now.
    lab.sh("sysctl -qw net.ipv6.conf.all.forwarding=0");
    let said = call(&["gc", "--all"]).succeeded();
    assert_eq!(told(&said.stderr), [true, false], "{said:#?}");
    // `uninstall` says it too when it finds nothing to remove: plugins run without an installation.
    let said = call(&["uninstall", "--bin-dir", "/opt/other"]).failed(1);
    assert_eq!(told(&said.stderr), [true, false], "{said:#?}");
    let said = call(&["uninstall", "--bin-dir", "/opt/cni/bin"]).succeeded();
    assert_eq!(told(&said.both()), [true, false], "{said:#?}");
    lab.sh("test ! -e /run/netwright");
    let said = call(&["uninstall"]).failed(1);
    assert_eq!(told(&said.stderr), [false; 2], "{said:#?}");
}
