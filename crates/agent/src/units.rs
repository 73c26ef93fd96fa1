//! systemd's settings that give a service its [`Rights`] (`man 5 systemd.exec`), and what a
//! generator adds to its unit.

use std::path::{Path, PathBuf};

use crate::config::Config;
use crate::keys::TABLES;
use crate::rights::{AGENT, Files, HostView, Namespaces, RIGHTS, Rights};

/// The width of comments.
const WIDTH: usize = 100;

/// What starts and stops all services.
pub const TARGET: &str = "netwright.target";

/// The folder in which the units start `netwrightd`. It is not a folder of plugins: other projects'
/// packages delete theirs with all that is in it.
pub const PROGRAMS: &str = "/usr/local/bin";

/// The units that are written by hand, each with its text.
const BY_HAND: [(&str, &str); 6] = [
    (TARGET, include_str!("../../../deploy/systemd/netwright.target")),
    ("netwrightd@.service", include_str!("../../../deploy/systemd/netwrightd@.service")),
    ("netwrightd@dhcp.socket", include_str!("../../../deploy/systemd/netwrightd@dhcp.socket")),
    ("netwrightd@docker.socket", include_str!("../../../deploy/systemd/netwrightd@docker.socket")),
    ("netwrightd@ipam.socket", include_str!("../../../deploy/systemd/netwrightd@ipam.socket")),
    (
        "netwright-ipam-user.service",
        include_str!("../../../deploy/systemd/netwright-ipam-user.service"),
    ),
];

/// Returns the rights of every unit: of the services, and of the process that answers for them all.
fn every() -> Vec<Rights> {
    [RIGHTS, &[AGENT]].concat()
}

/// Returns every file of `deploy/systemd`, each with its text: the units and the drop-ins.
/// `programs` is the folder of `netwrightd`; it must be a word that systemd reads as it is.
#[must_use]
pub fn all(programs: &Path) -> Vec<(String, String)> {
    let usual = format!("{PROGRAMS}/netwrightd ");
    let own = format!("{} ", programs.join("netwrightd").display());
    let here = |text: &str| text.replace(&usual, &own);
    let by_hand = BY_HAND.iter().map(|(name, text)| ((*name).to_owned(), here(text)));
    let made = every().into_iter().map(|rights| {
        (format!("{}.d/10-netwright.conf", service(rights.service)), here(&drop_in(&rights)))
    });
    by_hand.chain(made).collect()
}

/// Returns the name of a service's unit.
#[must_use]
pub fn service(service: &str) -> String {
    format!("netwrightd@{service}.service")
}

/// Returns the name of the socket by which systemd starts a service, and its path.
#[must_use]
pub fn socket(service: &str, config: &Config) -> Option<(String, PathBuf)> {
    let path = match service {
        "ipam" => config.ipam.socketpath.clone(),
        "dhcp" => {
            let below = config.dhcp.hostprefix.as_deref().unwrap_or(Path::new("/"));
            let path = &config.dhcp.socketpath;
            below.join(path.strip_prefix("/").unwrap_or(path))
        }
        "docker" => config.docker.socketpath.clone(),
        _ => return None,
    };
    Some((format!("netwrightd@{service}.socket"), path))
}

/// Lines of a service's `[Unit]` besides its description.
const PLACES: &[(&str, &str)] = &[
    ("dhcp", "Requires=netwrightd@dhcp.socket\nAfter=netwrightd@dhcp.socket\n"),
    (
        "docker",
        "Requires=netwrightd@docker.socket\nAfter=netwrightd@docker.socket\nBefore=docker.service\n",
    ),
    (
        "ipam",
        "Requires=netwrightd@ipam.socket\n\
         Wants=network-online.target netwright-ipam-user.service\n\
         After=network-online.target netwright-ipam-user.service netwrightd@ipam.socket\n",
    ),
    ("multinet", "Wants=network-online.target\nAfter=network-online.target\n"),
];

/// Lines of a service's `[Service]` besides its rights.
const MORE: &[(&str, &str)] = &[
    ("agent", "ExecStart=\nExecStart=/usr/local/bin/netwrightd agent serve\n"),
    // As root: it makes what the service's user is to have in folders of root.
    ("ipam", "ExecStartPre=+/usr/local/bin/netwrightd ipam --or-accepted --prepare\n"),
];

fn lines_of(service: &str, of: &[(&'static str, &'static str)]) -> &'static str {
    of.iter().find(|(name, _)| *name == service).map_or("", |(_, lines)| *lines)
}

/// Returns the drop-in that makes `netwrightd@.service` the unit of a service.
#[must_use]
pub fn drop_in(rights: &Rights) -> String {
    let about = TABLES.iter().find(|table| table.name == rights.service);
    let about = about.map_or(rights.service, |table| table.about);
    format!(
        "# Made from the service's rights (crates/agent/src/rights.rs).\n\n[Unit]\nDescription={about}\n{}\n\
         [Service]\n{}{}",
        lines_of(rights.service, PLACES),
        lines_of(rights.service, MORE),
        confinement(rights)
    )
}

/// Returns what systemd reads as this path in a setting that takes several.
#[must_use]
pub fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%");
    format!("\"{text}\"")
}

/// Returns the lines of a unit's `[Service]` that confine a service.
#[must_use]
pub fn confinement(rights: &Rights) -> String {
    let mut lines = Lines::default();
    lines.comment(rights.reason);
    if let Some(user) = rights.user {
        lines.set("User", user.name);
    }
    lines.list("CapabilityBoundingSet", "CAP_", rights.capabilities);
    lines.set("NoNewPrivileges", "true");
    let calls = [&["@system-service"], rights.more_calls].concat();
    lines.list("SystemCallFilter", "", &calls);
    lines.set("SystemCallArchitectures", "native");
    lines.set("SystemCallErrorNumber", "EPERM");
    lines.list("RestrictAddressFamilies", "AF_", rights.families);
    lines.set(
        "RestrictNamespaces",
        match rights.namespaces {
            Namespaces::None => "true",
            Namespaces::Network => "net",
        },
    );
    files(&mut lines, rights);
    devices(&mut lines, rights);
    if rights.sees == HostView::NoContainers {
        lines.set("ProtectHome", "true");
        lines.set("PrivateTmp", "true");
    }
    lines.set("ProtectClock", "true");
    lines.set("ProtectHostname", "true");
    // Each of these would give the service a mount namespace of its own.
    if !matches!(rights.files, Files::Everywhere { .. }) {
        for group in ["ControlGroups", "KernelLogs", "KernelModules"] {
            lines.set(&format!("Protect{group}"), "true");
        }
    }
    for setting in
        ["LockPersonality", "MemoryDenyWriteExecute", "RestrictRealtime", "RestrictSUIDSGID"]
    {
        lines.set(setting, "true");
    }
    lines.set("UMask", "0077");
    if let Some(limit) = rights.open_files {
        lines.set("LimitNOFILE", &limit.to_string());
    }
    lines.0
}

/// Returns the rights of all services as a table of Markdown.
#[must_use]
pub fn table(all: &[Rights]) -> String {
    let mut text = String::from(
        "| service | capabilities | sockets | writes | besides |\n|---|---|---|---|---|\n",
    );
    let words = |words: &[&str]| match words {
        [] => "none".to_owned(),
        words => words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", "),
    };
    for rights in all {
        let writes = match rights.files {
            Files::Everywhere { .. } => "what root may write".to_owned(),
            Files::Only { runtime, state, more } => {
                let runtime = runtime.iter().map(|folder| format!("/run/{folder}"));
                let state = state.iter().map(|folder| format!("/var/lib/{folder}"));
                let more = more.iter().map(|folder| (*folder).to_owned());
                let folders: Vec<String> = runtime.chain(state).chain(more).collect();
                words(&folders.iter().map(String::as_str).collect::<Vec<_>>())
            }
        };
        let namespaces = match rights.namespaces {
            Namespaces::Network => "network namespaces",
            Namespaces::None => "no namespaces",
        };
        let sees = match rights.sees {
            HostView::Containers => "",
            HostView::NoContainers => "; no homes, a `/tmp` of its own",
        };
        let user = rights.user.map_or(String::new(), |user| format!("; as user `{}`", user.name));
        let besides = [rights.more_calls, rights.devices].concat();
        let besides =
            if besides.is_empty() { String::new() } else { format!("; {}", words(&besides)) };
        text.push_str(&format!(
            "| `{}` | {} | {} | {writes} | {namespaces}{besides}{sees}{user} |\n",
            rights.service,
            words(rights.capabilities),
            words(rights.families),
        ));
    }
    text
}

fn files(lines: &mut Lines, rights: &Rights) {
    if rights.sees == HostView::Containers && !matches!(rights.files, Files::Everywhere { .. }) {
        lines.comment(
            "Containers' namespaces may be anywhere, also in /tmp and /run/user, and the service must \
             see them, including later ones: no PrivateTmp, no ProtectHome, no ProtectProc. It writes \
             sysctls in them: no ProtectKernelTunables.",
        );
    }
    match rights.files {
        Files::Everywhere { state } => {
            lines.comment(
                "All processes must see the namespaces that it mounts, which outlive it. So it gets no \
                 setting that implies a mount namespace: no ProtectSystem, ReadWritePaths, PrivateTmp, \
                 PrivateDevices, ProtectHome, ProtectProc, ProtectControlGroups, ProtectKernelLogs, \
                 ProtectKernelModules, ProtectKernelTunables.",
            );
            lines.set("StateDirectory", state);
            lines.set("StateDirectoryMode", "0700");
        }
        Files::Only { runtime, state, more } => {
            lines.set("ProtectSystem", "strict");
            lines.comment(
                "The folders that it may write to. systemd creates missing ones: ReadWritePaths= would \
                 ignore a folder that the first container makes later.",
            );
            if !runtime.is_empty() {
                lines.list("RuntimeDirectory", "", runtime);
                lines.set("RuntimeDirectoryPreserve", "yes");
            }
            if !state.is_empty() {
                lines.list("StateDirectory", "", state);
            }
            // A folder of this service alone.
            if !state.is_empty() && state.iter().all(|folder| folder.contains('/')) {
                lines.set("StateDirectoryMode", "0700");
            }
            if !more.is_empty() {
                lines.list("ReadWritePaths", "", more);
            }
        }
    }
}

fn devices(lines: &mut Lines, rights: &Rights) {
    if rights.devices.is_empty() {
        return lines.set("PrivateDevices", "true");
    }
    lines.comment("A tap needs this one device.");
    lines.set("DevicePolicy", "closed");
    for device in rights.devices {
        lines.set("DeviceAllow", &format!("{device} rw"));
    }
}

/// The lines of a unit.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn set(&mut self, name: &str, value: &str) {
        self.0.push_str(&format!("{name}={value}\n"));
    }

    fn list(&mut self, name: &str, before: &str, words: &[&str]) {
        let words: Vec<String> = words.iter().map(|word| format!("{before}{word}")).collect();
        self.set(name, &words.join(" "));
    }

    fn comment(&mut self, text: &str) {
        let mut line = String::from("#");
        for word in text.split_whitespace() {
            if WIDTH < line.chars().count() + 1 + word.chars().count() {
                self.0.push_str(&format!("{line}\n"));
                line = String::from("#");
            }
            line.push(' ');
            line.push_str(word);
        }
        self.0.push_str(&format!("{line}\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_page_on_security_has_the_rights() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/security.md");
        let text = fs::read_to_string(&path).unwrap();
        let begin = "<!-- made from crates/agent/src/rights.rs -->\n\n";
        let (before, rest) = text.split_once(begin).unwrap();
        let (_, after) = rest.split_once("\n\n").unwrap();
        let want = format!("{before}{begin}{}\n{after}", table(&every()));
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            fs::write(&path, &want).unwrap();
            return;
        }
        assert!(text == want, "UPDATE_EXPECT=1 cargo test -p netwright-agent writes it anew");
    }

    #[test]
    fn the_units_confine_the_services_to_their_rights() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/systemd");
        let template = fs::read_to_string(folder.join("netwrightd@.service")).unwrap();
        for rights in &every() {
            let path = folder.join(format!("{}.d/10-netwright.conf", service(rights.service)));
            let want = drop_in(rights);
            if std::env::var_os("UPDATE_EXPECT").is_some() {
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(&path, &want).unwrap();
                continue;
            }
            let text = fs::read_to_string(&path).unwrap_or_default();
            assert!(
                text == want,
                "{} is not what the rights say; UPDATE_EXPECT=1 cargo test -p netwright-agent writes it anew",
                path.display()
            );
            // No line that is written by hand gives more.
            for line in confinement(rights).lines().filter(|line| !line.starts_with('#')) {
                let (name, _) = line.split_once('=').unwrap();
                let again = template.lines().any(|line| line.starts_with(&format!("{name}=")));
                assert!(!again, "{}: {name}", path.display());
            }
        }
    }

    /// The files that are compiled in are those of `deploy/systemd`, and all of them.
    #[test]
    fn every_unit_is_compiled_in() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/systemd");
        let compiled = all(Path::new(PROGRAMS));
        let mut there = Vec::new();
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                there.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            } else {
                there.push(path);
            }
        }
        assert_eq!(there.len(), compiled.len());
        for (name, text) in &compiled {
            assert_eq!(fs::read_to_string(folder.join(name)).unwrap(), *text, "{name}");
        }
        let elsewhere = all(Path::new("/opt/x"));
        let started: Vec<&str> = elsewhere
            .iter()
            .flat_map(|(_, text)| text.lines())
            .filter(|line| line.contains("/netwrightd "))
            .collect();
        let want = [
            "ExecStart=/opt/x/netwrightd %i --or-accepted",
            "ExecStartPre=+/opt/x/netwrightd ipam --or-accepted --prepare",
            "ExecStart=/opt/x/netwrightd agent serve",
        ];
        assert_eq!(started, want);
    }

    #[test]
    fn systemd_reads_a_path_as_it_is() {
        assert_eq!(quoted(Path::new("/a b/%i\"\\")), r#""/a b/%%i\"\\""#);
        let mut config = Config::default();
        config.dhcp.hostprefix = Some("/host".into());
        let (name, path) = socket("dhcp", &config).unwrap();
        assert_eq!(
            (name.as_str(), path),
            ("netwrightd@dhcp.socket", "/host/run/cni/dhcp.sock".into())
        );
        assert_eq!(socket("repair", &config), None);
    }
}
