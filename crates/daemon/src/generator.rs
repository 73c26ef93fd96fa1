//! systemd's generator (`man 7 systemd.generator`): netwrightd under the name
//! `netwright-generator`. It makes `netwright.target` want the services that the configuration
//! enables, and writes into their units the paths that the configuration names.
//!
//! systemd calls it at each boot, when no command can be called yet, and at each `daemon-reload`.
//! It is `netwrightd` under another name, so that the configuration has one reader. It writes links
//! and drop-ins, and nothing else. While the file has a mistake, it uses the copy that was accepted
//! last, so that no mistake keeps a service from starting after a reboot.
//!
//! There is one template, `netwrightd@.service`, with a drop-in for each service that is made from
//! `agent::rights`; what a person adds with `systemctl edit` stays in another drop-in.
//! `netwright.target` is the only unit that an administrator or `setup` enables. The units have our
//! own names: with the reference's `cni-dhcp.socket` two packages would have the same file. Both
//! sockets have the same path, so the two units exclude each other (`Conflicts=`). A folder that
//! the configuration names in place of the usual one must exist before its service starts: a
//! generator must not make folders.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use agent::config::Config;
use agent::load::{FILE, Surroundings};
use agent::report::AGENT;
use agent::rights::{Files, RIGHTS, configured};
use agent::{accepted, keys, units};
use service_kit::stdio;
use service_kit::stop::Stop;
use state::Roots;

/// The name under which systemd calls the executable.
pub(crate) const NAME: &str = "netwright-generator";

/// The unit of every service; only its name matters in a link.
const TEMPLATE: &str = "/etc/systemd/system/netwrightd@.service";

/// Writes links and drop-ins into the first of systemd's three folders. While the configuration is
/// wrong, the one that was accepted last counts.
pub(crate) fn run(folders: &[OsString], roots: &Roots) -> Result<(), Stop> {
    let Some(folder) = folders.first() else {
        return Err(Stop::Usage(format!(
            "error: {NAME} is called by systemd, with three folders\n"
        )));
    };
    // The services find their API server themselves; this process is in no pod.
    let around = Surroundings::default();
    let standing = accepted::standing(Path::new(FILE), roots, around);
    let standing = standing.map_err(Stop::Configuration)?;
    stdio::complain(&stdio::all_of(&standing.refused));
    write(Path::new(folder), &standing.loaded.config)
        .map_err(|(path, error)| Stop::Failed(format!("write {}: {error}", path.display())))
}

/// The folder of flanneld's files (`[routing] flannel`).
const FLANNEL: &str = "/run/flannel";

fn write(folder: &Path, config: &Config) -> Result<(), (PathBuf, std::io::Error)> {
    for rights in RIGHTS.iter().filter(|rights| keys::is_enabled(config, rights.service)) {
        let wants = folder.join(format!("{}.wants", units::TARGET));
        let service = units::service(rights.service);
        link(Path::new(TEMPLATE), &wants.join(&service))?;
        if let Some((socket, path)) = units::socket(rights.service, config) {
            link(&Path::new("/etc/systemd/system").join(&socket), &wants.join(&socket))?;
            if units::socket(rights.service, &Config::default())
                != Some((socket.clone(), path.clone()))
            {
                let path = path.display().to_string().replace('%', "%%");
                let text = format!("[Socket]\nListenStream=\nListenStream={path}\n");
                drop_in(folder, &socket, &text)?;
            }
        }
        if let Files::Only { .. } = rights.files {
            let usual = configured(rights.service, &Config::default());
            let more = configured(rights.service, config).into_iter();
            let more: Vec<String> = more
                .filter(|path| !usual.contains(path))
                .map(|path| match path.strip_prefix("/run") {
                    // A reboot takes it, and flanneld is not there to make it.
                    Ok(folder) if path == Path::new(FLANNEL) => {
                        format!("RuntimeDirectory={}\n", folder.display())
                    }
                    _ => format!("ReadWritePaths=-{}\n", units::quoted(&path)),
                })
                .collect();
            if !more.is_empty() {
                drop_in(folder, &service, &format!("[Service]\n{}", more.concat()))?;
            }
        }
    }
    if config.agent.listen.is_some() {
        let wants = folder.join(format!("{}.wants", units::TARGET));
        link(Path::new(TEMPLATE), &wants.join(units::service(AGENT)))?;
    }
    Ok(())
}

fn link(to: &Path, at: &Path) -> Result<(), (PathBuf, std::io::Error)> {
    let failed = |error| (at.to_owned(), error);
    if let Some(folder) = at.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    symlink(to, at).map_err(failed)
}

fn drop_in(folder: &Path, unit: &str, text: &str) -> Result<(), (PathBuf, std::io::Error)> {
    let folder = folder.join(format!("{unit}.d"));
    let path = folder.join("50-configuration.conf");
    let failed = |error| (path.clone(), error);
    fs::create_dir_all(&folder).map_err(failed)?;
    fs::write(&path, text).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_target_wants_what_is_enabled() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.repair.enable = true;
        config.repair.cache.push("/var/lib/other".into());
        config.repair.keep_plugins.push("/opt/cni/bin".into());
        config.dhcp.enable = true;
        config.dhcp.socketpath = "/run/other/d.sock".into();
        config.docker.enable = true;
        config.routing.enable = true;
        config.routing.flannel = agent::setting::OneOf(agent::config::RoutingFlannel::Replace);
        config.agent.listen = agent::setting::Item::parse("9470");
        write(folder.path(), &config).unwrap();
        let mut found = Vec::new();
        let mut open = vec![folder.path().to_owned()];
        while let Some(folder) = open.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() && !path.is_symlink() {
                    open.push(path);
                } else {
                    found.push(path);
                }
            }
        }
        found.sort();
        let found: Vec<String> = found
            .iter()
            .map(|path| path.strip_prefix(folder.path()).unwrap().display().to_string())
            .collect();
        assert_eq!(
            found,
            [
                "netwright.target.wants/netwrightd@agent.service",
                "netwright.target.wants/netwrightd@dhcp.service",
                "netwright.target.wants/netwrightd@dhcp.socket",
                "netwright.target.wants/netwrightd@docker.service",
                "netwright.target.wants/netwrightd@docker.socket",
                "netwright.target.wants/netwrightd@repair.service",
                "netwright.target.wants/netwrightd@routing.service",
                "netwrightd@dhcp.service.d/50-configuration.conf",
                "netwrightd@dhcp.socket.d/50-configuration.conf",
                "netwrightd@repair.service.d/50-configuration.conf",
                "netwrightd@routing.service.d/50-configuration.conf",
            ]
        );
        let text = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!(
            text("netwrightd@dhcp.socket.d/50-configuration.conf"),
            "[Socket]\nListenStream=\nListenStream=/run/other/d.sock\n"
        );
        assert_eq!(
            text("netwrightd@repair.service.d/50-configuration.conf"),
            "[Service]\nReadWritePaths=-\"/var/lib/other\"\nReadWritePaths=-\"/opt/cni/bin\"\n"
        );
        assert_eq!(
            text("netwrightd@routing.service.d/50-configuration.conf"),
            "[Service]\nRuntimeDirectory=flannel\n"
        );
    }
}
