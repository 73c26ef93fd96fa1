//! What flanneld says of the node, in the file `subnet.env`: lines of `KEY=VALUE`, replaced as a
//! whole when the node gets another subnet.

use std::path::Path;

use cni::code;
use ipnet::IpNet;

use crate::shared::failure::Failure;

/// What to do when the file does not serve: it is another program's.
const HINT: &str = "flanneld writes this file once it knows the node's subnet: its log says why it has not; \
                    ADD works as soon as the file does";

/// The node's part of the flannel network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SubnetEnv {
    /// The ranges of all nodes, IPv4 first: each becomes a route.
    pub(super) networks: Vec<IpNet>,
    /// The node's own ranges, IPv4 first: each gives a container one address.
    pub(super) subnets: Vec<IpNet>,
    /// The MTU of containers' interfaces in bytes; 0 leaves it to the kernel.
    pub(super) mtu: u32,
    /// Whether flanneld masquerades what leaves the cluster. Then the delegate must not.
    pub(super) masquerades: bool,
}

impl SubnetEnv {
    /// Reads the file.
    ///
    /// # Errors
    /// Code 11: flanneld may write it, or write it anew, at any moment.
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let shown = path.display();
        let read = match state::read_optional(path) {
            Ok(Some(bytes)) => {
                parse(&String::from_utf8_lossy(&bytes)).map_err(|error| match error {
                    ContentError::Line { number, what } => {
                        format!("{shown}: line {number}: {what}")
                    }
                    ContentError::Missing(keys) => {
                        format!("{shown} is missing {}", keys.join(", "))
                    }
                })
            }
            Ok(None) => Err(format!("open {shown}: no such file or directory")),
            Err(error) => Err(Failure::from(error).message().to_owned()),
        };
        read.map_err(|why| {
            let text = format!("failed to load flannel 'subnet.env' file: {why}");
            Failure::new(code::TRY_AGAIN_LATER, text).with_details(HINT)
        })
    }

    /// Returns what stands in for the file where its content decides nothing: DEL and GC need the
    /// attachment's key, and whether a configuration is valid does not depend on the node's subnet.
    pub(super) fn stand_in() -> Self {
        // RFC 5737, RFC 3849: for documentation.
        let nets = ["192.0.2.0/24", "2001:db8::/64"].map(|net| net.parse().expect("a prefix"));
        let nets = Vec::from(nets);
        SubnetEnv { networks: nets.clone(), subnets: nets, mtu: 0, masquerades: true }
    }
}

/// Why the content does not serve.
#[derive(Debug, PartialEq, Eq)]
enum ContentError {
    /// A value is not what its key needs.
    Line { number: usize, what: String },
    /// These keys have no value.
    Missing(Vec<&'static str>),
}

/// Reads the content. Of a key that is there twice the last value counts; an empty value counts as
/// none. White space and quotes around a value mean nothing. Other keys and lines are ignored.
fn parse(text: &str) -> Result<SubnetEnv, ContentError> {
    let (mut networks4, mut networks6) = (Vec::new(), Vec::new());
    let (mut subnet4, mut subnet6, mut mtu, mut masquerades) = (None, None, None, None);
    for (line, number) in text.lines().zip(1..) {
        let Some((key, value)) = line.split_once('=') else { continue };
        let (key, value) = (key.trim(), unquoted(value.trim()));
        if value.is_empty() {
            continue;
        }
        let wrong = |value: &str, wanted: &str| {
            let what = format!("{key}: {value:?} is not {wanted}");
            ContentError::Line { number, what }
        };
        let prefix = |text: &str| {
            let net = text.trim().parse::<IpNet>().map(|net| net.trunc());
            net.map_err(|_| wrong(text, "a prefix such as 10.244.0.0/16"))
        };
        let prefixes = || -> Result<Vec<IpNet>, ContentError> {
            let mut nets = Vec::new();
            for net in value.split(',').map(prefix) {
                let net = net?;
                if !nets.contains(&net) {
                    nets.push(net);
                }
            }
            Ok(nets)
        };
        match key {
            "FLANNEL_NETWORK" => networks4 = prefixes()?,
            "FLANNEL_IPV6_NETWORK" => networks6 = prefixes()?,
            "FLANNEL_SUBNET" => subnet4 = Some(prefix(value)?),
            "FLANNEL_IPV6_SUBNET" => subnet6 = Some(prefix(value)?),
            "FLANNEL_MTU" => {
                mtu = Some(value.parse().map_err(|_| wrong(value, "a number of bytes"))?);
            }
            "FLANNEL_IPMASQ" => masquerades = Some(value == "true"),
            _ => {}
        }
    }
    let networks = [networks4, networks6].concat();
    let subnets: Vec<IpNet> = [subnet4, subnet6].into_iter().flatten().collect();
    let mut missing = Vec::new();
    if networks.is_empty() {
        missing.extend(["FLANNEL_NETWORK", "FLANNEL_IPV6_NETWORK"]);
    }
    if subnets.is_empty() {
        missing.extend(["FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET"]);
    }
    match (mtu, masquerades) {
        (Some(mtu), Some(masquerades)) if missing.is_empty() => {
            Ok(SubnetEnv { networks, subnets, mtu, masquerades })
        }
        _ => {
            missing.extend(mtu.is_none().then_some("FLANNEL_MTU"));
            missing.extend(masquerades.is_none().then_some("FLANNEL_IPMASQ"));
            Err(ContentError::Missing(missing))
        }
    }
}

fn unquoted(value: &str) -> &str {
    let within = |quote: char| value.strip_prefix(quote)?.strip_suffix(quote);
    within('"').or_else(|| within('\'')).unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    const WHOLE: &str = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.3.1/24\n\
                         FLANNEL_IPV6_NETWORK=2001:db8:42::/56\nFLANNEL_IPV6_SUBNET=2001:db8:42:3::1/64\n\
                         FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";

    fn shown(text: &str) -> String {
        match parse(text) {
            Ok(SubnetEnv { networks, subnets, mtu, masquerades }) => {
                let all = |nets: &[IpNet]| {
                    nets.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
                };
                format!("{} | {} | {mtu} | {masquerades}", all(&networks), all(&subnets))
            }
            Err(ContentError::Line { number, what }) => format!("line {number}: {what}"),
            Err(ContentError::Missing(keys)) => format!("missing {}", keys.join(", ")),
        }
    }

    /// Replaces the line of one key.
    fn with(line: &str) -> String {
        let (key, _) = line.split_once('=').unwrap();
        let is_kept = |old: &&str| !old.starts_with(&format!("{key}="));
        let kept: Vec<&str> = WHOLE.lines().filter(is_kept).chain([line]).collect();
        kept.join("\n")
    }

    fn check(texts: &[&str], expected: Expect) {
        let lines: String = texts.iter().map(|text| format!("{}\n", shown(text))).collect();
        expected.assert_eq(&lines);
    }

    #[test]
    fn what_flanneld_writes_is_read() {
        check(
            &[
                WHOLE,
                "FLANNEL_NETWORK=10.1.0.0/16\nFLANNEL_SUBNET=10.1.17.1/24\nFLANNEL_MTU=1472\nFLANNEL_IPMASQ=false",
                "FLANNEL_IPV6_NETWORK=fc00::/48\nFLANNEL_IPV6_SUBNET=fc00::1/64\nFLANNEL_MTU=1472\nFLANNEL_IPMASQ=true",
                &with("FLANNEL_NETWORK=10.1.0.0/16,192.168.0.0/16,10.1.0.0/16"),
                &with("FLANNEL_IPV6_NETWORK=2001:db8:1::/48,2001:db8:2::/48"),
            ],
            expect![[r#"
                10.244.0.0/16 2001:db8:42::/56 | 10.244.3.0/24 2001:db8:42:3::/64 | 1450 | true
                10.1.0.0/16 | 10.1.17.0/24 | 1472 | false
                fc00::/48 | fc00::/64 | 1472 | true
                10.1.0.0/16 192.168.0.0/16 2001:db8:42::/56 | 10.244.3.0/24 2001:db8:42:3::/64 | 1450 | true
                10.244.0.0/16 2001:db8:1::/48 2001:db8:2::/48 | 10.244.3.0/24 2001:db8:42:3::/64 | 1450 | true
            "#]],
        );
    }

    #[test]
    fn what_people_write_is_read_too() {
        let quoted = "# by hand\n\n FLANNEL_NETWORK = \"10.1.9.9/16, 10.2.0.0/16\" \r\nFLANNEL_SUBNET='10.1.17.1/24'\r\n\
                      FLANNEL_MTU=1500\nFLANNEL_MTU=1400\nFLANNEL_IPMASQ=yes\nFLANNEL_NEW=1\nnonsense\nFLANNEL_IPV6_SUBNET=";
        check(
            &[quoted],
            expect![[r#"
            10.1.0.0/16 10.2.0.0/16 | 10.1.17.0/24 | 1400 | false
        "#]],
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        check(
            &[
                "",
                "foo=bar",
                "FLANNEL_NETWORK=10.1.0.0/16\nFLANNEL_MTU=1500",
                &WHOLE[..WHOLE.len() - "FLANNEL_IPMASQ=true\n".len()],
                "FLANNEL_SUBNET\nFLANNEL_MTU",
                &with("FLANNEL_SUBNET=10.244.3.1"),
                &with("FLANNEL_SUBNET=10.244.3.1/33"),
                &with("FLANNEL_NETWORK=10.244.0.0/16,"),
                &with("FLANNEL_IPV6_SUBNET=fd00::g/64"),
                &with("FLANNEL_MTU=-1"),
                &with("FLANNEL_MTU=4294967296"),
                &with("FLANNEL_MTU=fifteen hundred"),
            ],
            expect![[r#"
                missing FLANNEL_NETWORK, FLANNEL_IPV6_NETWORK, FLANNEL_SUBNET, FLANNEL_IPV6_SUBNET, FLANNEL_MTU, FLANNEL_IPMASQ
                missing FLANNEL_NETWORK, FLANNEL_IPV6_NETWORK, FLANNEL_SUBNET, FLANNEL_IPV6_SUBNET, FLANNEL_MTU, FLANNEL_IPMASQ
                missing FLANNEL_SUBNET, FLANNEL_IPV6_SUBNET, FLANNEL_IPMASQ
                missing FLANNEL_IPMASQ
                missing FLANNEL_NETWORK, FLANNEL_IPV6_NETWORK, FLANNEL_SUBNET, FLANNEL_IPV6_SUBNET, FLANNEL_MTU, FLANNEL_IPMASQ
                line 6: FLANNEL_SUBNET: "10.244.3.1" is not a prefix such as 10.244.0.0/16
                line 6: FLANNEL_SUBNET: "10.244.3.1/33" is not a prefix such as 10.244.0.0/16
                line 6: FLANNEL_NETWORK: "" is not a prefix such as 10.244.0.0/16
                line 6: FLANNEL_IPV6_SUBNET: "fd00::g/64" is not a prefix such as 10.244.0.0/16
                line 6: FLANNEL_MTU: "-1" is not a number of bytes
                line 6: FLANNEL_MTU: "4294967296" is not a number of bytes
                line 6: FLANNEL_MTU: "fifteen hundred" is not a number of bytes
            "#]],
        );
    }

    #[test]
    fn a_file_that_does_not_serve_is_named_with_its_writer() {
        let dir = tempfile::tempdir().unwrap();
        let (missing, folder, bad) =
            (dir.path().join("none"), dir.path().to_owned(), dir.path().join("bad"));
        std::fs::write(&bad, b"FLANNEL_MTU=\xff\n").unwrap();
        for (path, words) in [
            (&missing, format!("open {}: no such file or directory", missing.display())),
            (&folder, format!("read {folder:?}: not a regular file")),
            (&bad, format!("{}: line 1: FLANNEL_MTU: \"\u{fffd}\"", bad.display())),
        ] {
            let failure = SubnetEnv::read(path).unwrap_err();
            let begin = format!("failed to load flannel 'subnet.env' file: {words}");
            assert!(failure.message().starts_with(&begin), "{failure}");
            assert_eq!(failure.code(), code::TRY_AGAIN_LATER);
            assert!(failure.details().contains("flanneld writes this file"), "{failure}");
        }
    }
}
