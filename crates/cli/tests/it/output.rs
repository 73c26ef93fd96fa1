//! Where output goes, and in which form.

use std::io::Read;
use std::process::Stdio;

use expect_test::expect;
use serde_json::{Value, json};
use testkit::Lab;

use crate::support::{Scratch, call_in};

#[test]
fn errors_are_text_on_standard_error_or_an_object_on_standard_output() {
    let scratch = Scratch::new();
    let text = scratch.call(&["inspect", "nobody"]).failed(1);
    assert_eq!(text.stdout, "");
    expect![[r#"
        error: "nobody" is neither a network nor a container that is attached to one
        cause: no net configuration with name "nobody" in SCRATCH/net.d
        hint: `netwright list` shows what is attached, `netwright status` the networks
    "#]]
    .assert_eq(&scratch.plain(&text.stderr));

    let json = scratch.call(&["--output", "json", "inspect", "nobody"]).failed(1);
    assert_eq!(json.stderr, "");
    expect![[r#"
        {
            "code": 3,
            "msg": "\"nobody\" is neither a network nor a container that is attached to one",
            "details": "no net configuration with name \"nobody\" in SCRATCH/net.d; `netwright list` shows what is attached, `netwright status` the networks"
        }
    "#]]
    .assert_eq(&scratch.plain(&json.stdout));

    let usage = scratch.call(&["inspect", "-o", "json"]).failed(2);
    assert_eq!(usage.json()["code"], 4);
}

#[test]
fn nothing_attached_is_not_an_error() {
    let scratch = Scratch::new();
    assert_eq!(scratch.call(&["list"]).succeeded().stdout, "no attachments\n");
    let json = scratch.call(&["list", "-o", "json"]).succeeded().json();
    assert_eq!(json["attachments"].as_array().map(Vec::len), Some(0));
    assert!(!scratch.path("run").exists(), "looking makes nothing");
}

#[test]
fn the_default_network_is_shown() {
    let scratch = Scratch::new();
    let json = scratch.call(&["inspect", "--default", "-o", "json"]).succeeded().json();
    assert_eq!(json["network"], "netwright");
    assert_eq!(json["config"]["plugins"][0]["ipam"]["ranges"][0][0]["subnet"], "10.63.0.0/16");
    // A file replaces the network of its name.
    scratch.write(
        "net.d/1.conflist",
        r#"{"cniVersion": "1.1.0", "name": "netwright", "plugins": [{"type": "loopback"}]}"#,
    );
    let json = scratch.call(&["inspect", "netwright", "-o", "json"]).succeeded().json();
    assert_eq!(json["config"]["plugins"][0]["type"], "loopback");
    let json = scratch.call(&["inspect", "--default", "-o", "json"]).succeeded().json();
    assert_eq!(json["config"]["plugins"][0]["type"], "bridge");
}

#[test]
fn a_reader_that_goes_away_is_not_an_error() {
    let scratch = Scratch::new();
    let mut child = scratch
        .command(&["completions", "zsh"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The script is larger than one read, and its reader closes the pipe after it.
    let mut first = [0_u8; 1];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn a_missing_network_is_told_with_what_there_is() {
    let scratch = Scratch::new();
    scratch.write(
        "net.d/10-blue.conflist",
        r#"{"cniVersion": "1.1.0", "name": "blue", "plugins": [{"type": "loopback"}]}"#,
    );
    let said = scratch.call(&["status", "blau"]).failed(1);
    expect![[r#"
        error: no net configuration with name "blau" in SCRATCH/net.d
        cause: considered: SCRATCH/net.d/10-blue.conflist: network "blue"
        hint: there are: blue, netwright
    "#]]
    .assert_eq(&scratch.plain(&said.stderr));
    let said = scratch.call(&["status", "blu"]).failed(1);
    assert!(said.stderr.contains("hint: did you mean \"blue\"?\n"), "{said:#?}");
    // The list shows the default network, whether it has a file or not.
    scratch.write(
        "net.d/99-netwright.conflist",
        r#"{"cniVersion": "1.1.0", "name": "netwright", "plugins": [{"type": "loopback"}]}"#,
    );
    let said = scratch.call(&["status", "other"]).failed(1);
    assert!(said.stderr.contains("hint: there are: blue, netwright\n"), "{said:#?}");
}

#[test]
fn a_broken_file_is_shown_with_its_place_and_stops_only_its_own_network() {
    let scratch = Scratch::new();
    scratch.write("net.d/05-green.conflist", "{\n  \"name\": \"green\",\n  \"plugins\": [}\n}\n");
    scratch.write(
        "net.d/10-blue.conflist",
        r#"{"cniVersion": "1.1.0", "name": "blue", "plugins": [{"type": "loopback"}]}"#,
    );
    scratch.call(&["status", "blue"]).succeeded();
    let said = scratch.call(&["status", "green"]).failed(1);
    expect![[r#"
        error: network "green" cannot be used: SCRATCH/net.d/05-green.conflist:3:15: error parsing configuration list: there is no JSON value
          |
        3 |   "plugins": [}
          |               ^
    "#]]
    .assert_eq(&scratch.plain(&said.stderr));
    let all = scratch.call(&["status"]).failed(1);
    assert!(all.stdout.contains("broken: "), "{all:#?}");
}

/// The cache has the ports in each runtime's spelling, containerd's in capitals. If no plugin of
/// the list has the capability, nothing is published.
#[test]
fn ports_are_shown_however_a_runtime_spells_them_and_if_a_plugin_takes_them() {
    let scratch = Scratch::new();
    let go = json!([
        { "HostPort": 8080, "ContainerPort": 80, "Protocol": "TCP", "HostIP": "" },
        { "HostPort": 53, "ContainerPort": 5353, "Protocol": "udp", "HostIP": "2001:db8::1" },
        { "HostPort": "x" },
    ]);
    let plain = json!([{ "hostPort": 81, "containerPort": 8081 }]);
    let own =
        json!({ "portMappings": [{ "hostPort": 7, "containerPort": 70, "protocol": "sctp" }] });
    let taken = json!([{ "type": "portmap", "capabilities": { "portMappings": true } }]);
    for (container, ports, plugins, shown) in [
        ("capitals", &go, taken.clone(), json!(["8080:80/tcp", "[2001:db8::1]:53:5353/udp"])),
        ("plain", &plain, taken, json!(["81:8081/tcp"])),
        ("nobody", &plain, json!([{ "type": "bridge" }]), Value::Null),
        (
            "lists-own",
            &Value::Null,
            json!([{ "type": "portmap", "runtimeConfig": own }]),
            json!(["7:70/sctp"]),
        ),
    ] {
        let list = json!({ "cniVersion": "1.1.0", "name": "blue", "plugins": plugins });
        let cached = json!({
            "kind": "cniCacheV1", "containerId": container, "ifName": "eth0", "networkName": "blue",
            "config": base64(&list.to_string()), "netns": "/run/netns/x", "cniArgs": null,
            "capabilityArgs": { "portMappings": ports },
        });
        scratch.write(&format!("cache/results/blue-{container}-eth0"), &cached.to_string());
        let said = scratch.call(&["list", "-o", "json", container]).succeeded().json();
        assert_eq!(said["attachments"][0]["ports"], shown, "{container}");
        let text = scratch.call(&["inspect", container]).succeeded().stdout;
        assert_eq!(text.contains("published: "), !shown.is_null(), "{text}");
    }
}

/// Go writes bytes into JSON in this way (RFC 4648 §4). A record on the disk is a JSON document;
/// the command prints a line for each value.
#[test]
fn a_record_is_shown_a_line_a_value() {
    testkit::require!("root");
    let lab = Lab::new("cli-output-record");
    let _c1 = lab.container("c1");
    call_in(&lab, &["add", "netwright", "c1"]).succeeded();
    let text = call_in(&lab, &["inspect", "c1"]).succeeded().stdout;
    assert!(!text.contains('{'), "{text}");
    let json = call_in(&lab, &["inspect", "c1", "-o", "json"]).succeeded().json();
    let records = json["attachments"][0]["records"].as_object().unwrap();
    let values = records.values().flat_map(|record| record.as_object().unwrap());
    let words: Vec<_> =
        values.filter_map(|(key, value)| Some(format!("  {key}: {}\n", value.as_str()?))).collect();
    assert!(!words.is_empty(), "{json}");
    for line in words {
        assert!(text.contains(&line), "{line}{text}");
    }
}

fn base64(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let of_three = |three: &[u8]| {
        let bits = (0..3).fold(0_usize, |bits, at| {
            bits << 8 | usize::from(three.get(at).copied().unwrap_or_default())
        });
        let digit = |at: usize| match at <= three.len() {
            true => char::from(DIGITS[bits >> (18 - 6 * at) & 63]),
            false => '=',
        };
        [digit(0), digit(1), digit(2), digit(3)]
    };
    text.as_bytes().chunks(3).flat_map(of_three).collect()
}

/// Whether a terminal would obey a part of the text, or show its letters in another order.
fn obeyed(text: &str) -> bool {
    let bidi = |c| matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().any(|c| (c.is_control() && c != '\n') || bidi(c))
}

/// Any user may write control characters into a file, a name or a label. None reaches a terminal:
/// neither a title, a colour, a foreign line, nor letters in another order.
#[test]
fn no_terminal_obeys_what_others_wrote() {
    const NASTY: &str = "\u{1b}]0;owned\u{7}\u{9b}31m\u{202e}\nerror: forged\r\u{7f}";
    let scratch = Scratch::new();
    let netns = scratch.write("ns/gone", "");
    let netns = format!("{}{NASTY}", netns.display());
    // {"cniVersion":"1.1.0","name":"blue","plugins":[{"type":"loopback"}]}
    let config = "eyJjbmlWZXJzaW9uIjoiMS4xLjAiLCJuYW1lIjoiYmx1ZSIsInBsdWdpbnMiOlt7InR5cGUiOiJsb29wYmFjayJ9XX0=";
    let cached = json!({
        "kind": "cniCacheV1", "containerId": "c1", "ifName": "eth0", "networkName": "blue",
        "config": config, "netns": netns, "cniArgs": null, "capabilityArgs": {
            "portMappings": [{ "hostPort": 80, "containerPort": 80, "protocol": NASTY }],
        },
        "result": {
            "cniVersion": "1.1.0",
            "interfaces": [{ "name": "eth0", "mac": NASTY, "sandbox": netns }],
            "ips": [{ "address": "192.0.2.9/24", "interface": 0 }],
            "dns": { "nameservers": [NASTY] },
        },
    });
    scratch.write("cache/results/blue-c1-eth0", &cached.to_string());
    scratch.write(&format!("cache/results/{NASTY}"), "{");
    scratch.write(&format!("run/owners/x/{NASTY}.json"), "{");
    let named = |name: &str| json!({ "cniVersion": "1.1.0", "name": name, "plugins": [{ "type": NASTY, NASTY: 1 }] });
    scratch.write("net.d/1.conflist", &named("red").to_string());
    scratch.write("net.d/2.conflist", &named(NASTY).to_string());
    scratch.write(&format!("net.d/3{NASTY}.conflist"), &named("red").to_string());
    scratch.write(&format!("net.d/4{NASTY}.conf"), "{");
    let nasty = NASTY.to_owned();
    let lint = scratch.path(&format!("net.d/3{NASTY}.conflist"));
    for args in [
        &["list"][..],
        &["inspect", "c1"],
        &["inspect", "red"],
        &["inspect", &nasty],
        &["status"],
        &["status", &nasty],
        &["lint"],
        &["lint", lint.to_str().unwrap()],
        &["gc", "--dry-run"],
        &["repair", "--dry-run"],
        &["add", "red", "c1"],
        &["check", "blue", "c1"],
        &["del", "red", &nasty],
    ] {
        let said = scratch.call(args);
        assert!(!obeyed(&said.stdout) && !obeyed(&said.stderr), "{args:?}: {said:?}");
        let forged = |text: &str| text.lines().any(|line| line.starts_with("error: forged"));
        assert!(!forged(&said.stdout) && !forged(&said.stderr), "{args:?}: {said:?}");
    }
    let listed = scratch.call(&["list"]).succeeded().stdout;
    assert!(
        listed.contains(r"\u{1b}]0;owned\u{7}\u{9b}31m\u{202e}\nerror: forged\r\u{7f}"),
        "{listed}"
    );
    // JSON output has the exact name.
    let json = scratch.call(&["list", "-o", "json"]).succeeded().json();
    assert_eq!(json["attachments"][0]["netns"], netns.as_str());
}
