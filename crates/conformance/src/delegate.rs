//! The IPAM plugin that the suite provides to plugins that delegate: it records its calls and gives
//! the answers that the suite sets.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use serde_json::Value;

use crate::case::{OrBroken as _, Outcome};

/// Its type.
pub(crate) const NAME: &str = "conformance-ipam";

/// Its folder: the last one of `CNI_PATH`.
pub(crate) const FOLDER: &str = "/run/conformance/bin";

/// The folder of its files.
const DESK: &str = "/run/conformance/ipam";

/// What it writes to standard error at every call.
pub(crate) const WORDS: &str = "conformance-ipam was here";

const SCRIPT: &str = r#"#!/bin/sh
desk=/run/conformance/ipam
cat /proc/$$/environ >"$desk/calls/$$.environment"
cat >"$desk/calls/$$.stdin"
echo "$$ $CNI_COMMAND $CNI_CONTAINERID" >>"$desk/log"
echo "conformance-ipam was here" >&2
if [ -f "$desk/fail.$CNI_COMMAND" ]; then
    cat "$desk/fail.$CNI_COMMAND"
    exit 1
fi
case $CNI_COMMAND in
ADD)
    if [ -f "$desk/reply.$CNI_CONTAINERID.$CNI_IFNAME" ]; then
        cat "$desk/reply.$CNI_CONTAINERID.$CNI_IFNAME"
    else
        cat "$desk/reply"
    fi
    ;;
VERSION)
    echo '{"cniVersion":"1.1.0","supportedVersions":["0.1.0","0.2.0","0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}'
    ;;
esac
"#;

/// One call that it received.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) verb: String,
    pub(crate) container: String,
    pub(crate) environment: Vec<(String, String)>,
    pub(crate) stdin: Vec<u8>,
}

/// Installs it.
pub(crate) fn install() -> Outcome {
    let file = PathBuf::from(FOLDER).join(NAME);
    fs::create_dir_all(FOLDER).or_broken("make the delegate's folder")?;
    fs::create_dir_all(format!("{DESK}/calls")).or_broken("make the delegate's folder")?;
    fs::write(&file, SCRIPT).or_broken("write the delegate")?;
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(&file, mode).or_broken("make the delegate executable")
}

/// Sets its answer to the ADD of an attachment.
pub(crate) fn reply(container: &str, ifname: &str, result: &Value) -> Outcome {
    let file = format!("{DESK}/reply.{container}.{ifname}");
    fs::write(file, result.to_string()).or_broken("write the delegate's reply")
}

/// Makes it fail at a verb, with an error object.
pub(crate) fn fail_at(verb: &str, error: &Value) -> Outcome {
    fs::write(format!("{DESK}/fail.{verb}"), error.to_string()).or_broken("write its error")
}

/// Lists the calls since the last look, and forgets them.
pub(crate) fn calls() -> Outcome<Vec<Call>> {
    let log = fs::read_to_string(format!("{DESK}/log")).unwrap_or_default();
    let mut calls = Vec::new();
    for line in log.lines() {
        let mut words = line.split(' ');
        let mut word = || words.next().unwrap_or_default().to_owned();
        let (number, verb, container) = (word(), word(), word());
        let read = |what: &str| {
            fs::read(format!("{DESK}/calls/{number}.{what}")).or_broken("read the delegate's log")
        };
        let environment = String::from_utf8_lossy(&read("environment")?)
            .split('\0')
            .filter_map(|pair| pair.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        calls.push(Call { verb, container, environment, stdin: read("stdin")? });
    }
    // At the first look there is no log.
    let _ = fs::remove_file(format!("{DESK}/log"));
    Ok(calls)
}
