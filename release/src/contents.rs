//! Which file of a release is where: in the archive, in Debian's packages, in the image.

use std::collections::BTreeMap;

use crate::archive::{ArchiveError, gzip_document};
use crate::deb::Package;
use crate::examples;
use crate::goods::{Build, SYMBOLS, Texts};
use crate::oci::{Image, Platform};
use crate::rpm::{self, Script};
use crate::tree::{FILE, PROGRAM, Tree, TreeError};

/// The folder of programs in packages.
const PROGRAMS: &str = "usr/bin";

/// systemd's folder for packages.
const SYSTEMD: &str = "usr/lib/systemd";

/// Without it, `systemctl preset-all` and the first boot of an image that has the package would switch
/// the agent on (`man 5 systemd.preset`).
const PRESET: &str =
    "# The agent is off until it is asked for: by `netwright setup`.\ndisable netwright.target\n";

/// The image's folder of programs, which the chart names.
const IMAGE_PROGRAMS: &str = "opt/netwright";

/// The package's own revision: packages of one version may differ in files that are not upstream's.
const REVISION: &str = "1";

/// How to install what is in the archive.
const INSTALL: &str = "\
Netwright, from this folder, as root:

    bin/netwright setup            # where systemd runs the machine; asks before it does anything
    netwright setup --undo         # takes all of it off again

    install -m 755 bin/* /usr/local/bin && netwright install     # elsewhere; then start netwrightd
    netwright uninstall && rm /usr/local/bin/netwright*          # takes it off again
";

/// Returns the name of the archive, and of the folder that is in it.
pub(crate) fn archive_name(texts: &Texts, built: &Build) -> String {
    format!("netwright-{}-{}", texts.version, built.architecture.triple())
}

/// Returns what is in the archive.
pub(crate) fn archive(texts: &Texts, built: &Build) -> Result<Tree, TreeError> {
    let mut tree = Tree::default();
    for program in &built.programs {
        tree.file(&format!("bin/{}", program.name), PROGRAM, program.bytes.clone())?;
        tree.file(&format!("doc/{}.cdx.json", program.name), FILE, program.bill.clone())?;
    }
    for (name, page) in &texts.pages {
        tree.file(&format!("man/man{}/{name}", section(name)), FILE, page.clone())?;
    }
    for (name, text) in &texts.completions {
        tree.file(&format!("complete/{name}"), FILE, text.clone())?;
    }
    for (path, text) in &texts.units {
        tree.file(&format!("systemd/{path}"), FILE, text.clone())?;
    }
    for (name, text) in configurations(texts) {
        tree.file(&format!("examples/{name}"), FILE, text.into_bytes())?;
    }
    for (path, text) in [
        ("INSTALL", INSTALL.as_bytes()),
        ("README.md", &texts.readme[..]),
        ("LICENSE", &texts.licence[..]),
        ("doc/CHANGELOG.md", &texts.changelog[..]),
        ("doc/netwrightd.toml", &texts.configuration[..]),
        ("doc/third-party-licences.txt", &built.third_party[..]),
    ] {
        tree.file(path, FILE, text)?;
    }
    Ok(tree)
}

/// Returns the executables' debug symbols, if they were separated from them.
pub(crate) fn symbols(built: &Build) -> Result<Tree, TreeError> {
    let mut tree = Tree::default();
    for program in &built.programs {
        if let Some(symbols) = &program.symbols {
            tree.file(&format!("{}.{SYMBOLS}", program.name), FILE, symbols.clone())?;
        }
    }
    Ok(tree)
}

/// Returns what is in the Helm chart's archive, below the folder of its name.
pub(crate) fn chart(texts: &Texts) -> Result<Tree, TreeError> {
    let mut tree = Tree::default();
    for (path, text) in &texts.chart {
        tree.file(path, FILE, text.clone())?;
    }
    Ok(tree)
}

/// The chart's name.
pub(crate) const CHART: &str = "netwright";

/// Returns what the chart renders, as one document for `kubectl apply`.
pub(crate) fn manifests(texts: &Texts) -> Vec<u8> {
    let is_one = |name: &&String| name.ends_with(".yaml") && *name != KUSTOMIZATION;
    let names = texts.manifests.keys().filter(is_one);
    let texts: Vec<&[u8]> = names.map(|name| &texts.manifests[name][..]).collect();
    texts.join(&b"---\n"[..])
}

/// A list of the other files, for `kubectl apply -k`.
const KUSTOMIZATION: &str = "kustomization.yaml";

/// Returns Debian's packages.
pub(crate) fn debian(texts: &Texts, built: &Build) -> Result<[Package; 2], ArchiveError> {
    Ok([netwright(texts, built)?, plugins(texts, built)?])
}

/// The description in both packages of the executables.
const SUMMARY: &str = "container networking: command line, agent and CNI plugins";
const DESCRIPTION: &str = "\
Netwright connects containers to networks. This package has the command line
and the agent, which is off until `netwright setup`, or until
`systemctl enable --now netwright.target`.

The package netwright-cni-plugins gives container runtimes its CNI plugins.";

/// The executables, which do nothing until they are asked to.
fn netwright(texts: &Texts, built: &Build) -> Result<Package, ArchiveError> {
    let mut tree = installed(texts, built, DEBIANS_ZSH)?;
    let (fields, scripts) = debians(texts, "netwright", &mut tree)?;
    Ok(Package {
        name: "netwright",
        version: debian_version(texts),
        architecture: built.architecture.short(),
        fields,
        summary: SUMMARY,
        description: DESCRIPTION,
        scripts,
        tree,
    })
}

/// Returns what a package of the executables has, of Debian's or rpm's.
fn installed(texts: &Texts, built: &Build, zsh: &str) -> Result<Tree, ArchiveError> {
    let mut tree = Tree::default();
    for program in &built.programs {
        tree.file(&format!("{PROGRAMS}/{}", program.name), PROGRAM, program.bytes.clone())?;
    }
    for (path, text) in texts.units_for(&format!("/{PROGRAMS}")) {
        tree.file(&format!("{SYSTEMD}/system/{path}"), FILE, text)?;
    }
    tree.file(&format!("{SYSTEMD}/system-preset/80-netwright.preset"), FILE, PRESET.as_bytes())?;
    let generator = format!("{SYSTEMD}/system-generators/netwright-generator");
    tree.link(&generator, "../../../bin/netwrightd")?;
    for (name, page) in &texts.pages {
        let path = format!("usr/share/man/man{}/{name}.gz", section(name));
        tree.file(&path, FILE, gzip_document(page)?)?;
    }
    for (name, text) in &texts.completions {
        tree.file(&completion(name, zsh), FILE, text.clone())?;
    }
    let doc = "usr/share/doc/netwright";
    for program in &built.programs {
        let path = format!("{doc}/{}.cdx.json.gz", program.name);
        tree.file(&path, FILE, gzip_document(&program.bill)?)?;
    }
    let licences = format!("{doc}/third-party-licences.txt.gz");
    tree.file(&licences, FILE, gzip_document(&built.third_party)?)?;
    tree.file(&format!("{doc}/netwrightd.toml"), FILE, texts.configuration.clone())?;
    tree.file(&format!("{doc}/README.md"), FILE, texts.readme.clone())?;
    for (name, text) in configurations(texts) {
        tree.file(&format!("{doc}/examples/{name}"), FILE, text.into_bytes())?;
    }
    Ok(tree)
}

/// Returns the configurations that the README shows, by their names.
fn configurations(texts: &Texts) -> BTreeMap<String, String> {
    examples::shown(&String::from_utf8_lossy(&texts.readme))
}

/// The plugins where runtimes look: the package's scripts make links there. The package does not
/// own these, since other packages have files of the same names.
fn plugins(texts: &Texts, built: &Build) -> Result<Package, ArchiveError> {
    let mut tree = Tree::default();
    let (fields, scripts) = debians(texts, "netwright-cni-plugins", &mut tree)?;
    Ok(Package {
        name: "netwright-cni-plugins",
        version: debian_version(texts),
        architecture: built.architecture.short(),
        fields,
        summary: PLUGINS_SUMMARY,
        description: PLUGINS_DESCRIPTION,
        scripts,
        tree,
    })
}

const PLUGINS_SUMMARY: &str = "container networking: CNI plugins where runtimes look";
const PLUGINS_DESCRIPTION: &str = "\
Gives containerd, podman, CRI-O and others the CNI plugins of Netwright, in
/usr/lib/cni. Plugins of other packages are diverted, and come back when this
package is removed. No call of a runtime fails meanwhile.";

/// Returns packages of rpm.
pub(crate) fn rpms(texts: &Texts, built: &Build) -> Result<[rpm::Package; 2], ArchiveError> {
    let mut tree = installed(texts, built, RPMS_ZSH)?;
    tree.file("usr/share/licenses/netwright/LICENSE", FILE, texts.licence.clone())?;
    let mut plugins = Tree::default();
    let licence = "usr/share/licenses/netwright-cni-plugins/LICENSE";
    plugins.file(licence, FILE, texts.licence.clone())?;
    let package = |name: &'static str, summary, description, tree| rpm::Package {
        name,
        version: texts.version.replace('-', "~"),
        release: REVISION.to_owned(),
        architecture: built.architecture.long(),
        licence: "Apache-2.0",
        url: "https://github.com/netwright/netwright",
        summary,
        description,
        packager: MAINTAINER,
        requires: vec![("/bin/sh", None)],
        provides: Vec::new(),
        scripts: rpms_scripts(texts, name),
        tree,
    };
    let netwright = package("netwright", SUMMARY, DESCRIPTION, tree);
    let about = "Gives containerd, podman, CRI-O and others the CNI plugins of Netwright, in\n\
                 /usr/libexec/cni. What was there comes back when this package is removed.";
    let mut plugins = package("netwright-cni-plugins", PLUGINS_SUMMARY, about, plugins);
    let version = format!("{}-{}", plugins.version, plugins.release);
    plugins.requires.push(("netwright", Some(version)));
    plugins.provides.push(("container-network-stack", "1".to_owned()));
    Ok([netwright, plugins])
}

/// The package that has the Go plugins, of Fedora and of those that follow it.
const THEIRS: &str = "containernetworking-plugins";

fn rpms_scripts(texts: &Texts, name: &str) -> Vec<(Script, String)> {
    let all = [
        (Script::AfterInstallation, "post"),
        (Script::BeforeRemoval, "preun"),
        (Script::AfterRemoval, "postun"),
        (Script::WithOther(THEIRS), "triggerin"),
        (Script::WithoutOther(THEIRS), "triggerpostun"),
    ];
    let script = |(when, ending): (Script, &str)| {
        let text = texts.packaging.get(&format!("rpm/{name}.{ending}"))?;
        Some((when, String::from_utf8_lossy(text).into_owned()))
    };
    all.into_iter().filter_map(script).collect()
}

/// Fields and scripts of a package of Debian.
type Debians = (Vec<(&'static str, String)>, Vec<(&'static str, String)>);

/// Adds to a tree what each of Debian's packages has: copyright, changelog, and the reasons for
/// what lintian would report. Returns the fields, and the scripts of `deploy/packages/debian`.
fn debians(texts: &Texts, name: &str, tree: &mut Tree) -> Result<Debians, ArchiveError> {
    let doc = format!("usr/share/doc/{name}");
    let ours = |path: &str| texts.packaging.get(&format!("debian/{path}"));
    let copyright = ours("copyright").cloned().unwrap_or_default();
    tree.file(&format!("{doc}/copyright"), FILE, copyright)?;
    let changelog = format!(
        "{name} ({}) unstable; urgency=medium\n\n  * Version {} of Netwright.\n\n -- {MAINTAINER}  {}\n",
        debian_version(texts),
        texts.version,
        texts.epoch.mail()
    );
    let changelog = gzip_document(changelog.as_bytes())?;
    tree.file(&format!("{doc}/changelog.Debian.gz"), FILE, changelog)?;
    tree.file(&format!("{doc}/changelog.gz"), FILE, gzip_document(&texts.changelog)?)?;
    if let Some(overrides) = ours(&format!("{name}.lintian-overrides")) {
        let path = format!("usr/share/lintian/overrides/{name}");
        tree.file(&path, FILE, overrides.clone())?;
    }
    let mut fields = vec![
        ("Maintainer", MAINTAINER.to_owned()),
        ("Section", "net".to_owned()),
        ("Priority", "optional".to_owned()),
        ("Homepage", "https://github.com/netwright/netwright".to_owned()),
    ];
    if name == "netwright" {
        fields.push(("Suggests", "netwright-cni-plugins".to_owned()));
    } else {
        fields.push(("Depends", format!("netwright (= {})", debian_version(texts))));
        // What podman's package asks for, and the Go plugins' package has.
        fields.push(("Provides", "container-network-stack (= 1)".to_owned()));
        fields.push(("Enhances", "containerd, podman".to_owned()));
    }
    let mut scripts = Vec::new();
    for script in ["preinst", "postinst", "prerm", "postrm"] {
        if let Some(text) = ours(&format!("{name}.{script}")) {
            scripts.push((script, String::from_utf8_lossy(text).into_owned()));
        }
    }
    Ok((fields, scripts))
}

const MAINTAINER: &str = "Netwright maintainers <netwright@users.noreply.github.com>";

fn debian_version(texts: &Texts) -> String {
    // `0.2.0-rc.1` comes before `0.2.0`: a tilde sorts before the end (`man 7 deb-version`).
    format!("{}-{REVISION}", texts.version.replace('-', "~"))
}

/// Returns the image.
pub(crate) fn image(texts: &Texts, built: &[Build]) -> Result<Image, TreeError> {
    let platform = |built: &Build| -> Result<Platform, TreeError> {
        let (mut programs, mut papers) = (Tree::default(), Tree::default());
        for program in &built.programs {
            let path = format!("{IMAGE_PROGRAMS}/{}", program.name);
            programs.file(&path, PROGRAM, program.bytes.clone())?;
        }
        let doc = "usr/share/doc/netwright";
        papers.file(&format!("{doc}/LICENSE"), FILE, texts.licence.clone())?;
        let licences = format!("{doc}/third-party-licences.txt");
        papers.file(&licences, FILE, built.third_party.clone())?;
        Ok(Platform {
            architecture: built.architecture.short(),
            layers: vec![papers, programs],
            bills: built.programs.iter().map(|program| program.bill.clone()).collect(),
        })
    };
    Ok(Image {
        name: "ghcr.io/netwright/netwright",
        version: texts.version.clone(),
        revision: texts.revision.clone(),
        source: "https://github.com/netwright/netwright",
        licence: "Apache-2.0",
        title: "netwright",
        description: "Container networking: command line, agent and CNI plugins",
        command: vec!["/opt/netwright/netwright", "--help"],
        platforms: built.iter().map(platform).collect::<Result<_, _>>()?,
    })
}

/// Returns the section of a page of the manual: 1 of `netwright.1`.
fn section(page: &str) -> &str {
    page.rsplit_once('.').map_or("1", |(_, section)| section)
}

/// Where zsh looks for completions of packages.
const DEBIANS_ZSH: &str = "usr/share/zsh/vendor-completions";
const RPMS_ZSH: &str = "usr/share/zsh/site-functions";

/// Returns where a shell looks for a file of completions.
fn completion(name: &str, zsh: &str) -> String {
    match name.rsplit_once('.') {
        Some((program, "bash")) => format!("usr/share/bash-completion/completions/{program}"),
        Some((_, "fish")) => format!("usr/share/fish/vendor_completions.d/{name}"),
        _ => format!("{zsh}/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{CHART, archive, archive_name, chart, debian, image, manifests, rpms};
    use crate::archive::{Top, gunzip, gzip, tar};
    use crate::goods::Architecture::{Aarch64, X86_64};
    use crate::goods::tests::{built, texts};
    use crate::tests::said;
    use crate::tree::{Content, Tree};

    fn text(tree: &Tree, path: &str) -> String {
        let entry = tree.get(path).unwrap_or_else(|| panic!("{path} is missing"));
        let bytes = entry.bytes();
        let plain = if path.ends_with(".gz") { gunzip(bytes).unwrap() } else { bytes.to_vec() };
        String::from_utf8(plain).unwrap()
    }

    #[test]
    fn the_archive_has_what_a_person_looks_for() {
        let (texts, built) = (texts(), built(X86_64));
        assert_eq!(archive_name(&texts, &built), "netwright-0.1.0-x86_64-unknown-linux-musl");
        let tree = archive(&texts, &built).unwrap();
        for path in [
            "bin/netwright",
            "bin/netwrightd",
            "man/man1/netwright-run.1",
            "complete/_netwright",
            "systemd/netwrightd@.service",
            "doc/netwright.cdx.json",
            "examples/nodes.toml",
        ] {
            assert!(tree.get(path).is_some(), "{path}");
        }
        let network = text(&tree, "examples/mynet.conflist");
        let network: serde_json::Value = serde_json::from_str(&network).unwrap();
        assert_eq!(network["name"], "mynet");
        assert_eq!(tree.get("bin/netwright").unwrap().mode, 0o755);
        assert!(text(&tree, "INSTALL").lines().count() < 10);
    }

    #[test]
    fn the_packages_of_debian_have_their_files_where_debian_looks() {
        let [netwright, plugins] = debian(&texts(), &built(X86_64)).unwrap();
        let unit = "usr/lib/systemd/system/netwrightd@.service";
        assert!(text(&netwright.tree, unit).contains("ExecStart=/usr/bin/netwrightd "));
        let generator = "usr/lib/systemd/system-generators/netwright-generator";
        let link = &netwright.tree.get(generator).unwrap().content;
        assert_eq!(*link, Content::Link("../../../bin/netwrightd".to_owned()));
        let page = text(&netwright.tree, "usr/share/man/man1/netwright.1.gz");
        assert!(page.contains(".TH NETWRIGHT 1"));
        for (folder, page) in
            [("man5", "netwrightd.toml.5"), ("man7", "netwright.7"), ("man8", "netwrightd.8")]
        {
            let path = format!("usr/share/man/{folder}/{page}.gz");
            assert!(netwright.tree.get(&path).is_some(), "{path}");
        }
        let completions = "usr/share/bash-completion/completions/netwright";
        assert!(netwright.tree.get(completions).is_some());
        for package in [&netwright, &plugins] {
            let doc = format!("usr/share/doc/{}", package.name);
            let changelog = text(&package.tree, &format!("{doc}/changelog.Debian.gz"));
            assert!(changelog.ends_with("  Thu, 26 Nov 2026 10:00:00 +0000\n"), "{changelog}");
            assert!(text(&package.tree, &format!("{doc}/copyright")).contains("Apache-2.0"));
            assert!(package.scripts.iter().any(|(name, _)| *name == "postinst"));
            for (name, script) in &package.scripts {
                assert!(script.starts_with("#!/bin/sh\nset -e\n"), "{name}");
            }
            // No package owns what two have, or what an administrator makes.
            let strange = |path: &str| path.starts_with("usr/lib/cni") || path.starts_with("etc/");
            assert!(!package.tree.entries().any(|(path, _)| strange(path)));
        }
        assert_eq!(netwright.file_name(), "netwright_0.1.0-1_amd64.deb");
        let field = |name: &str| {
            let field = plugins.fields.iter().find(|(known, _)| *known == name);
            field.map(|(_, value)| value.as_str())
        };
        assert_eq!(field("Depends"), Some("netwright (= 0.1.0-1)"));
        assert_eq!(field("Provides"), Some("container-network-stack (= 1)"));
    }

    #[test]
    fn the_packages_of_rpm_have_scripts_for_each_moment() {
        let [netwright, plugins] = rpms(&texts(), &built(X86_64)).unwrap();
        assert_eq!(netwright.file_name(), "netwright-0.1.0-1.x86_64.rpm");
        assert_eq!((netwright.scripts.len(), plugins.scripts.len()), (3, 4));
        assert!(netwright.tree.get("usr/bin/netwrightd").is_some());
        assert_eq!(plugins.requires[1], ("netwright", Some("0.1.0-1".to_owned())));
        let strange = |path: &str| path.starts_with("usr/libexec/cni") || path.starts_with("etc/");
        for package in [netwright, plugins] {
            assert!(!package.tree.entries().any(|(path, _)| strange(path)));
        }
    }

    #[test]
    fn helm_reads_the_chart() {
        testkit::require!("helm");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("chart.tgz");
        let tree = chart(&texts()).unwrap();
        let archive = gzip(&tar(&tree, Top::In(CHART), texts().epoch).unwrap()).unwrap();
        std::fs::write(&path, archive).unwrap();
        let helm = testkit::reference::kubernetes("helm");
        let said = said(helm.to_str().unwrap(), &["show", "chart", path.to_str().unwrap()]);
        assert!(said.contains("\nname: netwright\n") && said.contains("\nversion: "), "{said}");
        let manifests = String::from_utf8(manifests(&texts())).unwrap();
        let kinds: Vec<&str> =
            manifests.lines().filter_map(|line| line.strip_prefix("kind: ")).collect();
        let first = kinds.iter().take_while(|kind| **kind == "CustomResourceDefinition").count();
        assert!(0 < first && kinds.contains(&"DaemonSet"), "definitions come first: {kinds:?}");
        assert!(!manifests.contains("kind: Kustomization"));
    }

    #[test]
    fn a_version_before_a_release_sorts_before_it() {
        let mut texts = texts();
        texts.version = "0.2.0-rc.1".to_owned();
        let [netwright, _] = debian(&texts, &built(Aarch64)).unwrap();
        assert_eq!(netwright.file_name(), "netwright_0.2.0~rc.1-1_arm64.deb");
    }

    #[test]
    fn the_image_has_the_programs_where_the_chart_runs_them() {
        let image = image(&texts(), &[built(X86_64), built(Aarch64)]).unwrap();
        let chart = std::fs::read_to_string(
            std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("../deploy/chart/netwright/templates/_helpers.tpl"),
        )
        .unwrap();
        assert!(chart.contains("command: [/opt/netwright/netwrightd]"));
        for platform in &image.platforms {
            let programs = &platform.layers[1];
            for program in ["netwright", "netwrightd"] {
                assert!(programs.get(&format!("opt/netwright/{program}")).is_some());
            }
        }
        assert_eq!(image.platforms.len(), 2);
    }
}
