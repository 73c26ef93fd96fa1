//! Translates what the user asks of a network into what plugins understand.

use cni::json::Object;
use cni::{Args, ContainerId, IfName, NetworkList, PluginConfig, code};
use cni_runtime::Attachment;
use plugins::chained::policy;
use plugins::judge;
use serde::Serialize;
use serde_json::value::RawValue;

use super::ports::PortMapping;
use super::spec::Addresses;
use crate::args::{Attach, Labels};
use crate::failure::Failure;
use crate::world::World;

/// The name of a container's first interface by default.
const FIRST_IFNAME: &str = "eth0";

/// The capabilities by which plugins take what we are asked for (CNI conventions).
pub(crate) const PORT_MAPPINGS: &str = "portMappings";
const IPS: &str = "ips";
const MAC: &str = "mac";

/// Returns the interface's name: the one asked for, `CNI_IFNAME`, or `eth0`.
pub(crate) fn ifname(addresses: &Addresses, world: &World) -> Result<IfName, Failure> {
    if let Some(ifname) = &addresses.ifname {
        return Ok(ifname.clone());
    }
    let text = world.variable("CNI_IFNAME").unwrap_or_else(|| FIRST_IFNAME.to_owned());
    IfName::new(&text).map_err(|error| Failure::from(error.context("CNI_IFNAME")))
}

/// Describes an attachment: by `CNI_ARGS` and `CAP_ARGS` of the environment, then by the command
/// line.
pub(crate) fn describe(
    list: &NetworkList,
    container_id: ContainerId,
    ifname: IfName,
    netns: &str,
    attach: &Attach,
    world: &World,
) -> Result<Attachment, Failure> {
    let mut attachment = from_environment(container_id, ifname, netns, world)?;
    let mut pairs: Vec<(String, String)> = owned(&attachment.args);
    pairs.extend(attach.args.iter().cloned());
    let Addresses { ip, mac, ifname: _ } = &attach.addresses;
    let mut by_argument = Vec::new();
    if !ip.is_empty() {
        let texts: Vec<&str> = ip.iter().map(|ip| ip.0.as_str()).collect();
        if has_capability(list, IPS) {
            attachment = attachment.with_capability(IPS, &texts)?;
        } else {
            by_argument.push(("IP".to_owned(), texts.join(",")));
        }
    }
    if let Some(mac) = mac {
        if has_capability(list, MAC) {
            attachment = attachment.with_capability(MAC, &mac.to_string())?;
        } else {
            by_argument.push(("MAC".to_owned(), mac.to_string()));
        }
    }
    if !by_argument.is_empty() && !pairs.iter().any(|(key, _)| key == "IgnoreUnknown") {
        // Every plugin of the chain gets the same arguments, and most read none of these.
        pairs.push(("IgnoreUnknown".to_owned(), "1".to_owned()));
    }
    pairs.extend(by_argument);
    attachment.args = Args::from_pairs(pairs);
    if !attach.publish.is_empty() {
        attachment = publish(list, attachment, &attach.publish)?;
    }
    for (name, json) in &attach.capabilities {
        let value: Box<RawValue> = serde_json::from_str(json).map_err(|error| {
            Failure::usage(format!("--cap {name}: the value is not JSON"))
                .because(cni::json::explain(json.as_bytes(), &error))
                .hint("text needs quotes of its own: --cap 'name=\"text\"'")
        })?;
        attachment.capability_args.insert(name.clone(), value);
    }
    Ok(attachment)
}

/// Returns the list with labels in `args.cni` of every plugin (CNI conventions, "labels").
///
/// # Errors
/// A key that has two values, and arguments in the list that are no object.
pub(crate) fn labelled(list: NetworkList, labels: &Labels) -> Result<NetworkList, Failure> {
    #[derive(Serialize)]
    struct Label<'l> {
        key: &'l str,
        value: &'l str,
    }
    if labels.labels.is_empty() {
        return Ok(list);
    }
    let mut all: Vec<Label<'_>> = Vec::new();
    for (key, value) in &labels.labels {
        match all.iter().find(|label| label.key == key) {
            Some(label) if label.value != value => {
                return Err(Failure::usage(format!("--label gives {key:?} two values")));
            }
            Some(_) => {}
            None => all.push(Label { key, value }),
        }
    }
    let mut args = Object::new();
    args.set_value("labels", &all);
    Ok(list.with_cni_args(&args)?)
}

/// Refuses labels that no plugin of any network reads: only network policy does, and perhaps another
/// project's plugin.
pub(crate) fn refuse_unread_labels(lists: &[&NetworkList], labels: &Labels) -> Result<(), Failure> {
    let reads = |name: &str| match plugins::info(name) {
        None => true,
        Some(info) => info.name == policy::INFO.name || info.inner.is_some(),
    };
    let mut plugins = lists.iter().flat_map(|list| &list.plugins);
    let is_read = plugins.any(|plugin| reads(&plugin.plugin_type));
    if is_read || labels.labels.is_empty() {
        return Ok(());
    }
    let names: Vec<String> = lists.iter().map(|list| format!("{:?}", list.name)).collect();
    let text = format!("no plugin of network {} reads labels", names.join(", "));
    Err(Failure::new(code::INVALID_CONFIG, text)
        .hint("add the plugin policy behind the others, or leave --label out"))
}

/// Describes an attachment by the environment, as cnitool does.
pub(crate) fn from_environment(
    container_id: ContainerId,
    ifname: IfName,
    netns: &str,
    world: &World,
) -> Result<Attachment, Failure> {
    let args = parse_args(&world.variable("CNI_ARGS").unwrap_or_default())?;
    let attachment = Attachment::new(container_id, ifname, netns).with_args(args);
    match world.variable("CAP_ARGS") {
        Some(document) => attachment
            .with_capabilities_json(&document)
            .map_err(|error| Failure::from(error.context("CAP_ARGS"))),
        None => Ok(attachment),
    }
}

/// Lists the capabilities that a plugin has and reads.
fn taken_by(plugin: &PluginConfig) -> impl Iterator<Item = &str> {
    let ipam_type = judge::address_plugin(plugin).unwrap_or_default();
    let read = judge::capabilities_read(&plugin.plugin_type, &ipam_type);
    let reads = move |name: &&str| {
        let mut known = read.iter().flatten();
        read.is_none() || known.any(|known| known.eq_ignore_ascii_case(name))
    };
    plugin.capabilities.iter().map(String::as_str).filter(reads)
}

/// Refuses a capability without a value: it changes nothing, unless a plugin's configuration has a
/// value that it would replace.
fn refuse_nothing(lists: &[&NetworkList], asked: &Attach) -> Result<(), Failure> {
    let is_nothing = |json: &str| lists.iter().all(|list| list.is_unchanged_by(json));
    let Some((name, json)) = asked.capabilities.iter().find(|(_, json)| is_nothing(json)) else {
        return Ok(());
    };
    Err(Failure::usage(format!("--cap {name}: {} changes nothing", json.trim()))
        .hint("give it a value, or leave it out"))
}

/// Refuses a capability that no plugin of any network takes: the runtime would silently leave it
/// out, or the plugin would not read it.
pub(crate) fn refuse_untaken(lists: &[&NetworkList], asked: &Attach) -> Result<(), Failure> {
    refuse_nothing(lists, asked)?;
    let plugins = lists.iter().flat_map(|list| &list.plugins);
    let mut taken: Vec<&str> = plugins.flat_map(taken_by).collect();
    let untaken = asked.capabilities.iter().find(|(name, _)| !taken.contains(&name.as_str()));
    let Some((name, _)) = untaken else { return Ok(()) };
    let names: Vec<String> = lists.iter().map(|list| format!("{:?}", list.name)).collect();
    taken.sort_unstable();
    taken.dedup();
    let what = match taken.is_empty() {
        true => "its plugins take no capability".to_owned(),
        false => format!("its plugins take {}", taken.join(", ")),
    };
    Err(Failure::new(
        code::INVALID_CONFIG,
        format!("no plugin of network {} takes the capability {name:?}", names.join(", ")),
    )
    .because(what)
    .hint(format!(
        "add \"capabilities\": {{{name:?}: true}} to the plugin that is to have it, or leave --cap {name} out"
    )))
}

/// Refuses a list in which one of our plugins has a place that it cannot have.
pub(crate) fn refuse_out_of_place(list: &NetworkList) -> Result<(), Failure> {
    match judge::out_of_place(list) {
        Some(refusal) => Err(refusal.to_error(&list.name).into()),
        None => Ok(()),
    }
}

/// Publishes ports, if the network can.
fn publish(
    list: &NetworkList,
    attachment: Attachment,
    ports: &[PortMapping],
) -> Result<Attachment, Failure> {
    if !has_capability(list, PORT_MAPPINGS) {
        return Err(Failure::new(
            code::INVALID_CONFIG,
            format!("network {:?} cannot publish ports", list.name),
        )
        .because("none of its plugins has the capability portMappings")
        .hint("add {\"type\": \"portmap\", \"capabilities\": {\"portMappings\": true}} to its plugins"));
    }
    Ok(attachment.with_capability(PORT_MAPPINGS, ports)?)
}

/// Says whether some plugin of the network takes a capability.
pub(crate) fn has_capability(list: &NetworkList, name: &str) -> bool {
    list.plugins.iter().any(|plugin| plugin.capabilities.iter().any(|has| has == name))
}

/// Says whether ports can be published on the network.
pub(crate) fn can_publish(list: &NetworkList) -> bool {
    has_capability(list, PORT_MAPPINGS)
}

/// Reads `CNI_ARGS` as strictly as cnitool: no side of a pair may be empty.
fn parse_args(text: &str) -> Result<Args, Failure> {
    if text.is_empty() {
        return Ok(Args::default());
    }
    let pairs = text.split(';').map(|pair| match pair.split_once('=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() && !value.contains('=') => {
            Ok((key.to_owned(), value.to_owned()))
        }
        _ => {
            Err(Failure::new(code::INVALID_ENVIRONMENT, format!("invalid CNI_ARGS pair {pair:?}"))
                .hint("CNI_ARGS is a list of KEY=VALUE separated by semicolons"))
        }
    });
    pairs.collect::<Result<_, _>>().map(Args::from_pairs)
}

fn owned(args: &Args) -> Vec<(String, String)> {
    args.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::default;

    fn world(variables: &[(&str, &str)]) -> World {
        World {
            environment: variables.iter().map(|(key, value)| (key.into(), value.into())).collect(),
            directory: "/".into(),
        }
    }

    fn shown(list: &NetworkList, attach: &Attach, world: &World) -> String {
        let id = ContainerId::new("c1").unwrap();
        let described = describe(list, id, IfName::new("eth0").unwrap(), "/ns", attach, world);
        match described {
            Ok(attachment) => format!(
                "{} {}",
                attachment.args,
                serde_json::to_string(&attachment.capability_args).unwrap()
            ),
            Err(failure) => failure.text(),
        }
    }

    fn plain() -> NetworkList {
        NetworkList::parse(br#"{"name": "plain", "plugins": [{"type": "bridge"}]}"#).unwrap()
    }

    fn asking() -> Attach {
        Attach {
            addresses: Addresses {
                ip: vec!["10.0.0.5".parse().unwrap(), "fd00::5/64".parse().unwrap()],
                mac: Some("02:00:00:00:00:01".parse().unwrap()),
                ifname: None,
            },
            ..Attach::default()
        }
    }

    #[test]
    fn labels_are_arguments_of_every_plugin() {
        let list = NetworkList::parse(
            br#"{"name": "n", "plugins": [{"type": "a", "args": {"cni": {"ips": ["10.0.0.1"], "labels": []}}}, {"type": "b"}]}"#,
        );
        let pair = |text: &str| {
            let (key, value) = text.split_once('=').unwrap();
            (key.to_owned(), value.to_owned())
        };
        let with = |labels: &[&str]| {
            let labels = Labels { labels: labels.iter().map(|text| pair(text)).collect() };
            labelled(list.clone().unwrap(), &labels)
        };
        assert_eq!(with(&[]).unwrap(), list.clone().unwrap());
        let both = with(&["app=web", "tier=", "app=web"]).unwrap();
        let text = |place: usize| String::from_utf8(both.plugins[place].object.to_vec()).unwrap();
        assert_eq!(
            text(0),
            r#"{"type":"a","args":{"cni":{"ips":["10.0.0.1"],"labels":[{"key":"app","value":"web"},{"key":"tier","value":""}]}}}"#
        );
        assert_eq!(
            text(1),
            r#"{"type":"b","args":{"cni":{"labels":[{"key":"app","value":"web"},{"key":"tier","value":""}]}}}"#
        );
        let refused = with(&["app=web", "app=db"]).unwrap_err();
        assert!(refused.text().contains("--label gives \"app\" two values"), "{}", refused.text());
    }

    #[test]
    fn addresses_go_by_capability_where_there_is_one() {
        assert_eq!(
            shown(&default::list(), &asking(), &world(&[])),
            r#" {"ips":["10.0.0.5","fd00::5/64"],"mac":"02:00:00:00:00:01"}"#
        );
        assert_eq!(
            shown(&plain(), &asking(), &world(&[])),
            "IgnoreUnknown=1;IP=10.0.0.5,fd00::5/64;MAC=02:00:00:00:00:01 {}"
        );
    }

    #[test]
    fn ports_need_a_plugin_that_publishes() {
        let attach = Attach { publish: vec!["8080:80".parse().unwrap()], ..Attach::default() };
        assert_eq!(
            shown(&default::list(), &attach, &world(&[])),
            r#" {"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}"#
        );
        assert!(
            shown(&plain(), &attach, &world(&[]))
                .starts_with("error: network \"plain\" cannot publish ports\n")
        );
    }

    #[test]
    fn the_environment_counts_as_for_cnitool() {
        let environment =
            world(&[("CNI_ARGS", "A=1;B=2"), ("CAP_ARGS", r#"{"bandwidth": {"ingressRate": 1}}"#)]);
        let attach = Attach {
            args: vec![("C".into(), "3".into())],
            capabilities: vec![("dns".into(), "{}".into())],
            ..Attach::default()
        };
        assert_eq!(
            shown(&plain(), &attach, &environment),
            r#"A=1;B=2;C=3 {"bandwidth":{"ingressRate": 1},"dns":{}}"#
        );
        assert!(
            shown(&plain(), &attach, &world(&[("CNI_ARGS", "A=")]))
                .starts_with("error: invalid CNI_ARGS pair \"A=\"\n")
        );
    }
}
