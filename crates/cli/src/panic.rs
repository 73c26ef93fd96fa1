//! What is printed about a bug of ours before the process ends.

use std::io::Write;
use std::panic::PanicHookInfo;

use cni::text::lines;
use cni::{Error, code};

/// The exit code of the command line after a bug of ours (sysexits.h `EX_SOFTWARE`).
pub(crate) const EXIT_BUG: u8 = 70;

/// Makes a panic print the error object that runtimes expect and end the process with 1.
#[expect(clippy::exit, reason = "a panic in the shipped build aborts, which would leave no answer")]
pub(crate) fn answer_for_plugin(plugin: &'static str) {
    std::panic::set_hook(Box::new(move |info| {
        let error =
            Error::new(code::INTERNAL, format!("plugin {plugin} has a bug: {}", describe(info)))
                .with_details("please report it with the lines on standard error");
        let _ = writeln!(std::io::stderr(), "{plugin}: {}", describe(info));
        let _ = kernel::stdout::Stdout.write_all(&error.to_json());
        std::process::exit(1);
    }));
}

/// Makes a panic print an error in the form of the others and end the process with [`EXIT_BUG`].
#[expect(clippy::exit, reason = "a panic in the shipped build aborts, which hides the exit code")]
pub(crate) fn tell_person() {
    std::panic::set_hook(Box::new(|info| {
        let _ = writeln!(
            std::io::stderr(),
            "error: netwright has a bug: {}\nhint: please report it with this line and the command; \
             `netwright gc` removes what was left behind",
            describe(info)
        );
        std::process::exit(i32::from(EXIT_BUG));
    }));
}

/// Returns where and why it panicked, as text for people: the panic's message may quote text of
/// others.
fn describe(info: &PanicHookInfo<'_>) -> String {
    let payload = info.payload();
    let text = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("it panicked");
    lines(match info.location() {
        Some(at) => format!("{}:{}: {text}", at.file(), at.line()),
        None => text.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a terminal would obey.
    const HOSTILE: &str = "\u{1b}[2J\u{202e}";

    /// Set in the process that is to panic.
    const VARIABLE: &str = "NWT_TEST_PANIC";

    /// Runs the test of that name in a process of its own, as the one that panics.
    #[expect(clippy::disallowed_methods, reason = "a hook that ends the process needs one to end")]
    fn panicking(test: &str) -> std::process::Output {
        std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(VARIABLE, "1")
            .output()
            .unwrap()
    }

    #[test]
    fn a_plugins_bug_is_answered_with_an_error_object() {
        if std::env::var_os(VARIABLE).is_some() {
            answer_for_plugin("bridge");
            panic!("nobody {HOSTILE} expected this");
        }
        let output = panicking("panic::tests::a_plugins_bug_is_answered_with_an_error_object");
        assert_eq!(output.status.code(), Some(1));
        let stdout = String::from_utf8(output.stdout).unwrap();
        // The test harness says its own before.
        let object = &stdout[stdout.find('{').unwrap()..];
        let error = Error::parse(object.as_bytes()).unwrap();
        assert_eq!(error.code, code::INTERNAL);
        assert!(error.msg.starts_with("plugin bridge has a bug: "), "{}", error.msg);
        assert!(error.msg.ends_with(": nobody \\u{1b}[2J\\u{202e} expected this"), "{}", error.msg);
        assert!(!output.stderr.contains(&0x1b), "{:?}", String::from_utf8_lossy(&output.stderr));
    }

    #[test]
    fn a_bug_of_the_command_line_is_told() {
        if std::env::var_os(VARIABLE).is_some() {
            tell_person();
            panic!("nobody {HOSTILE} expected this");
        }
        let output = panicking("panic::tests::a_bug_of_the_command_line_is_told");
        assert_eq!(output.status.code(), Some(i32::from(EXIT_BUG)));
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.starts_with("error: netwright has a bug: "), "{stderr}");
        assert!(stderr.contains("\nhint: please report it"), "{stderr}");
        assert!(stderr.contains("nobody \\u{1b}[2J\\u{202e} expected this"), "{stderr}");
    }
}
