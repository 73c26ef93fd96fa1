//! Interprets how a plugin's call ended.

use cni::{Error, code};

use crate::{Output, Status};

impl Output {
    /// Returns standard output of a plugin that succeeded, or the error that it reported.
    ///
    /// # Errors
    /// The plugin's own error object; or, if it wrote none, code 999 with the reference library's
    /// texts: `netplugin failed with no error message: …`, `netplugin failed: "stderr": …`,
    /// `netplugin failed but error parsing its diagnostic message "…": …`.
    pub fn into_stdout(self) -> Result<Vec<u8>, Error> {
        if self.status == Status::Success {
            return Ok(self.stdout);
        }
        Err(self.failure())
    }

    fn failure(&self) -> Error {
        let status = self.status;
        let stderr = String::from_utf8_lossy(&self.stderr);
        let text = if !self.stdout.is_empty() {
            match Error::parse(&self.stdout) {
                Ok(error) => return error,
                Err(error) => format!(
                    "netplugin failed but error parsing its diagnostic message {:?}: {error}",
                    String::from_utf8_lossy(&self.stdout)
                ),
            }
        } else if stderr.is_empty() {
            format!("netplugin failed with no error message: {status}")
        } else {
            format!("netplugin failed: {stderr:?}: {status}")
        };
        Error::new(code::INTERNAL, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fail(stdout: &str, stderr: &str) -> String {
        let output =
            Output { stdout: stdout.into(), stderr: stderr.into(), status: Status::Exit(1) };
        output.into_stdout().unwrap_err().to_string()
    }

    #[test]
    fn failure_texts_are_the_reference_librarys() {
        assert_eq!(fail("", ""), "netplugin failed with no error message: exit status 1");
        assert_eq!(fail("", "oops"), "netplugin failed: \"oops\": exit status 1");
        assert!(
            fail("x", "oops")
                .starts_with("netplugin failed but error parsing its diagnostic message \"x\": ")
        );
        assert_eq!(fail(r#"{"code":7,"msg":"m","details":"d"}"#, "noise"), "m; d");
    }

    #[test]
    fn a_plugins_code_is_kept() {
        let output = Output {
            stdout: br#"{"code":11,"msg":"later"}"#.to_vec(),
            status: Status::Exit(1),
            ..Output::default()
        };
        assert_eq!(output.into_stdout().unwrap_err().code, 11);
    }
}
