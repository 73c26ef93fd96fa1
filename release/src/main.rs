//! Makes what is released, and compares two releases. `cargo xtask release` builds the executables
//! and calls this.
//!
//! A release is a tree of entries as data ([`tree`]): a path, a mode, and bytes or a link. Writers
//! are pure functions of such trees and of one time, that of the commit: [`archive`], [`deb`],
//! [`rpm`], [`oci`]. [`goods`] reads the checkout and what was built, [`contents`] says which file
//! is where, [`mod@make`] makes all artefacts. Nothing here depends on the clock, the network, or
//! the user who runs it, so the same inputs give the same bytes everywhere.
//!
//! Tools for packages and images start from files on a disk, with the owners, modes and times of
//! whoever made them, and each has its own list of which file goes where. Here everything belongs
//! to root, has the time of the commit (`SOURCE_DATE_EPOCH`), and is listed once. `xtask` uses only
//! the standard library, so that it builds in a second; therefore this is a package of its own. The
//! archive around a `.deb`, and the format of `.rpm`, are written here: the crate `ar` has one
//! maintainer and no recent release, and the crate `rpm` needs older versions of our hashes and
//! twenty other crates. Packages are compressed by miniz, and a tenth larger than with xz, which is
//! written in C.
//!
//! A signature is not reproducible, so it is not compared. `ssh-keygen` makes and verifies it,
//! because it is on every machine from which people log in to others.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test may panic"))]
#![expect(clippy::print_stdout, reason = "it talks to a person or a log")]

mod archive;
mod changelog;
mod compare;
mod contents;
mod deb;
mod epoch;
mod examples;
mod goods;
mod hash;
mod make;
mod oci;
mod rpm;
mod third_party;
mod tree;

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use goods::{Architecture, Build, Texts};

const HELP: &str = "\
netwright-release make CHECKOUT INTO VERSION REVISION EPOCH TRIPLE=DIST… [SOURCES…]
                    make the artefacts of a version in the folder INTO, of the executables in each
                    folder DIST; SOURCES are folders with the sources of crates
netwright-release compare ONE OTHER
                    compare two folders of artefacts, and say which file of which artefact differs
netwright-release check FOLDER
                    compare the artefacts of a folder with its SHA256SUMS
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments.as_slice() {
        ["make", checkout, into, version, revision, epoch, rest @ ..] => {
            make(Path::new(checkout), Path::new(into), version, revision, epoch, rest)
        }
        ["compare", one, other] => compare(Path::new(one), Path::new(other)),
        ["check", folder] => check(Path::new(folder)),
        _ => Err(HELP.into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("netwright-release: {}", chain(&*error));
            ExitCode::FAILURE
        }
    }
}

/// Returns an error and its causes on a line.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

type Outcome = Result<(), Box<dyn Error>>;

fn make(
    checkout: &Path,
    into: &Path,
    version: &str,
    revision: &str,
    epoch: &str,
    rest: &[&str],
) -> Outcome {
    let texts = Texts::read(checkout, version, revision, epoch.parse()?)?;
    let sources: Vec<PathBuf> =
        rest.iter().filter(|word| !word.contains('=')).map(PathBuf::from).collect();
    let mut built = Vec::new();
    for (triple, dist) in rest.iter().filter_map(|word| word.split_once('=')) {
        let mut known = Architecture::ALL.into_iter();
        let architecture = known.find(|architecture| architecture.triple() == triple);
        let architecture = architecture.ok_or_else(|| format!("{triple} is not released"))?;
        built.push(Build::read(Path::new(dist), architecture, &sources)?);
    }
    if fs::read_dir(into).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(format!("{} has something in it", into.display()).into());
    }
    let artefacts = make::artefacts(&texts, &built)?;
    let failed = |path: &Path, error: &io::Error| format!("write {}: {error}", path.display());
    fs::create_dir_all(into).map_err(|error| failed(into, &error))?;
    for (name, bytes) in &artefacts {
        let path = into.join(name);
        if let Err(error) = fs::write(&path, bytes) {
            // Half a release could be taken for a whole one.
            let _ = fs::remove_dir_all(into);
            return Err(failed(&path, &error).into());
        }
        println!("{} {:>9} {name}", hash::sha256(bytes), bytes.len());
    }
    Ok(())
}

fn compare(one: &Path, other: &Path) -> Outcome {
    let differences = compare::folders(&goods::folder(one)?, &goods::folder(other)?);
    if differences.is_empty() {
        println!("equal");
        return Ok(());
    }
    Err(differences.join("\n").into())
}

fn check(folder: &Path) -> Outcome {
    let files: BTreeMap<String, Vec<u8>> = goods::folder(folder)?;
    let list = files.get(compare::SUMS).ok_or_else(|| format!("no {}", compare::SUMS))?;
    let own = [compare::SUMS, SIGNATURE];
    let is: Vec<(String, String)> = files
        .iter()
        .filter(|(name, _)| !own.contains(&name.as_str()))
        .map(|(name, bytes)| (name.clone(), hash::sha256(bytes)))
        .collect();
    let problems = hash::check(&String::from_utf8_lossy(list), &is);
    if problems.is_empty() {
        println!("{} artefacts are those of {}", is.len(), compare::SUMS);
        return Ok(());
    }
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    Err(lines.join("\n").into())
}

/// The signature of the list of hashes.
const SIGNATURE: &str = "SHA256SUMS.sig";

#[cfg(test)]
mod tests;
