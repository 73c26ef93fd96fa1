//! The flags.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use super::super::Stop;
use super::super::arguments::{Arguments, FlagError};

/// What is printed for `-help`.
pub(crate) const HELP: &str = "\
Usage: netwrightd ipam -node NAME [-etcd URL,…] [FLAG…]
       netwrightd ipam -forget NODE [-etcd URL,…]
       netwrightd ipam -release-sticky NAMESPACE/POD [-etcd URL,…]
       netwrightd ipam -import api|FILE,… [-apply] [-output json]

Gives addresses of networks that span nodes: answers the plugin cluster-ipam from blocks of addresses that this node leases, through
the Kubernetes API or etcd.

  -apply              with -import: takes the addresses over
  -etcd URL,…         etcd's members (default: the Kubernetes API)
  -etcd-ca FILE       the CA certificates of etcd's members, as PEM
  -etcd-cert FILE     this client's certificate, as PEM
  -etcd-key FILE      its key, as PEM
  -forget NODE        gives up a node that will not come back, and ends: its blocks are free once its lease has run out
  -idle DURATION      how long a block stays empty before it is given back (default 10m)
  -import api|FILE,…  prints what would be taken over from Whereabouts' pools, and ends: the pools of the API server, or of files (kubectl get -A -o
                      json ippools,overlappingrangeipreservations,pods). Use it before any of their addresses is given
  -kubeconfig FILE    how to reach the API server (default: as in a pod)
  -lease DURATION     how long addresses are given while the store is away (default 1h)
  -node NAME          this node's name, as Kubernetes has it (default: $NODE_NAME)
  -output FORMAT      with -import: text or json (default text)
  -release-sticky NAMESPACE/POD
                      frees the addresses that a pod keeps, unless it has them; and ends
  -socketpath PATH    where to listen (default /run/netwright/ipam.sock); also -socket
  -state DIR          where the node's blocks and addresses are recorded (default /var/lib/netwright/ipam)

One dash or two, values apart or after `=`.
";

/// Shorter leases are renewed more often than useful.
const SHORTEST_LEASE: Duration = Duration::from_secs(1);

/// Where records are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Records {
    Etcd(Vec<String>),
    Kubernetes,
}

/// The files for connections to etcd.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct EtcdFiles {
    pub(super) ca: Option<PathBuf>,
    pub(super) certificate: Option<PathBuf>,
    pub(super) key: Option<PathBuf>,
}

/// Where Whereabouts' pools are, and what to do with them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Import {
    /// Files; if there are none, the API server's objects.
    pub(super) files: Vec<PathBuf>,
    /// Writes the records.
    pub(super) apply: bool,
    /// Prints JSON.
    pub(super) json: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Flags {
    pub(super) records: Records,
    pub(super) etcd_files: EtcdFiles,
    pub(super) forget: Option<String>,
    pub(super) idle: Duration,
    pub(super) import: Option<Import>,
    pub(super) kubeconfig: Option<PathBuf>,
    pub(super) lease: Duration,
    pub(super) node: String,
    pub(super) release_sticky: Option<(String, String)>,
    pub(super) socket: PathBuf,
    pub(super) state: Option<PathBuf>,
}

impl Flags {
    /// Reads the arguments after the service's name.
    pub(super) fn parse(arguments: &[OsString]) -> Result<Self, FlagError> {
        let mut flags = Flags {
            records: Records::Kubernetes,
            etcd_files: EtcdFiles::default(),
            forget: None,
            idle: Duration::from_secs(600),
            import: None,
            kubeconfig: None,
            lease: Duration::from_secs(3600),
            node: String::new(),
            release_sticky: None,
            socket: node_api::ipam::SOCKET.into(),
            state: None,
        };
        let (mut apply, mut json) = (false, false);
        let mut arguments = Arguments::new(arguments);
        while let Some(name) = arguments.next()? {
            match name.as_str() {
                "apply" => apply = arguments.switch()?,
                "etcd" => {
                    let wanted = "URLs such as https://192.0.2.1:2379, separated by commas";
                    flags.records = Records::Etcd(arguments.value_of(wanted, endpoints)?);
                }
                "etcd-ca" => flags.etcd_files.ca = Some(arguments.value()?.into()),
                "etcd-cert" => flags.etcd_files.certificate = Some(arguments.value()?.into()),
                "etcd-key" => flags.etcd_files.key = Some(arguments.value()?.into()),
                "forget" => flags.forget = Some(arguments.value()?),
                "idle" => flags.idle = arguments.duration()?,
                "import" => {
                    let from = arguments.value()?;
                    let files = from.split(',').filter(|file| *file != "api").map(PathBuf::from);
                    flags.import = Some(Import { files: files.collect(), ..Import::default() });
                }
                "kubeconfig" => flags.kubeconfig = Some(arguments.value()?.into()),
                "lease" => flags.lease = arguments.duration()?,
                "node" => flags.node = arguments.value()?,
                "output" => {
                    json = arguments.value_of("text or json", |text| match text {
                        "json" => Some(true),
                        "text" => Some(false),
                        _ => None,
                    })?;
                }
                "release-sticky" => {
                    let pod = arguments.value_of("NAMESPACE/POD", |text| {
                        let (namespace, name) = text.split_once('/')?;
                        let whole = !namespace.is_empty() && !name.is_empty();
                        whole.then(|| (namespace.to_owned(), name.to_owned()))
                    });
                    flags.release_sticky = Some(pod?);
                }
                "socketpath" | "socket" => flags.socket = arguments.value()?.into(),
                "state" => flags.state = Some(arguments.value()?.into()),
                _ => return Err(FlagError::Unknown(name)),
            }
        }
        if let Some(import) = &mut flags.import {
            (import.apply, import.json) = (apply, json);
        }
        Ok(flags)
    }

    /// Reports what is missing, or too much.
    pub(super) fn check(&self, in_pod: bool) -> Result<(), Stop> {
        let wrong = |text: &str| Err(Stop::Usage(text.to_owned()));
        let ends = self.forget.is_some() || self.import.is_some() || self.release_sticky.is_some();
        if self.node.is_empty() && !ends {
            return wrong("flag needs to be given: -node, or $NODE_NAME");
        }
        if self.lease < SHORTEST_LEASE {
            return wrong("-lease is shorter than 1s");
        }
        match &self.records {
            Records::Etcd(_) if self.kubeconfig.is_some() && self.import.is_none() => {
                wrong("-etcd and -kubeconfig exclude each other: addresses are kept in one place")
            }
            Records::Etcd(_)
                if self.etcd_files.certificate.is_some() != self.etcd_files.key.is_some() =>
            {
                wrong("-etcd-cert and -etcd-key go together")
            }
            Records::Kubernetes if self.etcd_files != EtcdFiles::default() => {
                wrong("-etcd-ca, -etcd-cert and -etcd-key need -etcd")
            }
            Records::Kubernetes if self.kubeconfig.is_none() && !in_pod && !self.asks_nobody() => {
                wrong("not running in a pod: pass -kubeconfig or -etcd")
            }
            _ => Ok(()),
        }
    }

    /// Says whether it only reads files.
    fn asks_nobody(&self) -> bool {
        self.import.as_ref().is_some_and(|import| !import.files.is_empty() && !import.apply)
    }
}

fn endpoints(text: &str) -> Option<Vec<String>> {
    let urls: Vec<String> =
        text.split(',').map(|url| url.trim().trim_end_matches('/').to_owned()).collect();
    let is_url = |url: &String| {
        let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
        rest.is_some_and(|rest| !rest.is_empty() && !rest.contains('/'))
    };
    urls.iter().all(is_url).then_some(urls)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Flags, String> {
        let arguments: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        let flags = Flags::parse(&arguments).map_err(|error| error.to_string())?;
        match flags.check(false) {
            Err(Stop::Usage(text)) => Err(text),
            Err(other) => Err(format!("{other:?}")),
            Ok(()) => Ok(flags),
        }
    }

    #[test]
    fn flags_are_read() {
        let flags =
            parse("-node n1 --etcd=https://a:2379,https://b:2379/ -lease 90s -idle 0 -socket /s")
                .unwrap();
        let both = vec!["https://a:2379".to_owned(), "https://b:2379".to_owned()];
        assert_eq!(flags.records, Records::Etcd(both));
        assert_eq!((flags.lease, flags.idle), (Duration::from_secs(90), Duration::ZERO));
        assert_eq!(flags.socket, PathBuf::from("/s"));
        assert_eq!(parse("-node n1 -kubeconfig /k").unwrap().records, Records::Kubernetes);
        let import = parse("-import /a,/b -output json -node n").unwrap().import.unwrap();
        assert_eq!(import.files, [PathBuf::from("/a"), PathBuf::from("/b")]);
        assert!(import.json && !import.apply);
        let import = parse("-import api -apply -kubeconfig /k").unwrap().import.unwrap();
        assert!(import.files.is_empty() && import.apply);
        assert_eq!(parse("-forget n2 -kubeconfig /k").unwrap().forget.as_deref(), Some("n2"));
        let pod = parse("-release-sticky ns/web-0 -kubeconfig /k").unwrap().release_sticky;
        assert_eq!(pod, Some(("ns".to_owned(), "web-0".to_owned())));
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        let refused = |line: &str| parse(line).unwrap_err();
        assert_eq!(refused("-kubeconfig /k"), "flag needs to be given: -node, or $NODE_NAME");
        assert_eq!(refused("-node n"), "not running in a pod: pass -kubeconfig or -etcd");
        assert!(refused("-release-sticky web-0").contains("NAMESPACE/POD"));
        assert!(refused("-node n -etcd host:2379").contains("URLs such as"));
        assert!(refused("-node n -etcd http://a,,http://b").contains("URLs such as"));
        assert_eq!(
            refused("-node n -etcd http://a -kubeconfig /k"),
            "-etcd and -kubeconfig exclude each other: addresses are kept in one place"
        );
        assert_eq!(
            refused("-node n -etcd https://a -etcd-cert /c"),
            "-etcd-cert and -etcd-key go together"
        );
        assert_eq!(
            refused("-node n -kubeconfig /k -etcd-ca /c"),
            "-etcd-ca, -etcd-cert and -etcd-key need -etcd"
        );
        assert_eq!(refused("-node n -etcd http://a -lease 1ms"), "-lease is shorter than 1s");
        let no_pod = "not running in a pod: pass -kubeconfig or -etcd";
        assert_eq!(refused("-import api"), no_pod);
        assert_eq!(refused("-import /a -apply"), no_pod);
        assert!(refused("-import /a -output yaml").contains("text or json"));
        assert_eq!(refused("-x"), "flag provided but not defined: -x");
    }
}
