//! The book: the pages of `docs` in the order of `docs/SUMMARY.md`, made by mdBook where it is
//! installed.
//!
//! Some links of the pages lead to files of the checkout outside `docs`, which the book does not
//! contain. In the book these links lead to the project's page; so mdBook reads a changed copy of
//! the pages. The tests here check all links of all pages, without mdBook.

use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::ci::{Extent, ONLY_FULL, Report};
use crate::run::{Program, exists, quiet, root, target_dir};

/// The folder of the pages, and the page that gives the order of the others.
const PAGES: &str = "docs";
const SUMMARY: &str = "docs/SUMMARY.md";

/// The page of a folder.
const README: &str = "README.md";

/// The address of the checkout's files on the web.
const WEB: &str = "https://github.com/netwright/netwright/blob/main";

/// The program that makes the book.
const MDBOOK: &str = "mdbook";

/// What shows pages as people see them (Debian has it).
const BROWSER: &str = "chromium";

/// Of what pictures are made: pages with commands, prose and wide tables; in a light theme and a dark
/// one; in windows of a desk's width and of the smallest that the browser makes.
const PICTURED: [&str; 4] = ["install", "doctor", "guarantees", "performance"];
const THEMES: [&str; 2] = ["light", "navy"];
const WIDTHS: [u32; 2] = [1400, 500];
const HEIGHT: u32 = 1600;

/// With `--full` makes the book.
pub(crate) fn check(extent: Extent) -> Result<Report, String> {
    match extent {
        Extent::EveryChange => Ok(Report::skipped("book::made", ONLY_FULL)),
        Extent::Full if !exists(MDBOOK) => Ok(Report::skipped("book::made", "no program mdbook")),
        Extent::Full => make().map(Report::check),
    }
}

/// Makes the book in `target/book/html`, and returns what was made.
pub(crate) fn make() -> Result<String, String> {
    if !exists(MDBOOK) {
        return Err(format!("{MDBOOK} is not installed: `cargo install {MDBOOK}` installs it"));
    }
    let book = target_dir().join("book");
    let html = book.join("html");
    let _ = fs::remove_dir_all(&book);
    let pages = pages()?;
    for path in files(&root().join(PAGES))? {
        let from = path.strip_prefix(root()).unwrap_or(&path);
        let bytes = read(&path)?;
        let bytes = match pages.iter().any(|page| page == from) {
            true => for_the_book(from, &String::from_utf8_lossy(&bytes)).into_bytes(),
            false => bytes,
        };
        write(&book.join(from), &bytes)?;
    }
    write(&book.join("book.toml"), &read(&root().join("book.toml"))?)?;
    let program = Program::new(MDBOOK).arg("build").arg(book.display().to_string());
    program.arg("--dest-dir").arg(html.display().to_string()).logged("book", quiet)?;
    for page in &pages {
        let made = html.join(page.strip_prefix(PAGES).unwrap_or(page)).with_extension("html");
        let made = match page.ends_with(README) {
            true => made.with_file_name("index.html"),
            false => made,
        };
        if !made.exists() {
            return Err(format!("{} is not in the book", page.display()));
        }
    }
    let is_index = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("searchindex"))
    };
    if !files(&html)?.iter().any(is_index) {
        return Err(format!("{} cannot be searched", html.display()));
    }
    Ok(format!("{} pages, {}", pages.len(), html.join("index.html").display()))
}

/// Makes the book, and pictures of some pages for a person to look at, in `target/book/pictures`.
pub(crate) fn pictures() -> Result<String, String> {
    if !exists(BROWSER) {
        return Err(format!("{BROWSER} is not installed: `apt-get install {BROWSER}` installs it"));
    }
    make()?;
    let book = target_dir().join("book");
    let pictures = book.join("pictures");
    fs::create_dir_all(&pictures).map_err(|e| format!("create {}: {e}", pictures.display()))?;
    for theme in THEMES {
        // The reader's system decides which of the two themes it is: here both are the same.
        let html = book.join(theme);
        Program::new(MDBOOK)
            .arg("build")
            .arg(book.display().to_string())
            .arg("--dest-dir")
            .arg(html.display().to_string())
            .variable("MDBOOK_OUTPUT__HTML__DEFAULT_THEME", theme)
            .variable("MDBOOK_OUTPUT__HTML__PREFERRED_DARK_THEME", theme)
            .logged("book", quiet)?;
        for (page, width) in PICTURED.iter().flat_map(|page| WIDTHS.map(|width| (page, width))) {
            let picture = pictures.join(format!("{page}-{theme}-{width}.png"));
            // Its sandbox does not start for root; the pages are our own.
            Program::new(BROWSER)
                .arg("--headless")
                .arg("--no-sandbox")
                .arg("--hide-scrollbars")
                .arg(format!("--window-size={width},{HEIGHT}"))
                .arg(format!("--screenshot={}", picture.display()))
                .arg(format!("file://{}/{page}.html", html.display()))
                .logged("book-pictures", quiet)?;
            if !picture.is_file() {
                return Err(format!("{BROWSER} made no {}", picture.display()));
            }
        }
    }
    Ok(format!("pictures in {}", pictures.display()))
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("read {}: {error}", path.display()))
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    path.parent()
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| fs::write(path, bytes))
        .map_err(|error| format!("write {}: {error}", path.display()))
}

/// Returns all files below a folder, sorted.
fn files(top: &Path) -> Result<Vec<PathBuf>, String> {
    let mut files = Vec::new();
    let mut open = vec![top.to_owned()];
    while let Some(folder) = open.pop() {
        let failed = |error: std::io::Error| format!("list {}: {error}", folder.display());
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let list = if path.is_dir() { &mut open } else { &mut files };
            list.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Returns the pages of the book, in no order, as paths in the checkout.
fn pages() -> Result<Vec<PathBuf>, String> {
    let all = files(&root().join(PAGES))?.into_iter();
    let pages = all.filter(|path| path.extension().is_some_and(|ending| ending == "md"));
    let pages = pages.filter_map(|path| path.strip_prefix(root()).ok().map(Path::to_owned));
    Ok(pages.filter(|page| page != Path::new(SUMMARY)).collect())
}

/// Returns the lines of a page, each with whether it is text outside a fence.
fn lines(page: &str) -> impl Iterator<Item = (&str, bool)> {
    let mut fenced = false;
    page.lines().map(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        (line, !fenced && !is_fence)
    })
}

/// Returns a line in which each link has the target that `new` returns for it; for `None` the
/// target stays.
fn with_targets(line: &str, new: impl Fn(&str) -> Option<String>) -> String {
    let mut parts = line.split("](");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push_str("](");
        match part.split_once(')') {
            Some((target, rest)) => {
                text.push_str(&new(target).unwrap_or_else(|| target.to_owned()));
                text.push(')');
                text.push_str(rest);
            }
            None => text.push_str(part),
        }
    }
    text
}

/// Returns the file that a relative link of a page leads to, and the heading in it.
fn resolved<'t>(page: &Path, target: &'t str) -> Option<(PathBuf, Option<&'t str>)> {
    if target.contains("://") || target.contains(char::is_whitespace) {
        return None;
    }
    let (path, heading) = match target.split_once('#') {
        Some((path, heading)) => (path, Some(heading)),
        None => (target, None),
    };
    if path.is_empty() {
        return Some((page.to_owned(), heading));
    }
    let mut file = page.parent().unwrap_or(Path::new("")).to_owned();
    for part in Path::new(path).components() {
        match part {
            Component::ParentDir => {
                file.pop();
            }
            Component::CurDir => {}
            part => file.push(part),
        }
    }
    Some((file, heading))
}

/// Returns a page as the book has it.
fn for_the_book(page: &Path, text: &str) -> String {
    let other = |target: &str| {
        let (file, heading) = resolved(page, target)?;
        let heading = heading.map_or(String::new(), |heading| format!("#{heading}"));
        if !file.starts_with(PAGES) {
            return Some(format!("{WEB}/{}{heading}", file.display()));
        }
        // mdBook makes it the folder's index.
        file.ends_with(README).then(|| target.replace(README, "index.md"))
    };
    lines(text)
        .map(|(line, is_text)| match is_text {
            true => format!("{}\n", with_targets(line, other)),
            false => format!("{line}\n"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    use super::*;

    /// Pages outside the book whose links are checked too.
    const OTHERS: [&str; 6] = [
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "README.md",
        "RELEASING.md",
        "SECURITY.md",
    ];

    fn text(page: &Path) -> String {
        String::from_utf8(read(&root().join(page)).unwrap()).unwrap()
    }

    /// Returns the targets of a page's links, each with its line's number.
    fn targets(text: &str) -> Vec<(usize, String)> {
        let found = RefCell::new(Vec::new());
        for (number, (line, is_text)) in (1..).zip(lines(text)) {
            if is_text {
                with_targets(line, |target| {
                    found.borrow_mut().push((number, target.to_owned()));
                    None
                });
            }
        }
        found.into_inner()
    }

    /// Returns the anchors of a page's headings.
    fn headings(text: &str) -> Vec<String> {
        let mut found: Vec<String> = Vec::new();
        let mut count: BTreeMap<String, u32> = BTreeMap::new();
        for (line, _) in lines(text).filter(|(_, is_text)| *is_text) {
            let Some((_, title)) = line.split_once(' ') else { continue };
            let level = line.len() - line.trim_start_matches('#').len();
            if level == 0 || line.as_bytes().get(level) != Some(&b' ') {
                continue;
            }
            // Of a link only the text counts, without its target.
            let title = with_targets(title, |_| Some(String::new())).replace("]()", "]");
            let letter = |letter: char| match letter {
                ' ' => Some('-'),
                '-' | '_' => Some(letter),
                letter => letter.is_alphanumeric().then_some(letter),
            };
            let name: String = title.trim().to_lowercase().chars().filter_map(letter).collect();
            let before = count.entry(name.clone()).or_default();
            found.push(if *before == 0 { name } else { format!("{name}-{before}") });
            *before += 1;
        }
        found
    }

    #[test]
    fn the_summary_names_every_page_once() {
        let summary = Path::new(SUMMARY);
        let named = targets(&text(summary)).into_iter();
        let mut named: Vec<PathBuf> =
            named.map(|(_, target)| resolved(summary, &target).unwrap().0).collect();
        // A new reader begins here.
        assert_eq!(named[0], Path::new("docs/install.md"));
        named.sort();
        assert_eq!(named, pages().unwrap());
    }

    #[test]
    fn every_link_leads_to_a_file_and_a_heading() {
        let mut dead = Vec::new();
        let mut links = 0;
        let others = OTHERS.iter().map(PathBuf::from);
        let all = pages().unwrap().into_iter().chain([PathBuf::from(SUMMARY)]).chain(others);
        for page in all {
            for (line, target) in targets(&text(&page)) {
                let Some((file, heading)) = resolved(&page, &target) else { continue };
                links += 1;
                let is_there = root().join(&file).exists();
                let is_page = file.extension().is_some_and(|ending| ending == "md");
                let has = |heading: &str| headings(&text(&file)).iter().any(|one| one == heading);
                let leads = heading.is_none_or(|heading| !is_page || has(heading));
                if !is_there || !leads {
                    dead.push(format!("{}:{line}: {target}", page.display()));
                }
            }
        }
        assert!(dead.is_empty(), "{dead:#?}");
        assert!(300 < links, "{links}");
    }

    /// A map with every detail is hard to read: details belong in the crates' READMEs and in the
    /// decisions.
    #[test]
    fn the_map_of_the_code_stays_small() {
        let size = text(Path::new("ARCHITECTURE.md")).len();
        assert!(size <= 10_000, "ARCHITECTURE.md has {size} bytes");
    }

    /// Readers first see what is above the first heading of the README, also in a terminal.
    #[test]
    fn the_first_screen_of_the_readme_says_what_it_is_and_how_to_have_it() {
        let readme = text(Path::new("README.md"));
        let (screen, _) = readme.split_once("\n## ").unwrap();
        let wide: Vec<&str> = screen.lines().filter(|line| 80 < line.chars().count()).collect();
        assert!(wide.is_empty(), "{wide:#?}");
        assert!(screen.lines().count() <= 60);

        let what = screen.split("\n\n").nth(1).unwrap().replace('\n', " ") + " ";
        assert_eq!(what.matches(". ").count(), 1, "sentences: {what}");
        let commands = lines(screen).filter(|(line, is_text)| !is_text && line.starts_with("# "));
        let commands: Vec<&str> = commands.map(|(line, _)| &line[2..]).collect();
        // Four ways to install it, one to see it work, and two from a clean clone.
        let wanted = [
            "apt install ",
            "dnf install ",
            "tar -xf ",
            "netwright-",
            "helm install ",
            "netwright run",
            "cargo xtask demo",
            "cargo xtask test",
        ];
        assert_eq!(commands.len(), wanted.len(), "{commands:#?}");
        for (command, begin) in commands.iter().zip(wanted) {
            assert!(command.starts_with(begin), "{command}: {begin}");
        }
        let linked: Vec<String> = targets(&readme).into_iter().map(|(_, target)| target).collect();
        for page in [
            "docs/install.md",
            "docs/first-container.md",
            "docs/from-go.md",
            "docs/docker.md",
            "docs/kubernetes.md",
            "docs/from-multus.md",
            "docs/routing.md",
            "crates/cni-plugin/README.md",
            "crates/cni-runtime/README.md",
        ] {
            assert!(linked.iter().any(|target| target == page), "{page}: {linked:#?}");
        }
    }

    /// The pages that it links have the details.
    #[test]
    fn the_readme_stays_short() {
        let readme = text(Path::new("README.md"));
        let words = readme.split_whitespace().count();
        assert!(words <= 900, "README.md has {words} words");
        let (_, list) = readme.split_once("\n## Read on\n").unwrap();
        assert!(targets(list).len() <= 12);
    }

    #[test]
    fn a_contributor_finds_the_first_commands_at_the_top() {
        let page = text(Path::new("CONTRIBUTING.md"));
        let top: Vec<&str> = page.lines().take(10).collect();
        let (top, makefile) = (top.join("\n"), text(Path::new("Makefile")));
        for name in ["test", "only", "vm"] {
            assert!(top.contains(&format!("`make {name}")), "{name}: {top}");
            let target = format!("{name}:");
            assert!(makefile.lines().any(|line| line.starts_with(&target)), "{name}");
        }
    }

    #[test]
    fn links_out_of_the_book_lead_to_the_web() {
        let page = Path::new("docs/decisions/0001.md");
        let text = "[a](../agent.md#b) and [c](../../SECURITY.md#d)\n\
                    ```\n[e](../../f)\n```\n[g](https://h) [i](README.md#j)\n";
        let wanted = "[a](../agent.md#b) and \
                      [c](https://github.com/netwright/netwright/blob/main/SECURITY.md#d)\n\
                      ```\n[e](../../f)\n```\n[g](https://h) [i](index.md#j)\n";
        assert_eq!(for_the_book(page, text), wanted);
    }

    #[test]
    fn headings_are_named_as_the_web_names_them() {
        let text = "# A `b`: c-d\n## [e](f.md) g\n```\n# no\n```\n## A b c-d\n#none\n";
        assert_eq!(headings(text), ["a-b-c-d", "e-g", "a-b-c-d-1"]);
    }
}
