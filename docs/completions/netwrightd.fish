# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_netwrightd_global_optspecs
    string join \n configuration= V/version h/help
end

function __fish_netwrightd_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_netwrightd_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_netwrightd_using_subcommand
    set -l cmd (__fish_netwrightd_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c netwrightd -n "__fish_netwrightd_needs_command" -l configuration -d 'the configuration\'s file [default: /etc/netwright/netwrightd.toml]' -r
complete -c netwrightd -n "__fish_netwrightd_needs_command" -s V -l version -d 'Print the version'
complete -c netwrightd -n "__fish_netwrightd_needs_command" -s h -l help -d 'Print help'
complete -c netwrightd -n "__fish_netwrightd_needs_command" -f -a "collect" -d 'Removes what deleted containers left behind.'
complete -c netwrightd -n "__fish_netwrightd_needs_command" -f -a "dhcp" -d 'Keeps DHCP leases for the CNI plugin dhcp.'
complete -c netwrightd -n "__fish_netwrightd_needs_command" -f -a "docker" -d 'Makes CNI networks into Docker networks.'
complete -c netwrightd -n "__fish_netwrightd_needs_command" -f -a "ipam" -d 'Gives addresses of networks that span nodes.'
complete -c netwrightd -n "__fish_netwrightd_needs_command" -f -a "multinet" -d 'Gives pods several networks.'
complete -c netwrightd -n "__fish_netwrightd_needs_command" -f -a "policy" -d 'Enforces network policies for the pods of this node.'
complete -c netwrightd -n "__fish_netwrightd_needs_command" -f -a "repair" -d 'Puts back what other programs change under running containers.'
complete -c netwrightd -n "__fish_netwrightd_needs_command" -f -a "routing" -d 'Connects the pods of every node with those of all others.'
complete -c netwrightd -n "__fish_netwrightd_needs_command" -f -a "agent" -d 'Shows what the services do, and has them read their configuration again'
complete -c netwrightd -n "__fish_netwrightd_needs_command" -f -a "config" -d 'Prints and checks the configuration'
complete -c netwrightd -n "__fish_netwrightd_needs_command" -f -a "policies" -d 'Shows who may talk to whom, and why something was dropped'
complete -c netwrightd -n "__fish_netwrightd_needs_command" -f -a "routes" -d 'Shows how pods of other nodes are reached'
complete -c netwrightd -n "__fish_netwrightd_needs_command" -f -a "completions" -d 'Writes a completion script for a shell to standard output'
complete -c netwrightd -n "__fish_netwrightd_needs_command" -f -a "man" -d 'Writes the man pages into a folder: commands, configuration, agent'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand collect" -l configuration -d 'the configuration\'s file [default: /etc/netwright/netwrightd.toml]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand collect" -l act -d 'remove; without it the service only logs what it would remove' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand collect" -l cache -d 'the caches of runtimes, whose attachments are looked at [default: [/var/lib/cni]]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand collect" -l confdir -d 'network configurations, for attachments whose own is lost [default: /etc/cni/net.d]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand collect" -l grace -d 'how long a container must have been gone [default: 5m]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand collect" -l interval -d 'how often to look [default: 1m]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand collect" -l netwright -d 'the executable whose plugins are called in the service\'s process; by default netwright beside netwrightd' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand collect" -l path -d 'where plugins are [default: [/opt/cni/bin, /usr/lib/cni, /usr/libexec/cni]]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand collect" -l confine -d 'keep only the rights that the service needs, as its systemd unit does; for service managers that cannot limit rights'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand collect" -l prepare
complete -c netwrightd -n "__fish_netwrightd_using_subcommand collect" -l or-accepted -d 'while the configuration\'s file is wrong, use the last one that was accepted'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand collect" -l follow -d 'read the configuration again whenever its files change, and start again where that is needed'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand collect" -l once -d 'look once, look again when the grace time is over, and end'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand collect" -s h -l help -d 'Print help'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand dhcp" -l configuration -d 'the configuration\'s file [default: /etc/netwright/netwrightd.toml]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand dhcp" -l broadcast -d 'ask servers to broadcast their replies' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand dhcp" -l hostprefix -d 'a folder to put before the socket\'s path and every namespace\'s' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand dhcp" -l pidfile -d 'a file for the process ID, which is removed at the end' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand dhcp" -l resendmax -d 'the longest wait before a message is sent again [default: 1m2s]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand dhcp" -l resendtimeout -d 'how long to try for a lease before ADD fails [default: 3m28s]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand dhcp" -l socketpath -d 'where the service listens [default: /run/cni/dhcp.sock]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand dhcp" -l state -d 'where leases are kept; by default /var/lib/netwright/dhcp' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand dhcp" -l timeout -d 'the wait before a message is first sent again; more than 4s counts as 4s [default: 10s]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand dhcp" -l confine -d 'keep only the rights that the service needs, as its systemd unit does; for service managers that cannot limit rights'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand dhcp" -l prepare
complete -c netwrightd -n "__fish_netwrightd_using_subcommand dhcp" -l or-accepted -d 'while the configuration\'s file is wrong, use the last one that was accepted'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand dhcp" -l follow -d 'read the configuration again whenever its files change, and start again where that is needed'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand dhcp" -s h -l help -d 'Print help'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand docker" -l configuration -d 'the configuration\'s file [default: /etc/netwright/netwrightd.toml]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand docker" -l cachedir -d 'where attachments are recorded [default: /var/lib/cni]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand docker" -l confdir -d 'where network configurations are [default: /etc/cni/net.d]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand docker" -l pluginpath -d 'where plugins are [default: [/opt/cni/bin, /usr/lib/cni, /usr/libexec/cni]]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand docker" -l socketpath -d 'where the service listens [default: /run/docker/plugins/netwright.sock]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand docker" -l state -d 'where networks and endpoints are recorded; by default /var/lib/netwright/docker' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand docker" -l timeout -d 'how long the plugins of a network may take [default: 10s]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand docker" -l confine -d 'keep only the rights that the service needs, as its systemd unit does; for service managers that cannot limit rights'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand docker" -l prepare
complete -c netwrightd -n "__fish_netwrightd_using_subcommand docker" -l or-accepted -d 'while the configuration\'s file is wrong, use the last one that was accepted'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand docker" -l follow -d 'read the configuration again whenever its files change, and start again where that is needed'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand docker" -s h -l help -d 'Print help'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand ipam" -l configuration -d 'the configuration\'s file [default: /etc/netwright/netwrightd.toml]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand ipam" -l etcd -d 'etcd\'s members; without them, addresses are recorded by the API server' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand ipam" -l etcd-ca -d 'the CA certificates of etcd\'s members, as PEM' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand ipam" -l etcd-cert -d 'the service\'s certificate for etcd, as PEM' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand ipam" -l etcd-key -d 'the certificate\'s key, as PEM' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand ipam" -l idle -d 'how long a block of addresses stays empty before it is given back [default: 10m]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand ipam" -l kubeconfig -d 'how to reach the API server; by default as in a pod' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand ipam" -l lease -d 'how long the service gives addresses while it cannot reach the store [default: 1h]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand ipam" -l node -d 'this node\'s name in its cluster; by default $NODE_NAME, or else the host\'s name' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand ipam" -l socketpath -d 'where the service listens [default: /run/netwright/ipam.sock]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand ipam" -l state -d 'where the node\'s blocks and addresses are recorded; by default /var/lib/netwright/ipam' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand ipam" -l underlay -d 'the addresses by which other nodes reach this one, one of each family; the records of its blocks have them, for routing; by default the addresses from which it sends packets by its default routes' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand ipam" -l forget -d 'gives up a node that will not come back, and ends: its blocks are free once its lease has run out' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand ipam" -l import -d 'prints what would be taken over from Whereabouts\' pools, and ends: the pools of the API server, or of files (kubectl get -A -o json ippools,overlappingrangeipreservations,pods). Use it before any address of these pools is given' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand ipam" -l output -d 'with --import: text or json' -r -f -a "text\t''
json\t''"
complete -c netwrightd -n "__fish_netwrightd_using_subcommand ipam" -l release-sticky -d 'frees the addresses that are kept for a pod, unless the pod has them now, and ends' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand ipam" -l confine -d 'keep only the rights that the service needs, as its systemd unit does; for service managers that cannot limit rights'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand ipam" -l prepare
complete -c netwrightd -n "__fish_netwrightd_using_subcommand ipam" -l or-accepted -d 'while the configuration\'s file is wrong, use the last one that was accepted'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand ipam" -l follow -d 'read the configuration again whenever its files change, and start again where that is needed'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand ipam" -l apply -d 'with --import: takes the addresses over'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand ipam" -s h -l help -d 'Print help'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand multinet" -l configuration -d 'the configuration\'s file [default: /etc/netwright/netwrightd.toml]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand multinet" -l checkpoint -d 'the kubelet\'s record of devices [default: /var/lib/kubelet/device-plugins/kubelet_internal_checkpoint]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand multinet" -l cluster-network -d 'the default network: [namespace/]name of a definition, or a network\'s name on the node' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand multinet" -l confdir -d 'where networks of the node are; by default /etc/cni/net.d and /etc/cni/multus/net.d' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand multinet" -l config -d 'a file with policy and defaults, as JSON; keys of this table take precedence over it' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand multinet" -l conflist -d 'the CNI configuration to write once pods can be served; it is never removed; by default none is written' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand multinet" -l default-networks -d 'more networks for every pod outside the system namespaces' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand multinet" -l kubeconfig -d 'how to reach the API server; by default as in a pod' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand multinet" -l label-node -d 'label this node with the networks that it can serve' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand multinet" -l multus-namespace -d 'where definitions are that are named without a namespace here [default: kube-system]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand multinet" -l namespace-isolation -d 'pods may use definitions of their own namespace, of default, and of global namespaces only' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand multinet" -l node -d 'this node\'s name in its cluster; by default $NODE_NAME, or else the host\'s name' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand multinet" -l path -d 'where plugins are [default: [/opt/cni/bin, /usr/lib/cni, /usr/libexec/cni]]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand multinet" -l socketpath -d 'where the service listens [default: /run/netwright/multinet.sock]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand multinet" -l status -d 'how a pod\'s status is written: library, or text as in the standard\'s example [default: library]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand multinet" -l system-namespaces -d 'namespaces whose pods get the cluster\'s network only [default: [kube-system]]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand multinet" -l confine -d 'keep only the rights that the service needs, as its systemd unit does; for service managers that cannot limit rights'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand multinet" -l prepare
complete -c netwrightd -n "__fish_netwrightd_using_subcommand multinet" -l or-accepted -d 'while the configuration\'s file is wrong, use the last one that was accepted'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand multinet" -l follow -d 'read the configuration again whenever its files change, and start again where that is needed'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand multinet" -l unlabel-node -d 'remove the labels of this node that label-node has set, and end'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand multinet" -s h -l help -d 'Print help'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policy" -l configuration -d 'the configuration\'s file [default: /etc/netwright/netwrightd.toml]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policy" -l interval -d 'how often to compare the packet filter and the records even if no change is reported [default: 1m]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policy" -l isolate -d 'namespaces: pods reach only their own namespace and what isolate-to and isolate-dns list, and only what isolate-from lists reaches them from elsewhere, unless a NetworkPolicy says otherwise; or none; a namespace\'s label policy.netwright.io/isolate (true or false) takes precedence [default: none]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policy" -l isolate-dns -d 'the servers of the cluster\'s names, which isolated pods reach at port 53 (and 5353) [default: [kube-system:k8s-app=kube-dns]]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policy" -l isolate-except -d 'namespaces that isolate leaves out [default: [kube-system]]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policy" -l isolate-from -d 'who reaches isolated pods: namespaces, pods of one by a label, or ranges of addresses' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policy" -l isolate-to -d 'whom isolated pods reach, written in the same way' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policy" -l keep-connections -d 'let connections go on if they were made before a policy forbade them' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policy" -l kubeconfig -d 'how to reach the API server; by default as in a pod' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policy" -l log-group -d 'the group of nflog to which dropped packets are sent [default: 20055]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policy" -l log-rate -d 'how many dropped packets a second are sent there at most, for each direction; 0 is all of them [default: 100]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policy" -l node -d 'this node\'s name in its cluster; by default $NODE_NAME, or else the host\'s name' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policy" -l objects -d 'files, and folders of files, with policies and other objects as YAML or JSON, where source is file; they are read again when they change' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policy" -l socketpath -d 'where the service listens [default: /run/netwright/policy.sock]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policy" -l source -d 'where policies and other objects are learnt: file (objects names it), or kubernetes [default: file]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policy" -l state -d 'where the service records how many policies there were; by default /var/lib/netwright/policy' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policy" -l confine -d 'keep only the rights that the service needs, as its systemd unit does; for service managers that cannot limit rights'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policy" -l prepare
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policy" -l or-accepted -d 'while the configuration\'s file is wrong, use the last one that was accepted'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policy" -l follow -d 'read the configuration again whenever its files change, and start again where that is needed'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policy" -l uninstall -d 'enforce nothing new on this node, and end: containers that run keep their rules as they are until they end, and new ones of a network with the plugin policy are refused'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policy" -l open -d 'with --uninstall: remove the packet filter\'s tables at once, so that no policy holds on this node any more'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policy" -s h -l help -d 'Print help'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand repair" -l configuration -d 'the configuration\'s file [default: /etc/netwright/netwrightd.toml]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand repair" -l ca-cert -d 'the CA certificates of ssl: databases' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand repair" -l cache -d 'the caches of runtimes, whose attachments are looked at [default: [/var/lib/cni]]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand repair" -l certificate -d 'the service\'s certificate for ssl: databases' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand repair" -l interval -d 'how often to look even if no change is reported [default: 1m]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand repair" -l keep-plugins -d 'folders in which netwright install put plugins: the service restores what another program removes or replaces there' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand repair" -l netwright -d 'the executable whose plugins are called in the service\'s process; by default netwright beside netwrightd' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand repair" -l ovsdb -d 'databases of Open vSwitch to listen to, such as unix:/run/openvswitch/db.sock; ports of containers that are gone are removed' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand repair" -l path -d 'where plugins are [default: [/opt/cni/bin, /usr/lib/cni, /usr/libexec/cni]]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand repair" -l private-key -d 'the certificate\'s key' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand repair" -l confine -d 'keep only the rights that the service needs, as its systemd unit does; for service managers that cannot limit rights'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand repair" -l prepare
complete -c netwrightd -n "__fish_netwrightd_using_subcommand repair" -l or-accepted -d 'while the configuration\'s file is wrong, use the last one that was accepted'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand repair" -l follow -d 'read the configuration again whenever its files change, and start again where that is needed'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand repair" -s h -l help -d 'Print help'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routing" -l configuration -d 'the configuration\'s file [default: /etc/netwright/netwrightd.toml]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routing" -l allow-overlap -d 'start although a range of pods overlaps addresses or routes of this host' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routing" -l attach -d 'how the written configuration attaches pods: bridge, ptp for a pair of links each, or auto: ptp where [policy] is enabled, else bridge [default: auto]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routing" -l cluster -d 'the ranges that contain every node\'s prefixes' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routing" -l conflist -d 'the CNI configuration to write once pods can be reached; by default none is written' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routing" -l etcd -d 'etcd\'s members, where source is etcd (flannel\'s leases are the list of nodes), and for the records of spaces' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routing" -l etcd-ca -d 'the CA certificates of etcd\'s members, as PEM' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routing" -l etcd-cert -d 'the service\'s certificate for etcd, as PEM' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routing" -l etcd-key -d 'the certificate\'s key, as PEM' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routing" -l etcd-prefix -d 'what flannel\'s keys in etcd begin with [default: /coreos.com/network]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routing" -l exempt -d 'more ranges to which pods\' packets keep their source address' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routing" -l flannel -d 'whether to take flanneld\'s place on this node: replace does, standby shows what would be done, none leaves flanneld alone [default: none]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routing" -l flannel-config -d 'flanneld\'s configuration, which has the cluster\'s ranges and its backend; read where flannel is replace or standby, unless source is etcd, which has it [default: /etc/kube-flannel/net-conf.json]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routing" -l flannel-config-map -d 'the ConfigMap, as NAMESPACE/NAME, that has flanneld\'s configuration where the file is not there, or none [default: kube-flannel/kube-flannel-cfg]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routing" -l flannel-prefix -d 'what flanneld\'s annotations begin with [default: flannel.alpha.coreos.com]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routing" -l interval -d 'how often to look even if no change is reported [default: 1m]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routing" -l kubeconfig -d 'how to reach the API server; by default as in a pod' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routing" -l masquerade -d 'give pods\' packets that leave the cluster the node\'s source address [default: true]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routing" -l network -d 'the network\'s name in the written configuration [default: pods]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routing" -l node -d 'this node\'s name in its cluster; by default $NODE_NAME, or else the host\'s name' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routing" -l nodes -d 'the file with the list of nodes, the same on each; it is read again when it changes' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routing" -l path -d 'how packets get from node to node: auto (directly where no gateway is in between, else by VXLAN), direct, vxlan, or native as the network between the nodes has it [default: auto]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routing" -l pod-mtu -d 'the MTU of pods: paths (the lowest of the paths in use), underlay, or a number of bytes [default: paths]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routing" -l services -d 'the ranges of services\' addresses: no node\'s prefix may touch them, and pods\' packets to them keep their source address' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routing" -l socketpath -d 'where the service listens [default: /run/netwright/routing.sock]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routing" -l source -d 'where nodes are learnt: file (nodes names it), kubernetes (the cluster\'s Nodes), or etcd (flannel\'s leases) [default: file]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routing" -l space-ranges -d 'the ranges that contain the blocks of spaces; none of them overlaps cluster' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routing" -l spaces -d 'spaces of cluster-ipam whose blocks are routed between nodes, as their records name them; the records are in etcd if that is set, else in the API server' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routing" -l state -d 'where the last known nodes are recorded; by default /var/lib/netwright/routing' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routing" -l subnet-env -d 'a file to write as flanneld does; by default /run/flannel/subnet.env where flannel is replace, else none' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routing" -l underlay -d 'with the source etcd, this node\'s addresses for other nodes, one of each family; by default those of the link with the default route' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routing" -l vxlan-port -d 'the UDP port of VXLAN, the same on each node [default: 8472]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routing" -l vxlan-vni -d 'the network identifier of VXLAN, the same on each node [default: 1]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routing" -l confine -d 'keep only the rights that the service needs, as its systemd unit does; for service managers that cannot limit rights'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routing" -l prepare
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routing" -l or-accepted -d 'while the configuration\'s file is wrong, use the last one that was accepted'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routing" -l follow -d 'read the configuration again whenever its files change, and start again where that is needed'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routing" -l uninstall -d 'remove everything that the service made on this node, and end; pods here and elsewhere do not reach each other any more'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routing" -l to-flannel -d 'with --uninstall: leave the tunnels to flanneld, which runs on this node again'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routing" -l force -d 'with --uninstall: even while containers of the network are attached here, which would be cut off from other nodes'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routing" -s h -l help -d 'Print help'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand agent; and not __fish_seen_subcommand_from leave metrics reload serve status" -s h -l help -d 'Print help'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand agent; and not __fish_seen_subcommand_from leave metrics reload serve status" -f -a "leave" -d 'Turns all nodes of a cluster back to what they were, and names those that are not'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand agent; and not __fish_seen_subcommand_from leave metrics reload serve status" -f -a "metrics" -d 'Prints what the services count, as Prometheus reads it'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand agent; and not __fish_seen_subcommand_from leave metrics reload serve status" -f -a "reload" -d 'Checks the configuration, and has the services read it if it is sound'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand agent; and not __fish_seen_subcommand_from leave metrics reload serve status" -f -a "serve" -d 'Answers /livez, /readyz and /metrics of all services, where something else starts them'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand agent; and not __fish_seen_subcommand_from leave metrics reload serve status" -f -a "status" -d 'Shows what each service does; exit code 0 if every enabled one is ready'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand agent; and __fish_seen_subcommand_from leave" -l daemon-sets -d 'the chart\'s DaemonSets with mode: remove, as a JSON list' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand agent; and __fish_seen_subcommand_from leave" -l kubeconfig -d 'how to reach the API server [default: as a pod does]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand agent; and __fish_seen_subcommand_from leave" -l timeout -d 'wait for the nodes at most so long' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand agent; and __fish_seen_subcommand_from leave" -s h -l help -d 'Print help'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand agent; and __fish_seen_subcommand_from metrics" -l configuration -d 'the configuration\'s file [default: /etc/netwright/netwrightd.toml]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand agent; and __fish_seen_subcommand_from metrics" -s h -l help -d 'Print help'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand agent; and __fish_seen_subcommand_from reload" -l configuration -d 'the configuration\'s file [default: /etc/netwright/netwrightd.toml]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand agent; and __fish_seen_subcommand_from reload" -s o -l output -d 'text or json' -r -f -a "text\t''
json\t''"
complete -c netwrightd -n "__fish_netwrightd_using_subcommand agent; and __fish_seen_subcommand_from reload" -l dry-run -d 'say what would start, stop and restart, and change nothing'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand agent; and __fish_seen_subcommand_from reload" -s h -l help -d 'Print help'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand agent; and __fish_seen_subcommand_from serve" -l configuration -d 'the configuration\'s file [default: /etc/netwright/netwrightd.toml]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand agent; and __fish_seen_subcommand_from serve" -s h -l help -d 'Print help'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand agent; and __fish_seen_subcommand_from status" -l configuration -d 'the configuration\'s file [default: /etc/netwright/netwrightd.toml]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand agent; and __fish_seen_subcommand_from status" -s o -l output -d 'text or json' -r -f -a "text\t''
json\t''"
complete -c netwrightd -n "__fish_netwrightd_using_subcommand agent; and __fish_seen_subcommand_from status" -l wait -d 'wait until every enabled service is ready, at most so long' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand agent; and __fish_seen_subcommand_from status" -l live -d 'exit code 0 unless a service hangs or does not run, even if it waits for something'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand agent; and __fish_seen_subcommand_from status" -s h -l help -d 'Print help'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand config; and not __fish_seen_subcommand_from check default from-flags schema show" -s h -l help -d 'Print help'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand config; and not __fish_seen_subcommand_from check default from-flags schema show" -f -a "check" -d 'Says everything that is wrong with the configuration'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand config; and not __fish_seen_subcommand_from check default from-flags schema show" -f -a "default" -d 'Prints every key with its default, commented out, and what it means'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand config; and not __fish_seen_subcommand_from check default from-flags schema show" -f -a "from-flags" -d 'Prints the configuration that has the same effect as a service\'s flags'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand config; and not __fish_seen_subcommand_from check default from-flags schema show" -f -a "schema" -d 'Prints the JSON schema, for editors'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand config; and not __fish_seen_subcommand_from check default from-flags schema show" -f -a "show" -d 'Prints the effective values, each with the file and line that it is from'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand config; and __fish_seen_subcommand_from check" -l configuration -d 'the configuration\'s file [default: /etc/netwright/netwrightd.toml]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand config; and __fish_seen_subcommand_from check" -s o -l output -d 'text or json' -r -f -a "text\t''
json\t''"
complete -c netwrightd -n "__fish_netwrightd_using_subcommand config; and __fish_seen_subcommand_from check" -s h -l help -d 'Print help'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand config; and __fish_seen_subcommand_from default" -s h -l help -d 'Print help'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand config; and __fish_seen_subcommand_from from-flags" -s h -l help -d 'Print help'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand config; and __fish_seen_subcommand_from schema" -s h -l help -d 'Print help'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand config; and __fish_seen_subcommand_from show" -l configuration -d 'the configuration\'s file [default: /etc/netwright/netwrightd.toml]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand config; and __fish_seen_subcommand_from show" -s o -l output -d 'text or json' -r -f -a "text\t''
json\t''"
complete -c netwrightd -n "__fish_netwrightd_using_subcommand config; and __fish_seen_subcommand_from show" -s h -l help -d 'Print help'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policies; and not __fish_seen_subcommand_from accept drops explain list" -s o -l output -d 'text or json' -r -f -a "text\t''
json\t''"
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policies; and not __fish_seen_subcommand_from accept drops explain list" -l socketpath -d 'where the service answers [default: /run/netwright/agent/policy.sock]' -r -F
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policies; and not __fish_seen_subcommand_from accept drops explain list" -s h -l help -d 'Print help'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policies; and not __fish_seen_subcommand_from accept drops explain list" -f -a "accept" -d 'Confirms the removal of policies that the service keeps because many were removed at once'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policies; and not __fish_seen_subcommand_from accept drops explain list" -f -a "drops" -d 'Lists dropped packets with the policy that is the cause, and how many more were dropped'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policies; and not __fish_seen_subcommand_from accept drops explain list" -f -a "explain" -d 'Says whether a connection is allowed, and by which rule, without a packet'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policies; and not __fish_seen_subcommand_from accept drops explain list" -f -a "list" -d 'Lists the policies, and which of them apply to this node\'s pods; the default command'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policies; and __fish_seen_subcommand_from accept" -s o -l output -d 'text or json' -r -f -a "text\t''
json\t''"
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policies; and __fish_seen_subcommand_from accept" -l socketpath -d 'where the service answers [default: /run/netwright/agent/policy.sock]' -r -F
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policies; and __fish_seen_subcommand_from accept" -s h -l help -d 'Print help'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policies; and __fish_seen_subcommand_from drops" -s o -l output -d 'text or json' -r -f -a "text\t''
json\t''"
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policies; and __fish_seen_subcommand_from drops" -l socketpath -d 'where the service answers [default: /run/netwright/agent/policy.sock]' -r -F
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policies; and __fish_seen_subcommand_from drops" -s f -l follow -d 'also print new ones until interrupted; as JSON, one object on each line'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policies; and __fish_seen_subcommand_from drops" -s h -l help -d 'Print help'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policies; and __fish_seen_subcommand_from explain" -l network -d 'judge on this further network of the pods, by MultiNetworkPolicies' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policies; and __fish_seen_subcommand_from explain" -l file -d 'judge the objects of this file or folder (YAML, JSON; - is standard input), without a service or a cluster; may be given several times' -r -F
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policies; and __fish_seen_subcommand_from explain" -l configuration -d 'the configuration\'s file [default: /etc/netwright/netwrightd.toml]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policies; and __fish_seen_subcommand_from explain" -l isolate -d 'namespaces: pods reach only their own namespace and what isolate-to and isolate-dns list, and only what isolate-from lists reaches them from elsewhere, unless a NetworkPolicy says otherwise; or none; a namespace\'s label policy.netwright.io/isolate (true or false) takes precedence [default: none]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policies; and __fish_seen_subcommand_from explain" -l isolate-dns -d 'the servers of the cluster\'s names, which isolated pods reach at port 53 (and 5353) [default: [kube-system:k8s-app=kube-dns]]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policies; and __fish_seen_subcommand_from explain" -l isolate-except -d 'namespaces that isolate leaves out [default: [kube-system]]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policies; and __fish_seen_subcommand_from explain" -l isolate-from -d 'who reaches isolated pods: namespaces, pods of one by a label, or ranges of addresses' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policies; and __fish_seen_subcommand_from explain" -l isolate-to -d 'whom isolated pods reach, written in the same way' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policies; and __fish_seen_subcommand_from explain" -l expect -d 'exit code 1 unless this is the verdict' -r -f -a "allow\t''
deny\t''"
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policies; and __fish_seen_subcommand_from explain" -s o -l output -d 'text or json' -r -f -a "text\t''
json\t''"
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policies; and __fish_seen_subcommand_from explain" -l socketpath -d 'where the service answers [default: /run/netwright/agent/policy.sock]' -r -F
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policies; and __fish_seen_subcommand_from explain" -s h -l help -d 'Print help'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policies; and __fish_seen_subcommand_from list" -l file -d 'judge the objects of this file or folder (YAML, JSON; - is standard input), without a service or a cluster; may be given several times' -r -F
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policies; and __fish_seen_subcommand_from list" -l configuration -d 'the configuration\'s file [default: /etc/netwright/netwrightd.toml]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policies; and __fish_seen_subcommand_from list" -l isolate -d 'namespaces: pods reach only their own namespace and what isolate-to and isolate-dns list, and only what isolate-from lists reaches them from elsewhere, unless a NetworkPolicy says otherwise; or none; a namespace\'s label policy.netwright.io/isolate (true or false) takes precedence [default: none]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policies; and __fish_seen_subcommand_from list" -l isolate-dns -d 'the servers of the cluster\'s names, which isolated pods reach at port 53 (and 5353) [default: [kube-system:k8s-app=kube-dns]]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policies; and __fish_seen_subcommand_from list" -l isolate-except -d 'namespaces that isolate leaves out [default: [kube-system]]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policies; and __fish_seen_subcommand_from list" -l isolate-from -d 'who reaches isolated pods: namespaces, pods of one by a label, or ranges of addresses' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policies; and __fish_seen_subcommand_from list" -l isolate-to -d 'whom isolated pods reach, written in the same way' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policies; and __fish_seen_subcommand_from list" -s o -l output -d 'text or json' -r -f -a "text\t''
json\t''"
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policies; and __fish_seen_subcommand_from list" -l socketpath -d 'where the service answers [default: /run/netwright/agent/policy.sock]' -r -F
complete -c netwrightd -n "__fish_netwrightd_using_subcommand policies; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routes; and not __fish_seen_subcommand_from accept explain list probe" -l configuration -d 'the configuration\'s file [default: /etc/netwright/netwrightd.toml]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routes; and not __fish_seen_subcommand_from accept explain list probe" -s o -l output -d 'text or json' -r -f -a "text\t''
json\t''"
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routes; and not __fish_seen_subcommand_from accept explain list probe" -l socketpath -d 'where the service listens [default: as the configuration says]' -r -F
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routes; and not __fish_seen_subcommand_from accept explain list probe" -s h -l help -d 'Print help'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routes; and not __fish_seen_subcommand_from accept explain list probe" -f -a "accept" -d 'Confirms the removal of nodes that the service keeps because many were removed at once'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routes; and not __fish_seen_subcommand_from accept explain list probe" -f -a "explain" -d 'Says which node has an address, how packets get there, and why not by another path'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routes; and not __fish_seen_subcommand_from accept explain list probe" -f -a "list" -d 'Lists the other nodes, their prefixes and the paths to them; the default command'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routes; and not __fish_seen_subcommand_from accept explain list probe" -f -a "probe" -d 'Sends packets to other nodes along the paths of pods\' packets: whether the nodes answer, how large a packet arrives, and whether UDP with a checksum does'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routes; and __fish_seen_subcommand_from accept" -l configuration -d 'the configuration\'s file [default: /etc/netwright/netwrightd.toml]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routes; and __fish_seen_subcommand_from accept" -s o -l output -d 'text or json' -r -f -a "text\t''
json\t''"
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routes; and __fish_seen_subcommand_from accept" -l socketpath -d 'where the service listens [default: as the configuration says]' -r -F
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routes; and __fish_seen_subcommand_from accept" -s h -l help -d 'Print help'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routes; and __fish_seen_subcommand_from explain" -l configuration -d 'the configuration\'s file [default: /etc/netwright/netwrightd.toml]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routes; and __fish_seen_subcommand_from explain" -s o -l output -d 'text or json' -r -f -a "text\t''
json\t''"
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routes; and __fish_seen_subcommand_from explain" -l socketpath -d 'where the service listens [default: as the configuration says]' -r -F
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routes; and __fish_seen_subcommand_from explain" -s h -l help -d 'Print help'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routes; and __fish_seen_subcommand_from list" -l configuration -d 'the configuration\'s file [default: /etc/netwright/netwrightd.toml]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routes; and __fish_seen_subcommand_from list" -s o -l output -d 'text or json' -r -f -a "text\t''
json\t''"
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routes; and __fish_seen_subcommand_from list" -l socketpath -d 'where the service listens [default: as the configuration says]' -r -F
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routes; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routes; and __fish_seen_subcommand_from probe" -l configuration -d 'the configuration\'s file [default: /etc/netwright/netwrightd.toml]' -r
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routes; and __fish_seen_subcommand_from probe" -s o -l output -d 'text or json' -r -f -a "text\t''
json\t''"
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routes; and __fish_seen_subcommand_from probe" -l socketpath -d 'where the service listens [default: as the configuration says]' -r -F
complete -c netwrightd -n "__fish_netwrightd_using_subcommand routes; and __fish_seen_subcommand_from probe" -s h -l help -d 'Print help'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand completions" -s h -l help -d 'Print help'
complete -c netwrightd -n "__fish_netwrightd_using_subcommand man" -s h -l help -d 'Print help'
