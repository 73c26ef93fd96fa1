//! Why a command failed, for the person who must act on it.

use std::fmt::Display;
use std::path::Path;
use std::process::ExitCode;

use cni::json::plain;
use cni::text::{lines, one_line};
use cni::{ContainerId, Error, code};
use cni_plugin::codes;
use kernel::remedy;
use plugins::own_folder;
use plugins::shared::host_side::ROUTE_OF_OTHERS;

use crate::panic::EXIT_BUG;

/// The request is wrong or impossible: trying again does not help.
pub(crate) const EXIT_PERMANENT: u8 = 1;
/// The command line itself was wrong.
pub(crate) const EXIT_USAGE: u8 = 2;
/// Something on this machine is broken or missing.
pub(crate) const EXIT_ENVIRONMENT: u8 = 3;
/// Trying again later may help.
pub(crate) const EXIT_LATER: u8 = 4;

/// What happened, why, and what to do.
#[derive(Debug)]
pub(crate) struct Failure(Box<Parts>);

#[derive(Debug)]
struct Parts {
    error: Error,
    hints: Vec<String>,
    /// What looks further, where the error's cause may lie elsewhere on the node.
    doctor: Option<String>,
    exit: Option<u8>,
    /// Text after the error's first line, such as the place in a file.
    excerpt: String,
}

impl Failure {
    /// Creates a failure with this message.
    pub(crate) fn new(code: u32, message: impl Into<String>) -> Self {
        Failure::from(Error::new(code, message))
    }

    /// Creates a failure with an error's message; its sources are the causes.
    pub(crate) fn of(code: u32, error: &dyn std::error::Error) -> Self {
        let mut failure = Failure::new(code, plain(&error.to_string()));
        let mut next = error.source();
        while let Some(source) = next {
            failure = failure.because(source);
            next = source.source();
        }
        failure
    }

    /// Creates a failure for a file of ours that another version wrote, in a format we do not read.
    pub(crate) fn of_format(path: &Path, format: u32, reads: u32) -> Self {
        let path = path.display();
        Failure::new(
            code::DECODE_FAILURE,
            format!("{path} has format {format}, and this version reads {reads}"),
        )
    }

    /// Creates a failure of the command line itself.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Failure::new(code::INVALID_ENVIRONMENT, message).exit(EXIT_USAGE)
    }

    /// Adds a cause.
    #[must_use]
    pub(crate) fn because(mut self, cause: impl Display) -> Self {
        self.0.error = self.0.error.with_details(plain(&cause.to_string()));
        self
    }

    /// Adds what to do.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hints.push(hint.into());
        self
    }

    /// Adds which command looks for the cause, if it may lie in what surrounds a container: the
    /// container's, or the whole node where it is not attached.
    #[must_use]
    pub(crate) fn look_around(mut self, container: Option<&ContainerId>) -> Self {
        let container = container.map(ContainerId::as_str);
        self.0.doctor = is_around(self.0.error.code).then(|| look_around(container));
        self
    }

    /// Puts words before the message.
    #[must_use]
    pub(crate) fn context(mut self, what: impl Display) -> Self {
        self.0.error = self.0.error.context(what);
        self
    }

    /// Adds lines between the message and the causes, for people only.
    #[must_use]
    pub(crate) fn excerpt(mut self, excerpt: String) -> Self {
        self.0.excerpt = excerpt;
        self
    }

    /// Sets the exit code, where it is not the one of the error's code.
    #[must_use]
    pub(crate) fn exit(mut self, exit: u8) -> Self {
        self.0.exit = Some(exit);
        self
    }

    pub(crate) fn message(&self) -> &str {
        &self.0.error.msg
    }

    /// Returns the error object; its details end with the hints.
    pub(crate) fn to_cni(&self) -> Error {
        let mut error = self.0.error.clone();
        for hint in self.all_hints() {
            if !error.details.contains(hint) {
                error = error.with_details(hint);
            }
        }
        error
    }

    /// Returns the error object without hints.
    pub(crate) fn into_cni(self) -> Error {
        self.0.error
    }

    /// Returns the exit code as a number.
    pub(crate) fn exit_number(&self) -> u8 {
        self.0.exit.unwrap_or_else(|| exit_for(&self.0.error))
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.exit_number())
    }

    /// Returns the lines for people.
    pub(crate) fn text(&self) -> String {
        let mut text =
            format!("error: {}\n{}", one_line(&self.0.error.msg), lines(&self.0.excerpt));
        let hints = self.all_hints();
        // A plugin's details end with what to do.
        let causes = self.0.error.details.split("; ");
        let mut shown = Vec::new();
        for cause in causes.filter(|cause| !cause.is_empty() && !hints.contains(cause)) {
            // A plugin and its caller may say the same.
            if shown.contains(&cause) {
                continue;
            }
            shown.push(cause);
            text.push_str(&format!("cause: {}\n", one_line(cause)));
        }
        for hint in hints {
            text.push_str(&format!("hint: {}\n", one_line(hint)));
        }
        text
    }

    /// What the system's error requires comes first: without it the other hints do not help.
    fn all_hints(&self) -> Vec<&str> {
        let remedy = remedy::of(&format!("{}; {}", self.0.error.msg, self.0.error.details));
        // Whether a plugin's file can be executed depends on its mode, not on the caller.
        let remedy = remedy.filter(|_| self.0.error.code != codes::DELEGATE);
        let own = self.0.hints.iter().map(String::as_str);
        let alone = remedy.is_none() && self.0.hints.is_empty();
        let general = if alone { hint_for(&self.0.error) } else { None };
        // Who may not look is told that first.
        let doctor = self.0.doctor.as_deref().filter(|_| remedy.is_none());
        remedy.into_iter().chain(own).chain(general).chain(doctor).collect()
    }
}

impl From<Error> for Failure {
    fn from(mut error: Error) -> Self {
        error.msg = own_folder::without_folder(&error.msg);
        error.details = own_folder::without_folder(&error.details);
        Failure(Box::new(Parts {
            error,
            hints: Vec::new(),
            doctor: None,
            exit: None,
            excerpt: String::new(),
        }))
    }
}

/// Says whether the cause of an error with this code may lie in what surrounds a container:
/// something changed what ADD made, or a link, an address or a rule of others is in the way.
pub(crate) fn is_around(code: u32) -> bool {
    [codes::DRIFT, codes::CONFLICT, codes::FIREWALL].contains(&code)
}

/// Says which command looks for what lies behind an error: for a container, or the whole node.
pub(crate) fn look_around(container: Option<&str>) -> String {
    match container {
        Some(container) => format!("`netwright doctor {container}` looks for the cause around it"),
        None => "`netwright doctor` looks for the cause on this node".to_owned(),
    }
}

/// Returns the exit code of an error: permanent, environment, later, bug.
fn exit_for(error: &Error) -> u8 {
    match error.code {
        code::TRY_AGAIN_LATER => EXIT_LATER,
        code::INTERNAL if !error.foreign => EXIT_BUG,
        code::IO_FAILURE
        | code::PLUGIN_NOT_AVAILABLE
        | code::LIMITED_CONNECTIVITY
        | codes::KERNEL
        | codes::FIREWALL
        | codes::STATE
        | codes::DELEGATE => EXIT_ENVIRONMENT,
        _ => EXIT_PERMANENT,
    }
}

/// Returns what to do about an error without a hint of its own, where the advice is true of every
/// error of its code. `docs/errors.md` has the long form.
fn hint_for(error: &Error) -> Option<&'static str> {
    let says = |words| error.msg.contains(words) || error.details.contains(words);
    Some(match error.code {
        code::INCOMPATIBLE_VERSION => {
            "use a `cniVersion` that every plugin of the network supports"
        }
        code::TRY_AGAIN_LATER => "try again",
        code::INTERNAL if !error.foreign => "this is a bug: please report it",
        // Errors of firewalld have their own advice.
        codes::FIREWALL if !says("firewalld") => {
            "check that `nft list ruleset` works, and look in it for a rule that blocks this"
        }
        codes::HOST_PORT => "choose another port, or detach its holder (`netwright list`)",
        codes::DRIFT if says(ROUTE_OF_OTHERS) => ROUTE_OF_OTHERS,
        codes::DRIFT => "put it back with `netwright repair`, or detach and attach it again",
        codes::EXISTS if says(TAKEN_IFNAME) => "choose another interface name (`--ifname`)",
        codes::DELEGATE => "check `CNI_PATH` and the mode of the plugin's file",
        _ => return None,
    })
}

/// A plugin's message that the container already has an interface of the requested name.
const TAKEN_IFNAME: &str = "the container has an interface of that name";

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn people_read_what_why_and_what_to_do() {
        let failure = Failure::new(code::IO_FAILURE, "write \"/opt/cni/bin/bridge\"")
            .because(std::io::Error::from_raw_os_error(30))
            .hint("choose another folder with --bin-dir");
        expect![[r#"
            error: write "/opt/cni/bin/bridge"
            cause: Read-only file system
            hint: what the message names is mounted read-only: mount it writable
            hint: choose another folder with --bin-dir
        "#]]
        .assert_eq(&failure.text());
        assert_eq!(failure.exit_number(), EXIT_ENVIRONMENT);
        let twice = Failure::new(codes::EXISTS, "taken").because("nothing was changed");
        let twice = twice.because("nothing was changed").hint("choose another");
        expect![[r#"
            error: taken
            cause: nothing was changed
            hint: choose another
        "#]]
        .assert_eq(&twice.text());
    }

    /// A difference, or a rule of others, has a cause that `doctor` may name; a wrong request has
    /// none.
    #[test]
    fn what_surroundings_cause_is_left_to_doctor() {
        let c1 = ContainerId::new("c1").unwrap();
        let told = |code: u32, container: Option<&ContainerId>| {
            Failure::new(code, "it differs").look_around(container).text()
        };
        expect![[r#"
            error: it differs
            hint: put it back with `netwright repair`, or detach and attach it again
            hint: `netwright doctor c1` looks for the cause around it
        "#]]
        .assert_eq(&told(codes::DRIFT, Some(&c1)));
        expect![[r#"
            error: it differs
            hint: `netwright doctor` looks for the cause on this node
        "#]]
        .assert_eq(&told(codes::CONFLICT, None));
        for code in [code::INVALID_CONFIG, codes::ADDRESS, codes::HOST_PORT] {
            assert!(!told(code, None).contains("doctor"), "{code}");
        }
        let refused = Failure::new(codes::FIREWALL, "add a rule")
            .because("Permission denied")
            .look_around(None);
        assert!(!refused.text().contains("doctor"), "{}", refused.text());
        let json = Failure::new(codes::DRIFT, "x").look_around(Some(&c1)).to_cni();
        assert!(json.details.ends_with("`netwright doctor c1` looks for the cause around it"));
    }

    #[test]
    fn programs_read_one_object() {
        let failure =
            Failure::from(Error::new(codes::HOST_PORT, "port 80 is held").with_details("by x"));
        expect![[r#"
            {
                "code": 103,
                "msg": "port 80 is held",
                "details": "by x; choose another port, or detach its holder (`netwright list`)"
            }"#]]
        .assert_eq(&String::from_utf8(failure.to_cni().to_json()).unwrap());
    }

    #[test]
    fn exit_codes_tell_the_four_kinds_apart() {
        let exit = |code| Failure::new(code, "").exit_number();
        assert_eq!(exit(code::INVALID_CONFIG), EXIT_PERMANENT);
        assert_eq!(exit(codes::KERNEL), EXIT_ENVIRONMENT);
        assert_eq!(exit(code::TRY_AGAIN_LATER), EXIT_LATER);
        assert_eq!(exit(code::INTERNAL), EXIT_BUG);
        let foreign = Failure::from(Error::new(code::INTERNAL, "iptables failed").of_foreign());
        assert_eq!(foreign.exit_number(), EXIT_PERMANENT);
        assert_eq!(foreign.text(), "error: iptables failed\n");
        assert_eq!(Failure::usage("").exit_number(), EXIT_USAGE);
    }
}
