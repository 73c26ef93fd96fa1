//! Every maker of a release, at every place and in every way, makes the same bytes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use testkit::{Lab, Place as _};

const RELEASE: &str = env!("CARGO_BIN_EXE_netwright-release");
const CHECKOUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The end of an artefact's name, of each kind that there is.
const KINDS: [&str; 9] = [
    "-musl.tar.gz",
    "-debug.tar.gz",
    ".deb",
    ".rpm",
    ".oci.tar",
    ".tgz",
    ".yaml",
    ".cdx.json",
    ".md",
];

/// The targets, and their machines in an ELF file (linux include/uapi/linux/elf-em.h).
const TARGETS: [(&str, u16); 2] =
    [("x86_64-unknown-linux-musl", 62), ("aarch64-unknown-linux-musl", 183)];

/// Who makes a release, and where.
struct Maker {
    folder: PathBuf,
    user: u32,
    umask: &'static str,
    /// The time of all files.
    touched: u32,
    surroundings: &'static str,
    /// What the program is started by.
    by: &'static str,
}

impl Maker {
    /// Makes a release of the checkout's files and of the same executables, all copied.
    fn make(&self, lab: &Lab) -> PathBuf {
        fs::create_dir_all(&self.folder).unwrap();
        let (built, copy) = (built(&self.folder), copy(&self.folder));
        let Maker { folder, user, umask, touched, surroundings, by } = self;
        let folder = folder.display();
        lab.sh(&format!(
            "set -e
            umask {umask}
            {copy}
            find {folder} -exec touch --date @{touched} {{}} +
            chown -R {user}:{user} {folder}
            cd /
            exec setpriv --reuid {user} --regid {user} --clear-groups env -i {surroundings} {by} \
                {folder}/release make {folder}/checkout {folder}/out 0.1.0 abc 1795687200 {built} >/dev/null"
        ));
        self.folder.join("out")
    }
}

/// Returns the lines of a script that copy into a folder what a release is made of and by.
fn copy(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "cd {CHECKOUT}
        mkdir -p {folder}/checkout/docs
        cp -r deploy README.md LICENSE CHANGELOG.md {folder}/checkout/
        cp -r docs/man docs/completions docs/netwrightd.toml {folder}/checkout/docs/
        cp {RELEASE} {folder}/release"
    )
}

/// Writes executables for both targets into a folder; returns the words that name them.
fn built(folder: &Path) -> String {
    let mut words = Vec::new();
    for (target, machine) in TARGETS {
        let dist = folder.join(target);
        fs::create_dir(&dist).unwrap();
        for name in ["netwright", "netwrightd"] {
            let mut bytes = b"\x7fELF\x02\x01".to_vec();
            bytes.resize(18, 0);
            bytes.extend(machine.to_le_bytes());
            bytes.extend((0..50_000_u16).flat_map(u16::to_le_bytes));
            fs::write(dist.join(name), bytes).unwrap();
            fs::write(dist.join(name).with_extension("cdx.json"), r#"{"components": []}"#).unwrap();
            fs::write(dist.join(name).with_extension("debug"), "symbols").unwrap();
        }
        words.push(format!("{target}={}", dist.display()));
    }
    words.join(" ")
}

fn release(lab: &Lab, words: &[&str]) -> Output {
    lab.command(RELEASE).args(words).output().unwrap()
}

/// Returns a folder that other users reach, too.
fn open_folder() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt as _;

    let dir = tempfile::Builder::new().prefix("nwt-release-").tempdir_in("/var/tmp").unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

#[test]
fn two_makers_make_the_same_and_a_flipped_byte_is_found_in_each_kind() {
    testkit::require!("root");
    let lab = Lab::new("release-makers");
    let dir = open_folder();
    let one = Maker {
        folder: dir.path().join("one"),
        user: 0,
        umask: "022",
        touched: 1_000_000_000,
        surroundings: "HOME=/root USER=root LANG=C TZ=UTC",
        by: "",
    };
    let two = Maker {
        folder: dir.path().join("elsewhere/and/deeper"),
        user: 65_534,
        umask: "077",
        touched: 1_900_000_000,
        surroundings: "HOME=/nonexistent USER=somebody LANG=de_DE.UTF-8 TZ=Asia/Tokyo \
                       SOURCE_DATE_EPOCH=1",
        by: "taskset --cpu-list $(taskset --cpu-list --pid $$ | sed 's/.*: //; s/[-,].*//')",
    };
    let (one, two) = (one.make(&lab), two.make(&lab));
    let path = |folder: &Path| folder.to_str().unwrap().to_owned();
    let (one_path, two_path) = (path(&one), path(&two));
    let compared = release(&lab, &["compare", &one_path, &two_path]);
    let said = String::from_utf8_lossy(&compared.stdout).into_owned();
    assert_eq!((compared.status.code(), said.as_str()), (Some(0), "equal\n"));
    let sums = fs::read(one.join("SHA256SUMS")).unwrap();
    assert_eq!(sums, fs::read(two.join("SHA256SUMS")).unwrap());

    let mut names: Vec<String> = fs::read_dir(&two)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let of_kinds = KINDS.map(|kind| names.iter().find(|name| name.ends_with(kind)).unwrap());
    let is_known =
        |name: &String| name == "SHA256SUMS" || KINDS.iter().any(|kind| name.ends_with(kind));
    assert!(names.iter().all(is_known), "{names:?}");
    for name in of_kinds {
        let file = two.join(name);
        let whole = fs::read(&file).unwrap();
        let mut bytes = whole.clone();
        let place = bytes.len() / 2;
        bytes[place] ^= 1;
        fs::write(&file, bytes).unwrap();
        for words in [&["compare", &one_path, &two_path][..], &["check", &two_path]] {
            let found = release(&lab, words);
            let said = String::from_utf8_lossy(&found.stdout).into_owned();
            assert_eq!(found.status.code(), Some(1), "{name}: {said}");
            assert!(said.starts_with(&format!("netwright-release: {name}")), "{name}: {said}");
        }
        fs::write(&file, whole).unwrap();
    }
    let mut bytes = sums;
    bytes[3] ^= 1;
    fs::write(two.join("SHA256SUMS"), bytes).unwrap();
    assert_eq!(release(&lab, &["check", &two_path]).status.code(), Some(1));
}

/// Debian's own test of that: it makes a release twice, in different surroundings.
#[test]
fn reprotest_finds_no_difference() {
    testkit::require!("full", "root", "program:reprotest");
    let lab = Lab::new("release-reprotest");
    let folder = lab.dir().join("source");
    fs::create_dir(&folder).unwrap();
    let built = built(&folder).replace(&format!("{}/", folder.display()), "");
    lab.sh(&format!("set -e\n{}", copy(&folder)));
    let command = format!("./release make checkout out 0.1.0 abc 1795687200 {built}");
    let variations = "--variations=+environment,+build_path,+num_cpus,+home,+locales,+exec_path,\
                      +timezone,+umask";
    let said = lab
        .command("reprotest")
        .args(["--no-diffoscope", "--min-cpus=1", variations, "--source-root"])
        .arg(&folder)
        .arg(&command)
        .args(["out/*", "--", "null"])
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&said.stdout).into_owned();
    let errors = String::from_utf8_lossy(&said.stderr);
    assert!(said.status.success(), "{output}{errors}");
    assert!(output.contains("Reproduction successful"), "{output}{errors}");
    assert!(output.contains(" netwright-0.1.0.oci.tar\n"), "{output}");
    assert!(output.contains("No differences in ./out/*"), "{output}");
}

/// Half a release could be taken for one.
#[test]
fn a_full_disk_leaves_no_part_of_a_release() {
    testkit::require!("root");
    let lab = Lab::new("release-disk");
    let built = built(lab.dir());
    lab.sh("mkdir /run/release && mount -t tmpfs -o size=300k tmpfs /run/release");
    let mut words = vec!["make", CHECKOUT, "/run/release/out", "0.1.0", "abc", "1795687200"];
    words.extend(built.split(' '));
    let failed = release(&lab, &words);
    let said = String::from_utf8_lossy(&failed.stdout).into_owned();
    assert_eq!(failed.status.code(), Some(1), "{said}");
    // The hashes of what was written before are printed first.
    let last = said.lines().last().unwrap();
    assert!(last.starts_with("netwright-release: write /run/release/out/"), "{said}");
    assert!(said.ends_with("No space left on device (os error 28)\n"), "{said}");
    lab.sh("test ! -e /run/release/out && mount -o remount,ro /run/release");
    let failed = release(&lab, &words);
    let said = String::from_utf8_lossy(&failed.stdout).into_owned();
    assert!(said.contains("Read-only file system (os error 30)"), "{said}");
}
