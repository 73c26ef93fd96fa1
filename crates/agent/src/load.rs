//! The configuration's file and its drop-ins.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use cni::excerpt::Place;
use cni_invoke::distrust;

use crate::config::Config;
use crate::document;
use crate::keys::KeyName;
use crate::problem::Problem;
use crate::rules::RULES;
pub use crate::rules::Surroundings;

/// Where the configuration is.
pub const FILE: &str = "/etc/netwright/netwrightd.toml";

/// A larger file is not a configuration of ours.
const MAX_SIZE: usize = 1 << 20;

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Source {
    /// The file; empty for a flag.
    pub file: PathBuf,
    /// The place of the key in it.
    pub place: Place,
}

/// A configuration without problems.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LoadedConfig {
    /// The effective values.
    pub config: Config,
    /// Where each key is set that is not at its default.
    pub sources: BTreeMap<KeyName, Source>,
    /// The files that were read: the file, and then its drop-ins.
    pub files: Vec<PathBuf>,
}

impl LoadedConfig {
    /// Reports whether a file sets this key.
    #[must_use]
    pub fn sets(&self, table: &str, name: &str) -> bool {
        self.sources.keys().any(|key| *key == (table, name))
    }
}

/// Returns the folder of a file's drop-ins: `netwrightd.d` beside `netwrightd.toml`.
#[must_use]
pub fn drop_in_folder(file: &Path) -> PathBuf {
    file.with_extension("d")
}

/// Reads the file and then its drop-ins, `*.toml` in the order of their names. A key of a later
/// file replaces the same key of an earlier one. A file that does not exist sets nothing.
///
/// # Errors
/// Every problem of every file.
pub fn load(file: &Path, around: Surroundings) -> Result<LoadedConfig, Vec<Problem>> {
    let (loaded, mut problems) = read(file);
    for problem in check(&loaded, around) {
        // A value that is refused already breaks no rule besides.
        if !problems.iter().any(|other| other.file == problem.file && same_line(other, &problem)) {
            problems.push(problem);
        }
    }
    if problems.is_empty() { Ok(loaded) } else { Err(problems) }
}

/// Reads the files as [`load`] does, without a look at settings that exclude or need each other.
#[must_use]
pub fn read(file: &Path) -> (LoadedConfig, Vec<Problem>) {
    let mut loaded = LoadedConfig::default();
    let mut problems = Vec::new();
    let mut all = vec![file.to_owned()];
    match drop_ins(&drop_in_folder(file)) {
        Ok(drop_ins) => all.extend(drop_ins),
        Err(problem) => problems.push(problem),
    }
    for path in all {
        let text = match text(&path) {
            Ok(Some(text)) => text,
            Ok(None) => continue,
            Err(problem) => {
                problems.push(problem);
                continue;
            }
        };
        let places = document::read(&path, &text, &mut loaded.config, &mut problems);
        let of_file = |place| Source { file: path.clone(), place };
        loaded.sources.extend(places.into_iter().map(|(key, place)| (key, of_file(place))));
        loaded.files.push(path);
    }
    (loaded, problems)
}

/// Returns what is wrong with settings that exclude or need each other.
#[must_use]
pub fn check(loaded: &LoadedConfig, around: Surroundings) -> Vec<Problem> {
    let broken = RULES.iter().filter(|rule| (rule.broken)(&loaded.config, around));
    broken
        .map(|rule| {
            let set = rule.keys.iter().find_map(|key| loaded.sources.get(key));
            let source = set.cloned().unwrap_or_default();
            let text = text(&source.file).ok().flatten().unwrap_or_default();
            Problem::of_file(&source.file, rule.error).hint(rule.hint).at(&text, source.place)
        })
        .collect()
}

/// What tells one state of the configuration's files from another without reading them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Identity(Vec<(PathBuf, [i64; 2], [u64; 3])>);

impl Identity {
    /// Looks at the file and its drop-ins. Of a link it counts where it leads: a kubelet replaces
    /// all files of a ConfigMap at once by another link.
    #[must_use]
    pub fn of(file: &Path) -> Self {
        let drop_ins = drop_ins(&drop_in_folder(file)).unwrap_or_default();
        let look = |path: PathBuf| {
            let found = path.metadata().ok()?;
            let time = [found.mtime(), found.mtime_nsec()];
            Some((path.canonicalize().ok()?, time, [found.dev(), found.ino(), found.size()]))
        };
        Identity([file.to_owned()].into_iter().chain(drop_ins).filter_map(look).collect())
    }

    /// Reports whether there is no file.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.0.is_empty()
    }
}

fn same_line(one: &Problem, other: &Problem) -> bool {
    one.place.line != 0 && one.place.line == other.place.line
}

/// Returns the drop-ins in the order of their names.
fn drop_ins(folder: &Path) -> Result<Vec<PathBuf>, Problem> {
    let failed = |error: std::io::Error| {
        Problem::of_file(folder, format!("cannot be read: {error}"))
            .hint("it must be a folder that root can read")
    };
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if path.extension() == Some(OsStr::new("toml")) && !hidden {
            found.push(path);
        }
    }
    cni::order::sort(&mut found);
    Ok(found)
}

/// Reads a file, if it is there and only root could have written it.
fn text(path: &Path) -> Result<Option<String>, Problem> {
    let failed = |error: String| Problem::of_file(path, error);
    let cause = |error: &dyn std::error::Error| {
        error.source().map_or_else(|| error.to_string(), ToString::to_string)
    };
    let bytes = match state::read_optional(path) {
        Ok(Some(bytes)) => bytes,
        // A link whose target is missing is an error, unlike a missing file: an administrator made
        // the link.
        Ok(None) if path.is_symlink() => {
            return Err(failed("is a link to a file that is not there".to_owned())
                .hint("remove the link, or write the file that it names"));
        }
        Ok(None) => return Ok(None),
        Err(error) => {
            return Err(failed(format!("cannot be read: {}", cause(&error)))
                .hint("it must be a file that the service's user can read: root, or for ipam netwright-ipam"));
        }
    };
    if MAX_SIZE < bytes.len() {
        let error = format!("has {} bytes, more than {MAX_SIZE}", bytes.len());
        return Err(failed(error).hint("it is probably another file"));
    }
    // A user who can write the file decides what runs as root here.
    if let Some(distrust) = distrust(path).first() {
        return Err(failed(format!("is not read, because {distrust}"))
            .hint("chown root:root, and chmod go-w, what is named"));
    }
    match String::from_utf8(bytes) {
        Ok(text) if text.contains('\0') => Err(failed("is not text: it has a NUL".to_owned())
            .hint("write TOML: netwrightd config default prints an example")),
        Ok(text) => Ok(Some(text)),
        Err(error) => {
            let valid = error.utf8_error().valid_up_to();
            let before = String::from_utf8_lossy(&error.as_bytes()[..valid]).into_owned();
            let place = Place::at(&before, before.len());
            Err(failed("is not UTF-8 from here on".to_owned())
                .at(&before, place)
                .hint("write it as UTF-8"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::time::Duration;

    fn folder() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("netwrightd.toml");
        fs::create_dir(drop_in_folder(&file)).unwrap();
        (folder, file)
    }

    fn write(path: &Path, text: impl AsRef<[u8]>) {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
    }

    fn first(file: &Path) -> String {
        load(file, Surroundings::default()).unwrap_err()[0].to_string()
    }

    #[test]
    fn a_later_file_counts_and_is_named() {
        let (_folder, file) = folder();
        write(&file, "[repair]\nenable = true\ninterval = \"2s\"\n");
        let drop_ins = drop_in_folder(&file);
        write(&drop_ins.join("20-b.toml"), "[repair]\ninterval = \"4s\"\n");
        write(&drop_ins.join("10-a.toml"), "[repair]\ninterval = \"3s\"\nenable = false\n");
        write(&drop_ins.join("30-c.toml~"), "nonsense");
        let loaded = load(&file, Surroundings::default()).unwrap();
        assert_eq!(loaded.config.repair.interval, Duration::from_secs(4));
        assert!(!loaded.config.repair.enable);
        assert_eq!(loaded.files.len(), 3);
        let shown = show::effective(&loaded);
        let line = shown.lines().find(|line| line.starts_with("interval = \"4s\"")).unwrap();
        assert!(line.ends_with("netwrightd.d/20-b.toml:2:1"), "{line}");
        let again = show::minimal(&loaded);
        assert_eq!(again, "[repair]\nenable = false\ninterval = \"4s\"\n");
    }

    #[test]
    fn nothing_there_is_the_default() {
        let (_folder, file) = folder();
        assert_eq!(load(&file, Surroundings::default()).unwrap(), LoadedConfig::default());
        write(&file, "");
        assert_eq!(load(&file, Surroundings::default()).unwrap().config, Config::default());
    }

    #[test]
    fn a_change_is_seen_without_reading() {
        let (folder, file) = folder();
        assert!(Identity::of(&file).is_nothing());
        // As a kubelet mounts a ConfigMap.
        let volume = |name: &str, content: &str| {
            fs::create_dir(folder.path().join(name)).unwrap();
            write(&folder.path().join(name).join("netwrightd.toml"), content);
            symlink(name, folder.path().join("..data_tmp")).unwrap();
            fs::rename(folder.path().join("..data_tmp"), folder.path().join("..data")).unwrap();
        };
        volume("..1", "[log]\n");
        symlink("..data/netwrightd.toml", &file).unwrap();
        let first = Identity::of(&file);
        assert_eq!(Identity::of(&file), first);
        volume("..2", "[log]\n");
        assert_ne!(Identity::of(&file), first);
        let second = Identity::of(&file);
        write(&drop_in_folder(&file).join("a.toml"), "");
        assert_ne!(Identity::of(&file), second);
    }

    #[test]
    fn files_that_are_none() {
        let (folder, file) = folder();
        write(&file, [0xffu8, 0xfe, 0]);
        assert!(first(&file).contains("is not UTF-8 from here on"), "{}", first(&file));
        write(&file, "[log]\n\0");
        assert!(first(&file).contains("is not text"), "{}", first(&file));
        write(&file, vec![b'#'; 10 << 20]);
        assert!(
            first(&file).contains("more than") || first(&file).contains("larg"),
            "{}",
            first(&file)
        );
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert!(first(&file).contains("cannot be read"), "{}", first(&file));
        fs::remove_dir(&file).unwrap();
        symlink(folder.path().join("gone"), &file).unwrap();
        assert!(first(&file).contains("is a link to a file that is not there"), "{}", first(&file));
        fs::remove_file(&file).unwrap();
        let target = folder.path().join("target.toml");
        write(&target, "[repair]\nenable = true\n");
        symlink(&target, &file).unwrap();
        assert!(load(&file, Surroundings::default()).unwrap().config.repair.enable);
        fs::set_permissions(&target, fs::Permissions::from_mode(0o666)).unwrap();
        assert!(first(&file).contains("can be written by others"), "{}", first(&file));
    }

    #[test]
    fn pairs_that_are_impossible() {
        let (_folder, file) = folder();
        write(&file, "[ipam]\nenable = true\n");
        assert!(first(&file).contains(":2:1: ipam has no store"), "{}", first(&file));
        assert!(load(&file, Surroundings { api_server: true, ..Surroundings::default() }).is_ok());
        write(&file, "[ipam]\netcd = [\"http://a:1\"]\nkubeconfig = \"/k\"\n");
        assert!(first(&file).contains(":3:1: etcd and kubeconfig exclude"), "{}", first(&file));
        let drop_in = drop_in_folder(&file).join("a.toml");
        write(&drop_in, "[ipam]\nkubeconfig = \"\"\n");
        assert!(load(&file, Surroundings::default()).is_ok());
    }
}
