//! Network lists from a folder, with reasons.
//!
//! The order is libcni's: files named `*.conflist` sorted by path, then `*.conf` and `*.json`, each
//! of which holds one plugin's configuration and becomes a list of one. A list without
//! `loadOnlyInlinedPlugins` also gets the plugins of `<folder>/<network>/*.conf`.
//!
//! Unlike libcni, this reads every file, and each has an [`Outcome`]. A broken file never stops a
//! network that does not need it; libcni fails when the broken file sorts before the one it looks
//! for. A network does need its own file and its drop-in folder: when one of those is broken, the
//! network is refused with the place and the reason. It does not come up without a part of its
//! chain, or from another file that happens to name it too. While a node starts, files appear: a
//! list that is rewritten during the read is read again, and a network that no file names is not
//! reported as missing while an unfinished file may name it.
//!
//! ```
//! use netwright_cni_runtime::ConfigFolder;
//! # let folder = tempfile::tempdir()?;
//! # let dir = folder.path();
//! std::fs::write(dir.join("10-a.conflist"), r#"{"name": "a", "plugins": [{"type": "bridge"}]}"#)?;
//! std::fs::write(dir.join("05-broken.conflist"), "{")?;
//! let scan = ConfigFolder::scan(dir)?;
//! assert_eq!(scan.find("a")?.plugins[0].plugin_type, "bridge");
//! assert!(scan.find("b").unwrap_err().to_string().starts_with("no net configuration with name \"b\""));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use cni::json::Object;
use cni::{Error, NetworkList, PluginConfig, code};

mod moment;
mod place;

/// The reason shown for a folder inside the folder.
const A_FOLDER: &str = "a folder: only drop-ins of the network with this name are read from it";

/// A folder of network configurations, such as `/etc/cni/net.d`, as it was when it was read.
#[derive(Debug)]
pub struct ConfigFolder {
    dir: PathBuf,
    considered: Vec<ConsideredFile>,
}

/// A file or folder that was read.
#[derive(Debug)]
#[non_exhaustive]
pub struct ConsideredFile {
    /// Its path.
    pub path: PathBuf,
    /// What its name says it is.
    pub kind: Kind,
    /// What it turned out to be.
    pub outcome: Outcome,
}

/// What a file's name says it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// `*.conflist`: a network list.
    List,
    /// `*.conf` or `*.json`: one plugin's configuration.
    Single,
    /// `*.conf` in a network's drop-in folder: one more plugin.
    DropIn,
    /// Something else.
    Other,
}

/// What a file turned out to be.
#[derive(Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// It defines this network.
    Network(Box<NetworkList>),
    /// It defines this network, but another file that sorts before it also does.
    Shadowed {
        /// The network.
        network: String,
        /// The file that is used.
        by: PathBuf,
    },
    /// It adds a plugin to this network.
    DroppedIn {
        /// The network.
        network: String,
        /// The plugin.
        plugin_type: String,
    },
    /// It cannot be used.
    Refused(Refusal),
    /// It is not a configuration.
    PassedOver(&'static str),
}

/// Why a file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// The file.
    pub path: PathBuf,
    /// The line, counted from 1; 0 when there is no place in the file to point at.
    pub line: usize,
    /// The column in bytes, counted from 1; 0 when it is not known.
    pub column: usize,
    /// What is wrong.
    pub reason: String,
    /// The network that the file would define, if that is known.
    pub network: Option<String>,
    /// It is empty, or ends too early: a program may be writing it.
    pub unfinished: bool,
}

/// Shown as `PATH:LINE:COLUMN: REASON`, without the parts that are not known.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        for number in [self.line, self.column].into_iter().take_while(|number| *number != 0) {
            write!(f, ":{number}")?;
        }
        write!(f, ": {}", self.reason)
    }
}

impl std::error::Error for Refusal {}

/// Shown as one line: the path and what it turned out to be.
impl fmt::Display for ConsideredFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            Outcome::Refused(refusal) if refusal.path == self.path => return refusal.fmt(f),
            _ => write!(f, "{}: ", self.path.display())?,
        }
        match &self.outcome {
            Outcome::Network(list) => write!(f, "network {:?}", list.name),
            Outcome::Shadowed { network, by } => {
                write!(f, "network {network:?}, which {} defines before it", by.display())
            }
            Outcome::DroppedIn { network, plugin_type } => {
                write!(f, "plugin {plugin_type:?} for network {network:?}")
            }
            Outcome::PassedOver(reason) => f.write_str(reason),
            Outcome::Refused(refusal) => write!(f, "its drop-in cannot be used: {refusal}"),
        }
    }
}

/// Says why a folder gave no network.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The folder exists but cannot be read.
    #[error("read configuration folder {dir:?}: {cause}")]
    Folder {
        /// The folder.
        dir: PathBuf,
        /// The kernel's error.
        cause: io::Error,
    },
    /// No file defines the network; the folder may be empty, or not exist.
    #[error("no net configuration with name {name:?} in {}", .dir.display())]
    NotFound {
        /// The folder.
        dir: PathBuf,
        /// The network.
        name: String,
        /// What was read, one line each.
        considered: Vec<String>,
    },
    /// No file defines the network yet: an unfinished one may come to define it.
    #[error("no net configuration with name {name:?} yet: {refusal}")]
    Unfinished {
        /// The network.
        name: String,
        /// The unfinished file.
        refusal: Refusal,
    },
    /// The network's own file cannot be used.
    #[error("network {name:?} cannot be used: {refusal}")]
    Refused {
        /// The network.
        name: String,
        /// The file and the reason.
        refusal: Refusal,
    },
}

impl LoadError {
    /// Returns the error object. The details list the files that were read, with reasons.
    #[must_use]
    pub fn to_cni(&self) -> Error {
        let (code, considered) = match self {
            LoadError::Folder { .. } => (code::IO_FAILURE, None),
            LoadError::Unfinished { .. } => (code::TRY_AGAIN_LATER, None),
            LoadError::Refused { refusal, .. } if refusal.unfinished => {
                (code::TRY_AGAIN_LATER, None)
            }
            LoadError::Refused { .. } => (code::INVALID_CONFIG, None),
            LoadError::NotFound { considered, .. } => (code::INVALID_CONFIG, Some(considered)),
        };
        let error = Error::new(code, self.to_string());
        match considered {
            None => error,
            Some(lines) if lines.is_empty() => {
                error.with_details("the folder is empty or does not exist")
            }
            Some(lines) => error.with_details(format!("considered: {}", lines.join("; "))),
        }
    }
}

impl ConfigFolder {
    /// Reads every configuration of a folder. A folder that does not exist holds none.
    ///
    /// # Errors
    /// [`LoadError::Folder`] when the folder cannot be listed. A problem of a single file is in its
    /// [`Outcome`].
    pub fn scan(dir: impl AsRef<Path>) -> Result<Self, LoadError> {
        let dir = dir.as_ref();
        let names = list(dir).map_err(|cause| LoadError::Folder { dir: dir.to_owned(), cause })?;
        let mut folder = ConfigFolder { dir: dir.to_owned(), considered: Vec::new() };
        for kind in [Kind::List, Kind::Single, Kind::Other] {
            for path in names.iter().filter(|path| kind_of(path) == kind) {
                folder.consider(path, kind);
            }
        }
        Ok(folder)
    }

    /// Returns the folder's path.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Lists what was read, in order of precedence.
    #[must_use]
    pub fn considered(&self) -> &[ConsideredFile] {
        &self.considered
    }

    /// Lists the networks, in the order from which runtimes take the first.
    pub fn networks(&self) -> impl Iterator<Item = &NetworkList> {
        self.considered.iter().filter_map(|considered| match &considered.outcome {
            Outcome::Network(list) => Some(&**list),
            _ => None,
        })
    }

    /// Lists the files that cannot be used.
    pub fn refusals(&self) -> impl Iterator<Item = &Refusal> {
        self.considered.iter().filter_map(|considered| match &considered.outcome {
            Outcome::Refused(refusal) => Some(refusal),
            _ => None,
        })
    }

    /// Finds a network by name.
    ///
    /// # Errors
    /// [`LoadError::Refused`] when the first file that names the network is broken, else
    /// [`LoadError::Unfinished`] when there is a file that may come to name it, or
    /// [`LoadError::NotFound`].
    pub fn find(&self, name: &str) -> Result<&NetworkList, LoadError> {
        for considered in &self.considered {
            match &considered.outcome {
                Outcome::Network(list) if list.name == name => return Ok(list),
                Outcome::Refused(refusal) if refusal.network.as_deref() == Some(name) => {
                    return Err(LoadError::Refused {
                        name: name.to_owned(),
                        refusal: refusal.clone(),
                    });
                }
                _ => {}
            }
        }
        let unfinished = |refusal: &&Refusal| refusal.unfinished && refusal.network.is_none();
        if let Some(refusal) = self.refusals().find(unfinished) {
            return Err(LoadError::Unfinished { name: name.to_owned(), refusal: refusal.clone() });
        }
        let considered = self.considered.iter().map(ConsideredFile::to_string).collect();
        Err(LoadError::NotFound { dir: self.dir.clone(), name: name.to_owned(), considered })
    }

    fn consider(&mut self, path: &Path, kind: Kind) {
        let mut dropped_in = Vec::new();
        let outcome = if kind == Kind::Other {
            Outcome::PassedOver(if path.is_dir() {
                A_FOLDER
            } else {
                "not named *.conflist, *.conf or *.json"
            })
        } else if path.is_dir() {
            Outcome::PassedOver(A_FOLDER)
        } else {
            match read_file(path, kind, &mut dropped_in) {
                Ok(list) => self.place(list),
                Err(refusal) => Outcome::Refused(refusal),
            }
        };
        self.considered.push(ConsideredFile { path: path.to_owned(), kind, outcome });
        self.considered.append(&mut dropped_in);
    }

    fn place(&self, list: NetworkList) -> Outcome {
        let before = self.considered.iter().find(|considered| match &considered.outcome {
            Outcome::Network(other) => other.name == list.name,
            Outcome::Refused(refusal) => {
                considered.kind != Kind::DropIn && refusal.network.as_ref() == Some(&list.name)
            }
            _ => false,
        });
        match before {
            Some(before) => Outcome::Shadowed { network: list.name, by: before.path.clone() },
            None => Outcome::Network(Box::new(list)),
        }
    }
}

/// Reads one file as a network list: `*.conflist` as such, others as one plugin's configuration
/// unless they hold `plugins`. Also reads the drop-in folder beside it.
///
/// # Errors
/// [`Refusal`] with the place and the reason.
pub fn load_file(path: impl AsRef<Path>) -> Result<NetworkList, Refusal> {
    let path = path.as_ref();
    let kind = match kind_of(path) {
        Kind::Single if holds_plugins(path) => Kind::List,
        Kind::Single => Kind::Single,
        _ => Kind::List,
    };
    read_file(path, kind, &mut Vec::new())
}

fn holds_plugins(path: &Path) -> bool {
    let document = state::read_optional(path).ok().flatten().unwrap_or_default();
    Object::parse(&document).is_ok_and(|object| object.get_ignore_case("plugins").is_some())
}

fn list(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut paths = Vec::new();
    for entry in entries {
        paths.push(entry?.path());
    }
    cni::order::sort_by(&mut paths, |a, b| a.as_os_str().cmp(b.as_os_str()));
    Ok(paths)
}

/// Go's `filepath.Ext` also sees an extension in `.conf`, where `Path::extension` sees none.
fn kind_of(path: &Path) -> Kind {
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    match name.rsplit_once('.') {
        Some((_, "conflist")) => Kind::List,
        Some((_, "conf" | "json")) => Kind::Single,
        _ => Kind::Other,
    }
}

fn read_file(
    path: &Path,
    kind: Kind,
    dropped_in: &mut Vec<ConsideredFile>,
) -> Result<NetworkList, Refusal> {
    let refuse = |line, column, reason: String, network, unfinished| Refusal {
        path: path.to_owned(),
        line,
        column,
        reason,
        network,
        unfinished,
    };
    let document = moment::read(path)
        .map_err(|(reason, unfinished)| refuse(0, 0, reason, None, unfinished))?;
    let parsed = match kind {
        Kind::Single => NetworkList::from_plugin(&document),
        _ => NetworkList::parse(&document),
    };
    let mut list = parsed.map_err(|error| {
        let place = place::find(&document, kind == Kind::Single);
        let (reason, unfinished) = (reason(&error, kind, &document), moment::is_cut_off(&document));
        refuse(place.line, place.column, reason, place.network, unfinished)
    })?;
    let network = Some(list.name.clone());
    if kind == Kind::List && !list.load_only_inlined_plugins {
        add_drop_ins(path, &mut list, dropped_in)?;
    }
    if list.plugins.is_empty() {
        let hint = if Object::parse(&document).is_ok_and(|o| o.get_ignore_case("type").is_some()) {
            "no plugin configs found: a single plugin's configuration belongs in a .conf file"
        } else {
            "no plugin configs found"
        };
        return Err(refuse(1, 1, hint.to_owned(), network, false));
    }
    Ok(list)
}

/// Returns libcni's words, without the place, which is reported separately.
fn reason(error: &Error, kind: Kind, document: &[u8]) -> String {
    let text = error.to_string();
    let text = match text.rfind(" at line ") {
        Some(end) if error.code == code::DECODE_FAILURE => text[..end].to_owned(),
        _ => text,
    };
    let object = Object::parse(document).ok();
    if kind == Kind::Single && object.is_some_and(|o| o.get_ignore_case("plugins").is_some()) {
        return format!("{text} (a list of plugins belongs in a .conflist file)");
    }
    text
}

/// Appends the plugins of the network's drop-in folder. The list's source becomes a document that
/// holds them all, so that the result cache, which keeps it, keeps the whole chain.
fn add_drop_ins(
    path: &Path,
    list: &mut NetworkList,
    considered: &mut Vec<ConsideredFile>,
) -> Result<(), Refusal> {
    // The name becomes a path component here.
    let plain = !list.name.is_empty() && !list.name.contains(['/', '\0']) && list.name != "..";
    if !plain || list.name == "." {
        return Ok(());
    }
    let dir = path.parent().unwrap_or(Path::new(".")).join(&list.name);
    let refuse = |path: &Path, reason: String| Refusal {
        path: path.to_owned(),
        line: 0,
        column: 0,
        reason,
        network: Some(list.name.clone()),
        unfinished: false,
    };
    let paths = match self::list(&dir) {
        Ok(paths) => paths,
        // A file of that name is no drop-in folder.
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => Vec::new(),
        Err(error) => return Err(refuse(&dir, error.to_string())),
    };
    let is_drop_in = |path: &PathBuf| path.to_string_lossy().ends_with(".conf") && !path.is_dir();
    let mut added = Vec::new();
    for path in paths.into_iter().filter(is_drop_in) {
        match read_drop_in(&path) {
            Ok(plugin) => {
                let outcome = Outcome::DroppedIn {
                    network: list.name.clone(),
                    plugin_type: plugin.plugin_type.clone(),
                };
                considered.push(ConsideredFile { path, kind: Kind::DropIn, outcome });
                added.push(plugin);
            }
            Err(mut refusal) => {
                refusal.network = Some(list.name.clone());
                return Err(refusal);
            }
        }
    }
    if added.is_empty() {
        return Ok(());
    }
    list.plugins.append(&mut added);
    if let Ok(mut whole) = Object::parse(&list.source) {
        let objects: Vec<&Object> = list.plugins.iter().map(|plugin| &plugin.object).collect();
        whole.set_value("plugins", &objects);
        whole.set_value("loadOnlyInlinedPlugins", &true);
        list.source = whole.to_vec();
    }
    Ok(())
}

fn read_drop_in(path: &Path) -> Result<PluginConfig, Refusal> {
    let refuse = |line, column, reason: String, unfinished| Refusal {
        path: path.to_owned(),
        line,
        column,
        reason,
        network: None,
        unfinished,
    };
    let document =
        moment::read(path).map_err(|(reason, unfinished)| refuse(0, 0, reason, unfinished))?;
    PluginConfig::parse(&document).map_err(|error| {
        let place = place::find(&document, true);
        let (reason, unfinished) =
            (reason(&error, Kind::DropIn, &document), moment::is_cut_off(&document));
        refuse(place.line, place.column, reason, unfinished)
    })
}
