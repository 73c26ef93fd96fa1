//! `netwrightd config`, and how a service takes its configuration.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use serde_json::Value;
use testkit::{Lab, Place as _};

use crate::agent::node::{Node, kernel_says, until};

const DAEMON: &str = env!("CARGO_BIN_EXE_netwrightd");

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

fn run(lab: &Lab, arguments: &[&str]) -> Output {
    let mut command = lab.command(DAEMON);
    command.args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn text(octets: &[u8]) -> String {
    String::from_utf8_lossy(octets).into_owned()
}

/// Writes a configuration, and returns its path.
fn write(lab: &Lab, content: &str) -> String {
    let path = lab.dir().join("netwrightd.toml");
    fs::write(&path, content).unwrap();
    path.display().to_string()
}

#[test]
fn the_files_made_from_the_keys_are_current() {
    testkit::require!("root");
    let lab = Lab::new("config-made");
    for (command, file) in [("default", "netwrightd.toml"), ("schema", "netwrightd.schema.json")] {
        let said = text(&run(&lab, &["config", command]).stdout);
        let path = docs().join(file);
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            fs::write(&path, &said).unwrap();
        }
        let found = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == said,
            "{file} is not what the program says; UPDATE_EXPECT=1 cargo test -p netwright-daemon writes it anew"
        );
    }
}

/// Options that many commands have. The page with every command's help shows each once, unless its
/// words differ.
const SHARED: [&str; 8] = [
    "--configuration",
    "--confine",
    "--or-accepted",
    "--follow",
    "--isolate",
    "--output",
    "--socketpath",
    "--help",
];

/// The beginning of the paragraph that follows the options of each service.
const FLAGS_AND_KEYS: &str = "Each flag but ";

/// Returns a command's help with `…` in place of what an earlier command has in the same words.
fn without_repeats(help: &str, earlier: &mut BTreeSet<String>) -> String {
    let mut blocks: Vec<Vec<&str>> = Vec::new();
    for line in help.lines() {
        let is_option = line.starts_with(' ') && line.trim_start().starts_with('-');
        match blocks.last_mut() {
            Some(block) if !is_option && !line.is_empty() && !block[0].is_empty() => {
                block.push(line);
            }
            _ => blocks.push(vec![line]),
        }
    }
    let mut lines: Vec<&str> = Vec::new();
    for block in blocks {
        let words: Vec<&str> = block.iter().flat_map(|line| line.split_whitespace()).collect();
        let is_shared = |word: &&str| SHARED.iter().any(|option| word.starts_with(option));
        let text = words.join(" ");
        let key = match text.starts_with(FLAGS_AND_KEYS) {
            true => Some(FLAGS_AND_KEYS.to_owned()),
            false => words.iter().take(2).any(is_shared).then_some(text),
        };
        if key.is_none_or(|key| earlier.insert(key)) {
            lines.extend(block);
            continue;
        }
        if lines.ends_with(&["…", ""]) {
            lines.pop();
        }
        if lines.last() != Some(&"…") {
            lines.push("…");
        }
    }
    lines.join("\n")
}

/// The completions, the man pages, and the page with every command's help are up to date.
#[test]
fn the_reference_of_the_command_line_is_current() {
    testkit::require!("root");
    let lab = Lab::new("config-reference");
    let mut made: Vec<(PathBuf, String)> = Vec::new();
    for (shell, file) in
        [("bash", "netwrightd.bash"), ("zsh", "_netwrightd"), ("fish", "netwrightd.fish")]
    {
        let said = text(&run(&lab, &["completions", shell]).stdout);
        assert!(said.contains("ovsdb"), "{shell}: {said}");
        made.push((docs().join("completions").join(file), said));
    }
    let dir = lab.dir().join("man");
    let said = run(&lab, &["man", dir.to_str().unwrap()]);
    assert!(said.status.success(), "{}", text(&said.stderr));
    for path in text(&said.stdout).lines().map(PathBuf::from) {
        let name = path.file_name().unwrap();
        made.push((docs().join("man").join(name), fs::read_to_string(&path).unwrap()));
    }
    let services = ["collect", "dhcp", "docker", "ipam", "multinet", "policy", "repair", "routing"];
    let others = [
        "agent",
        "agent reload",
        "agent status",
        "config",
        "config check",
        "config from-flags",
        "config show",
        "policies",
        "policies accept",
        "policies drops",
        "policies explain",
        "policies list",
        "routes",
        "routes accept",
        "routes explain",
        "routes list",
    ];
    let mut page = String::from(
        "# The command line of netwrightd\n\n\
        Made from the program's own description; a test compares the two, and\n\
        `UPDATE_EXPECT=1 cargo test -p netwright-daemon` writes it. Options that many commands have in the\n\
        same words are shown for the first one only; `…` stands for them in the others.\n",
    );
    let mut earlier = BTreeSet::new();
    for words in [""].iter().chain(&services).chain(&others) {
        let words: Vec<&str> = words.split_whitespace().collect();
        let said = run(&lab, &[&words[..], &["--help"]].concat());
        let help = text(&said.stdout);
        let lines: Vec<&str> = help.trim_end().lines().map(str::trim_end).collect();
        let name = [&["netwrightd"], &words[..]].concat().join(" ");
        let lines = without_repeats(&lines.join("\n"), &mut earlier);
        page.push_str(&format!("\n## `{name}`\n\n```console\n# {name} --help\n{lines}\n```\n"));
    }
    made.push((docs().join("netwrightd.md"), page));
    for (path, want) in made {
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            fs::write(&path, &want).unwrap();
        }
        let found = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == want,
            "{} is not what the program says; UPDATE_EXPECT=1 cargo test -p netwright-daemon writes it anew",
            path.display()
        );
    }
}

/// For a wrong configuration `config check` and a service print the same message, with the same
/// exit code.
/// Without a name, a file that is not there sets nothing.
#[test]
fn a_named_file_that_is_not_there_is_an_error() {
    testkit::require!("root");
    let lab = Lab::new("config-named");
    let commands =
        [["config", "check"], ["config", "show"], ["agent", "status"], ["agent", "reload"]];
    for words in commands {
        let said = run(&lab, &[&words[..], &["--configuration", "/nonexistent"]].concat());
        assert_eq!(said.status.code(), Some(1), "{words:?}: {}", text(&said.stdout));
        assert_eq!(text(&said.stderr), "error: /nonexistent: there is no such file\n", "{words:?}");
    }
    assert!(run(&lab, &["config", "check"]).status.success());
}

#[test]
fn a_service_does_not_start_with_what_the_check_refuses() {
    testkit::require!("root");
    let lab = Lab::new("config-wrong");
    for (content, want) in [
        ("[collect]\ninterval = 3\nact = 1\n", "interval must be a duration"),
        ("[collect\n", "netwrightd.toml:1:"),
        ("[docker]\ntimeout = \"1h\"\n", "timeout must be from 1s to 5m"),
        ("[ipam]\nenable = true\n", "ipam has no store"),
    ] {
        let file = write(&lab, content);
        let checked = run(&lab, &["config", "check", "--configuration", &file]);
        let said = text(&checked.stderr);
        assert!(said.contains(want) && checked.stdout.is_empty(), "{said}");
        assert_eq!(checked.status.code(), Some(78), "{said}");
        let service = run(&lab, &["collect", "--once", "--grace", "0", "--configuration", &file]);
        // An error about two settings together is reported after errors about one setting.
        assert_eq!((text(&service.stderr), service.status.code()), (said.clone(), Some(78)));
        let flag = ["config", "check", "-o", "json", "--configuration", &file];
        let as_json = run(&lab, &flag);
        let told: Value = serde_json::from_slice(&as_json.stdout).unwrap();
        let problem = &told["problems"][0];
        assert_eq!((as_json.status.code(), problem["file"].as_str()), (Some(78), Some(&*file)));
        assert!(problem["line"].as_u64().is_some_and(|line| 0 < line), "{told}");
    }
    let missing = lab.dir().join("missing.toml").display().to_string();
    let said = run(&lab, &["collect", "--once", "--grace", "0", "--configuration", &missing]);
    assert!(text(&said.stderr).contains("there is no such file"), "{}", text(&said.stderr));
    assert_eq!(said.status.code(), Some(1));
}

#[test]
fn a_service_takes_the_file_and_flags_before_it() {
    testkit::require!("root");
    let lab = Lab::new("config-taken");
    let cache = lab.dir().join("cache").display().to_string();
    let file = write(
        &lab,
        &format!(
            "[log]\nformat = \"json\"\n[collect]\nact = true\ngrace = \"1h\"\ncache = [\"{cache}\"]\n"
        ),
    );
    let arguments = ["collect", "--once", "--grace", "0", "--configuration", &file];
    let said = run(&lab, &arguments);
    let lines: Vec<Value> =
        text(&said.stderr).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ready = lines.iter().find(|line| line["message"] == "ready").unwrap();
    assert_eq!((&ready["service"], &ready["level"]), (&"collect".into(), &"info".into()));
    assert_eq!((&ready["act"], &ready["grace"]), (&"true".into(), &"0ns".into()));
    assert!(ready["time"].as_str().is_some_and(|time| time.ends_with('Z')), "{ready}");
    let quiet = write(&lab, "[log]\nlevel = \"error\"\n");
    let said = run(&lab, &["collect", "--once", "--grace", "0", "--configuration", &quiet]);
    assert_eq!((text(&said.stderr), said.status.code()), (String::new(), Some(0)));
}

/// The bits of capabilities (linux/capability.h).
fn bits(names: &[&str]) -> u64 {
    let bit = |name: &&str| match *name {
        "DAC_OVERRIDE" => 1,
        "NET_BIND_SERVICE" => 10,
        "NET_BROADCAST" => 11,
        "NET_ADMIN" => 12,
        "NET_RAW" => 13,
        "SYS_PTRACE" => 19,
        "SYS_ADMIN" => 21,
        other => panic!("{other}"),
    };
    names.iter().map(|name| 1 << bit(name)).sum()
}

/// Checks the rights of services that run without systemd. The kernel shows the rights of each
/// service's process, and the process can write to its own folders and no others. `units::*` of
/// `netwright`'s tests show the same for services that systemd starts.
#[test]
fn a_confined_service_has_its_rights_and_no_more() {
    testkit::require!("root", "program:nsenter");
    let mut node = Node::new("config-confine");
    node.joins();
    node.configure(&node.all());
    let lab = &node.lab;
    for rights in agent::rights::RIGHTS {
        let name = rights.service;
        let log = lab.dir().join(format!("{name}.log"));
        let mut command = node.command(&[name, "--confine"]);
        command.stdout(Stdio::null()).stderr(fs::File::create(&log).unwrap());
        let mut child = command.spawn().unwrap();
        let pid = u64::from(child.id());
        let said = || fs::read_to_string(&log).unwrap();
        until("the service to be ready", || said().contains(" ready "));
        assert_eq!(kernel_says(pid, "Seccomp"), "2", "{name}");
        assert_eq!(kernel_says(pid, "NoNewPrivs"), "1", "{name}");
        for set in ["CapBnd", "CapPrm", "CapEff"] {
            let found = u64::from_str_radix(&kernel_says(pid, set), 16).unwrap();
            assert_eq!(found, bits(rights.capabilities), "{name} {set}: {}", said());
        }
        let user = rights.user.map_or(0, |user| user.id).to_string();
        for set in ["Uid", "Gid"] {
            assert_eq!(kernel_says(pid, set), [user.as_str(); 4].join("\t"), "{name} {set}");
        }
        let writes = |path: &str| {
            let mut touch = lab.command("nsenter");
            touch.args(["--mount", "--target", &pid.to_string(), "--setuid", &user]);
            touch.args(["--setgid", &user, "touch", path]).stderr(Stdio::null());
            touch.status().unwrap().success()
        };
        let everywhere = matches!(rights.files, agent::rights::Files::Everywhere { .. });
        for path in ["/etc/cni/net.d/written", "/opt/written", "/var/lib/written"] {
            assert_eq!(writes(path), everywhere, "{name}: {path}");
            let _ = fs::remove_file(node.path(path));
        }
        // Folders of other services, and sockets that others trust.
        for path in ["/var/lib/netwright/agent/written", "/run/netwright/written"] {
            assert!(!writes(path) || rights.user.is_none(), "{name}: {path}");
        }
        // The host does not see what a service with a /tmp of its own writes there.
        let elsewhere = lab.dir().join(format!("{name}-written"));
        writes(elsewhere.to_str().unwrap());
        assert_eq!(elsewhere.exists(), everywhere, "{name}");
        let own = match name {
            "dhcp" | "docker" | "ipam" | "policy" | "routing" => {
                format!("/var/lib/netwright/{name}/written")
            }
            _ => "/var/lib/cni/written".to_owned(),
        };
        assert!(writes(&own) && node.path(&own).exists(), "{name}: {}", said());
        // A machine may permit fewer open files than the service requests.
        let less = |line: &&str| line.contains("less confined") && !line.contains("open files");
        assert_eq!(said().lines().find(less), None, "{name}");
        let _ = child.kill();
        child.wait().unwrap();
    }
}

/// Flags with one dash work, and the warning has the configuration that `from-flags` prints.
#[test]
fn flags_with_one_dash_are_read_with_a_warning() {
    testkit::require!("root");
    let lab = Lab::new("config-dash");
    let file = write(&lab, "");
    let flags = ["collect", "-once", "-act", "-grace", "0"];
    let said = text(&run(&lab, &[&flags[..], &["--configuration", &file]].concat()).stderr);
    assert!(said.contains("warning: the next release does not read flags with one dash"), "{said}");
    let toml = text(&run(&lab, &[&["config", "from-flags", "--"], &flags[..]].concat()).stdout);
    assert_eq!(toml, "[collect]\nenable = true\nact = true\ngrace = \"0s\"\n");
    assert!(said.contains("[collect]\nact = true\ngrace = \"0s\"\n"), "{said}");
    assert!(said.contains("ready act=true grace=0ns"), "{said}");
    fs::write(lab.dir().join("netwrightd.toml"), &toml).unwrap();
    let again = text(&run(&lab, &["collect", "--once", "--configuration", &file]).stderr);
    assert!(again.contains("ready act=true grace=0ns") && !again.contains("warning"), "{again}");
    let two = run(&lab, &["config", "from-flags", "--", "colect", "-act"]);
    assert_eq!(two.status.code(), Some(2), "{}", text(&two.stderr));
}
