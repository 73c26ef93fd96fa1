//! Two pages of the manual (`man 7 man-pages`): the configuration in section 5, made from its keys,
//! and the agent in section 8, with what each service is for and may do. The page of section 1 has
//! the command line and is made from that.

use crate::config::Config;
use crate::keys::{self, TABLES};
use crate::rights::RIGHTS;
use crate::setting::Form;

/// What the pages say of where they are from.
const SOURCE: &str = concat!("netwrightd ", env!("CARGO_PKG_VERSION"));

/// Returns the pages, each with its file's name.
#[must_use]
pub fn pages() -> [(&'static str, String); 2] {
    [("netwrightd.toml.5", configuration()), ("netwrightd.8", agent())]
}

fn configuration() -> String {
    let mut page = Page::new(
        "NETWRIGHTD.TOML",
        5,
        "netwrightd.toml",
        "the configuration of the node agent netwrightd",
    );
    page.section("SYNOPSIS");
    page.line("/etc/netwright/netwrightd.toml");
    page.raw(".br");
    page.line("/etc/netwright/netwrightd.d/*.toml");
    page.section("DESCRIPTION");
    page.line(
        "The first file is the configuration, in TOML. The others, in the order of their names, \
         are drop-ins: a key of a later file replaces the same key of an earlier one.",
    );
    page.paragraph(
        "Each service of the agent has a table, and a key of its table is also a flag of the \
         service, which takes precedence over the files. A key that does not exist is an error, and so is \
         a value of another type. The files, their folders and what links lead to must belong to \
         root, and only root may write them.",
    );
    page.paragraph(
        "Durations are written as 10s, 1m30s, 500ms. Paths are absolute. An empty string takes a \
         value back that an earlier file has. There is no key for a secret: keys name the files \
         that hold them.",
    );
    page.paragraph(
        "netwrightd config check names every mistake with its line. netwrightd agent reload has \
         the services read a change; a key without the word live counts once its service has \
         started again, which the same command does.",
    );
    page.section("KEYS");
    let mut config = Config::default();
    for table in TABLES {
        page.part(&format!("[{}]", table.name));
        page.line(&format!("{}.", table.about));
        for key in keys::of_table(table.name) {
            let setting = (key.setting)(&mut config);
            let value = match setting.form() {
                Form::Switch => "true or false".to_owned(),
                Form::One(what) => what.to_owned(),
                Form::Several(what) => {
                    let one = what.split_once('[').map_or(what, |(one, _)| one);
                    format!("a list, each of it {one}")
                }
            };
            let default = setting.show().map_or(String::new(), |text| format!("; default {text}"));
            let live = if key.live { "; live" } else { "" };
            page.entry(key.name, &format!(" ({value}{default}{live})"));
            page.line(&format!("{}.", first_large(key.about)));
        }
    }
    page.section("FILES");
    page.entry("/var/lib/netwright/agent/accepted.toml", "");
    page.line("The configuration that was accepted last. It counts while the files are wrong.");
    page.section("EXAMPLE");
    page.raw(".nf");
    for line in ["[collect]", "enable = true", "act = true", "", "[repair]", "enable = true"] {
        page.line(line);
    }
    page.raw(".fi");
    page.see(&["netwright(7)", "netwrightd(1)", "netwrightd(8)"]);
    page.text
}

fn agent() -> String {
    let mut page = Page::new(
        "NETWRIGHTD",
        8,
        "netwrightd",
        "the node agent of Netwright: services that look after containers' networks",
    );
    page.section("SYNOPSIS");
    page.line("systemctl enable --now netwright.target");
    page.raw(".br");
    page.line("netwrightd [--configuration FILE]");
    page.raw(".br");
    page.line("netwrightd agent status | reload | metrics");
    page.section("DESCRIPTION");
    page.line(
        "The agent does what a plugin cannot, which is called and ends. Each of its services is a \
         process of its own, with its own rights, and runs where the configuration enables it. \
         Containers' networks go on while none of them runs.",
    );
    page.paragraph(
        "Where systemd runs the machine, netwright.target starts the enabled services, each by \
         netwrightd@SERVICE.service. Elsewhere netwrightd without a command starts them, gives \
         each its rights, and supervises them. In a cluster of Kubernetes each is a container of \
         the chart.",
    );
    page.section("SERVICES");
    for table in TABLES.iter().filter(|table| table.service) {
        page.entry(table.name, "");
        page.line(&format!("{}.", table.about));
        if let Some(rights) = RIGHTS.iter().find(|rights| rights.service == table.name) {
            page.line(rights.reason);
        }
    }
    page.section("SIGNALS");
    page.entry("SIGHUP", "");
    page.line(
        "The configuration is read again. A wrong one changes nothing, and the log says why.",
    );
    page.entry("SIGTERM, SIGINT", "");
    page.line("A service ends; netwrightd without a command ends its services first.");
    page.section("EXIT STATUS");
    for (code, meaning) in [
        ("0", "A signal asked for the end, or the command is done."),
        ("1", "Something failed, or a service is not ready (agent status)."),
        ("2", "The command line is wrong."),
        ("78", "The configuration is wrong."),
    ] {
        page.entry(code, "");
        page.line(meaning);
    }
    page.section("FILES");
    for (path, meaning) in [
        ("/etc/netwright/netwrightd.toml", "The configuration: netwrightd.toml(5)."),
        (
            "/run/netwright/agent/SERVICE.sock",
            "Where a service answers /status, /readyz, /livez and /metrics, to root.",
        ),
        (
            "/var/lib/netwright/",
            "What the services keep: leases, blocks of addresses, Docker's networks.",
        ),
    ] {
        page.entry(path, "");
        page.line(meaning);
    }
    page.see(&["netwright(7)", "netwrightd.toml(5)", "netwrightd(1)", "systemctl(1)"]);
    page.text
}

/// Makes a sentence of a text that begins with a small letter.
fn first_large(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

/// A page in the language of `man 7 man`.
struct Page {
    text: String,
}

impl Page {
    fn new(title: &str, section: u8, name: &str, about: &str) -> Self {
        let mut page = Page { text: String::new() };
        page.raw(&format!(".TH {title} {section} \"\" \"{SOURCE}\""));
        page.section("NAME");
        page.line(&format!("{name} - {about}"));
        page
    }

    fn raw(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// Writes a line of text.
    fn line(&mut self, text: &str) {
        let text = escaped(text);
        // A line that begins so would be a request.
        let begin = if text.starts_with(['.', '\'']) { "\\&" } else { "" };
        self.raw(&format!("{begin}{text}"));
    }

    fn paragraph(&mut self, text: &str) {
        self.raw(".PP");
        self.line(text);
    }

    fn section(&mut self, title: &str) {
        self.raw(&format!(".SH {title}"));
    }

    fn part(&mut self, title: &str) {
        self.raw(&format!(".SS \"{}\"", escaped(title)));
    }

    /// Begins an entry of a list, with a name and what follows it.
    fn entry(&mut self, name: &str, more: &str) {
        self.raw(".TP");
        self.raw(&format!("\\fB{}\\fR{}", escaped(name), escaped(more)));
    }

    fn see(&mut self, pages: &[&str]) {
        self.section("SEE ALSO");
        self.line(&pages.join(", "));
    }
}

/// Writes text as it is: a hyphen that is typed, a backslash.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_have_every_key_and_every_service() {
        let [(five, configuration), (eight, agent)] = pages();
        assert_eq!((five, eight), ("netwrightd.toml.5", "netwrightd.8"));
        let mut rest = configuration.as_str();
        for table in TABLES {
            let begin = format!("\n.SS \"[{}]\"\n", table.name);
            rest = rest.split_once(&begin).unwrap_or_else(|| panic!("{begin}")).1;
            for key in keys::of_table(table.name) {
                let name = format!("\n.TP\n\\fB{}\\fR (", key.name.replace('-', "\\-"));
                assert!(rest.contains(&name), "{name}");
            }
        }
        let entry = "\\fBinterval\\fR (DURATION; default \"1m\"; live)\nHow often to look.\n";
        assert!(configuration.contains(entry));
        for service in keys::services() {
            assert!(agent.contains(&format!("\n.TP\n\\fB{service}\\fR\n")), "{service}");
        }
        for page in [configuration, agent] {
            assert!(page.starts_with(".TH NETWRIGHTD"));
            assert_eq!(page.lines().find(|line| line.starts_with('\'')), None);
        }
    }

    #[test]
    fn text_is_no_request() {
        let mut page = Page { text: String::new() };
        page.line(".TH of a-b \\ c");
        assert_eq!(page.text, "\\&.TH of a\\-b \\e c\n");
    }
}
