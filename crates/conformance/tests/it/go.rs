//! The reference's plugins, as Debian packages them.

use std::path::Path;

use crate::support::{compare, failures, run, suite, told};

/// What they fail is in `go.txt`, each with the reason: a bug or a gap of theirs that was looked at.
#[test]
fn the_references_plugins_fail_what_is_known() {
    testkit::require!("root", "file:/usr/lib/cni/bridge", "full");
    let report = run(&suite(Path::new("/usr/lib/cni")));
    compare("go.txt", &failures(&report), &told(&report));
}
