//! Cuts files out of a page: those that it shows, so that a test has typed what is done with them.

use std::collections::BTreeMap;

/// The comment before the fence that shows a file (`testkit::page`).
const COMMENT: &str = "<!-- file: ";

const FENCE: &str = "```";

/// Returns the files that a page shows, by their names, without the folders that they belong into.
pub(crate) fn shown(page: &str) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let path = line.strip_prefix(COMMENT).and_then(|rest| rest.strip_suffix(" -->"));
        let Some(path) = path else { continue };
        let name = path.rsplit_once('/').map_or(path, |(_, name)| name);
        let fence = lines.by_ref().skip_while(|line| !line.starts_with(FENCE)).skip(1);
        let text = fence.take_while(|line| !line.starts_with(FENCE));
        files.insert(name.to_owned(), text.map(|line| format!("{line}\n")).collect());
    }
    files
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn files_that_a_page_shows_are_those_of_its_fences() {
        let page = "# A\n\n<!-- file: /etc/a/b.toml -->\n```toml\none = 1\n\ntwo = 2\n```\n\n\
                    ```console\n# ls\n```\n<!-- file: c -->\n```\nthree\n```\n";
        let files = shown(page);
        assert_eq!(files.len(), 2);
        assert_eq!(files["b.toml"], "one = 1\n\ntwo = 2\n");
        assert_eq!(files["c"], "three\n");
    }
}
