//! The description of the command line, from which help texts, man pages, completions and
//! `docs/cli.md` are generated.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueHint};

use crate::net::ports::PortMapping;
use crate::net::spec::{Addresses, NetworkSpec};
use crate::shell::Format;

/// The heading over what every command takes.
pub(crate) const COMMON: &str = "Common options";

const AFTER_HELP: &str = "\
A CONTAINER is named by the path of its network namespace, by the name `ip netns` knows, by the
ID of a process in it or, where attachments are looked up, by the runtime's container ID.

Environment:
  NETCONFPATH          folder of network configurations [default: /etc/cni/net.d]
  CNI_PATH             folders that hold plugins, separated by colons; the plugins of this
                       executable stand in for those missing [default: those of this executable,
                       then /opt/cni/bin:/usr/lib/cni:/usr/libexec/cni]
  CNI_ARGS             arguments for plugins: K=V;K=V
  CAP_ARGS             capability arguments for plugins: a JSON object
  CNI_IFNAME           interface name [default: eth0]
  NETWRIGHT_RUN_DIR    our state until the next boot [default: /run/netwright]
  NETWRIGHT_STATE_DIR  our state beyond it [default: /var/lib/netwright]
  NETWRIGHT_CACHE_DIR  results of attachments, in libcni's format [default: /var/lib/cni]
  NETWRIGHT_LOG        log on standard error, of plugins too: error, warn, info, debug or trace
  NO_COLOR             no colours

Exit codes:
  0   done
  1   refused or failed: the request, a configuration or the network's state must change
  2   the command line is wrong
  3   something on this machine is broken or missing
  4   try again later
  70  a bug of ours
  `run` exits with the code of its command (128 plus the signal that ended it), with 125 when the
  network could not be set up, with 126 or 127 when the command could not be started.";

/// Connects containers to networks.
///
/// Every CNI plugin and a runtime to drive them, in one executable. Linked under the name of a
/// plugin, or called with one as its first argument, it is that plugin.
#[derive(Debug, Parser)]
#[command(name = "netwright", version, after_help = AFTER_HELP, disable_help_subcommand = true)]
pub(crate) struct CommandLine {
    #[command(flatten)]
    pub(crate) common: Common,
    /// List the plugins of this executable.
    #[arg(long)]
    pub(crate) list: bool,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// What every command takes.
#[derive(Debug, Clone, Args)]
pub(crate) struct Common {
    /// How to write data: text and tables, or one JSON document.
    #[arg(
        long,
        short,
        global = true,
        help_heading = COMMON,
        value_enum,
        default_value = "text",
        hide_possible_values = true,
        value_name = "text|json"
    )]
    pub(crate) output: Format,
    /// How long the plugins of one operation may take, in seconds.
    #[arg(
        long,
        global = true,
        help_heading = COMMON,
        default_value_t = 60,
        value_name = "SECONDS",
        value_parser = seconds
    )]
    pub(crate) timeout: u64,
    /// Folder of network configurations, in place of NETCONFPATH.
    #[arg(
        long,
        global = true,
        help_heading = COMMON,
        value_name = "DIR",
        value_hint = ValueHint::DirPath
    )]
    pub(crate) conf_dir: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command in a fresh network namespace, attached to networks.
    ///
    /// Removes the namespace and everything made for it when the command ends, also after SIGINT
    /// and SIGTERM, which are passed on to the command. Without a command the built-in probe shows
    /// what the network can do. If netwright itself is killed with SIGKILL, the command is killed
    /// too, and `netwright gc` removes what is left.
    Run(Run),
    /// Show addresses and routes here, and try the gateway and the outside.
    ///
    /// Works in any network namespace, and is what `netwright run` runs without a command.
    Probe(Probe),
    /// Attach a container to a network.
    Add(Add),
    /// Detach a container from a network. Detaching again is not an error.
    Del(Del),
    /// Verify that an attachment is as it was made.
    Check(Check),
    /// Say to which networks a container could be attached now, and why not to others.
    ///
    /// A network is "partly asked" if no plugin refuses, but some could not be asked: those of other
    /// projects that have no STATUS in the list's version. Ends with 0 if no network is refused,
    /// otherwise with the code of the first refusal: `netwright --help` lists them.
    Status(Status),
    /// Remove what deleted containers left behind.
    ///
    /// Removes the attachments whose namespace no longer exists. With --valid it removes all other
    /// attachments of the network, and each plugin removes what has no owner. With --all it removes
    /// every attachment.
    Gc(Gc),
    /// Restore what other programs changed of attachments, while the containers run.
    ///
    /// Restores routes, rules, addresses, bridge ports, neighbours, sysctls and what attachments
    /// have in the packet filter, also after `nft flush ruleset`. It reports, and does not change,
    /// what belongs to another owner by now, and what only another ADD can make again. Ends with 0
    /// when everything is as ADD made it.
    Repair(Repair),
    /// Find out why a container, or this node, has no network. Changes nothing.
    ///
    /// Looks at the node, its packet filters, routes and switches, and into each container, and sends
    /// probes from there. Tells only what is wrong: the object, whose it is, what shows it, whom it
    /// hits, and the command that mends it. Ends with 0 if nothing is wrong, with 1 if an error was
    /// found, and with 3 if none was found and something could not be looked at.
    Doctor(Doctor),
    /// Show what the services of netwrightd do, and have them read their configuration again.
    ///
    /// This is `netwrightd agent`; `netwright agent --help` prints its help.
    #[command(disable_help_flag = true)]
    Agent(Agent),
    /// Show how pods of other nodes are reached, and why.
    ///
    /// This is `netwrightd routes`; `netwright routes --help` prints its help.
    #[command(disable_help_flag = true)]
    Routes(Routes),
    /// Show who may talk to whom, and why something was dropped.
    ///
    /// This is `netwrightd policies`; `netwright policy --help` prints its help.
    #[command(disable_help_flag = true)]
    Policy(Policy),
    /// List attachments.
    List(List),
    /// Show everything known about a network, or about the attachments of a container.
    Inspect(Inspect),
    /// Find mistakes in network configurations before a container does.
    ///
    /// An error is what ADD refuses on every host, or a plugin that cannot be called. A warning is
    /// what is allowed but probably a mistake, or what prevents ADD on this host.
    Lint(Lint),
    /// Put this executable and a link for every plugin where runtimes look for plugins.
    ///
    /// Replaces each plugin in one step, so that runtimes can call plugins meanwhile. Keeps files
    /// of other projects in DIR/.netwright-replaced, and `uninstall` restores them.
    Install(InstallHere),
    /// Undo `install`, and remove our state from this machine.
    Uninstall(Uninstall),
    /// Install Netwright on a machine with systemd: plugins, services and their configuration.
    ///
    /// Says what it found and what it will do, asks, does it, and shows that a new container's
    /// packets are answered. If a step fails, it undoes the others. A second call changes nothing,
    /// and the `setup` of a newer version replaces the older one. --undo undoes all of it while
    /// containers keep running. Needs root.
    Setup(Setup),
    /// Test the CNI plugins of any project against the specification.
    ///
    /// Each case runs on a private machine made of namespaces: the network of this one is not
    /// touched. Ends with 0 when every MUST is kept, with 1 when one is not. Needs root.
    Conformance(Conformance),
    /// Serve an OCI runtime (runc, crun, youki) as a hook, with the container's state on standard
    /// input.
    ///
    /// The annotation dev.netwright.networks chooses the networks: a list of
    /// NAME[:ifname=NAME,ip=ADDRESS,mac=ADDRESS,default-route[=GATEWAY]] separated by commas. The
    /// annotation dev.netwright.publish publishes ports: a list of
    /// [IP:]HOST:CONTAINER[/PROTOCOL]. The hook does nothing for a container without these, and
    /// refuses an annotation whose name is a misspelling of one of them.
    OciHook(OciHook),
    /// Write a completion script for a shell to standard output.
    Completions(Completions),
    /// Write a man page for each command into a folder.
    Man(Man),
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// Attach to this network; may be repeated [default: the embedded network "netwright"].
    ///
    /// The default route is that of the first network that has one, or of the one with
    /// `default-route`, through its own gateway or the one that is named.
    #[arg(long, value_name = "NAME[:ifname=NAME,ip=ADDRESS,mac=ADDRESS,default-route[=GATEWAY]]")]
    pub(crate) net: Vec<NetworkSpec>,
    #[command(flatten)]
    pub(crate) attach: Attach,
    #[command(flatten)]
    pub(crate) labels: Labels,
    /// The container ID [default: made up].
    #[arg(long, value_name = "ID")]
    pub(crate) name: Option<String>,
    /// Resolve names with this server; may be repeated [default: the networks' servers, or else those
    /// of this host that a container reaches].
    ///
    /// The command sees them in /etc/resolv.conf, with the networks' search domains and options. The
    /// host's file stays as it is. If it names only servers on loopback, those that systemd-resolved
    /// asks take their place. Where the host has no such file, the command can create and remove
    /// nothing in /etc.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) dns: Vec<std::net::IpAddr>,
    /// What the probe tries to reach outside.
    #[arg(
        long,
        value_name = "HOST:PORT",
        default_value = "example.com:80",
        conflicts_with = "command"
    )]
    pub(crate) to: String,
    /// The command and its arguments.
    #[arg(last = true, value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<std::ffi::OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct Probe {
    /// What to try to reach outside.
    #[arg(long, value_name = "HOST:PORT", default_value = "example.com:80")]
    pub(crate) to: String,
    /// The machine's own namespace: shows whether a fault is the machine's [default: that of
    /// process 1].
    #[arg(long, value_name = "NETNS", hide = true)]
    pub(crate) home: Option<PathBuf>,
}

/// How a container is attached.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Attach {
    /// Publish a container's port on the host; may be repeated.
    #[arg(long, short, value_name = "[IP:]HOST:CONTAINER[/PROTOCOL]")]
    pub(crate) publish: Vec<PortMapping>,
    #[command(flatten)]
    pub(crate) addresses: Addresses,
    /// An argument for the plugins (CNI_ARGS); may be repeated.
    #[arg(long = "arg", value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) args: Vec<(String, String)>,
    /// A capability argument for the plugins that have the capability; may be repeated.
    #[arg(long = "cap", value_name = "NAME=JSON", value_parser = capability)]
    pub(crate) capabilities: Vec<(String, String)>,
}

/// The attachment that a command is about.
#[derive(Debug, Clone, Args)]
pub(crate) struct AttachmentArgs {
    /// The network.
    pub(crate) network: String,
    /// The container: the path, `ip netns` name or process ID of its network namespace.
    pub(crate) container: String,
    /// The container ID [default: "cnitool-" and 20 digits of the SHA-512 of the namespace's path].
    #[arg(long, value_name = "ID")]
    pub(crate) container_id: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Add {
    #[command(flatten)]
    pub(crate) which: AttachmentArgs,
    #[command(flatten)]
    pub(crate) attach: Attach,
    #[command(flatten)]
    pub(crate) labels: Labels,
}

/// What a container is called by, for plugins such as `policy`.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Labels {
    /// A label of the container, for plugins that read `args.cni.labels`; may be repeated.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) labels: Vec<(String, String)>,
}

#[derive(Debug, Args)]
pub(crate) struct Del {
    #[command(flatten)]
    pub(crate) which: AttachmentArgs,
    #[command(flatten)]
    pub(crate) attach: Attach,
}

#[derive(Debug, Args)]
pub(crate) struct Check {
    #[command(flatten)]
    pub(crate) which: AttachmentArgs,
    #[command(flatten)]
    pub(crate) attach: Attach,
}

#[derive(Debug, Args)]
pub(crate) struct Status {
    /// Only this network.
    pub(crate) network: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Gc {
    /// Only this network.
    pub(crate) network: Option<String>,
    /// Keep this container's attachment, or only that of one interface, and remove all others; may
    /// be repeated.
    #[arg(long, value_name = "CONTAINER[:IFNAME]", requires = "network", conflicts_with = "all")]
    pub(crate) valid: Vec<String>,
    /// Remove every attachment, also those of living containers, what is marked as ours without a
    /// record, and our empty tables.
    #[arg(long)]
    pub(crate) all: bool,
    /// Say what would be removed, and remove nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Repair {
    /// Only this container: a namespace's path or name, a process ID or a container ID.
    pub(crate) container: Option<String>,
    /// Only attachments to this network.
    #[arg(long, value_name = "NETWORK")]
    pub(crate) network: Option<String>,
    /// Say what is not as ADD made it, and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Only this container: a namespace's path or name, a process ID, a container ID or the
    /// beginning of one, or a pod: POD or NAMESPACE/POD.
    pub(crate) container: Option<String>,
    /// Also try to reach this by TCP from each container that is looked at. The connection is reset
    /// at once, and no byte is sent.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) to: Option<String>,
    /// Send no probes.
    #[arg(long)]
    pub(crate) no_probe: bool,
    /// End with 1 for warnings too.
    #[arg(long)]
    pub(crate) strict: bool,
    /// Do not tell of this finding, or of this finding of this object; may be repeated. The file
    /// /etc/netwright/doctor.ignore has more, one per line.
    #[arg(long, value_name = "ID[=OBJECT]")]
    pub(crate) ignore: Vec<String>,
    /// Tell also what each cause explains.
    #[arg(long, short)]
    pub(crate) verbose: bool,
    /// Also write what was seen to a file, for a bug report: no secrets, no payloads.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) bundle: Option<PathBuf>,
    /// Judge what `--bundle` has written, here or elsewhere. Sends no probes, and needs no
    /// privileges.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "bundle")]
    pub(crate) from: Option<PathBuf>,
    /// Look again whenever the kernel tells of a change, and tell it when something else is found
    /// than before: each time as text, or as one line of JSON. SIGINT and SIGTERM end it, with the
    /// exit code of what was found last.
    #[arg(long, conflicts_with_all = ["bundle", "from"])]
    pub(crate) watch: bool,
    /// Look again until nothing is wrong, for at most this many seconds, and tell what was found last:
    /// after a fix that takes its time.
    #[arg(long, value_name = "SECONDS", conflicts_with_all = ["from", "watch"])]
    pub(crate) wait: Option<u16>,
    /// Say what a finding means, how it arises and what helps, and look at nothing.
    #[arg(
        long,
        value_name = "ID",
        conflicts_with_all = [
            "container", "to", "no_probe", "strict", "ignore", "verbose", "bundle", "from", "watch", "wait"
        ]
    )]
    pub(crate) explain: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// Only this container's: a namespace's path or name, a process ID or a container ID.
    pub(crate) container: Option<String>,
}

#[derive(Debug, Args)]
#[group(id = "subject_group", required = true, multiple = false)]
pub(crate) struct Inspect {
    /// A network's name, or a container: its namespace's path or name, a process ID or the
    /// container ID.
    pub(crate) subject: Option<String>,
    /// Show the embedded default network.
    #[arg(long)]
    pub(crate) default: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Lint {
    /// A file or a folder [default: the folder of network configurations].
    #[arg(value_hint = ValueHint::AnyPath)]
    pub(crate) path: Option<PathBuf>,
    /// Fail on warnings too.
    #[arg(long)]
    pub(crate) strict: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Setup {
    #[command(flatten)]
    pub(crate) install: Install,
    /// The folder for `netwright` and `netwrightd`, which the services run [default:
    /// /usr/local/bin, or the folder of the last time].
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) program_dir: Option<PathBuf>,
    /// Send no packet from a new container.
    #[arg(long)]
    pub(crate) no_packet: bool,
    /// Do not ask.
    #[arg(long, short)]
    pub(crate) yes: bool,
    /// Say what would be done, and change nothing.
    #[arg(long, conflicts_with = "yes")]
    pub(crate) dry_run: bool,
    /// Undo what was set up. A file that was changed since is kept, and named.
    #[arg(
        long,
        conflicts_with_all = ["bin_dir", "also", "no_config", "allow_downgrade", "program_dir", "no_packet"]
    )]
    pub(crate) undo: bool,
    /// Undo it also while containers are attached, and leave them attached: what stays of them is
    /// named.
    #[arg(long, requires = "undo")]
    pub(crate) force: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Install {
    /// The folder for the plugins [default: the one in the configurations of this machine's
    /// container runtimes; /opt/cni/bin if there is no runtime].
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) bin_dir: Option<PathBuf>,
    /// Also answer to this name, by which configurations written for another project's plugin call
    /// ours: `multus`, `multus-shim`, `whereabouts`; may be repeated.
    #[arg(long, value_name = "NAME", value_parser = alias)]
    pub(crate) also: Vec<&'static str>,
    /// Do not write the default network's configuration.
    #[arg(long)]
    pub(crate) no_config: bool,
    /// Whether to link to this executable where it is ([`InstallHere`]).
    #[arg(skip)]
    pub(crate) linked: bool,
    /// Replace a newer version, too.
    #[arg(long)]
    pub(crate) allow_downgrade: bool,
}

#[derive(Debug, Args)]
pub(crate) struct InstallHere {
    #[command(flatten)]
    pub(crate) install: Install,
    /// Link to this executable where it is, in place of a copy: a package manager replaces it there.
    /// An installation that was made so stays so.
    #[arg(long)]
    pub(crate) linked: bool,
    /// Put back what another program removed or replaced since, as it was installed, and nothing
    /// else: in every folder, or in that of --bin-dir.
    #[arg(long, conflicts_with_all = ["also", "no_config", "linked"])]
    pub(crate) put_back: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Uninstall {
    /// The folder into which `install` put the plugins [default: all that have an installation, of
    /// the folders where runtimes look for plugins]. While another folder has one, our state and
    /// the configuration stay.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) bin_dir: Option<PathBuf>,
    /// Detach what is still attached, instead of refusing. With --keep-state: leave it attached, and
    /// name what stays of it.
    #[arg(long)]
    pub(crate) force: bool,
    /// Wait until no service runs that would restore what is removed, and until Docker has no network
    /// of our driver: its containers need our plugins until Docker has removed them. Then restore
    /// the earlier plugins for new containers, wait until no container is attached and no runtime is
    /// to call our executable as a hook, and remove the rest, instead of refusing. Succeeds if
    /// nothing is installed.
    #[arg(long)]
    pub(crate) wait: bool,
    /// Only restore the earlier plugins: our state stays. Refuses while containers are attached, as
    /// no other plugin removes their published ports and masquerade. Succeeds if nothing is
    /// installed.
    #[arg(long, conflicts_with_all = ["wait", "conflist", "routing_conflist"])]
    pub(crate) keep_state: bool,
    /// Only say what would be done, or why it would be refused, and change nothing. With
    /// --keep-state: only why it would be refused.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// The configuration that `netwrightd multinet` wrote (its key `conflist`), which is removed
    /// first: runtimes then use the next one. Stop the daemon before.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) conflist: Option<PathBuf>,
    /// The configuration that `netwrightd routing` wrote (its key `conflist`), which is removed
    /// first too. Stop the daemon before.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) routing_conflist: Option<PathBuf>,
    /// The network that runtimes are to use then [default: the default network that the file of
    /// `--conflist` names, unless that is the network of `--routing-conflist`].
    #[arg(long, value_name = "NAME")]
    pub(crate) next_network: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Conformance {
    /// The folder of the plugins. Repeated, each folder is tested, and a table shows where they
    /// differ.
    #[arg(
        long,
        value_name = "DIR",
        value_hint = ValueHint::DirPath,
        required_unless_present_any = ["list", "serve_case"]
    )]
    pub(crate) bin_dir: Vec<PathBuf>,
    /// Test this plugin only; may be repeated.
    #[arg(long, value_name = "NAME")]
    pub(crate) plugin: Vec<String>,
    /// Run this case only; may be repeated.
    #[arg(long, value_name = "ID")]
    pub(crate) case: Vec<String>,
    /// Configure plugins as this network list does, and test those that it names.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,
    /// List the cases, and run none.
    #[arg(long)]
    pub(crate) list: bool,
    /// Write a report in this format instead of the table.
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) report: Option<ReportFormat>,
    /// Write the report to this file instead of standard output.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) report_file: Option<PathBuf>,
    /// Mention each case, not only those that fail.
    #[arg(long, short)]
    pub(crate) verbose: bool,
    /// How many cases run at the same time [default: two per processor, at most 8].
    #[arg(long, value_name = "NUMBER", value_parser = number)]
    pub(crate) workers: Option<usize>,
    /// How long a call of a plugin may take, for slow machines; a case may take six times that
    /// [default: 30].
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) call_timeout: Option<u32>,
    /// Be the process of one case.
    #[arg(long, hide = true)]
    pub(crate) serve_case: bool,
}

/// A format for the findings of the acceptance suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ReportFormat {
    /// JUnit's XML, for CI.
    Junit,
    /// One JSON document.
    Json,
    /// Markdown.
    Md,
    /// A page of HTML.
    Html,
}

#[derive(Debug, Args)]
pub(crate) struct Agent {
    /// A command of `netwrightd agent` with its options, such as `status --wait`.
    #[arg(value_name = "COMMAND", trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) arguments: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct Routes {
    /// A command of `netwrightd routes` with its options, such as `explain 10.244.2.7` [default:
    /// list].
    #[arg(value_name = "COMMAND", trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) arguments: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct Policy {
    /// A command of `netwrightd policies` with its options, such as `explain shop/web shop/db 5432`
    /// [default: list].
    #[arg(value_name = "COMMAND", trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) arguments: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct OciHook {
    /// The stage [default: by the container's status].
    #[arg(value_enum)]
    pub(crate) stage: Option<Stage>,
}

/// A stage of the OCI runtime specification, in its spelling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Stage {
    /// Attach.
    #[value(name = "createRuntime")]
    CreateRuntime,
    /// Attach; the name that older runtimes know.
    #[value(name = "prestart")]
    Prestart,
    /// Detach.
    #[value(name = "poststop")]
    Poststop,
}

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell.
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub(crate) struct Man {
    /// The folder; it is made if it is missing.
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) dir: PathBuf,
    /// Write one Markdown page with every command's help instead: the file DIR/cli.md.
    #[arg(long)]
    pub(crate) markdown: bool,
}

/// Returns the description that help, man pages and completions are made from.
pub(crate) fn command() -> clap::Command {
    CommandLine::command()
}

/// Reads a name that a plugin of ours answers to beside its own.
fn alias(text: &str) -> Result<&'static str, String> {
    let mut names = plugins::aliases().map(|(name, _)| name);
    names.find(|name| *name == text).ok_or_else(|| {
        let mut names: Vec<_> = plugins::aliases().map(|(name, _)| name).collect();
        names.sort_unstable();
        format!("it is one of {}", names.join(", "))
    })
}

/// The longest that the plugins of one operation may take: a day.
const LONGEST: u64 = 86_400;

fn seconds(text: &str) -> Result<u64, String> {
    let seconds = text.parse().ok().filter(|seconds| (1..=LONGEST).contains(seconds));
    seconds.ok_or_else(|| format!("it must be a number of seconds from 1 to {LONGEST}"))
}

fn number(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "it must be a number".to_owned())
}

fn capability(text: &str) -> Result<(String, String), String> {
    key_value(text).map_err(|_| {
        "it must be of the form NAME=JSON, such as mac=\"02:00:5e:00:53:01\"".to_owned()
    })
}

fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("it must be of the form KEY=VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_description_is_sound() {
        super::command().debug_assert();
    }

    #[test]
    fn the_help_of_also_has_every_alias() {
        let command = super::command();
        let install = command.find_subcommand("install").unwrap();
        let also = install.get_arguments().find(|argument| argument.get_id() == "also").unwrap();
        let help = also.get_help().unwrap().to_string();
        for (alias, _) in plugins::aliases() {
            assert!(help.contains(&format!("`{alias}`")), "{alias}: {help}");
        }
    }
}
