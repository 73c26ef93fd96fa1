//! Packages of RPM, version 4 of the format: a pure function of a tree, of what the package says of
//! itself, and of the release's time
//! (<https://rpm-software-management.github.io/rpm/manual/format_v4.html>).
//!
//! A package is a lead that no program reads, a header of hashes, a header of everything else, and
//! an archive of `cpio`. A header is an index of tagged values, and the values.

mod read;

use std::collections::BTreeMap;

use crate::archive::{ArchiveError, gzip};
use crate::epoch::Epoch;
use crate::hash::{md5_bytes, sha256};
use crate::tree::{Content, Entry, Tree};
pub(crate) use read::read;

/// The first bytes of a package, and its kind and signature (`lead.md`).
const LEAD: [u8; 10] = [0xed, 0xab, 0xee, 0xdb, 3, 0, 0, 0, 0, 1];
const LEAD_NAME: usize = 66;
const LEAD_END: [u8; 20] = [0, 1, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// The first bytes of a header, and the length of an entry of its index (`hregions.md`).
const HEADER: [u8; 8] = [0x8e, 0xad, 0xe8, 0x01, 0, 0, 0, 0];
const INDEX: usize = 16;

/// The tag of the region that a header consists of: what no tool may change.
const SIGNATURES: u32 = 62;
const IMMUTABLE: u32 = 63;

/// A comparison in a dependency: less, equal, and that rpm itself provides it (`dependencies.md`).
const LESS: u32 = 1 << 1;
const EQUAL: u32 = 1 << 3;
const RPMLIB: u32 = 1 << 24;

/// What rpm must understand to install the package.
const FEATURES: [(&str, &str); 3] = [
    ("rpmlib(CompressedFileNames)", "3.0.4-1"),
    ("rpmlib(FileDigests)", "4.6.0-1"),
    ("rpmlib(PayloadFilesHavePrefix)", "4.0-1"),
];

/// What it must understand of a version before a release: `0.2.0~rc.1`.
const TILDE: (&str, &str) = ("rpmlib(TildeInVersions)", "4.10.0-1");

/// SHA-256's number (RFC 9580, section 9.5).
const SHA256: u32 = 8;

/// Kinds of files in a mode (`man 7 inode`).
const IS_FOLDER: u32 = 0o040_000;
const IS_FILE: u32 = 0o100_000;
const IS_LINK: u32 = 0o120_000;

/// A file that the administrator may change, one that is documentation, and a licence
/// (`rpmfileAttrs_e`).
const CONFIGURATION: u32 = 1 << 0;
const DOCUMENTATION: u32 = 1 << 1;
const LICENCE: u32 = 1 << 7;

/// A package.
#[derive(Debug, Clone)]
pub(crate) struct Package {
    pub(crate) name: &'static str,
    pub(crate) version: String,
    pub(crate) release: String,
    /// In rpm's words: `x86_64`, `aarch64`.
    pub(crate) architecture: &'static str,
    pub(crate) licence: &'static str,
    pub(crate) url: &'static str,
    pub(crate) summary: &'static str,
    pub(crate) description: &'static str,
    /// Who makes it: a name and an address.
    pub(crate) packager: &'static str,
    /// What it needs besides rpm: a name, or a name and a version that it must have.
    pub(crate) requires: Vec<(&'static str, Option<String>)>,
    pub(crate) provides: Vec<(&'static str, String)>,
    pub(crate) scripts: Vec<(Script, String)>,
    pub(crate) tree: Tree,
}

/// When a script runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Script {
    AfterInstallation,
    BeforeRemoval,
    AfterRemoval,
    /// After another package was installed, or upgraded.
    WithOther(&'static str),
    /// After another package was removed.
    WithoutOther(&'static str),
}

/// A value of a header.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Value {
    Short(Vec<u16>),
    Long(Vec<u32>),
    Text(String),
    Bytes(Vec<u8>),
    Texts(Vec<String>),
    /// A text in the only language that there is.
    Translated(String),
}

impl Value {
    fn kind(&self) -> u32 {
        match self {
            Value::Short(_) => 3,
            Value::Long(_) => 4,
            Value::Text(_) => 6,
            Value::Bytes(_) => 7,
            Value::Texts(_) => 8,
            Value::Translated(_) => 9,
        }
    }

    fn count(&self) -> usize {
        match self {
            Value::Short(all) => all.len(),
            Value::Long(all) => all.len(),
            Value::Bytes(all) => all.len(),
            Value::Texts(all) => all.len(),
            Value::Text(_) | Value::Translated(_) => 1,
        }
    }

    fn alignment(&self) -> usize {
        match self {
            Value::Short(_) => 2,
            Value::Long(_) => 4,
            _ => 1,
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let ended = |text: &String| [text.as_bytes(), b"\0"].concat();
        match self {
            Value::Short(all) => all.iter().flat_map(|number| number.to_be_bytes()).collect(),
            Value::Long(all) => all.iter().flat_map(|number| number.to_be_bytes()).collect(),
            Value::Bytes(all) => all.clone(),
            Value::Texts(all) => all.iter().flat_map(ended).collect(),
            Value::Text(text) | Value::Translated(text) => ended(text),
        }
    }
}

/// The values of a header, by their tags.
type Values = BTreeMap<u32, Value>;

/// Writes a header.
fn header(region: u32, values: &Values) -> Vec<u8> {
    let (mut index, mut store) = (Vec::new(), Vec::new());
    for (tag, value) in values {
        store.resize(store.len().next_multiple_of(value.alignment()), 0);
        let entry = [*tag, value.kind(), short(store.len()), short(value.count())];
        index.extend(entry.into_iter().flat_map(u32::to_be_bytes));
        store.extend(value.bytes());
    }
    // The region's own entry comes first, and says where its end is: an entry again, which says how
    // long the index is.
    let count = values.len() + 1;
    let first = [region, 7, short(store.len()), short(INDEX)];
    let last = [region, 7, short(count * INDEX).wrapping_neg(), short(INDEX)];
    store.extend(last.into_iter().flat_map(u32::to_be_bytes));
    let mut bytes = HEADER.to_vec();
    bytes.extend(short(count).to_be_bytes());
    bytes.extend(short(store.len()).to_be_bytes());
    bytes.extend(first.into_iter().flat_map(u32::to_be_bytes));
    bytes.extend(index);
    bytes.extend(store);
    bytes
}

/// Numbers of the format have 32 bits.
fn short(number: usize) -> u32 {
    u32::try_from(number).expect("a package is smaller than 4 GiB")
}

impl Package {
    /// Returns the package's file name, as the field's tools call it.
    pub(crate) fn file_name(&self) -> String {
        format!("{}-{}-{}.{}.rpm", self.name, self.version, self.release, self.architecture)
    }

    /// Writes the package.
    pub(crate) fn write(&self, epoch: Epoch) -> Result<Vec<u8>, ArchiveError> {
        let files: Vec<(&str, &Entry)> = self.files().collect();
        let plain = cpio(&files, epoch);
        let payload = gzip(&plain)?;
        let mut values = self.about(epoch);
        values.extend(about_files(&files, epoch));
        values.extend(scripts(&self.scripts));
        values.extend([
            (1124, Value::Text("cpio".to_owned())),
            (1125, Value::Text("gzip".to_owned())),
            (1126, Value::Text("9".to_owned())),
            (5092, Value::Texts(vec![sha256(&payload)])),
            (5093, Value::Long(vec![SHA256])),
        ]);
        let main = header(IMMUTABLE, &values);
        let both = [&main[..], &payload[..]].concat();
        let signatures = Values::from([
            (273, Value::Text(sha256(&main))),
            (1000, Value::Long(vec![short(both.len())])),
            (1004, Value::Bytes(md5_bytes(&both))),
            (1007, Value::Long(vec![short(plain.len())])),
        ]);
        let mut package = LEAD.to_vec();
        let mut name = format!("{}-{}-{}", self.name, self.version, self.release).into_bytes();
        name.resize(LEAD_NAME, 0);
        package.extend(name);
        package.extend(LEAD_END);
        package.extend(header(SIGNATURES, &signatures));
        package.resize(package.len().next_multiple_of(8), 0);
        package.extend(both);
        Ok(package)
    }

    /// Returns what the package owns: files, links, and folders that no other package owns.
    fn files(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.tree
            .entries()
            .filter(|(path, entry)| entry.content != Content::Folder || path.contains("netwright"))
    }

    /// Returns what is said of the package as a whole.
    fn about(&self, epoch: Epoch) -> Values {
        let text = |text: &str| Value::Text(text.to_owned());
        let own = (self.name, Some(format!("{}-{}", self.version, self.release)));
        let provides = self.provides.iter().map(|(name, version)| (*name, Some(version.clone())));
        let tilde = self.version.contains('~').then_some(TILDE);
        let features = FEATURES.into_iter().chain(tilde);
        let features = features.map(|(name, version)| (name, Some(version.to_owned())));
        // Sorted, as rpmbuild writes them.
        let mut provides: Vec<_> = std::iter::once(own).chain(provides).collect();
        provides.sort();
        let mut requires: Vec<_> = self.requires.iter().cloned().chain(features).collect();
        requires.sort();
        let names = |all: &[(&str, Option<String>)]| {
            Value::Texts(all.iter().map(|(name, _)| (*name).to_owned()).collect())
        };
        let versions = |all: &[(&str, Option<String>)]| {
            Value::Texts(
                all.iter().map(|(_, version)| version.clone().unwrap_or_default()).collect(),
            )
        };
        let flags = |all: &[(&str, Option<String>)]| {
            let flag = |(name, version): &(&str, Option<String>)| match version {
                Some(_) if name.starts_with("rpmlib(") => RPMLIB | LESS | EQUAL,
                Some(_) => EQUAL,
                None => 0,
            };
            Value::Long(all.iter().map(flag).collect())
        };
        let seconds = u32::try_from(epoch.seconds()).unwrap_or(u32::MAX);
        let size = self.tree.files().map(|(_, bytes)| bytes.len()).sum();
        let changed_by = format!("{} - {}-{}", self.packager, self.version, self.release);
        let change = format!("- Version {}.", self.version);
        Values::from([
            (100, Value::Texts(vec!["C".to_owned()])),
            (1000, text(self.name)),
            (1001, text(&self.version)),
            (1002, text(&self.release)),
            (1004, Value::Translated(self.summary.to_owned())),
            (1005, Value::Translated(self.description.to_owned())),
            (1006, Value::Long(vec![seconds])),
            (1007, text("localhost")),
            (1009, Value::Long(vec![short(size)])),
            (1014, text(self.licence)),
            (1015, text(self.packager)),
            (1016, Value::Translated("Unspecified".to_owned())),
            (1020, text(self.url)),
            (1021, text("linux")),
            (1022, text(self.architecture)),
            // Without the name of a source package it would count as one.
            (1044, text(&format!("netwright-{}-{}.src.rpm", self.version, self.release))),
            (1047, names(&provides)),
            (1048, flags(&requires)),
            (1049, names(&requires)),
            (1050, versions(&requires)),
            (1080, Value::Long(vec![seconds])),
            (1081, Value::Texts(vec![changed_by])),
            (1082, Value::Texts(vec![change])),
            (1112, flags(&provides)),
            (1113, versions(&provides)),
            (5062, text("utf-8")),
        ])
    }
}

/// Returns what is said of files, each in lists of one value for a file.
fn about_files(files: &[(&str, &Entry)], epoch: Epoch) -> Values {
    if files.is_empty() {
        return Values::new();
    }
    let folders: Vec<String> = {
        let mut folders: Vec<String> = files.iter().map(|(path, _)| split(path).0).collect();
        folders.sort();
        folders.dedup();
        folders
    };
    let numbers = |number: &dyn Fn(&str, &Entry) -> u32| -> Value {
        Value::Long(files.iter().map(|(path, entry)| number(path, entry)).collect())
    };
    let texts = |text: &dyn Fn(&str, &Entry) -> String| -> Value {
        Value::Texts(files.iter().map(|(path, entry)| text(path, entry)).collect())
    };
    let seconds = u32::try_from(epoch.seconds()).unwrap_or(u32::MAX);
    let is_at = |path: &str| folders.binary_search(&split(path).0).map(short).unwrap_or_default();
    let modes = files.iter().map(|(_, entry)| u16::try_from(mode(entry)).unwrap_or_default());
    Values::from([
        (1028, numbers(&|_, entry| size(entry))),
        (1030, Value::Short(modes.collect())),
        (1033, Value::Short(vec![0; files.len()])),
        (1034, numbers(&|_, _| seconds)),
        (1035, texts(&|_, entry| digest(entry))),
        (1036, texts(&|_, entry| target(entry).to_owned())),
        (1037, numbers(&|path, entry| flags(path, entry))),
        (1039, texts(&|_, _| "root".to_owned())),
        (1040, texts(&|_, _| "root".to_owned())),
        (1045, numbers(&|_, _| u32::MAX)),
        (1095, numbers(&|_, _| 1)),
        (1096, Value::Long((1..=short(files.len())).collect())),
        (1097, texts(&|_, _| String::new())),
        (1116, numbers(&|path, _| is_at(path))),
        (1117, texts(&|path, _| split(path).1)),
        (1118, Value::Texts(folders.clone())),
        (5011, Value::Long(vec![SHA256])),
    ])
}

/// Returns a path's folder, as rpm writes it, and its name.
fn split(path: &str) -> (String, String) {
    match path.rsplit_once('/') {
        Some((folder, name)) => (format!("/{folder}/"), name.to_owned()),
        None => ("/".to_owned(), path.to_owned()),
    }
}

fn mode(entry: &Entry) -> u32 {
    let kind = match entry.content {
        Content::Folder => IS_FOLDER,
        Content::File(_) => IS_FILE,
        Content::Link(_) => IS_LINK,
    };
    kind | entry.mode
}

fn target(entry: &Entry) -> &str {
    match &entry.content {
        Content::Link(target) => target,
        Content::Folder | Content::File(_) => "",
    }
}

fn size(entry: &Entry) -> u32 {
    short(entry.bytes().len().max(target(entry).len()))
}

fn digest(entry: &Entry) -> String {
    match &entry.content {
        Content::File(bytes) => sha256(bytes),
        Content::Folder | Content::Link(_) => String::new(),
    }
}

/// A folder is never a configuration file, with any content.
fn flags(path: &str, entry: &Entry) -> u32 {
    let is_folder = matches!(entry.content, Content::Folder);
    match path {
        path if path.starts_with("etc/") && is_folder => 0,
        path if path.starts_with("etc/") => CONFIGURATION,
        path if path.starts_with("usr/share/doc/") || path.starts_with("usr/share/man/") => {
            DOCUMENTATION
        }
        path if path.starts_with("usr/share/licenses/") => LICENCE,
        _ => 0,
    }
}

/// Returns the scripts, all run by the shell.
fn scripts(all: &[(Script, String)]) -> Values {
    let shell = || "/bin/sh".to_owned();
    let mut values = Values::new();
    let (mut texts, mut others, mut flags) = (Vec::new(), Vec::new(), Vec::new());
    for (when, text) in all {
        // rpmsenseFlags_e: RPMSENSE_TRIGGERIN, RPMSENSE_TRIGGERPOSTUN.
        let (script, program) = match when {
            Script::AfterInstallation => (1024, 1086),
            Script::BeforeRemoval => (1025, 1087),
            Script::AfterRemoval => (1026, 1088),
            Script::WithOther(other) | Script::WithoutOther(other) => {
                let is_with = matches!(when, Script::WithOther(_));
                texts.push(text.clone());
                others.push((*other).to_owned());
                flags.push(if is_with { 1 << 16 } else { 1 << 18 });
                continue;
            }
        };
        values.insert(script, Value::Text(text.clone()));
        values.insert(program, Value::Text(shell()));
    }
    if !texts.is_empty() {
        let count = texts.len();
        values.insert(1065, Value::Texts(texts));
        values.insert(1066, Value::Texts(others));
        values.insert(1067, Value::Texts(vec![String::new(); count]));
        values.insert(1068, Value::Long(flags));
        values.insert(1069, Value::Long((0..count).map(short).collect()));
        values.insert(1092, Value::Texts(vec![shell(); count]));
    }
    values
}

/// Writes an archive of `cpio` in the format "newc" (`man 5 cpio`), with hexadecimal numbers.
fn cpio(files: &[(&str, &Entry)], epoch: Epoch) -> Vec<u8> {
    let mut archive = Vec::new();
    for (number, (path, entry)) in files.iter().enumerate() {
        let seconds = u32::try_from(epoch.seconds()).unwrap_or(u32::MAX);
        let content = match &entry.content {
            Content::Link(target) => target.as_bytes(),
            Content::Folder | Content::File(_) => entry.bytes(),
        };
        let links = if entry.content == Content::Folder { 2 } else { 1 };
        let inode = short(number + 1);
        member(&mut archive, &format!("./{path}"), [inode, mode(entry), links, seconds], content);
    }
    member(&mut archive, "TRAILER!!!", [0, 0, 1, 0], &[]);
    archive
}

fn member(archive: &mut Vec<u8>, name: &str, about: [u32; 4], content: &[u8]) {
    let [inode, mode, links, seconds] = about;
    let (size, name_size) = (short(content.len()), short(name.len() + 1));
    let fields = [inode, mode, 0, 0, links, seconds, size, 0, 0, 0, 0, name_size, 0];
    archive.extend(b"070701");
    for field in fields {
        archive.extend(format!("{field:08x}").as_bytes());
    }
    archive.extend(name.as_bytes());
    archive.push(0);
    archive.resize(archive.len().next_multiple_of(4), 0);
    archive.extend(content);
    archive.resize(archive.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::{Package, Script, read};
    use crate::tests::said;
    use crate::tree::{FILE, PROGRAM, Tree};

    fn package() -> Package {
        let mut tree = Tree::default();
        tree.file("usr/bin/netwright", PROGRAM, vec![7; 2000]).unwrap();
        tree.file("usr/share/doc/netwright/README.md", FILE, *b"read\n").unwrap();
        tree.file("etc/netwright/x.toml", FILE, *b"# yours\n").unwrap();
        tree.link("usr/lib/systemd/netwright-generator", "../../bin/netwrightd").unwrap();
        tree.file("usr/share/licenses/netwright/LICENSE", FILE, *b"free\n").unwrap();
        Package {
            name: "netwright",
            version: "0.1.0".to_owned(),
            release: "1".to_owned(),
            architecture: "x86_64",
            licence: "Apache-2.0",
            url: "https://example.com",
            summary: "container networking",
            description: "First line.\n\nAfter an empty one.",
            packager: "Somebody <somebody@example.com>",
            requires: vec![("bash", None), ("other", Some("1-1".to_owned()))],
            provides: vec![("container-network-stack", "1".to_owned())],
            scripts: vec![
                (Script::AfterInstallation, "echo installed\n".to_owned()),
                (Script::WithOther("theirs"), "echo with\n".to_owned()),
                (Script::WithoutOther("theirs"), "echo without\n".to_owned()),
            ],
            tree,
        }
    }

    #[test]
    fn it_is_the_same_twice() {
        let epoch = "1795687200".parse().unwrap();
        let written = package().write(epoch).unwrap();
        assert_eq!(written, package().write(epoch).unwrap());
        assert_eq!(package().file_name(), "netwright-0.1.0-1.x86_64.rpm");
    }

    #[test]
    fn it_is_read_back_and_damage_is_nothing() {
        let written = package().write("1795687200".parse().unwrap()).unwrap();
        let found = read(&written).unwrap();
        for (path, entry) in package().tree.entries() {
            assert_eq!(found.get(path), Some(entry), "{path}");
        }
        let header = found.get("header").unwrap().bytes();
        assert_eq!(found.entries().count(), package().tree.entries().count() + 1);
        let says = |text: &[u8]| header.windows(text.len()).any(|part| part == text);
        assert!(says(b"container networking\0") && says(b"echo installed\n"));
        assert_eq!(read(b"nothing of the kind"), None);
        for end in [0, 100, 200, written.len() / 2, written.len() - 9] {
            assert_eq!(read(&written[..end]), None, "{end}");
        }
    }

    #[test]
    fn rpm_reads_it() {
        testkit::require!("full", "root", "program:rpm");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(package().file_name());
        std::fs::write(&path, package().write("1795687200".parse().unwrap()).unwrap()).unwrap();
        let path = path.to_str().unwrap();
        let checked = said("rpm", &["--checksig", path]);
        assert!(checked.ends_with(": digests OK\n"), "{checked}");
        let ask = |what: &str| said("rpm", &["--query", "--package", "--queryformat", what, path]);
        assert_eq!(
            ask("%{NAME} %{VERSION} %{RELEASE} %{ARCH} %{SIZE} %{BUILDTIME} %{BUILDHOST}"),
            "netwright 0.1.0 1 x86_64 2018 1795687200 localhost"
        );
        assert_eq!(
            ask("%{SUMMARY}|%{DESCRIPTION}"),
            "container networking|First line.\n\nAfter an empty one."
        );
        assert_eq!(
            ask(
                "[%{FILENAMES} %{FILEMODES:perms} %{FILEUSERNAME} %{FILESIZES} %{FILELINKTOS} %{FILEFLAGS:fflags}\n]"
            ),
            "/etc/netwright drwxr-xr-x root 0  \n\
             /etc/netwright/x.toml -rw-r--r-- root 8  c\n\
             /usr/bin/netwright -rwxr-xr-x root 2000  \n\
             /usr/lib/systemd/netwright-generator lrwxrwxrwx root 20 ../../bin/netwrightd \n\
             /usr/share/doc/netwright drwxr-xr-x root 0  d\n\
             /usr/share/doc/netwright/README.md -rw-r--r-- root 5  d\n\
             /usr/share/licenses/netwright drwxr-xr-x root 0  l\n\
             /usr/share/licenses/netwright/LICENSE -rw-r--r-- root 5  l\n"
        );
        let query = |what: &str| said("rpm", &["--query", "--package", what, path]);
        assert_eq!(
            query("--changelog"),
            "* Thu Nov 26 2026 Somebody <somebody@example.com> - 0.1.0-1\n- Version 0.1.0.\n\n"
        );
        let requires = query("--requires");
        assert!(requires.contains("bash\n") && requires.contains("other = 1-1\n"), "{requires}");
        let provides = query("--provides");
        assert_eq!(provides, "container-network-stack = 1\nnetwright = 0.1.0-1\n");
        let scripts = [query("--scripts"), query("--triggers")].concat();
        for part in ["echo installed", "triggerin scriptlet", "triggerpostun scriptlet"] {
            assert!(scripts.contains(part), "{part}: {scripts}");
        }
        let root = dir.path().join("root");
        let root = root.to_str().unwrap();
        let options = ["--root", root, "--install", "--ignorearch", "--nodeps"];
        let options = [&options[..], &["--noscripts", "--notriggers"]].concat();
        said("mkdir", &["--parents", root]);
        said("rpm", &[&options[..], &[path]].concat());
        let installed = std::fs::read(format!("{root}/usr/bin/netwright")).unwrap();
        assert_eq!(installed, vec![7; 2000]);
        assert_eq!(said("rpm", &["--root", root, "--verify", "--nodeps", "netwright"]), "");
    }
}
