//! Lists names of networks and containers, for shells that complete a line.
//!
//! clap's scripts know options and fixed words. For the rest they call this executable, with
//! arguments that no help shows, so that a script which was installed once offers what there is
//! now.

use std::collections::BTreeSet;
use std::ffi::OsStr;

use clap_complete::Shell as Kind;
use cni::order::gather;

use crate::args::Common;
use crate::net::attachments;
use crate::net::container::NETNS_DIRS;
use crate::net::session::{PluginSource, Session};
use crate::shell::{Format, Shell};
use crate::world::World;

/// The first argument of such a call.
pub(crate) const ASKED: &str = "__names";

/// The values of the second argument.
const NETWORKS: &str = "networks";
const CONTAINERS: &str = "containers";

/// Writes the names of one kind, one per line. Silently leaves out what cannot be read: a
/// shell that completes a word shows no message.
pub(crate) fn main(kind: &OsStr, world: &World, shell: &mut Shell) {
    let common = Common { output: Format::Text, timeout: 1, conf_dir: None };
    let Ok(session) = Session::open(world, &common, shell, PluginSource::None) else { return };
    let names = match kind.to_str() {
        Some(NETWORKS) => networks(&session),
        Some(CONTAINERS) => containers(&session),
        _ => BTreeSet::new(),
    };
    // The shell would split a name with a space or a quote into several words, or run it.
    let plain = |name: &&String| {
        name.chars().all(|letter| letter.is_ascii_alphanumeric() || "._:@/-".contains(letter))
    };
    let lines: String = names.iter().filter(plain).map(|name| format!("{name}\n")).collect();
    shell.raw(lines.as_bytes());
}

fn networks(session: &Session) -> BTreeSet<String> {
    let Ok(folder) = session.scan() else { return BTreeSet::new() };
    gather(session.networks(&folder).into_iter().map(|network| network.list.name))
}

/// Returns the attached containers, and the namespaces that `ip netns` knows.
fn containers(session: &Session) -> BTreeSet<String> {
    let known = attachments::at_paths(session).map(|all| all.known).unwrap_or_default();
    let attached = known.iter().map(|known| known.key.container_id.to_string());
    let named = NETNS_DIRS.iter().filter_map(|dir| std::fs::read_dir(dir).ok()).flatten();
    let named = named.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    gather(attached.chain(named))
}

/// Returns clap's script, extended to ask for names where they are due.
pub(crate) fn offered(shell: Kind, script: &str) -> String {
    match shell {
        Kind::Bash => format!("{script}{BASH}"),
        Kind::Fish => format!("{script}{FISH}"),
        Kind::Zsh => zsh(script),
        _ => script.to_owned(),
    }
}

/// The place of a word among those that are not options decides; a value of an option is not
/// counted.
const BASH: &str = r#"
_netwright_names() {
    local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" kind="" place=0 verb="" word i
    COMPREPLY=()
    case "${prev}" in
        --net|--network) kind=networks ;;
        -*) ;;
    esac
    if [[ -z "${kind}" && "${cur}" != -* && ( "${prev}" != -* || "${prev}" == --*=* ) ]]; then
        for ((i = 1; i < COMP_CWORD; i++)); do
            word="${COMP_WORDS[i]}"
            case "${word}" in
                --all|--dry-run|--default|--help|--version) ;;
                --) return 0 ;;
                -*) i=$((i + 1)) ;;
                *) if [[ -z "${verb}" ]]; then verb="${word}"; else place=$((place + 1)); fi ;;
            esac
        done
        case "${verb},${place}" in
            add,0|del,0|check,0|status,0|gc,0) kind=networks ;;
            add,1|del,1|check,1|list,0|repair,0) kind=containers ;;
            inspect,0) kind="networks containers" ;;
        esac
    fi
    if [[ -n "${kind}" ]]; then
        # No files where there are no names.
        compopt +o default +o bashdefault 2>/dev/null
        for word in ${kind}; do
            COMPREPLY+=( $(compgen -W "$("${COMP_WORDS[0]}" __names "${word}" 2>/dev/null)" -- "${cur}") )
        done
        return 0
    fi
    _netwright "$@"
}

if [[ "${BASH_VERSINFO[0]}" -eq 4 && "${BASH_VERSINFO[1]}" -ge 4 || "${BASH_VERSINFO[0]}" -gt 4 ]]; then
    complete -F _netwright_names -o nosort -o bashdefault -o default netwright
else
    complete -F _netwright_names -o bashdefault -o default netwright
fi
"#;

const FISH: &str = r#"
complete -c netwright -n "__fish_seen_subcommand_from add del check" -f -a "(netwright __names networks; netwright __names containers)"
complete -c netwright -n "__fish_seen_subcommand_from inspect" -f -a "(netwright __names networks; netwright __names containers)"
complete -c netwright -n "__fish_seen_subcommand_from status gc" -f -a "(netwright __names networks)"
complete -c netwright -n "__fish_seen_subcommand_from list repair" -f -a "(netwright __names containers)"
complete -c netwright -n "__fish_seen_subcommand_from run" -l net -x -a "(netwright __names networks)"
"#;

const ZSH: &str = r#"
(( $+functions[_netwright_networks] )) ||
_netwright_networks() {
    local -a names; names=(${(f)"$(netwright __names networks 2>/dev/null)"}); compadd -a names
}
(( $+functions[_netwright_containers] )) ||
_netwright_containers() {
    local -a names; names=(${(f)"$(netwright __names containers 2>/dev/null)"}); compadd -a names
}
(( $+functions[_netwright_subjects] )) ||
_netwright_subjects() { _netwright_networks; _netwright_containers }
"#;

/// clap writes what follows each word at the end of its line.
fn zsh(script: &str) -> String {
    let mut text = String::new();
    for line in script.lines() {
        let word = line.trim_start();
        let asks = [
            ("network --", "networks"),
            ("container --", "containers"),
            ("subject --", "subjects"),
        ]
        .into_iter()
        .find(|(name, _)| {
            [":", "::"].iter().any(|colons| word.starts_with(&format!("'{colons}{name}")))
        })
        .map(|(_, what)| what)
        .or_else(|| word.starts_with("'*--net=").then_some("networks"))
        .or_else(|| word.starts_with("'--network=").then_some("networks"));
        match asks.and_then(|what| Some((what, line.rsplit_once(":_default'")?))) {
            Some((what, (before, after))) => {
                text.push_str(&format!("{before}:_netwright_{what}'{after}\n"));
            }
            None => text.push_str(&format!("{line}\n")),
        }
        if line.starts_with("autoload ") {
            text.push_str(ZSH);
        }
    }
    text
}
