//! `inspect`: shows all that is known of a network or of a container's attachments.

use std::process::ExitCode;

use cni::code;
use cni::text::one_line;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use state::Roots;

use super::Outcome;
use super::attach::describe_result;
use crate::args::{Common, Inspect};
use crate::failure::Failure;
use crate::net::attachments::{self, KnownAttachment, Row};
use crate::net::session::{Network, PluginSource, Session};
use crate::net::{container, default};
use crate::shell::{Report, Shell};
use crate::world::World;

#[derive(Debug, Serialize)]
struct NetworkView {
    network: String,
    file: Option<String>,
    config: Box<RawValue>,
    attachments: Vec<Row>,
    #[serde(skip)]
    text: String,
}

impl Report for NetworkView {
    fn text(&self) -> String {
        self.text.clone()
    }
}

#[derive(Debug, Serialize)]
struct ContainerView {
    attachments: Vec<AttachmentView>,
}

/// An attachment, with everything that was recorded of it.
#[derive(Debug, Serialize)]
struct AttachmentView {
    #[serde(rename = "attachment")]
    row: Row,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    config: Option<Box<RawValue>>,
    /// What our plugins recorded, by plugin.
    records: serde_json::Map<String, Value>,
    #[serde(skip)]
    text: String,
}

impl Report for ContainerView {
    fn text(&self) -> String {
        let texts: Vec<&str> = self.attachments.iter().map(|view| view.text.as_str()).collect();
        texts.join("\n")
    }
}

pub(crate) fn main(args: &Inspect, common: &Common, world: &World, shell: &mut Shell) -> Outcome {
    let session = Session::open(world, common, shell, PluginSource::None)?;
    let mut known = attachments::all(&session)?;
    for notice in &known.notices {
        shell.warn(notice);
    }
    known.known = attachments::with_parts(&session.roots, known.known).known;
    let Some(subject) = args.subject.as_deref() else {
        let network = Network { list: default::list(), file: None };
        shell.print(&network_view(&network, &known.known, &session.roots)?);
        return Ok(ExitCode::SUCCESS);
    };
    let network = session.network(subject);
    let of_container = if subject.is_empty() {
        Vec::new()
    } else {
        let name = container::resolve(subject, world)?;
        attachments::of_container(known.known.clone(), &name, &session.roots)
    };
    match network {
        Ok(network) => shell.print(&network_view(&network, &known.known, &session.roots)?),
        Err(failure) if of_container.is_empty() => {
            return Err(Failure::new(
                code::UNKNOWN_CONTAINER,
                format!("{subject:?} is neither a network nor a container that is attached to one"),
            )
            .because(failure.message())
            .hint("`netwright list` shows what is attached, `netwright status` the networks"));
        }
        Err(_) => {
            let attachments =
                of_container.iter().map(|known| attachment_view(known, &session.roots)).collect();
            shell.print(&ContainerView { attachments });
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn network_view(
    network: &Network,
    known: &[KnownAttachment],
    roots: &Roots,
) -> Result<NetworkView, Failure> {
    let source = match &network.file {
        None => default::document(),
        Some(_) => String::from_utf8_lossy(&network.list.source),
    };
    let document = source.trim().to_owned();
    let config = RawValue::from_string(document.clone())
        .map_err(|error| Failure::of(code::DECODE_FAILURE, &error))?;
    let attachments: Vec<Row> = known
        .iter()
        .filter(|known| known.key.network.as_str() == network.list.name)
        .map(|known| Row::of(known, roots))
        .collect();
    let mut text = format!(
        "# network {} from {}\n{document}\n",
        one_line(&network.list.name),
        one_line(network.origin())
    );
    for row in &attachments {
        text.push_str(&format!(
            "# attached: {} {} {}\n",
            row.container(),
            row.ifname,
            row.addresses.join(",")
        ));
    }
    Ok(NetworkView {
        network: network.list.name.clone(),
        file: network.file.as_ref().map(|path| path.display().to_string()),
        config,
        attachments,
        text,
    })
}

/// Writes what a plugin recorded, one line for each value, with the keys that lead to it.
fn describe(text: &mut String, name: &str, value: &Value) {
    let inner = |key: &str| if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") };
    match value {
        Value::Object(members) => {
            for (key, value) in members {
                describe(text, &inner(key), value);
            }
        }
        Value::Array(items) if items.iter().any(|item| item.is_object() || item.is_array()) => {
            for (place, item) in items.iter().enumerate() {
                describe(text, &inner(&place.to_string()), item);
            }
        }
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(plain).collect();
            text.push_str(&format!("  {}: {}\n", one_line(name), one_line(items.join(", "))));
        }
        value => text.push_str(&format!("  {}: {}\n", one_line(name), one_line(plain(value)))),
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "none".to_owned(),
        value => value.to_string(),
    }
}

fn attachment_view(known: &KnownAttachment, roots: &Roots) -> AttachmentView {
    let row = Row::of(known, roots);
    let mut text = format!(
        "network {}, container {}, interface {} ({})\n",
        row.network,
        row.container(),
        row.ifname,
        row.state.as_str()
    );
    text.push_str(&format!(
        "netns: {}\n",
        if row.netns.is_empty() { "unknown".to_owned() } else { one_line(&row.netns) }
    ));
    if let Some(result) = known.result() {
        text.push_str(&describe_result(&result, &row.ifname));
    }
    if !row.ports.is_empty() {
        text.push_str(&format!("published: {}\n", one_line(row.ports.join(", "))));
    }
    let mut records = serde_json::Map::new();
    for record in &known.records {
        records.insert(record.plugin.clone(), record.data.clone());
    }
    for (plugin, data) in &records {
        text.push_str(&format!("recorded by {}:\n", one_line(plugin)));
        describe(&mut text, "", data);
    }
    let config = known.cached.as_ref().and_then(|cached| {
        RawValue::from_string(String::from_utf8_lossy(&cached.config).trim().to_owned()).ok()
    });
    AttachmentView {
        row,
        result: known.cached.as_ref().and_then(|cached| cached.result.clone()),
        config,
        records,
        text,
    }
}
