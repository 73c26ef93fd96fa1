//! Makes the artefacts of a release from its goods.

use std::collections::BTreeMap;

use crate::archive::{ArchiveError, Top, gzip, tar};
use crate::changelog::{ChangelogError, section};
use crate::compare::{IMAGE, SUMS};
use crate::contents;
use crate::goods::{Build, Texts};
use crate::hash;

/// The name of the release notes.
const NOTES: &str = "NOTES.md";

/// Where the files of a tag are.
const FILES: &str = "https://github.com/netwright/netwright/blob";

/// An artefact cannot be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MakeError {
    #[error("make {name}")]
    Artefact {
        name: String,
        #[source]
        source: ArchiveError,
    },
    #[error("make the release notes")]
    Notes(#[source] ChangelogError),
}

/// Returns all artefacts by their names: for each architecture an archive, one with symbols, packages
/// of Debian and rpm, the bills of materials; one image; the chart, and what it renders; the notes; the list of hashes.
pub(crate) fn artefacts(
    texts: &Texts,
    built: &[Build],
) -> Result<BTreeMap<String, Vec<u8>>, MakeError> {
    let mut all = BTreeMap::new();
    let failed = |name: &str| {
        let name = name.to_owned();
        move |source| MakeError::Artefact { name, source }
    };
    for one in built {
        let top = contents::archive_name(texts, one);
        let name = format!("{top}.tar.gz");
        let archive = contents::archive(texts, one)
            .map_err(ArchiveError::from)
            .and_then(|tree| tar(&tree, Top::In(&top), texts.epoch))
            .and_then(|archive| gzip(&archive))
            .map_err(failed(&name))?;
        all.insert(name, archive);
        let top = format!("{top}-debug");
        let name = format!("{top}.tar.gz");
        let symbols = contents::symbols(one).map_err(ArchiveError::from);
        let symbols = symbols.map_err(failed(&name))?;
        if symbols.entries().next().is_some() {
            let archive = tar(&symbols, Top::In(&top), texts.epoch)
                .and_then(|archive| gzip(&archive))
                .map_err(failed(&name))?;
            all.insert(name, archive);
        }
        for package in contents::debian(texts, one).map_err(failed("the packages of Debian"))? {
            let name = package.file_name();
            let written = package.write(texts.epoch).map_err(failed(&name))?;
            all.insert(name, written);
        }
        for package in contents::rpms(texts, one).map_err(failed("the packages of rpm"))? {
            let name = package.file_name();
            let written = package.write(texts.epoch).map_err(failed(&name))?;
            all.insert(name, written);
        }
        for program in &one.programs {
            let architecture = one.architecture.short();
            let name = format!("{}-{}-{architecture}.cdx.json", program.name, texts.version);
            all.insert(name, program.bill.clone());
        }
    }
    let name = format!("netwright-{}{IMAGE}", texts.version);
    let image = contents::image(texts, built)
        .map_err(ArchiveError::from)
        .and_then(|image| image.write(texts.epoch))
        .map_err(failed(&name))?;
    all.insert(name, image);
    let name = format!("{}-{}.tgz", contents::CHART, texts.version);
    let chart = contents::chart(texts)
        .map_err(ArchiveError::from)
        .and_then(|tree| tar(&tree, Top::In(contents::CHART), texts.epoch))
        .and_then(|archive| gzip(&archive))
        .map_err(failed(&name))?;
    all.insert(name, chart);
    all.insert(format!("netwright-{}.yaml", texts.version), contents::manifests(texts));
    all.insert(NOTES.to_owned(), notes(texts)?.into_bytes());
    let files = all.iter().map(|(name, bytes)| (name.as_str(), &bytes[..]));
    let sums = hash::list(files);
    all.insert(SUMS.to_owned(), sums.into_bytes());
    Ok(all)
}

/// Returns what is new. A version that the CHANGELOG does not have yet gets the section
/// *Unreleased*: it is a draft. The caller that checks the tag decides whether a draft is allowed.
fn notes(texts: &Texts) -> Result<String, MakeError> {
    let changelog = String::from_utf8_lossy(&texts.changelog);
    let own = section(&changelog, &texts.version);
    let text = own.or_else(|_| section(&changelog, "Unreleased")).map_err(MakeError::Notes)?;
    let text = linked(text, &texts.version);
    Ok(format!("# Netwright {} ({})\n\n{text}\n", texts.version, texts.epoch.day()))
}

/// Makes links to files of the checkout lead to those of the version's tag: notes are read elsewhere.
fn linked(text: &str, version: &str) -> String {
    let here = format!("]({FILES}/v{version}/");
    let mut parts = text.split("](");
    let mut linked = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let is_whole = part.starts_with("https://");
        linked.push_str(if is_whole { "](" } else { here.as_str() });
        linked.push_str(part);
    }
    linked
}

#[cfg(test)]
mod tests {
    use super::{SUMS, artefacts, linked};
    use crate::goods::Architecture::{Aarch64, X86_64};
    use crate::goods::tests::{built, texts};
    use crate::hash;

    #[test]
    fn a_release_has_these_artefacts_and_no_others() {
        let all = artefacts(&texts(), &[built(X86_64), built(Aarch64)]).unwrap();
        let names: Vec<&str> = all.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            [
                "NOTES.md",
                "SHA256SUMS",
                "netwright-0.1.0-1.aarch64.rpm",
                "netwright-0.1.0-1.x86_64.rpm",
                "netwright-0.1.0-aarch64-unknown-linux-musl-debug.tar.gz",
                "netwright-0.1.0-aarch64-unknown-linux-musl.tar.gz",
                "netwright-0.1.0-amd64.cdx.json",
                "netwright-0.1.0-arm64.cdx.json",
                "netwright-0.1.0-x86_64-unknown-linux-musl-debug.tar.gz",
                "netwright-0.1.0-x86_64-unknown-linux-musl.tar.gz",
                "netwright-0.1.0.oci.tar",
                "netwright-0.1.0.tgz",
                "netwright-0.1.0.yaml",
                "netwright-cni-plugins-0.1.0-1.aarch64.rpm",
                "netwright-cni-plugins-0.1.0-1.x86_64.rpm",
                "netwright-cni-plugins_0.1.0-1_amd64.deb",
                "netwright-cni-plugins_0.1.0-1_arm64.deb",
                "netwright_0.1.0-1_amd64.deb",
                "netwright_0.1.0-1_arm64.deb",
                "netwrightd-0.1.0-amd64.cdx.json",
                "netwrightd-0.1.0-arm64.cdx.json",
            ]
        );
        let sums = String::from_utf8(all[SUMS].clone()).unwrap();
        let is: Vec<(String, String)> = all
            .iter()
            .filter(|(name, _)| *name != SUMS)
            .map(|(name, bytes)| (name.clone(), hash::sha256(bytes)))
            .collect();
        assert_eq!(hash::check(&sums, &is), []);
        let notes = String::from_utf8(all["NOTES.md"].clone()).unwrap();
        assert!(notes.starts_with("# Netwright 0.1.0 (2026-11-26)\n\n"), "{notes}");
    }

    #[test]
    fn links_of_the_notes_lead_to_the_tag() {
        assert_eq!(
            linked("- A ([a](docs/a.md#b)), [c](https://example.com).", "0.2.0"),
            "- A ([a](https://github.com/netwright/netwright/blob/v0.2.0/docs/a.md#b)), \
             [c](https://example.com)."
        );
    }
}
