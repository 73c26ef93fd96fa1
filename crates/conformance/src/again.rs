//! The command that runs one case again.

use std::path::Path;

/// The parts that all such commands share.
#[derive(Debug, Clone)]
pub(crate) struct RerunCommand {
    program: String,
    options: Vec<String>,
}

impl RerunCommand {
    pub(crate) fn new() -> Self {
        RerunCommand { program: "netwright".to_owned(), options: Vec::new() }
    }

    /// Sets how the program is called.
    pub(crate) fn program(&mut self, program: &str) {
        program.clone_into(&mut self.program);
    }

    /// Adds an option of the suite's without which the case would be another one.
    pub(crate) fn option(&mut self, name: &str, value: &str) {
        self.options.extend([name.to_owned(), value.to_owned()]);
    }

    /// Writes the command for a shell.
    pub(crate) fn line(&self, dir: &Path, plugin: &str, case: &str) -> String {
        let dir = dir.display().to_string();
        let words = [&self.program, "conformance", "--bin-dir", &dir, "--plugin", plugin];
        let options = self.options.iter().map(String::as_str);
        let words = words.into_iter().chain(options).chain(["--case", case]);
        words.map(quoted).collect::<Vec<_>>().join(" ")
    }
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=@,+".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_the_command_back() {
        let mut again = RerunCommand::new();
        let line = again.line(Path::new("/opt/cni/bin"), "bridge", "del-twice");
        let expected =
            "netwright conformance --bin-dir /opt/cni/bin --plugin bridge --case del-twice";
        assert_eq!(line, expected);
        again.program("/opt/my tools/netwright");
        again.option("--config", "it's mine.conflist");
        assert_eq!(
            again.line(Path::new("/a b"), "bridge", "del-twice"),
            r"'/opt/my tools/netwright' conformance --bin-dir '/a b' --plugin bridge --config 'it'\''s mine.conflist' --case del-twice"
        );
    }
}
