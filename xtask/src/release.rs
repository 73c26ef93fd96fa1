//! `cargo xtask release`: all artefacts of a version, in `target/release-VERSION`.
//!
//! This module builds the executables. The package `netwright-release`, which needs other projects'
//! crates, makes the artefacts of them. A release is made from a clean tag, by Rust's own target
//! for musl, for both architectures, and signed. A draft needs none of these: what it lacks is
//! printed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::ci::{Extent, ONLY_FULL, Report};
use crate::executable::{NETWRIGHT, SHIPPED};
use crate::musl::{LinkSettings, Way};
use crate::run::{Program, exists, quiet, root, shown, target_dir};
use crate::{arm64, remap, suite};

/// How long it may take to build the package, and to compress everything.
const DEADLINE: Duration = Duration::from_secs(1800);

/// One of so many full runs builds a second time: on one processor it is the longest step by far.
const AGAIN_ROUNDS: u64 = 4;

/// How long the second build may take: it has one processor, beside the virtual machine.
const AGAIN_DEADLINE: Duration = Duration::from_secs(5400);

/// The step's name in the list of skipped steps.
const AGAIN: &str = "release::again";

/// Clones the first folder into the second, and has the clone verify the third. Everything is
/// otherwise than in the first build: the checkout's folder, cargo's two folders, the user if the
/// kernel allows that, the user's folder, the umask, the language, the time zone, and the number of
/// processors.
const ELSEWHERE: &str = r#"
set -e
umask 077
mkdir -p "$2/cargo"
mount --bind "${CARGO_HOME:-$HOME/.cargo}" "$2/cargo"
git clone --quiet --no-hardlinks "$1" "$2/checkout"
cd "$2/checkout"
processor=$(taskset --cpu-list --pid $$ | sed 's/.*: //; s/[-,].*//')
user='unshare --user --map-user=65534 --map-group=65534'
$user true || { user=; echo 'the user is the same'; }
exec env -u NETWRIGHT_CHECKOUT -u NETWRIGHT_TARGET -u CARGO_MANIFEST_DIR \
    RUSTUP_HOME="${RUSTUP_HOME:-$HOME/.rustup}" CARGO_HOME="$2/cargo" CARGO_TARGET_DIR="$2/built" \
    HOME="$2" USER=somebody LOGNAME=somebody LC_ALL=C TZ=Asia/Tokyo SOURCE_DATE_EPOCH=1 \
    $user taskset --cpu-list "$processor" cargo xtask release --verify "$3"
"#;

/// How long signing may take: a key with a passphrase would wait for a person.
const SIGNER_DEADLINE: Duration = Duration::from_secs(60);

/// The list of hashes, and its signature.
const SUMS: &str = "SHA256SUMS";
const SIGNATURE: &str = "SHA256SUMS.sig";

/// The compiler of releases.
const TOOLCHAIN: &str = include_str!("../../release/toolchain.toml");

/// The namespace of our signatures (`man 1 ssh-keygen`): a signature is not valid in another one.
const NAMESPACE: &str = "netwright-release";

/// Whether the artefacts are for publication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Release,
    Draft,
}

/// `cargo xtask release --sign KEY`, `--draft`, `--twice`, or `--verify FOLDER`.
pub(crate) fn command(arguments: &[&str]) -> Result<(), String> {
    match arguments {
        ["--sign", key] => {
            if !Path::new(key).is_file() {
                return Err(format!("the signer's key {key} is not here"));
            }
            try_signer(key)?;
            let into = make(Kind::Release, &named("release")?)?;
            sign(key, &into)?;
            println!("signed: {}", into.join(SIGNATURE).display());
            Ok(())
        }
        ["--draft"] => make(Kind::Draft, &named("release")?).map(drop),
        ["--twice"] => {
            make(Kind::Draft, &named("release")?)?;
            rebuilt().map(|report| println!("{}", report.note))
        }
        ["--verify", released] => verify(Path::new(released)),
        _ => Err("release --sign KEY, --draft, --twice, or --verify FOLDER".to_owned()),
    }
}

/// Makes a draft, in a full run, and compares it with its own list of hashes.
pub(crate) fn draft(extent: Extent) -> Result<Report, String> {
    if extent == Extent::EveryChange {
        return Ok(Report::skipped("release::draft", ONLY_FULL));
    }
    let into = make(Kind::Draft, &named("release")?)?;
    maker().arg("check").arg(into.display().to_string()).logged("release-check", quiet)?;
    let files = fs::read_dir(&into).map_err(|error| format!("{}: {error}", into.display()))?;
    Ok(Report::check(format!("a draft of {} files", files.count())))
}

/// [`rebuilt`], in one of [`AGAIN_ROUNDS`] rounds of full runs.
pub(crate) fn again(extent: Extent) -> Result<Report, String> {
    if extent == Extent::EveryChange {
        return Ok(Report::skipped(AGAIN, ONLY_FULL));
    }
    if !suite::is_of_this_round(0, AGAIN_ROUNDS) {
        return Ok(Report::skipped(AGAIN, suite::OTHER_ROUND));
    }
    rebuilt()
}

/// Builds everything again, elsewhere, and compares it with the draft that was made.
fn rebuilt() -> Result<Report, String> {
    if !Facts::find()?.uncommitted.is_empty() {
        return Ok(Report::skipped(AGAIN, "the checkout has changes that are not committed"));
    }
    let (elsewhere, differs) = (target_dir().join("elsewhere"), target_dir().join("differs"));
    let _ = fs::remove_dir_all(&elsewhere);
    let _ = fs::remove_dir_all(&differs);
    // The clone's own programs are in process groups of theirs, so the deadline's signal does not
    // reach them. They end with the first process of their namespace.
    let line = "unshare --mount --propagation private --pid --fork --kill-child --mount-proc sh -c";
    let said = Program::new(line)
        .arg(ELSEWHERE)
        .arg("sh")
        .arg(root().display().to_string())
        .arg(elsewhere.display().to_string())
        .arg(named("release")?.display().to_string())
        .deadline(AGAIN_DEADLINE)
        .logged("release-again", quiet);
    if said.is_err() {
        // The other artefacts, if there are any, for a person to look at.
        let made = elsewhere.join("built").join(format!("verify-{}", version()?));
        if fs::rename(made, &differs).is_ok() {
            println!("the other artefacts are in {}", shown(&differs));
        }
    }
    let _ = fs::remove_dir_all(&elsewhere);
    let said = said?;
    let same = said.iter().any(|line| line == "the user is the same");
    let user = if same { "the same user" } else { "another user" };
    Ok(Report::check(format!(
        "a clone in another folder makes the same files, by {user}, on one processor"
    )))
}

/// Returns a folder for this version.
fn named(name: &str) -> Result<PathBuf, String> {
    Ok(target_dir().join(format!("{name}-{}", version()?)))
}

/// Empties a folder, and makes the artefacts in it.
fn make(kind: Kind, into: &Path) -> Result<PathBuf, String> {
    let facts = Facts::find()?;
    let mut lacks = facts.lacks();
    let linked = LinkSettings::prepare()?;
    if linked.way() == Way::Shim {
        lacks.push(format!("it is built without Rust's target for musl ({})", linked.about()));
    }
    let host = linked.triple().replace("-gnu", "-musl");
    let mut builds = vec![(host.as_str(), linked, "dist")];
    if host != arm64::TARGET {
        match LinkSettings::cross(arm64::TARGET) {
            Ok(linked) => builds.push((arm64::TARGET, linked, "dist-cross")),
            Err(why) => lacks.push(format!("there is nothing for {}: {why}", arm64::TARGET)),
        }
    }
    // This is checked before anything is built, because building takes an hour.
    if kind == Kind::Release && !lacks.is_empty() {
        return Err(format!(
            "this is no release:\n{}\n--draft makes it all the same",
            lacks.join("\n")
        ));
    }
    let mut dists = Vec::new();
    for (triple, linked, folder) in &builds {
        let dist = target_dir().join(folder);
        for shipped in &SHIPPED {
            println!(
                "building {} for {triple}; target/ci/dist.log has what cargo says",
                shipped.name
            );
            shipped.build_into(linked, &dist, quiet)?;
        }
        if *triple == host {
            SHIPPED.iter().try_for_each(|shipped| shipped.check().map(drop))?;
        } else {
            let shown = arm64::emulated(&dist.join(NETWRIGHT.name), &facts.version)?;
            println!("{triple}: {shown}");
        }
        dists.push(format!("{triple}={}", dist.display()));
    }
    println!("making archives, packages, image and hashes");
    let _ = fs::remove_dir_all(into);
    let program = maker()
        .arg("make")
        .arg(root().display().to_string())
        .arg(into.display().to_string())
        .arg(&facts.version)
        .arg(&facts.revision)
        .arg(&facts.epoch);
    let sources = remap::registries().into_iter().map(|folder| folder.display().to_string());
    let program = dists.into_iter().chain(sources).fold(program, Program::arg);
    program.logged("release", |line| !line.starts_with("warning"))?;
    let made = fs::read_dir(into).map_err(|error| format!("{}: {error}", into.display()))?;
    println!("made {} files: {}", made.count(), shown(into));
    for lack in lacks {
        println!("not a release: {lack}");
    }
    Ok(into.to_owned())
}

/// Returns the program that makes and compares artefacts.
fn maker() -> Program {
    Program::new("cargo run --quiet --release --locked --package netwright-release --")
        .deadline(DEADLINE)
}

/// Signs a text that is not a list of hashes, to find out before anything is built whether the key
/// can sign.
fn try_signer(key: &str) -> Result<(), String> {
    if !exists("ssh-keygen") {
        return Err("ssh-keygen is not installed (Debian: openssh-client)".to_owned());
    }
    let folder = target_dir().join("signer");
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    // ssh-keygen would ask before it replaces a signature.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).map_err(failed)?;
    fs::write(folder.join(SUMS), "no release\n").map_err(failed)?;
    sign(key, &folder)
}

/// Signs the list of hashes.
fn sign(key: &str, into: &Path) -> Result<(), String> {
    Program::new("ssh-keygen -Y sign -n")
        .arg(NAMESPACE)
        .arg("-f")
        .arg(key)
        .arg(into.join(SUMS).display().to_string())
        .deadline(SIGNER_DEADLINE)
        .logged("sign", quiet)?;
    Ok(())
}

/// Builds the release again, and compares it with the one that was released.
fn verify(released: &Path) -> Result<(), String> {
    let released = std::path::absolute(released).map_err(|error| error.to_string())?;
    let folder = |path: &Path| path.display().to_string();
    maker().arg("check").arg(folder(&released)).logged("release", |_| true)?;
    let own = make(Kind::Draft, &named("verify")?)?;
    // The signature is not made again: only a maintainer has the key.
    let signature = released.join(SIGNATURE);
    if signature.exists() {
        let copy = own.join(SIGNATURE);
        fs::copy(&signature, &copy).map_err(|error| format!("{}: {error}", copy.display()))?;
    }
    let compare = maker().arg("compare").arg(folder(&released)).arg(folder(&own));
    let compared = compare.logged("release", quiet);
    if compared.is_err() && exists("diffoscope") {
        // It fails if something differs; then the end of its output has been printed.
        let program = Program::new("diffoscope --text -").arg(folder(&released));
        let program = program.arg(folder(&own)).deadline(DEADLINE);
        if let Err(failed) = program.logged("diffoscope", quiet) {
            println!("{}", failed.message);
        }
    }
    compared?;
    println!("{} is what this checkout makes", released.display());
    Ok(())
}

/// The properties of a checkout that decide whether it is a version.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Facts {
    version: String,
    revision: String,
    /// The time of the commit, in seconds.
    epoch: String,
    /// The files that are not committed, according to git.
    uncommitted: String,
    /// The tags of the commit.
    tags: String,
    /// The version of the compiler.
    compiler: String,
    changelog: String,
    /// The chart's description.
    chart: String,
}

impl Facts {
    fn find() -> Result<Self, String> {
        let git = |line: &str| -> Result<String, String> {
            let said = Program::new(&format!("git {line}")).output()?;
            Ok(said.trim_end().to_owned())
        };
        let read = |path: &str| {
            let path = root().join(path);
            fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
        };
        Ok(Self {
            version: version()?,
            revision: git("rev-parse HEAD")?,
            epoch: git("log -1 --no-show-signature --format=%ct")?,
            // The user's settings of git may hide files that would be packed with the others.
            uncommitted: format!(
                "{}\n{}",
                git("status --porcelain")?,
                git("ls-files --others deploy docs")?
            )
            .trim_matches('\n')
            .to_owned(),
            tags: git("tag --points-at HEAD")?,
            compiler: Program::new("rustc --version").output()?,
            changelog: read("CHANGELOG.md")?,
            chart: read("deploy/chart/netwright/Chart.yaml")?,
        })
    }

    /// Returns the reasons why this is not a release.
    fn lacks(&self) -> Vec<String> {
        let mut lacks = Vec::new();
        if let Some(first) = self.uncommitted.lines().next() {
            lacks.push(format!("the checkout has changes that are not committed: {first}"));
        }
        let tag = format!("v{}", self.version);
        if !self.tags.lines().any(|other| other == tag) {
            let has = if self.tags.is_empty() { "none" } else { &self.tags };
            lacks.push(format!("the commit has not the tag {tag}; it has {has}"));
        }
        let channel = channel_in(TOOLCHAIN).unwrap_or_default();
        if self.compiler.split(' ').nth(1) != Some(channel) {
            let is = self.compiler.trim_end();
            lacks.push(format!("{is} is here; releases are by RUSTUP_TOOLCHAIN={channel}"));
        }
        // The second one is the image's tag.
        for key in ["version", "appVersion"] {
            let version = format!("{key}: {}", self.version);
            if !self.chart.lines().any(|line| line == version) {
                lacks.push(format!("Chart.yaml of the chart has no line \"{version}\""));
            }
        }
        let title = format!("## {}", self.version);
        match section_in(&self.changelog, &self.version) {
            None => lacks.push(format!("CHANGELOG.md has no section \"{title}\"")),
            Some(text) if text.trim().is_empty() => {
                lacks.push(format!("the section \"{title}\" of CHANGELOG.md is empty"));
            }
            Some(_) => {}
        }
        lacks
    }
}

/// Returns the text of a CHANGELOG below the title of a version; the title may have a date.
fn section_in<'c>(changelog: &'c str, version: &str) -> Option<&'c str> {
    let mut sections = changelog.split("\n## ").skip(1);
    sections.find_map(|section| {
        let (title, text) = section.split_once('\n').unwrap_or((section, ""));
        let rest = title.strip_prefix(version)?;
        (rest.is_empty() || rest.starts_with(' ')).then_some(text)
    })
}

/// Returns the version that a toolchain file names.
fn channel_in(toolchain: &str) -> Option<&str> {
    let channel = toolchain.lines().find_map(|line| line.strip_prefix("channel = \""));
    channel?.strip_suffix('"')
}

/// Returns the version of the workspace.
pub(crate) fn version() -> Result<String, String> {
    let path = root().join("Cargo.toml");
    let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    version_in(&text).ok_or_else(|| format!("{} names no version", path.display()))
}

fn version_in(manifest: &str) -> Option<String> {
    let (_, package) = manifest.split_once("\n[workspace.package]\n")?;
    let lines = package.lines().take_while(|line| !line.starts_with('['));
    let mut versions = lines.filter_map(|line| line.strip_prefix("version = \""));
    versions.next()?.strip_suffix('"').map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::{
        Facts, Program, TOOLCHAIN, channel_in, command, exists, fs, root, sign, version, version_in,
    };

    fn facts() -> Facts {
        Facts {
            version: "0.2.0".to_owned(),
            revision: "abc".to_owned(),
            epoch: "1".to_owned(),
            uncommitted: String::new(),
            tags: "v0.2.0".to_owned(),
            compiler: format!("rustc {} (abc 2026-04-14)\n", channel_in(TOOLCHAIN).unwrap()),
            changelog: "# Changelog\n\n## Unreleased\n\n## 0.2.0 (2026-12-01)\n\n- All.\n"
                .to_owned(),
            chart: "name: netwright\nversion: 0.2.0\nappVersion: 0.2.0\n".to_owned(),
        }
    }

    #[test]
    fn a_release_comes_from_a_clean_tag_with_its_notes() {
        assert_eq!(facts().lacks(), [""; 0]);
        let dirty = Facts { uncommitted: " M README.md\n?? x".to_owned(), ..facts() };
        assert_eq!(
            dirty.lacks(),
            ["the checkout has changes that are not committed:  M README.md"]
        );
        let compiler = Facts { compiler: "rustc 1.0.0 (abc)\n".to_owned(), ..facts() };
        assert!(compiler.lacks()[0].starts_with("rustc 1.0.0 (abc) is here; releases are by "));
        let other = Facts { tags: "v0.1.0".to_owned(), ..facts() };
        assert_eq!(other.lacks(), ["the commit has not the tag v0.2.0; it has v0.1.0"]);
        let chart = Facts { chart: "version: 0.2.0\nappVersion: 0.1.0\n".to_owned(), ..facts() };
        assert_eq!(chart.lacks(), ["Chart.yaml of the chart has no line \"appVersion: 0.2.0\""]);
        let empty = "# Changelog\n\n## 0.2.0 (2026-12-01)\n\n## 0.1.0\n\n- All.\n".to_owned();
        let empty = Facts { changelog: empty, ..facts() };
        assert_eq!(empty.lacks(), ["the section \"## 0.2.0\" of CHANGELOG.md is empty"]);
        let none = Facts { tags: String::new(), changelog: "## 0.2.01\n".to_owned(), ..facts() };
        assert_eq!(
            none.lacks(),
            [
                "the commit has not the tag v0.2.0; it has none",
                "CHANGELOG.md has no section \"## 0.2.0\""
            ]
        );
    }

    #[test]
    fn the_version_is_the_workspaces() {
        let manifest =
            "[workspace]\n\n[workspace.package]\nedition = \"2024\"\nversion = \"3.2.1\"\n";
        assert_eq!(version_in(manifest).as_deref(), Some("3.2.1"));
        assert!(version().unwrap().starts_with(|digit: char| digit.is_ascii_digit()));
        assert_eq!(version_in("\n[package]\nversion = \"0.1.0\"\n"), None);
    }

    /// The commands that users copy have the names of this version's files.
    #[test]
    fn pages_name_the_files_of_this_version() {
        let version = version().unwrap();
        for page in ["README.md", "docs/install.md", "docs/verify.md", "docs/from-multus.md"] {
            let text = fs::read_to_string(root().join(page)).unwrap();
            let mut named = 0;
            for before in
                ["netwright-", "netwright_", "netwright*_", "netwright:", "plugins_", ".oci.tar:"]
            {
                for (place, _) in text.match_indices(before) {
                    let rest = &text[place + before.len()..];
                    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.');
                    let number = rest[..end.unwrap_or(rest.len())].trim_end_matches('.');
                    if number.matches('.').count() == 2 {
                        assert_eq!(number, version, "{page}: {before}");
                        named += 1;
                    }
                }
            }
            assert!(0 < named, "{page} names no file");
        }
    }

    /// The commands that `docs/verify.md` gives.
    #[test]
    fn a_signed_list_is_verified_and_a_changed_one_is_not() {
        if !exists("ssh-keygen") {
            println!("SKIP a_signed_list_is_verified_and_a_changed_one_is_not: no ssh-keygen");
            return;
        }
        let folder = std::env::temp_dir().join(format!("netwright-signed-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let key = folder.join("key").display().to_string();
        let generate = Program::new("ssh-keygen -q -t ed25519 -C release -N").arg("");
        generate.arg("-f").arg(&key).output().unwrap();
        let public = fs::read_to_string(folder.join("key.pub")).unwrap();
        fs::write(folder.join("allowed_signers"), format!("netwright {public}")).unwrap();
        let verify = "cd \"$1\" && ssh-keygen -Y verify -f allowed_signers -I netwright \
                      -n netwright-release -s SHA256SUMS.sig <SHA256SUMS";
        let verify = Program::new("sh -c").arg(verify).arg("sh").arg(folder.display().to_string());

        fs::write(folder.join("SHA256SUMS"), "0  a\n").unwrap();
        sign(&key, &folder).unwrap();
        let said = verify.output().unwrap();
        assert!(said.starts_with("Good \"netwright-release\" signature for netwright "), "{said}");
        fs::write(folder.join("SHA256SUMS"), "1  a\n").unwrap();
        assert!(verify.output().is_err());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_missing_signer_is_told_before_anything_is_built() {
        let told = command(&["--sign", "/nonexistent/key"]).unwrap_err();
        assert_eq!(told, "the signer's key /nonexistent/key is not here");
        // The file is not a key.
        let manifest = root().join("Cargo.toml").display().to_string();
        assert!(command(&["--sign", &manifest]).unwrap_err().contains("ssh-keygen"));
        assert!(command(&[]).unwrap_err().starts_with("release --sign KEY"));
    }
}
