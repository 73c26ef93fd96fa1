//! Second opinions by programs of the machine, and what takes several modules.

mod beside;
mod booted;
mod debian;
mod empty;
mod faults;
mod image;
mod rpm;
mod surroundings;
mod times;
mod upgrade;

use std::path::Path;
use std::process::Command;

use super::{check, compare, make};
use crate::goods::Architecture;
use crate::goods::tests::executable;

/// Runs a program of the machine, and returns what it says.
pub(crate) fn said(program: &str, args: &[&str]) -> String {
    said_in(Path::new("/"), program, args)
}

#[expect(clippy::disallowed_methods, reason = "second opinions are programs of the machine")]
pub(crate) fn said_in(folder: &Path, program: &str, args: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(args).current_dir(folder).env("LC_ALL", "C.UTF-8");
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_release_is_made_checked_and_compared() {
    let dir = tempfile::tempdir().unwrap();
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let dist = dir.path().join("dist");
    std::fs::create_dir(&dist).unwrap();
    for name in crate::goods::PROGRAMS {
        std::fs::write(dist.join(name), executable(Architecture::X86_64)).unwrap();
        let bill = r#"{"components": []}"#;
        std::fs::write(dist.join(format!("{name}.cdx.json")), bill).unwrap();
    }
    let built = format!("x86_64-unknown-linux-musl={}", dist.display());
    let [one, other] = ["one", "other"].map(|name| dir.path().join(name));
    for into in [&one, &other] {
        make(&checkout, into, "0.1.0", "abc", "1795687200", &[&built]).unwrap();
    }
    compare(&one, &other).unwrap();
    check(&one).unwrap();
    let again = make(&checkout, &one, "0.1.0", "abc", "1795687200", &[&built]).unwrap_err();
    assert!(again.to_string().ends_with("/one has something in it"));

    let package = other.join("netwright_0.1.0-1_amd64.deb");
    let mut bytes = std::fs::read(&package).unwrap();
    let place = bytes.len() / 2;
    bytes[place] ^= 1;
    std::fs::write(&package, bytes).unwrap();
    let different = compare(&one, &other).unwrap_err().to_string();
    assert!(different.starts_with("netwright_0.1.0-1_amd64.deb: "), "{different}");
    assert_eq!(
        check(&other).unwrap_err().to_string(),
        "netwright_0.1.0-1_amd64.deb has not the hash of the list"
    );
    std::fs::remove_file(package).unwrap();
    assert_eq!(
        check(&other).unwrap_err().to_string(),
        "netwright_0.1.0-1_amd64.deb is in the list, and missing"
    );
    let wrong = make(&checkout, &dir.path().join("x"), "1", "abc", "1", &["riscv64=/x"]);
    assert_eq!(wrong.unwrap_err().to_string(), "riscv64 is not released");
}
