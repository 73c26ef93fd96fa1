//! What the daemon prints.

use testkit::{Lab, Place as _};

#[test]
fn a_service_that_does_not_exist_is_named() {
    testkit::require!("root");
    let lab = Lab::new("daemon-unknown");
    let said = lab.try_sh(&format!("{} multnet --help", env!("CARGO_BIN_EXE_netwrightd")));
    assert_eq!(said.status.code(), Some(2));
    let text = String::from_utf8(said.stderr).unwrap();
    assert!(
        text.contains("unrecognized subcommand 'multnet'") && text.contains("'multinet'"),
        "{text}"
    );
    assert_eq!(said.stdout, b"");
}

#[test]
fn what_nobody_can_read_is_not_said() {
    testkit::require!("root");
    let lab = Lab::new("daemon-output");
    let services = ["dhcp", "collect", "docker", "ipam", "multinet", "repair", "routing"];
    let of_services = services.map(|service| format!("{service} --help"));
    for arguments in ["--version", "--help"].map(str::to_owned).iter().chain(&of_services) {
        let daemon = env!("CARGO_BIN_EXE_netwrightd");
        let succeeds =
            |to: &str| lab.try_sh(&format!("{daemon} {arguments} {to}")).status.success();
        assert!(succeeds(">/dev/null"), "{arguments}");
        for nowhere in [">/dev/full", ">&-"] {
            assert!(!succeeds(nowhere), "{arguments} {nowhere}");
        }
    }
}
