//! The reference's plugins, as Debian packages them.

use std::path::Path;
use std::time::Duration;

use crate::support::{compare, compare_asked, failures, run, suite, summary};

/// Cases that fail once in many runs, with simultaneous calls. The reference's `firewall` looks for
/// its chain and then makes it, so the second of two calls finds that it exists. Why `portmap`
/// fails was not examined.
const BY_CHANCE: [&str; 2] = ["firewall/add-many-at-once", "portmap/add-many-at-once"];

/// Their failures are in `go.txt`, each with the reason: a bug or a gap of theirs that was
/// examined.
#[test]
fn the_references_plugins_fail_what_is_known() {
    testkit::require!("root", "file:/usr/lib/cni/bridge", "round:2/3");
    // A call may take a minute, although it takes half a second: the failures must not depend on
    // the machine's load.
    let mut report = run(&suite(Path::new("/usr/lib/cni")).call_timeout(Duration::from_secs(60)));
    for plugin in &mut report.plugins {
        let name = &plugin.plugin;
        plugin.cases.retain(|case| !BY_CHANCE.contains(&format!("{name}/{}", case.id).as_str()));
    }
    compare("go.txt", &failures(&report), &summary(&report));
    compare_asked("go", &report);
}
