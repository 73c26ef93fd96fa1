//! Reads the commands that a documentation page shows, so that a test can run them.
//!
//! * A fence ```` ```console ```` is a session: a line that begins with `# ` (root) or `$ ` is a
//!   command, and the lines after it are its output. A line that ends in `\` continues in the next,
//!   and a here-document belongs to its command. In the shown output, `…` stands for any text, and
//!   alone on a line for any lines.
//! * A comment before a fence says how a test takes the fence. `<!-- file: PATH -->`: it is that
//!   file, whose path the sentences before the fence say. `<!-- on MACHINE -->`: it is typed on
//!   another machine, which these sentences name. `<!-- before every block -->`: it is run first in
//!   each session, and each session then is on a host of its own. `<!-- not run: REASON -->`: the
//!   session cannot be run in a lab. `<!-- not run (WORDS): REASON -->`: its commands that begin
//!   with these words cannot. `<!-- full (WORDS): REASON -->`: those are run only with `--full`.
//! * No comment has a command: the page's reader has to see every command that its examples need.
//! * A command in any other fence is an error of the page.

/// Programs whose commands must be in a session.
const PROGRAMS: [&str; 16] = [
    "netwright",
    "netwrightd",
    "docker",
    "podman",
    "ctr",
    "nerdctl",
    "kubectl",
    "nft",
    "ip",
    "systemctl",
    "journalctl",
    "ovs-vsctl",
    "firewall-cmd",
    "nmcli",
    "cargo",
    "cp",
];

/// The parts of a page that a test runs.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Its fences, in the page's order.
    pub steps: Vec<Step>,
    /// The commands that are run first in every session, if each session has a host of its own.
    pub before_every_block: Option<String>,
    /// Errors of the page itself.
    pub mistakes: Vec<String>,
}

/// One fence.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// A file, to be written as shown.
    File {
        /// Its path.
        path: String,
        /// Its contents.
        text: String,
    },
    /// A session.
    Session {
        /// The machine that it is typed on, if that is not the reader's first one.
        on: Option<String>,
        /// Its commands.
        typed: Vec<TypedCommand>,
    },
}

/// One command of a session.
#[derive(Debug, PartialEq, Eq)]
pub struct TypedCommand {
    /// The line of the page.
    pub line: usize,
    /// The command, with its continuation lines.
    pub command: String,
    /// The output that the page shows for it.
    pub shown: Vec<String>,
    /// Why it cannot be run in a lab.
    pub not_run: Option<String>,
    /// Why it is run only with `--full`.
    pub full: Option<String>,
}

impl Page {
    /// Reads a page of Markdown.
    #[must_use]
    pub fn read(markdown: &str) -> Self {
        let mut page = Page::default();
        let mut comments: Vec<&str> = Vec::new();
        let (mut paragraph, mut ended) = (String::new(), true);
        let mut lines = markdown.lines().enumerate();
        while let Some((number, line)) = lines.next() {
            let text = line.trim_start();
            let Some(kind) = text.strip_prefix("```") else {
                if let Some(comment) = comment(text) {
                    comments.push(comment);
                    ended = true;
                } else if text.is_empty() {
                    ended = true;
                } else {
                    page.unheard(number + 1, &comments);
                    comments.clear();
                    if ended {
                        paragraph.clear();
                    }
                    paragraph.push_str(text);
                    paragraph.push(' ');
                    ended = false;
                }
                continue;
            };
            let indent = line.len() - text.len();
            let content: Vec<(usize, &str)> = lines
                .by_ref()
                .take_while(|(_, line)| line.trim() != "```")
                .map(|(number, line)| (number + 1, line.get(indent..).unwrap_or_default()))
                .collect();
            page.hidden(number + 1, &comments, &paragraph);
            page.fence(number + 1, kind, &content, &comments);
            comments.clear();
            paragraph.clear();
        }
        page
    }

    /// All commands, in their order.
    pub fn commands(&self) -> impl Iterator<Item = &TypedCommand> {
        self.steps.iter().flat_map(|step| match step {
            Step::Session { typed, .. } => typed.as_slice(),
            Step::File { .. } => &[],
        })
    }

    /// Refuses a comment without a fence after it: it would do nothing, and no test would notice.
    fn unheard(&mut self, line: usize, comments: &[&str]) {
        const WORDS: [&str; 5] = ["file: ", "on ", "not run", "full ", "before every block"];
        let lost = comments.iter().filter(|one| WORDS.iter().any(|word| one.starts_with(word)));
        self.mistakes
            .extend(lost.map(|one| format!("line {line}: a comment that no fence follows: {one}")));
    }

    /// Refuses what a reader would have to know and does not see: a command, and the name of a file
    /// or of a machine that the sentences before the fence leave out.
    fn hidden(&mut self, line: usize, comments: &[&str], paragraph: &str) {
        for comment in comments {
            let lack = if let Some(path) = comment.strip_prefix("file: ") {
                let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
                let says = |what: &str| paragraph.contains(&format!("`{what}`"));
                let is_said = says(path) || (says(folder) && says(name));
                (!is_said).then_some("the path of this file")
            } else if let Some(machine) = comment.strip_prefix("on ") {
                (!paragraph.contains(&format!("`{machine}`"))).then_some("this machine")
            } else {
                comment.starts_with("given").then_some("this command")
            };
            self.mistakes.extend(
                lack.map(|what| format!("line {line}: a reader does not see {what}: {comment}")),
            );
        }
    }

    fn fence(&mut self, line: usize, kind: &str, content: &[(usize, &str)], comments: &[&str]) {
        let text = || content.iter().map(|(_, line)| format!("{line}\n")).collect::<String>();
        if let Some(path) = comments.iter().find_map(|comment| comment.strip_prefix("file: ")) {
            self.steps.push(Step::File { path: path.to_owned(), text: text() });
        } else if comments.contains(&"before every block") {
            self.before_every_block = Some(text());
        } else if kind == "console" {
            let mut session = session(content);
            if session.is_empty() {
                self.mistakes.push(format!("line {line}: a session without a command"));
            }
            for comment in comments {
                self.except(&mut session, comment, line);
            }
            let on = comments.iter().find_map(|comment| comment.strip_prefix("on "));
            self.steps.push(Step::Session { on: on.map(str::to_owned), typed: session });
        } else {
            let commands = content.iter().filter(|(_, line)| is_command(line));
            self.mistakes.extend(commands.map(|(line, text)| {
                format!("line {line}: put it into a console block: {}", text.trim())
            }));
        }
    }

    /// Reads `not run: REASON`, `not run (WORDS): REASON` and the same with `full`.
    fn except(&mut self, session: &mut [TypedCommand], comment: &str, line: usize) {
        let full = comment.strip_prefix("full");
        let Some(rest) = full.or_else(|| comment.strip_prefix("not run")) else { return };
        let (words, reason) = match rest.strip_prefix(" (") {
            Some(rest) => rest.split_once("): ").unwrap_or_default(),
            None => ("", rest.strip_prefix(": ").unwrap_or_default()),
        };
        let meant = session.iter_mut().filter(|typed| typed.command.starts_with(words));
        let meant: Vec<&mut TypedCommand> = meant.collect();
        if reason.is_empty() || meant.is_empty() {
            let what = "no command is meant, or no reason is given";
            self.mistakes.push(format!("line {line}: {what}: {comment}"));
        }
        for typed in meant {
            let kept = if full.is_some() { &mut typed.full } else { &mut typed.not_run };
            *kept = Some(reason.to_owned());
        }
    }
}

/// Returns the text of a comment on a line of its own.
fn comment(line: &str) -> Option<&str> {
    Some(line.trim_end().strip_prefix("<!-- ")?.strip_suffix(" -->")?.trim())
}

fn session(content: &[(usize, &str)]) -> Vec<TypedCommand> {
    let mut session: Vec<TypedCommand> = Vec::new();
    let mut lines = content.iter();
    while let Some((number, line)) = lines.next() {
        let Some(command) = line.strip_prefix("# ").or_else(|| line.strip_prefix("$ ")) else {
            if let Some(last) = session.last_mut() {
                last.shown.push((*line).to_owned());
            }
            continue;
        };
        let mut command = command.to_owned();
        while command.ends_with('\\') {
            let Some((_, next)) = lines.next() else { break };
            command = format!("{command}\n{next}");
        }
        if let Some(end) = here_document(&command) {
            for (_, next) in lines.by_ref() {
                command = format!("{command}\n{next}");
                if *next == end {
                    break;
                }
            }
        }
        session.push(TypedCommand {
            line: *number,
            command,
            shown: Vec::new(),
            not_run: None,
            full: None,
        });
    }
    session
}

/// The word that ends a command's here-document.
fn here_document(command: &str) -> Option<String> {
    let (_, rest) = command.split_once("<<")?;
    let word = rest.trim_start_matches('-').trim_start();
    if word.starts_with('<') {
        return None;
    }
    let word = word.split([' ', '\n', ';', '|', '>']).next().unwrap_or_default();
    Some(word.trim_matches(['\'', '"']).to_owned())
}

/// Whether a line of another fence is a command.
fn is_command(line: &str) -> bool {
    let text = line.trim_start();
    let text = text.strip_prefix("# ").or_else(|| text.strip_prefix("$ ")).unwrap_or(text);
    let mut words = text.split_whitespace();
    let first = words.find(|word| !word.contains('=')).unwrap_or_default();
    let first = first.rsplit('/').next().unwrap_or_default();
    PROGRAMS.contains(&first) && words.next().is_some()
}

/// Whether a command printed what a page shows: `…` is any text, alone on a line any lines, and an
/// empty output is not compared.
#[must_use]
pub fn is_as_shown(shown: &[String], printed: &str) -> bool {
    let printed: Vec<&str> = printed.lines().collect();
    shown.is_empty() || lines_match(shown, &printed)
}

/// Returns the first line of a page that cannot follow what was printed, if the lines before it can.
#[must_use]
pub fn first_that_differs<'shown>(shown: &'shown [String], printed: &str) -> Option<&'shown str> {
    let begins_as_shown = |count: usize| {
        let mut begin = shown[..count].to_vec();
        begin.push("…".to_owned());
        is_as_shown(&begin, printed)
    };
    (1..=shown.len()).find(|&count| !begins_as_shown(count)).map(|count| shown[count - 1].as_str())
}

fn lines_match(shown: &[String], printed: &[&str]) -> bool {
    let Some((first, rest)) = shown.split_first() else { return printed.is_empty() };
    if first.trim() == "…" {
        return (0..=printed.len()).any(|after| lines_match(rest, &printed[after..]));
    }
    printed.split_first().is_some_and(|(line, others)| {
        let parts: Vec<&str> = first.trim_end().split('…').collect();
        text_matches(&parts, line.trim_end()) && lines_match(rest, others)
    })
}

/// Whether a line consists of these parts, with anything between them.
fn text_matches(parts: &[&str], line: &str) -> bool {
    let Some((first, rest)) = parts.split_first() else { return line.is_empty() };
    let Some(after) = line.strip_prefix(first) else { return false };
    if rest.is_empty() {
        return after.is_empty();
    }
    (0..=after.len())
        .filter(|&at| after.is_char_boundary(at))
        .any(|at| text_matches(rest, &after[at..]))
}

#[cfg(test)]
mod tests {
    use super::{Page, Step, first_that_differs, is_as_shown};

    fn commands(markdown: &str) -> Vec<(String, Vec<String>, Option<String>)> {
        let page = Page::read(markdown);
        assert_eq!(page.mistakes, Vec::<String>::new());
        page.commands()
            .map(|typed| (typed.command.clone(), typed.shown.clone(), typed.not_run.clone()))
            .collect()
    }

    #[test]
    fn a_session_has_commands_and_what_they_print() {
        let read =
            commands("```console\n# a \\\n  b\nsaid\n$ cat <<'E'\n# one\nE\n# c <<<x\n```\n");
        let typed: Vec<&str> = read.iter().map(|(command, ..)| command.as_str()).collect();
        assert_eq!(typed, ["a \\\n  b", "cat <<'E'\n# one\nE", "c <<<x"]);
        assert_eq!(read[0].1, ["said"]);
    }

    #[test]
    fn a_comment_says_what_is_not_run_and_why() {
        let read = commands("<!-- not run (b): it is long -->\n\n```console\n# a\n# b c\n```\n");
        assert_eq!(read[0].2, None);
        assert_eq!(read[1].2.as_deref(), Some("it is long"));
        for wrong in ["not run (x): y", "not run:", "not run: "] {
            let page = Page::read(&format!("<!-- {wrong} -->\n```console\n# a\n```\n"));
            assert_eq!(page.mistakes.len(), 1, "{wrong}");
        }
    }

    #[test]
    fn a_comment_says_what_is_typed_with_full() {
        let page = Page::read("<!-- full (b): long -->\n```console\n# a\n# b\n```\n");
        let full: Vec<Option<&str>> = page.commands().map(|typed| typed.full.as_deref()).collect();
        assert_eq!(full, [None, Some("long")]);
    }

    #[test]
    fn a_comment_without_a_fence_is_a_mistake() {
        let page = Page::read("<!-- not run: c -->\nText.\n```console\n# a\n```\n");
        assert_eq!(page.mistakes, ["line 2: a comment that no fence follows: not run: c"]);
        assert!(Page::read("<!-- made by a program -->\nText.\n").mistakes.is_empty());
    }

    #[test]
    fn a_comment_says_that_a_fence_is_a_file() {
        let page = Page::read("Write `/etc/x`:\n\n<!-- file: /etc/x -->\n```json\n{\n}\n```\n");
        let file = Step::File { path: "/etc/x".to_owned(), text: "{\n}\n".to_owned() };
        assert_eq!((page.steps, page.mistakes), (vec![file], Vec::new()));
    }

    #[test]
    fn a_comment_says_on_which_machine_a_session_is() {
        let page = Page::read("Then on\n`b`:\n\n<!-- on b -->\n```console\n# a\n```\n");
        assert_eq!(page.mistakes, Vec::<String>::new());
        assert!(matches!(&page.steps[..], [Step::Session { on: Some(on), .. }] if on == "b"));
    }

    #[test]
    fn what_a_reader_does_not_see_is_a_mistake() {
        let fence = "```console\n# a\n```\n";
        let mistakes = |text: &str| Page::read(&format!("{text}{fence}")).mistakes;
        let hidden = "line 2: a reader does not see this command: given: c";
        assert_eq!(mistakes("<!-- given: c -->\n"), [hidden]);
        let lacks = |text: &str| mistakes(text).len() == 1;
        assert!(lacks("Text.\n<!-- given (a fault): c -->\n"));
        assert!(lacks("A file:\n<!-- file: a/b -->\n") && lacks("In `a`:\n<!-- file: a/b -->\n"));
        assert!(!lacks("In `a` as `b`:\n<!-- file: a/b -->\n"));
        assert!(!lacks("As `a/b`:\n\n<!-- file: a/b -->\n"));
        // What an earlier paragraph says does not count.
        assert!(lacks("As `a/b`.\n\nText:\n<!-- file: a/b -->\n"));
        assert!(lacks("There:\n<!-- on b -->\n"));
    }

    #[test]
    fn a_command_elsewhere_is_a_mistake() {
        let mistakes = |fence: &str| Page::read(fence).mistakes.len();
        assert_eq!(mistakes("```\ndocker run x\n```\n"), 1);
        assert_eq!(mistakes("```sh\nA=1 target/dist/netwright list\n```\n"), 1);
        assert_eq!(mistakes("```text\nUsage: netwright list\n```\n"), 0);
        assert_eq!(mistakes("```console\nnothing\n```\n"), 1);
    }

    #[test]
    fn an_ellipsis_is_anything() {
        let shown = |lines: &[&str], printed: &str| {
            let lines: Vec<String> = lines.iter().map(|&line| line.to_owned()).collect();
            is_as_shown(&lines, printed)
        };
        assert!(shown(&[], "anything\n"));
        assert!(shown(&["a"], "a\n") && !shown(&["a"], "a\nb\n") && !shown(&["a"], ""));
        assert!(shown(&["…", "b"], "a\nb\n") && shown(&["…", "b"], "b\n"));
        assert!(shown(&["a … c"], "a b c\n") && !shown(&["a … c"], "a b d\n"));
        let lines = ["…", "b", "c", "d"].map(str::to_owned);
        assert_eq!(first_that_differs(&lines, "a\nb\nx\n"), Some("c"));
        assert_eq!(first_that_differs(&lines, "a\nb\nc\nd\nmore\n"), None);
    }
}
