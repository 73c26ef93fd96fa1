//! Executables that other users can change.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

use netwright_cni_invoke::{Exec, Executor as _, InvokeError, Reason, Request, distrust};

use crate::script;

#[test]
fn what_others_can_change_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let bin = dir.path().join("bin");
    fs::create_dir(&bin).unwrap();
    fs::set_permissions(&bin, Permissions::from_mode(0o755)).unwrap();
    let plugin = script(&bin, "bridge", "");
    let link = dir.path().join("link");
    symlink(&plugin, &link).unwrap();
    let reasons =
        |path| distrust(path).into_iter().map(|one| (one.path, one.reason)).collect::<Vec<_>>();
    assert_eq!(reasons(&plugin), []);
    assert_eq!(reasons(&link), []);
    for mode in [0o775, 0o757, 0o777] {
        fs::set_permissions(&plugin, Permissions::from_mode(mode)).unwrap();
        assert_eq!(reasons(&link), [(plugin.clone(), Reason::Mode(mode))]);
    }
    fs::set_permissions(&plugin, Permissions::from_mode(0o755)).unwrap();
    // Other users can replace files in this folder; with the sticky bit they cannot.
    fs::set_permissions(&bin, Permissions::from_mode(0o777)).unwrap();
    assert_eq!(reasons(&plugin), [(bin.clone(), Reason::Mode(0o777))]);
    assert!(
        distrust(&plugin)[0].to_string().ends_with("/bin can be written by others (mode 0777)")
    );
    fs::set_permissions(&bin, Permissions::from_mode(0o1777)).unwrap();
    assert_eq!(reasons(&plugin), []);
    if rustix::process::geteuid().is_root() {
        chown(&plugin, Some(65534), None).unwrap();
        assert_eq!(reasons(&link), [(plugin.clone(), Reason::Owner(65534))]);
    }
    assert_eq!(reasons(&dir.path().join("missing")), []);
}

#[test]
fn they_are_not_run_where_the_administrator_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let plugin = script(dir.path(), "bridge", "echo {}");
    fs::set_permissions(&plugin, Permissions::from_mode(0o777)).unwrap();
    let setting = dir.path().join("require-trusted-plugins");
    let exec = Exec::new([]).refusing_untrusted_if(&setting);
    let call = || exec.call(&plugin, &Request::default(), None);
    call().unwrap();
    fs::write(&setting, "").unwrap();
    match call() {
        Err(error @ InvokeError::Untrusted { .. }) => {
            let text = error.to_cni().to_string();
            assert!(text.contains("is not run: ") && text.contains("written by others"), "{text}");
        }
        other => panic!("{other:?}"),
    }
    fs::set_permissions(&plugin, Permissions::from_mode(0o755)).unwrap();
    call().unwrap();
}
