//! The driver, or the plugin, dies in every call of an attachment's life; in the matrix the plugin
//! dies at every step.

use serde_json::json;
use testkit::Place;
use testkit::driver::Driver;

use super::{cnm, warm};
use crate::support::kill::traced;

const OF_ADD: [&str; 9] = [
    "Plugin.Activate",
    "NetworkDriver.GetCapabilities",
    "IpamDriver.GetDefaultAddressSpaces",
    "IpamDriver.RequestPool",
    "IpamDriver.RequestAddress",
    "NetworkDriver.CreateNetwork",
    "NetworkDriver.CreateEndpoint",
    "NetworkDriver.Join",
    "NetworkDriver.ProgramExternalConnectivity",
];

const OF_DEL: [&str; 6] = [
    "NetworkDriver.RevokeExternalConnectivity",
    "NetworkDriver.Leave",
    "NetworkDriver.DeleteEndpoint",
    "IpamDriver.ReleaseAddress",
    "NetworkDriver.DeleteNetwork",
    "IpamDriver.ReleasePool",
];

#[test]
fn a_driver_that_dies_in_an_add_is_asked_to_undo_it() {
    testkit::require!("root", "program:python3");
    let node = warm("cnm-dies-add");
    let mut driver = Driver::start(&node.lab, "weft");
    for method in OF_ADD {
        for when in ["before", "after"] {
            let what = format!("died {when} {method}");
            leaves_nothing_but(&node, &mut driver, &what, |node, driver| {
                let c1 = node.container("c1");
                driver.misbehave(json!({ method: { "die": when } }));
                let error = cnm(node, "ADD", &c1).call().error();
                assert!([109, 111].contains(&error.code), "{what}: {error:?}");
                driver.misbehave(json!({}));
                driver.again();
                cnm(node, "DEL", &c1).call().silent();
            });
        }
    }
}

#[test]
fn a_driver_that_dies_in_a_del_is_asked_again() {
    testkit::require!("root", "program:python3");
    let node = warm("cnm-dies-del");
    let mut driver = Driver::start(&node.lab, "weft");
    for method in OF_DEL {
        for when in ["before", "after"] {
            let what = format!("died {when} {method}");
            leaves_nothing_but(&node, &mut driver, &what, |node, driver| {
                let c1 = node.container("c1");
                cnm(node, "ADD", &c1).call().ok();
                driver.misbehave(json!({ method: { "die": when } }));
                let answer = cnm(node, "DEL", &c1).call();
                assert!(!answer.succeeded(), "{what}: {answer:?}");
                driver.misbehave(json!({}));
                driver.again();
                cnm(node, "DEL", &c1).call().silent();
            });
        }
    }
}

#[track_caller]
fn leaves_nothing_but(
    node: &super::Node,
    driver: &mut Driver<'_>,
    what: &str,
    work: impl FnOnce(&super::Node, &mut Driver<'_>),
) {
    // The harness prints this when something fails.
    eprintln!("{what}");
    let before = super::look(node);
    work(node, driver);
    driver.assert_empty();
    super::assert_settles(&before, node);
}

/// Nothing changes if the driver's process is stopped and started between the calls of one
/// attachment.
#[test]
fn a_driver_may_be_started_again_at_any_time() {
    testkit::require!("root", "program:python3");
    let node = warm("cnm-again");
    let mut driver = Driver::start(&node.lab, "weft");
    let c1 = node.container("c1");
    let result = cnm(&node, "ADD", &c1).call().ok();
    driver.again();
    cnm(&node, "CHECK", &c1).prev(&result).call().silent();
    driver.again();
    cnm(&node, "DEL", &c1).call().silent();
    driver.assert_empty();
}

/// The driver does its work, and the plugin dies before it has the answer. An address that an IPAM
/// driver chose at that moment is released with its pool.
#[test]
fn a_plugin_that_dies_in_a_call_is_undone_by_one_del() {
    testkit::require!("root", "program:python3", "program:strace");
    let node = warm("cnm-plugin-dies");
    let mut driver = Driver::start(&node.lab, "weft");
    for (verb, methods) in [("ADD", &OF_ADD[..]), ("DEL", &OF_DEL[..])] {
        for method in methods {
            let what = format!("the plugin died in {method} of {verb}");
            leaves_nothing_but(&node, &mut driver, &what, |node, driver| {
                let c1 = node.container("c1");
                if verb == "DEL" {
                    cnm(node, "ADD", &c1).call().ok();
                }
                driver.misbehave(json!({ *method: { "kill": true } }));
                let (status, trace) = traced(node, cnm(node, verb, &c1), &[]);
                assert!(!status.success(), "{what}: {status}\n{trace}");
                driver.misbehave(json!({}));
                cnm(node, "DEL", &c1).call().silent();
                assert_eq!(c1.sh("ip -o link show | grep -v ' lo:' || true"), "");
            });
        }
    }
}
