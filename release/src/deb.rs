//! Debian's packages (`man 5 deb`, `man 5 deb-control`): a pure function of a tree, of what the
//! package says of itself, and of the release's time.

use std::fmt::Write as _;

use crate::archive::{ArchiveError, Top, gzip, tar, untar};
use crate::epoch::Epoch;
use crate::hash;
use crate::tree::{Content, FILE, PROGRAM, Tree, TreeError};

/// The first bytes of an archive of `ar` (`man 5 ar`), and the last ones of a member's header.
const MAGIC: &[u8] = b"!<arch>\n";
const END: &[u8] = b"`\n";

/// The length of a member's header.
const HEADER: usize = 60;

/// The folder whose files are the administrator's once they are installed.
const SETTINGS: &str = "etc/";

/// A package.
#[derive(Debug, Clone)]
pub(crate) struct Package {
    pub(crate) name: &'static str,
    /// With the package's own revision: `0.1.0-1`.
    pub(crate) version: String,
    /// In Debian's words: `amd64`.
    pub(crate) architecture: &'static str,
    /// Further fields, in their order; a value of several lines is indented here.
    pub(crate) fields: Vec<(&'static str, String)>,
    /// The first line of the description, and the rest.
    pub(crate) summary: &'static str,
    pub(crate) description: &'static str,
    /// The maintainer's scripts by their names: `postinst`.
    pub(crate) scripts: Vec<(&'static str, String)>,
    pub(crate) tree: Tree,
}

/// A package cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DebError {
    #[error("not an archive of ar, or a damaged one")]
    Ar,
    #[error("the package has no {name}")]
    Missing { name: &'static str },
    #[error("read {name} of the package")]
    Member {
        name: String,
        #[source]
        source: ArchiveError,
    },
}

impl Package {
    /// Returns the package's file name, as the field's tools call it.
    pub(crate) fn file_name(&self) -> String {
        format!("{}_{}_{}.deb", self.name, self.version, self.architecture)
    }

    /// Writes the package.
    pub(crate) fn write(&self, epoch: Epoch) -> Result<Vec<u8>, ArchiveError> {
        let control = gzip(&tar(&self.control()?, Top::Here, epoch)?)?;
        let data = gzip(&tar(&self.tree, Top::Here, epoch)?)?;
        let mut archive = MAGIC.to_vec();
        for (name, bytes) in [
            ("debian-binary", &b"2.0\n"[..]),
            ("control.tar.gz", &control[..]),
            ("data.tar.gz", &data[..]),
        ] {
            member(&mut archive, name, bytes, epoch);
        }
        Ok(archive)
    }

    /// Returns what dpkg reads: the description, hashes, settings, scripts.
    fn control(&self) -> Result<Tree, TreeError> {
        let mut tree = Tree::default();
        tree.file("control", FILE, self.description_of_itself().into_bytes())?;
        let sums: String = self
            .tree
            .files()
            .map(|(path, bytes)| format!("{}  {path}\n", hash::md5(bytes)))
            .collect();
        tree.file("md5sums", FILE, sums.into_bytes())?;
        let settings = self.tree.files().filter(|(path, _)| path.starts_with(SETTINGS));
        let settings: String = settings.map(|(path, _)| format!("/{path}\n")).collect();
        if !settings.is_empty() {
            tree.file("conffiles", FILE, settings.into_bytes())?;
        }
        for (name, script) in &self.scripts {
            tree.file(name, PROGRAM, script.clone().into_bytes())?;
        }
        Ok(tree)
    }

    fn description_of_itself(&self) -> String {
        let mut text = format!(
            "Package: {}\nVersion: {}\nArchitecture: {}\n",
            self.name, self.version, self.architecture
        );
        let _ = writeln!(text, "Installed-Size: {}", installed_size(&self.tree));
        for (name, value) in &self.fields {
            let _ = writeln!(text, "{name}: {value}");
        }
        let _ = writeln!(text, "Description: {}", self.summary);
        for line in self.description.lines() {
            let line = if line.is_empty() { "." } else { line };
            let _ = writeln!(text, " {line}");
        }
        text
    }
}

/// Returns what an installation takes, in KiB, as `dpkg-gencontrol` counts it: each file rounded
/// up, and one for anything else, also for the root.
fn installed_size(tree: &Tree) -> usize {
    let size = |content: &Content| match content {
        Content::File(bytes) => bytes.len().div_ceil(1024),
        Content::Folder | Content::Link(_) => 1,
    };
    tree.entries().map(|(_, entry)| size(&entry.content)).sum::<usize>() + 1
}

/// Adds a member to an archive of `ar`.
fn member(archive: &mut Vec<u8>, name: &str, bytes: &[u8], epoch: Epoch) {
    let header = format!("{name:<16}{:<12}{:<6}{:<6}{:<8}", epoch.seconds(), 0, 0, "100644");
    archive.extend(header.as_bytes());
    archive.extend(format!("{:<10}", bytes.len()).as_bytes());
    archive.extend(END);
    archive.extend(bytes);
    if bytes.len() % 2 == 1 {
        archive.push(b'\n');
    }
}

/// Returns the members of an archive of `ar`.
pub(crate) fn members(archive: &[u8]) -> Result<Vec<(String, &[u8])>, DebError> {
    let mut rest = archive.strip_prefix(MAGIC).ok_or(DebError::Ar)?;
    let mut members = Vec::new();
    while !rest.is_empty() {
        let (header, after) = rest.split_at_checked(HEADER).ok_or(DebError::Ar)?;
        if !header.ends_with(END) {
            return Err(DebError::Ar);
        }
        let text = |from: usize, to: usize| String::from_utf8_lossy(&header[from..to]);
        let size: usize = text(48, 58).trim_end().parse().map_err(|_| DebError::Ar)?;
        let (bytes, after) = after.split_at_checked(size).ok_or(DebError::Ar)?;
        members.push((text(0, 16).trim_end().to_owned(), bytes));
        rest = after.get(size % 2..).ok_or(DebError::Ar)?;
    }
    Ok(members)
}

/// What a package holds.
#[derive(Debug)]
pub(crate) struct Contents {
    pub(crate) control: Tree,
    pub(crate) data: Tree,
}

/// Reads a package.
pub(crate) fn read(package: &[u8]) -> Result<Contents, DebError> {
    let members = members(package)?;
    let tree = |name: &'static str| {
        let member = members.iter().find(|(member, _)| member == name);
        let (_, bytes) = member.ok_or(DebError::Missing { name })?;
        crate::archive::gunzip(bytes)
            .and_then(|plain| untar(&plain))
            .map_err(|source| DebError::Member { name: name.to_owned(), source })
    };
    Ok(Contents { control: tree("control.tar.gz")?, data: tree("data.tar.gz")? })
}

#[cfg(test)]
mod tests {
    use super::{DebError, Package, members, read};
    use crate::hash::md5;
    use crate::tests::said;
    use crate::tree::{FILE, PROGRAM, Tree};

    fn package() -> Package {
        let mut tree = Tree::default();
        tree.file("usr/bin/netwright", PROGRAM, vec![7; 2000]).unwrap();
        tree.file("etc/netwright/netwrightd.toml", FILE, *b"# yours\n").unwrap();
        tree.link("usr/lib/cni/bridge", "../../bin/netwright").unwrap();
        Package {
            name: "netwright",
            version: "0.1.0-1".to_owned(),
            architecture: "amd64",
            fields: vec![
                ("Maintainer", "Somebody <somebody@example.com>".to_owned()),
                ("Provides", "container-network-stack (= 1)".to_owned()),
            ],
            summary: "container networking",
            description: "First line.\n\nAfter an empty one.",
            scripts: vec![("postinst", "#!/bin/sh\nexit 0\n".to_owned())],
            tree,
        }
    }

    #[test]
    fn dpkg_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(package().file_name());
        let epoch = "1795687200".parse().unwrap();
        std::fs::write(&path, package().write(epoch).unwrap()).unwrap();
        let path = path.to_str().unwrap();
        assert!(path.ends_with("/netwright_0.1.0-1_amd64.deb"));
        assert_eq!(
            said("dpkg-deb", &["--field", path]),
            "Package: netwright\nVersion: 0.1.0-1\nArchitecture: amd64\nInstalled-Size: 11\n\
             Maintainer: Somebody <somebody@example.com>\nProvides: container-network-stack (= 1)\n\
             Description: container networking\n First line.\n .\n After an empty one.\n"
        );
        let listed = said("dpkg-deb", &["--contents", path]);
        let names: Vec<&str> =
            listed.lines().map(|line| line.split_once(" ./").unwrap().1).collect();
        assert_eq!(
            names,
            [
                "",
                "etc/",
                "etc/netwright/",
                "etc/netwright/netwrightd.toml",
                "usr/",
                "usr/bin/",
                "usr/bin/netwright",
                "usr/lib/",
                "usr/lib/cni/",
                "usr/lib/cni/bridge -> ../../bin/netwright",
            ]
        );
        assert_eq!(
            said("dpkg-deb", &["--info", path, "conffiles"]),
            "/etc/netwright/netwrightd.toml\n"
        );
        assert_eq!(said("dpkg-deb", &["--info", path, "postinst"]), "#!/bin/sh\nexit 0\n");
        let into = dir.path().join("out");
        said("dpkg-deb", &["--extract", path, into.to_str().unwrap()]);
        assert_eq!(std::fs::read(into.join("usr/bin/netwright")).unwrap(), vec![7; 2000]);
    }

    #[test]
    fn it_is_the_same_twice_and_read_back() {
        let epoch = "1795687200".parse().unwrap();
        let written = package().write(epoch).unwrap();
        assert_eq!(written, package().write(epoch).unwrap());
        let other = "1795687201".parse().unwrap();
        assert_ne!(written, package().write(other).unwrap(), "it bears the time");
        let contents = read(&written).unwrap();
        assert_eq!(contents.data, package().tree);
        let sums = String::from_utf8(contents.control.get("md5sums").unwrap().bytes().to_vec());
        let line = format!("{}  usr/bin/netwright\n", md5(&[7; 2000]));
        assert!(sums.unwrap().contains(&line), "the links have none");
    }

    #[test]
    fn damage_is_an_error() {
        let written = package().write("1".parse().unwrap()).unwrap();
        assert!(matches!(read(b"no archive"), Err(DebError::Ar)));
        for end in [9, 70, 100, written.len() - 9] {
            assert!(members(&written[..end]).is_err(), "{end}");
        }
        let only = &written[..8 + 60 + 4];
        assert!(matches!(read(only), Err(DebError::Missing { name: "control.tar.gz" })));
        let mut flipped = written.clone();
        let last = flipped.len() - 20;
        flipped[last] ^= 0x40;
        assert!(matches!(read(&flipped), Err(DebError::Member { .. })), "gzip's own sum");
    }
}
