//! The project's tasks: `cargo xtask COMMAND`.
//!
//! Nothing here is part of the product. It uses only the standard library, so that it builds in a
//! second; its tests read JSON.

#![expect(clippy::disallowed_methods, reason = "running programs is what this is for")]
#![expect(clippy::print_stdout, reason = "it talks to a person or a log")]

mod arm64;
mod book;
mod ci;
mod deb;
mod demo;
mod deny;
mod dependencies;
mod elf;
mod engine;
mod executable;
mod fuzz;
mod kubernetes;
mod matrix;
mod musl;
mod place;
mod publish;
mod reference;
mod release;
mod remap;
mod run;
mod runtimes;
mod sbom;
mod semver;
mod setup;
mod skips;
mod spec;
mod suite;
mod symbols;
mod times;
mod torture;
mod vm;
mod words;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask COMMAND

  setup [--full]    install the Debian packages that tests need (xtask/debian-packages.txt), only those missing;
                    --full adds those of debian-packages-full.txt
  test [--full]     setup, then everything that ci does: what the README promises
  ci [--full]       everything a change must pass; --full adds soaks, large counts and fuzzing
  only [--full] FILTER…
                    run the tests that FILTER chooses, as ci runs them: names, or options of cargo-nextest
  clippy            what ci --full asks of clippy
  chart             render deploy/kubernetes from deploy/chart
  demo              build the executable and let a container reach the outside (takes root)
  matrix            make the table of plugins, verbs and address families again from the last ci's logs
  runtimes          show again what real runtimes said in the last ci's tests
  torture           show again what the last ci's tests killed, failed, corrupted and interleaved
  dist              build the static executables, each with its bill of materials: target/dist/netwright and netwrightd
  arm64             build the executables for arm64 if they can be had, and run them by emulation
  book              make the book of docs, in target/book/html, if mdbook is installed
  book --pictures   the same, and pictures of some pages, light and dark, wide and narrow, if chromium is
  release --draft   make archive, packages, image and hashes of what is here: target/release-VERSION
  release --twice   the same, and once more elsewhere, by another user, on one processor: the files must be equal
  release --sign KEY
                    the same of a clean tag, for both architectures, signed (RELEASING.md)
  release --verify FOLDER
                    build again, and say which file of which artefact in FOLDER differs
  deps              check licences, sources, forbidden crates, duplicates and layers; runs cargo-deny if it is installed
  spec              check that each rule in docs/spec has a test that exists, or a reason
  words             check the words of the code, and subjects of commits, by xtask/words.txt
  words --lower     write the numbers of today into that list, where they are lower
  vm [--full] [-p PACKAGE] [-- FILTER…]
                    run in a virtual machine the tests with vm_ in their names, or those that match
  vm --sh SCRIPT    run a shell script there
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let placed = match args.first() {
        Some(&("setup" | "test" | "ci" | "only" | "clippy" | "vm")) => place::enter(),
        _ => Ok(()),
    };
    let result = placed.and_then(|()| match args.as_slice() {
        ["setup"] => setup::install(ci::Extent::EveryChange).map(|note| println!("{note}")),
        ["setup", "--full"] => setup::install(ci::Extent::Full).map(|note| println!("{note}")),
        ["test" | "ci"] => ci::run(ci::Extent::EveryChange),
        ["test" | "ci", "--full"] => ci::run(ci::Extent::Full),
        ["only", "--full", chosen @ ..] => suite::command(ci::Extent::Full, chosen),
        ["only", chosen @ ..] => suite::command(ci::Extent::EveryChange, chosen),
        ["clippy"] => ci::clippy().map(|_| ()),
        ["chart"] => kubernetes::render(),
        ["demo"] => demo::run(),
        ["matrix"] => matrix::from_logs(),
        ["torture"] => torture::from_logs(),
        ["runtimes"] => runtimes::from_logs(),
        ["dist"] => executable::SHIPPED
            .iter()
            .try_for_each(|shipped| shipped.build().map(|path| println!("{}", path.display()))),
        ["arm64"] => arm64::check(ci::Extent::Full).map(|report| println!("{}", report.note)),
        ["book"] => book::make().map(|note| println!("{note}")),
        ["book", "--pictures"] => book::pictures().map(|note| println!("{note}")),
        ["release", rest @ ..] => release::command(rest),
        ["deps"] => dependencies::check().map(|note| println!("{note}")),
        ["spec"] => spec::check().map(|note| println!("{note}")),
        ["words"] => words::check().map(|note| println!("{note}")),
        ["words", "--lower"] => words::lower().map(|note| println!("{note}")),
        ["vm", "--sh", script] => vm::shell(script),
        ["vm", "--full", chosen @ ..] => vm::command(ci::Extent::Full, chosen),
        ["vm", chosen @ ..] => vm::command(ci::Extent::EveryChange, chosen),
        [] | ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            Ok(())
        }
        other => Err(format!("unknown command: {}\n\n{HELP}", other.join(" "))),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            if !message.is_empty() {
                println!("xtask: {message}");
            }
            ExitCode::FAILURE
        }
    }
}
