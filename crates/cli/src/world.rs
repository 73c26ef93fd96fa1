//! What `main` read from the process, as values.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use state::Roots;

/// The environment and directory of one call of the command line.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) environment: Vec<(OsString, OsString)>,
    /// The current directory, to which paths are relative.
    pub(crate) directory: PathBuf,
}

impl World {
    /// Returns a variable that is set and not empty; replaces invalid UTF-8.
    pub(crate) fn variable(&self, name: &str) -> Option<String> {
        variable(&self.environment, name)
    }

    /// Returns the folders for our own state.
    pub(crate) fn roots(&self) -> Roots {
        roots(&self.environment)
    }

    /// Makes a path absolute, without looking at the file system.
    pub(crate) fn absolute(&self, path: impl AsRef<Path>) -> PathBuf {
        let joined = self.directory.join(path);
        let mut clean = PathBuf::new();
        for part in joined.components() {
            match part {
                std::path::Component::CurDir => {}
                std::path::Component::ParentDir => {
                    clean.pop();
                }
                part => clean.push(part),
            }
        }
        clean
    }
}

/// Returns the folders for our own state, and the system's message bus, as an environment names
/// them.
pub(crate) fn roots(environment: &[(OsString, OsString)]) -> Roots {
    Roots::of_environment(|name| {
        let found = environment.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.clone())
    })
}

fn variable(environment: &[(OsString, OsString)], name: &str) -> Option<String> {
    let (_, value) = environment.iter().find(|(key, _)| key == name)?;
    (!value.is_empty()).then(|| value.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world(directory: &str) -> World {
        World {
            environment: vec![("A".into(), "1".into()), ("B".into(), OsString::new())],
            directory: directory.into(),
        }
    }

    #[test]
    fn paths_become_absolute_as_gos_do() {
        let world = world("/a/b");
        assert_eq!(world.absolute("c"), Path::new("/a/b/c"));
        assert_eq!(world.absolute("./c/../d/"), Path::new("/a/b/d"));
        assert_eq!(world.absolute("../../../x"), Path::new("/x"));
        assert_eq!(world.absolute("/run/netns/blue"), Path::new("/run/netns/blue"));
    }

    #[test]
    fn an_empty_variable_is_none() {
        assert_eq!(world("/").variable("A").as_deref(), Some("1"));
        assert_eq!(world("/").variable("B"), None);
        assert_eq!(world("/").variable("C"), None);
    }

    #[test]
    fn the_message_bus_is_where_the_environment_says() {
        assert_eq!(world("/").roots().system_bus, None);
        let bus = [("DBUS_SYSTEM_BUS_ADDRESS".into(), "unix:path=/run/bus".into())];
        assert_eq!(roots(&bus).system_bus.as_deref(), Some("unix:path=/run/bus"));
    }
}
