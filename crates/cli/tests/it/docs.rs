//! The repository's generated files equal what the program's description gives.

use std::path::{Path, PathBuf};

use crate::support::{Scratch, listing};

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

/// Compares a file with what it should be, or writes it when `UPDATE_EXPECT` is set.
#[track_caller]
fn check(path: &Path, text: &str) {
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
        return;
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        found == text,
        "{} is not what the program says; UPDATE_EXPECT=1 cargo test -p netwright writes it anew",
        path.display()
    );
}

#[test]
fn the_help_of_every_command_is_in_the_docs() {
    let scratch = Scratch::new();
    let dir = scratch.path("docs");
    scratch.call(&["man", "--markdown", dir.to_str().unwrap()]).succeeded();
    let text = std::fs::read_to_string(dir.join("cli.md")).unwrap();
    for command in ["run", "gc", "oci-hook", "uninstall"] {
        assert!(text.contains(&format!("\n## `netwright {command}`\n")), "{command}");
    }
    check(&docs().join("cli.md"), &text);
}

/// The list is in `cni-plugin`; the page is outside that crate's package.
#[test]
fn every_error_code_of_ours_has_its_line_in_the_docs() {
    let page = std::fs::read_to_string(docs().join("errors.md")).unwrap();
    let codes = docs().join("../crates/cni-plugin/src/codes.rs");
    let codes = std::fs::read_to_string(codes).unwrap();
    let codes = codes.lines().filter_map(|line| line.strip_prefix("pub const "));
    let numbers: Vec<&str> = codes.map(|line| line.split_once(" = ").unwrap().1).collect();
    assert!(numbers.contains(&"100;"), "{numbers:?}");
    for number in numbers {
        let number = number.trim_end_matches(';');
        assert!(page.contains(&format!("\n| {number} | ")), "{number} is not in docs/errors.md");
    }
}

#[test]
fn the_man_pages_are_current() {
    let scratch = Scratch::new();
    let dir = scratch.path("man");
    scratch.call(&["man", dir.to_str().unwrap()]).succeeded();
    let names = listing(&dir);
    assert!(names.contains(&"netwright.1".to_owned()), "{names:?}");
    assert!(names.contains(&"netwright-oci-hook.1".to_owned()), "{names:?}");
    for name in &names {
        check(&docs().join("man").join(name), &std::fs::read_to_string(dir.join(name)).unwrap());
    }
    // The daemon's own test compares the daemon's pages, and the test below checks the overview.
    let mut found = listing(&docs().join("man"));
    found.retain(|name| !name.starts_with("netwrightd") && name != "netwright.7");
    assert_eq!(found, names, "docs/man holds a page too many");
}

/// The overview is written by hand. The plugins, commands, files and other pages that it lists
/// exist.
#[test]
fn the_overview_of_the_manual_has_every_plugin_and_nothing_that_is_gone() {
    let page = std::fs::read_to_string(docs().join("man/netwright.7")).unwrap();
    let page = page.replace("\\-", "-");
    let section = |title: &str| {
        let (_, rest) = page.split_once(&format!("\n.SH {title}\n")).unwrap();
        rest.split("\n.SH ").next().unwrap().to_owned()
    };
    let entries = |title: &str, request: &str| -> Vec<String> {
        let (text, begin) = (format!("\n{}", section(title)), format!("\n.TP\n{request} "));
        let entries = text.split(begin.as_str()).skip(1);
        entries.map(|entry| entry.lines().next().unwrap().to_owned()).collect()
    };
    let plugins: Vec<&str> = plugins::all().iter().map(|plugin| plugin.name()).collect();
    assert_eq!(entries("PLUGINS", ".B"), plugins);
    let files = std::fs::read_to_string(docs().join("files.md")).unwrap();
    let paths = entries("FILES", ".I");
    assert!(paths.len() > 3, "{paths:?}");
    for path in paths {
        assert!(files.contains(&path), "{path} is not in docs/files.md");
    }
    let help = std::fs::read_to_string(docs().join("cli.md")).unwrap();
    for command in entries("FIRST STEPS", ".B") {
        assert!(help.contains(&format!("\n## `{command}`\n")), "{command}");
    }
    let names = listing(&docs().join("man"));
    for line in section("SEE ALSO").lines() {
        let (page, rest) = line.strip_prefix(".BR ").unwrap().split_once(" (").unwrap();
        let file = format!("{page}.{}", &rest[..1]);
        assert!(names.contains(&file), "{file}");
    }
}

#[test]
fn the_completions_are_current() {
    let scratch = Scratch::new();
    for (shell, file) in
        [("bash", "netwright.bash"), ("zsh", "_netwright"), ("fish", "netwright.fish")]
    {
        let said = scratch.call(&["completions", shell]).succeeded();
        assert!(said.stdout.contains("oci-hook"), "{shell}");
        check(&docs().join("completions").join(file), &said.stdout);
    }
}
