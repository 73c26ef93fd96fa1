//! Where text goes, and in which form.

use std::io::Read;
use std::process::Stdio;

use expect_test::expect;

use crate::support::Scratch;

#[test]
fn errors_are_text_on_standard_error_or_an_object_on_standard_output() {
    let scratch = Scratch::new();
    let text = scratch.call(&["inspect", "nobody"]).failed(1);
    assert_eq!(text.stdout, "");
    expect![[r#"
        error: "nobody" is neither a network nor a container that is attached to one
        cause: no net configurations found in SCRATCH/net.d
        hint: `netwright list` shows what is attached, `netwright status` the networks
    "#]]
    .assert_eq(&scratch.plain(&text.stderr));

    let json = scratch.call(&["--output", "json", "inspect", "nobody"]).failed(1);
    assert_eq!(json.stderr, "");
    expect![[r#"
        {
            "code": 3,
            "msg": "\"nobody\" is neither a network nor a container that is attached to one",
            "details": "no net configurations found in SCRATCH/net.d; `netwright list` shows what is attached, `netwright status` the networks"
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
    // A file of the name takes its place.
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
    // The script is larger than one read, and the pipe is closed after it.
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
    // The default network is one, whether it has a file or not.
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
        error: network "green" cannot be used: SCRATCH/net.d/05-green.conflist:3:15: error parsing configuration list: expected value
          |
        3 |   "plugins": [}
          |               ^
    "#]]
    .assert_eq(&scratch.plain(&said.stderr));
    let all = scratch.call(&["status"]).failed(1);
    assert!(all.stdout.contains("broken: "), "{all:#?}");
}
