//! What a bug of ours says before the process ends.

use std::io::Write;
use std::panic::PanicHookInfo;

use cni::{Error, code};

/// How a bug of ours ends the command line (sysexits.h `EX_SOFTWARE`).
pub(crate) const EXIT_BUG: u8 = 70;

/// Makes a panic print the error object that runtimes expect and end the process with 1.
#[expect(clippy::exit, reason = "a panic in the shipped build aborts, which would leave no answer")]
pub(crate) fn answer_for_plugin(plugin: &'static str) {
    std::panic::set_hook(Box::new(move |info| {
        let error =
            Error::new(code::INTERNAL, format!("plugin {plugin} has a bug: {}", describe(info)))
                .with_details("please report it with the lines on standard error");
        let _ = writeln!(std::io::stderr(), "{plugin}: {}", describe(info));
        let _ = std::io::stdout().write_all(&error.to_json());
        let _ = std::io::stdout().flush();
        std::process::exit(1);
    }));
}

/// Makes a panic say so in the words of the other errors and end the process with [`EXIT_BUG`].
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

fn describe(info: &PanicHookInfo<'_>) -> String {
    let payload = info.payload();
    let text = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("it panicked");
    match info.location() {
        Some(at) => format!("{}:{}: {text}", at.file(), at.line()),
        None => text.to_owned(),
    }
}
