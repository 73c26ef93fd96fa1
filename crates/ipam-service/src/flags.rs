//! The settings, and the commands that end.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use agent::load::Surroundings;
use agent::setting::ServerUrl;
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, ArgMatches};
use cluster_client::etcd::EtcdFiles;
use service_kit::command_line::Invocation;
use service_kit::own_user;
use service_kit::stop::Stop;
use state::Roots;

const APPLY: &str = "apply";
const FORGET: &str = "forget";
const IMPORT: &str = "import";
const OUTPUT: &str = "output";
const RELEASE_STICKY: &str = "release-sticky";

/// The flags that are not keys of the configuration: with one of `forget`, `import` and
/// `release-sticky` the process does that and ends.
pub fn more_flags() -> Vec<Arg> {
    let flag = |name, help| Arg::new(name).long(name).help(help);
    vec![
        flag(APPLY, "with --import: takes the addresses over").action(ArgAction::SetTrue),
        flag(
            FORGET,
            "gives up a node that will not come back, and ends: its blocks are free once its lease has run out",
        )
        .value_name("NODE"),
        flag(
            IMPORT,
            "prints what would be taken over from Whereabouts' pools, and ends: the pools of the API server, or of files \
             (kubectl get -A -o json ippools,overlappingrangeipreservations,pods). Use it before any address of these pools is given",
        )
        .value_name("api|FILE,…"),
        flag(OUTPUT, "with --import: text or json")
            .value_name("FORMAT")
            .value_parser(PossibleValuesParser::new(["text", "json"]))
            .default_value("text"),
        flag(RELEASE_STICKY, "frees the addresses that are kept for a pod, unless the pod has them now, and ends")
            .value_name("NAMESPACE/POD"),
    ]
}

/// Where records are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Records {
    Etcd(Vec<String>),
    Kubernetes,
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
    pub(super) underlay: Vec<IpAddr>,
}

impl Flags {
    /// Takes the copies of files that only root can read, where the service is not root.
    pub(super) fn read_copies(&mut self, roots: &Roots) {
        let files = &mut self.etcd_files;
        let mut of_etcd = [
            ("etcd-ca", &mut files.ca),
            ("etcd-cert", &mut files.certificate),
            ("etcd-key", &mut files.key),
        ];
        own_user::readable("ipam", &mut of_etcd, roots);
        own_user::readable("ipam", &mut [("kubeconfig", &mut self.kubeconfig)], roots);
    }

    /// Reads what the service is to do.
    pub(super) fn of(invocation: &Invocation) -> Result<Self, Stop> {
        let (of, more) = (&invocation.config().ipam, &invocation.more);
        let text = |name: &str| more.get_one::<String>(name).cloned();
        let import = text(IMPORT).map(|from| {
            let files = from.split(',').filter(|file| *file != "api").map(PathBuf::from);
            let json = text(OUTPUT).as_deref() == Some("json");
            Import { files: files.collect(), apply: more.get_flag(APPLY), json }
        });
        let release_sticky = match text(RELEASE_STICKY) {
            None => None,
            Some(pod) => match pod.split_once('/') {
                Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
                    Some((namespace.to_owned(), name.to_owned()))
                }
                _ => {
                    let text =
                        format!("error: --release-sticky must be NAMESPACE/POD, and not {pod:?}\n");
                    return Err(Stop::Usage(text));
                }
            },
        };
        let etcd = || of.etcd.iter().map(ServerUrl::as_str).map(str::to_owned).collect();
        Ok(Flags {
            records: if of.etcd.is_empty() { Records::Kubernetes } else { Records::Etcd(etcd()) },
            etcd_files: EtcdFiles {
                ca: of.etcd_ca.clone(),
                certificate: of.etcd_cert.clone(),
                key: of.etcd_key.clone(),
            },
            forget: text(FORGET),
            idle: of.idle,
            import,
            kubeconfig: of.kubeconfig.clone(),
            lease: of.lease,
            node: of.node.clone().unwrap_or_default(),
            release_sticky,
            socket: of.socketpath.clone(),
            state: of.state.clone(),
            underlay: of.underlay.clone(),
        })
    }
}

/// Adapts what is found around the process: an import that only reads files needs no store, and an
/// import that takes addresses over may name two.
pub fn surroundings(more: &ArgMatches, around: Surroundings) -> Surroundings {
    let Some(import) = more.get_one::<String>(IMPORT) else { return around };
    let reads_files = import.split(',').any(|file| file != "api") && !more.get_flag(APPLY);
    Surroundings { api_server: around.api_server || reads_files, two_stores: true }
}
