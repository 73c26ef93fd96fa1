//! The search.

use std::os::unix::fs::symlink;

use cni::code;
use netwright_cni_invoke::{FindError, find};

use crate::script;

#[test]
fn the_first_regular_file_wins() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = [one.path().to_owned(), two.path().to_owned()];
    script(two.path(), "a", "");
    std::fs::create_dir(one.path().join("a")).unwrap();
    assert_eq!(find("a", &path).unwrap(), two.path().join("a"), "a folder is none");
    std::fs::remove_dir(one.path().join("a")).unwrap();
    symlink("nowhere", one.path().join("a")).unwrap();
    assert_eq!(find("a", &path).unwrap(), two.path().join("a"), "a dangling link is none");
    std::fs::remove_file(one.path().join("a")).unwrap();
    symlink(two.path().join("a"), one.path().join("a")).unwrap();
    assert_eq!(find("a", &path).unwrap(), one.path().join("a"), "a link is followed");
    std::fs::write(one.path().join("b"), "").unwrap();
    assert_eq!(find("b", &path).unwrap(), one.path().join("b"), "the mode is not looked at");
}

#[test]
fn what_is_not_found_is_said_in_the_reference_librarys_words() {
    let path = ["/one".into(), "/two".into()];
    let error = find("gone", &path).unwrap_err();
    assert_eq!(error.to_string(), "failed to find plugin \"gone\" in path [/one /two]");
    assert_eq!(error.to_cni().code, code::INVALID_CONFIG);
    assert_eq!(find("a", &[]), Err(FindError::NoPath));
    assert_eq!(FindError::NoPath.to_string(), "no paths provided");
}

#[test]
fn a_type_cannot_leave_the_folders() {
    let path = ["/bin".into()];
    for (plugin_type, text) in [
        ("", "no plugin name provided"),
        ("../bin/sh", "invalid plugin name: ../bin/sh"),
        ("/bin/sh", "invalid plugin name: /bin/sh"),
        (".", "invalid plugin name: ."),
        ("..", "invalid plugin name: .."),
        ("sh\0", "invalid plugin name: sh\0"),
    ] {
        assert_eq!(find(plugin_type, &path).unwrap_err().to_string(), text);
    }
}
