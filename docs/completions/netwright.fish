# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_netwright_global_optspecs
    string join \n o/output= timeout= conf-dir= list h/help V/version
end

function __fish_netwright_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_netwright_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_netwright_using_subcommand
    set -l cmd (__fish_netwright_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c netwright -n "__fish_netwright_needs_command" -s o -l output -d 'How to write data: text and tables, or one JSON document' -r -f -a "text\t'Text and tables for people'
json\t'One JSON document'"
complete -c netwright -n "__fish_netwright_needs_command" -l timeout -d 'How long the plugins of one operation may take, in seconds' -r
complete -c netwright -n "__fish_netwright_needs_command" -l conf-dir -d 'Folder of network configurations, in place of NETCONFPATH' -r -f -a "(__fish_complete_directories)"
complete -c netwright -n "__fish_netwright_needs_command" -l list -d 'List the plugins of this executable'
complete -c netwright -n "__fish_netwright_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c netwright -n "__fish_netwright_needs_command" -s V -l version -d 'Print version'
complete -c netwright -n "__fish_netwright_needs_command" -f -a "run" -d 'Run a command in a fresh network namespace, attached to networks'
complete -c netwright -n "__fish_netwright_needs_command" -f -a "probe" -d 'Show addresses and routes here, and try the gateway and the outside'
complete -c netwright -n "__fish_netwright_needs_command" -f -a "add" -d 'Attach a container to a network'
complete -c netwright -n "__fish_netwright_needs_command" -f -a "del" -d 'Detach a container from a network. Detaching again is not an error'
complete -c netwright -n "__fish_netwright_needs_command" -f -a "check" -d 'Verify that an attachment is as it was made'
complete -c netwright -n "__fish_netwright_needs_command" -f -a "status" -d 'Say to which networks a container could be attached now, and why not to others'
complete -c netwright -n "__fish_netwright_needs_command" -f -a "gc" -d 'Remove what deleted containers left behind'
complete -c netwright -n "__fish_netwright_needs_command" -f -a "repair" -d 'Restore what other programs changed of attachments, while the containers run'
complete -c netwright -n "__fish_netwright_needs_command" -f -a "doctor" -d 'Find out why a container, or this node, has no network. Changes nothing'
complete -c netwright -n "__fish_netwright_needs_command" -f -a "agent" -d 'Show what the services of netwrightd do, and have them read their configuration again'
complete -c netwright -n "__fish_netwright_needs_command" -f -a "routes" -d 'Show how pods of other nodes are reached, and why'
complete -c netwright -n "__fish_netwright_needs_command" -f -a "policy" -d 'Show who may talk to whom, and why something was dropped'
complete -c netwright -n "__fish_netwright_needs_command" -f -a "list" -d 'List attachments'
complete -c netwright -n "__fish_netwright_needs_command" -f -a "inspect" -d 'Show everything known about a network, or about the attachments of a container'
complete -c netwright -n "__fish_netwright_needs_command" -f -a "lint" -d 'Find mistakes in network configurations before a container does'
complete -c netwright -n "__fish_netwright_needs_command" -f -a "install" -d 'Put this executable and a link for every plugin where runtimes look for plugins'
complete -c netwright -n "__fish_netwright_needs_command" -f -a "uninstall" -d 'Undo `install`, and remove our state from this machine'
complete -c netwright -n "__fish_netwright_needs_command" -f -a "setup" -d 'Install Netwright on a machine with systemd: plugins, services and their configuration'
complete -c netwright -n "__fish_netwright_needs_command" -f -a "conformance" -d 'Test the CNI plugins of any project against the specification'
complete -c netwright -n "__fish_netwright_needs_command" -f -a "oci-hook" -d 'Serve an OCI runtime (runc, crun, youki) as a hook, with the container\'s state on standard input'
complete -c netwright -n "__fish_netwright_needs_command" -f -a "completions" -d 'Write a completion script for a shell to standard output'
complete -c netwright -n "__fish_netwright_needs_command" -f -a "man" -d 'Write a man page for each command into a folder'
complete -c netwright -n "__fish_netwright_using_subcommand run" -l net -d 'Attach to this network; may be repeated [default: the embedded network "netwright"]' -r
complete -c netwright -n "__fish_netwright_using_subcommand run" -s p -l publish -d 'Publish a container\'s port on the host; may be repeated' -r
complete -c netwright -n "__fish_netwright_using_subcommand run" -l ip -d 'Ask for this address; may be repeated, one per family' -r
complete -c netwright -n "__fish_netwright_using_subcommand run" -l mac -d 'Ask for this hardware address' -r
complete -c netwright -n "__fish_netwright_using_subcommand run" -l ifname -d 'The interface\'s name in the container [default: CNI_IFNAME, or eth0; further networks: eth1, eth2, …]' -r
complete -c netwright -n "__fish_netwright_using_subcommand run" -l arg -d 'An argument for the plugins (CNI_ARGS); may be repeated' -r
complete -c netwright -n "__fish_netwright_using_subcommand run" -l cap -d 'A capability argument for the plugins that have the capability; may be repeated' -r
complete -c netwright -n "__fish_netwright_using_subcommand run" -l label -d 'A label of the container, for plugins that read `args.cni.labels`; may be repeated' -r
complete -c netwright -n "__fish_netwright_using_subcommand run" -l name -d 'The container ID [default: made up]' -r
complete -c netwright -n "__fish_netwright_using_subcommand run" -l dns -d 'Resolve names with this server; may be repeated [default: the networks\' servers, or else those of this host that a container reaches]' -r
complete -c netwright -n "__fish_netwright_using_subcommand run" -l to -d 'What the probe tries to reach outside' -r
complete -c netwright -n "__fish_netwright_using_subcommand run" -s o -l output -d 'How to write data: text and tables, or one JSON document' -r -f -a "text\t'Text and tables for people'
json\t'One JSON document'"
complete -c netwright -n "__fish_netwright_using_subcommand run" -l timeout -d 'How long the plugins of one operation may take, in seconds' -r
complete -c netwright -n "__fish_netwright_using_subcommand run" -l conf-dir -d 'Folder of network configurations, in place of NETCONFPATH' -r -f -a "(__fish_complete_directories)"
complete -c netwright -n "__fish_netwright_using_subcommand run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c netwright -n "__fish_netwright_using_subcommand probe" -l to -d 'What to try to reach outside' -r
complete -c netwright -n "__fish_netwright_using_subcommand probe" -l home -d 'The machine\'s own namespace: shows whether a fault is the machine\'s [default: that of process 1]' -r -F
complete -c netwright -n "__fish_netwright_using_subcommand probe" -s o -l output -d 'How to write data: text and tables, or one JSON document' -r -f -a "text\t'Text and tables for people'
json\t'One JSON document'"
complete -c netwright -n "__fish_netwright_using_subcommand probe" -l timeout -d 'How long the plugins of one operation may take, in seconds' -r
complete -c netwright -n "__fish_netwright_using_subcommand probe" -l conf-dir -d 'Folder of network configurations, in place of NETCONFPATH' -r -f -a "(__fish_complete_directories)"
complete -c netwright -n "__fish_netwright_using_subcommand probe" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c netwright -n "__fish_netwright_using_subcommand add" -l container-id -d 'The container ID [default: "cnitool-" and 20 digits of the SHA-512 of the namespace\'s path]' -r
complete -c netwright -n "__fish_netwright_using_subcommand add" -s p -l publish -d 'Publish a container\'s port on the host; may be repeated' -r
complete -c netwright -n "__fish_netwright_using_subcommand add" -l ip -d 'Ask for this address; may be repeated, one per family' -r
complete -c netwright -n "__fish_netwright_using_subcommand add" -l mac -d 'Ask for this hardware address' -r
complete -c netwright -n "__fish_netwright_using_subcommand add" -l ifname -d 'The interface\'s name in the container [default: CNI_IFNAME, or eth0; further networks: eth1, eth2, …]' -r
complete -c netwright -n "__fish_netwright_using_subcommand add" -l arg -d 'An argument for the plugins (CNI_ARGS); may be repeated' -r
complete -c netwright -n "__fish_netwright_using_subcommand add" -l cap -d 'A capability argument for the plugins that have the capability; may be repeated' -r
complete -c netwright -n "__fish_netwright_using_subcommand add" -l label -d 'A label of the container, for plugins that read `args.cni.labels`; may be repeated' -r
complete -c netwright -n "__fish_netwright_using_subcommand add" -s o -l output -d 'How to write data: text and tables, or one JSON document' -r -f -a "text\t'Text and tables for people'
json\t'One JSON document'"
complete -c netwright -n "__fish_netwright_using_subcommand add" -l timeout -d 'How long the plugins of one operation may take, in seconds' -r
complete -c netwright -n "__fish_netwright_using_subcommand add" -l conf-dir -d 'Folder of network configurations, in place of NETCONFPATH' -r -f -a "(__fish_complete_directories)"
complete -c netwright -n "__fish_netwright_using_subcommand add" -s h -l help -d 'Print help'
complete -c netwright -n "__fish_netwright_using_subcommand del" -l container-id -d 'The container ID [default: "cnitool-" and 20 digits of the SHA-512 of the namespace\'s path]' -r
complete -c netwright -n "__fish_netwright_using_subcommand del" -s p -l publish -d 'Publish a container\'s port on the host; may be repeated' -r
complete -c netwright -n "__fish_netwright_using_subcommand del" -l ip -d 'Ask for this address; may be repeated, one per family' -r
complete -c netwright -n "__fish_netwright_using_subcommand del" -l mac -d 'Ask for this hardware address' -r
complete -c netwright -n "__fish_netwright_using_subcommand del" -l ifname -d 'The interface\'s name in the container [default: CNI_IFNAME, or eth0; further networks: eth1, eth2, …]' -r
complete -c netwright -n "__fish_netwright_using_subcommand del" -l arg -d 'An argument for the plugins (CNI_ARGS); may be repeated' -r
complete -c netwright -n "__fish_netwright_using_subcommand del" -l cap -d 'A capability argument for the plugins that have the capability; may be repeated' -r
complete -c netwright -n "__fish_netwright_using_subcommand del" -s o -l output -d 'How to write data: text and tables, or one JSON document' -r -f -a "text\t'Text and tables for people'
json\t'One JSON document'"
complete -c netwright -n "__fish_netwright_using_subcommand del" -l timeout -d 'How long the plugins of one operation may take, in seconds' -r
complete -c netwright -n "__fish_netwright_using_subcommand del" -l conf-dir -d 'Folder of network configurations, in place of NETCONFPATH' -r -f -a "(__fish_complete_directories)"
complete -c netwright -n "__fish_netwright_using_subcommand del" -s h -l help -d 'Print help'
complete -c netwright -n "__fish_netwright_using_subcommand check" -l container-id -d 'The container ID [default: "cnitool-" and 20 digits of the SHA-512 of the namespace\'s path]' -r
complete -c netwright -n "__fish_netwright_using_subcommand check" -s p -l publish -d 'Publish a container\'s port on the host; may be repeated' -r
complete -c netwright -n "__fish_netwright_using_subcommand check" -l ip -d 'Ask for this address; may be repeated, one per family' -r
complete -c netwright -n "__fish_netwright_using_subcommand check" -l mac -d 'Ask for this hardware address' -r
complete -c netwright -n "__fish_netwright_using_subcommand check" -l ifname -d 'The interface\'s name in the container [default: CNI_IFNAME, or eth0; further networks: eth1, eth2, …]' -r
complete -c netwright -n "__fish_netwright_using_subcommand check" -l arg -d 'An argument for the plugins (CNI_ARGS); may be repeated' -r
complete -c netwright -n "__fish_netwright_using_subcommand check" -l cap -d 'A capability argument for the plugins that have the capability; may be repeated' -r
complete -c netwright -n "__fish_netwright_using_subcommand check" -s o -l output -d 'How to write data: text and tables, or one JSON document' -r -f -a "text\t'Text and tables for people'
json\t'One JSON document'"
complete -c netwright -n "__fish_netwright_using_subcommand check" -l timeout -d 'How long the plugins of one operation may take, in seconds' -r
complete -c netwright -n "__fish_netwright_using_subcommand check" -l conf-dir -d 'Folder of network configurations, in place of NETCONFPATH' -r -f -a "(__fish_complete_directories)"
complete -c netwright -n "__fish_netwright_using_subcommand check" -s h -l help -d 'Print help'
complete -c netwright -n "__fish_netwright_using_subcommand status" -s o -l output -d 'How to write data: text and tables, or one JSON document' -r -f -a "text\t'Text and tables for people'
json\t'One JSON document'"
complete -c netwright -n "__fish_netwright_using_subcommand status" -l timeout -d 'How long the plugins of one operation may take, in seconds' -r
complete -c netwright -n "__fish_netwright_using_subcommand status" -l conf-dir -d 'Folder of network configurations, in place of NETCONFPATH' -r -f -a "(__fish_complete_directories)"
complete -c netwright -n "__fish_netwright_using_subcommand status" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c netwright -n "__fish_netwright_using_subcommand gc" -l valid -d 'Keep this container\'s attachment, or only that of one interface, and remove all others; may be repeated' -r
complete -c netwright -n "__fish_netwright_using_subcommand gc" -s o -l output -d 'How to write data: text and tables, or one JSON document' -r -f -a "text\t'Text and tables for people'
json\t'One JSON document'"
complete -c netwright -n "__fish_netwright_using_subcommand gc" -l timeout -d 'How long the plugins of one operation may take, in seconds' -r
complete -c netwright -n "__fish_netwright_using_subcommand gc" -l conf-dir -d 'Folder of network configurations, in place of NETCONFPATH' -r -f -a "(__fish_complete_directories)"
complete -c netwright -n "__fish_netwright_using_subcommand gc" -l all -d 'Remove every attachment, also those of living containers, what is marked as ours without a record, and our empty tables'
complete -c netwright -n "__fish_netwright_using_subcommand gc" -l dry-run -d 'Say what would be removed, and remove nothing'
complete -c netwright -n "__fish_netwright_using_subcommand gc" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c netwright -n "__fish_netwright_using_subcommand repair" -l network -d 'Only attachments to this network' -r
complete -c netwright -n "__fish_netwright_using_subcommand repair" -s o -l output -d 'How to write data: text and tables, or one JSON document' -r -f -a "text\t'Text and tables for people'
json\t'One JSON document'"
complete -c netwright -n "__fish_netwright_using_subcommand repair" -l timeout -d 'How long the plugins of one operation may take, in seconds' -r
complete -c netwright -n "__fish_netwright_using_subcommand repair" -l conf-dir -d 'Folder of network configurations, in place of NETCONFPATH' -r -f -a "(__fish_complete_directories)"
complete -c netwright -n "__fish_netwright_using_subcommand repair" -l dry-run -d 'Say what is not as ADD made it, and change nothing'
complete -c netwright -n "__fish_netwright_using_subcommand repair" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c netwright -n "__fish_netwright_using_subcommand doctor" -l to -d 'Also try to reach this by TCP from each container that is looked at. The connection is reset at once, and no byte is sent' -r
complete -c netwright -n "__fish_netwright_using_subcommand doctor" -l ignore -d 'Do not tell of this finding, or of this finding of this object; may be repeated. The file /etc/netwright/doctor.ignore has more, one per line' -r
complete -c netwright -n "__fish_netwright_using_subcommand doctor" -l bundle -d 'Also write what was seen to a file, for a bug report: no secrets, no payloads' -r -F
complete -c netwright -n "__fish_netwright_using_subcommand doctor" -l from -d 'Judge what `--bundle` has written, here or elsewhere. Sends no probes, and needs no privileges' -r -F
complete -c netwright -n "__fish_netwright_using_subcommand doctor" -l wait -d 'Look again until nothing is wrong, for at most this many seconds, and tell what was found last: after a fix that takes its time' -r
complete -c netwright -n "__fish_netwright_using_subcommand doctor" -l explain -d 'Say what a finding means, how it arises and what helps, and look at nothing' -r
complete -c netwright -n "__fish_netwright_using_subcommand doctor" -s o -l output -d 'How to write data: text and tables, or one JSON document' -r -f -a "text\t'Text and tables for people'
json\t'One JSON document'"
complete -c netwright -n "__fish_netwright_using_subcommand doctor" -l timeout -d 'How long the plugins of one operation may take, in seconds' -r
complete -c netwright -n "__fish_netwright_using_subcommand doctor" -l conf-dir -d 'Folder of network configurations, in place of NETCONFPATH' -r -f -a "(__fish_complete_directories)"
complete -c netwright -n "__fish_netwright_using_subcommand doctor" -l no-probe -d 'Send no probes'
complete -c netwright -n "__fish_netwright_using_subcommand doctor" -l strict -d 'End with 1 for warnings too'
complete -c netwright -n "__fish_netwright_using_subcommand doctor" -s v -l verbose -d 'Tell also what each cause explains'
complete -c netwright -n "__fish_netwright_using_subcommand doctor" -l watch -d 'Look again whenever the kernel tells of a change, and tell it when something else is found than before: each time as text, or as one line of JSON. SIGINT and SIGTERM end it, with the exit code of what was found last'
complete -c netwright -n "__fish_netwright_using_subcommand doctor" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c netwright -n "__fish_netwright_using_subcommand agent" -s o -l output -d 'How to write data: text and tables, or one JSON document' -r -f -a "text\t'Text and tables for people'
json\t'One JSON document'"
complete -c netwright -n "__fish_netwright_using_subcommand agent" -l timeout -d 'How long the plugins of one operation may take, in seconds' -r
complete -c netwright -n "__fish_netwright_using_subcommand agent" -l conf-dir -d 'Folder of network configurations, in place of NETCONFPATH' -r -f -a "(__fish_complete_directories)"
complete -c netwright -n "__fish_netwright_using_subcommand routes" -s o -l output -d 'How to write data: text and tables, or one JSON document' -r -f -a "text\t'Text and tables for people'
json\t'One JSON document'"
complete -c netwright -n "__fish_netwright_using_subcommand routes" -l timeout -d 'How long the plugins of one operation may take, in seconds' -r
complete -c netwright -n "__fish_netwright_using_subcommand routes" -l conf-dir -d 'Folder of network configurations, in place of NETCONFPATH' -r -f -a "(__fish_complete_directories)"
complete -c netwright -n "__fish_netwright_using_subcommand policy" -s o -l output -d 'How to write data: text and tables, or one JSON document' -r -f -a "text\t'Text and tables for people'
json\t'One JSON document'"
complete -c netwright -n "__fish_netwright_using_subcommand policy" -l timeout -d 'How long the plugins of one operation may take, in seconds' -r
complete -c netwright -n "__fish_netwright_using_subcommand policy" -l conf-dir -d 'Folder of network configurations, in place of NETCONFPATH' -r -f -a "(__fish_complete_directories)"
complete -c netwright -n "__fish_netwright_using_subcommand list" -s o -l output -d 'How to write data: text and tables, or one JSON document' -r -f -a "text\t'Text and tables for people'
json\t'One JSON document'"
complete -c netwright -n "__fish_netwright_using_subcommand list" -l timeout -d 'How long the plugins of one operation may take, in seconds' -r
complete -c netwright -n "__fish_netwright_using_subcommand list" -l conf-dir -d 'Folder of network configurations, in place of NETCONFPATH' -r -f -a "(__fish_complete_directories)"
complete -c netwright -n "__fish_netwright_using_subcommand list" -s h -l help -d 'Print help'
complete -c netwright -n "__fish_netwright_using_subcommand inspect" -s o -l output -d 'How to write data: text and tables, or one JSON document' -r -f -a "text\t'Text and tables for people'
json\t'One JSON document'"
complete -c netwright -n "__fish_netwright_using_subcommand inspect" -l timeout -d 'How long the plugins of one operation may take, in seconds' -r
complete -c netwright -n "__fish_netwright_using_subcommand inspect" -l conf-dir -d 'Folder of network configurations, in place of NETCONFPATH' -r -f -a "(__fish_complete_directories)"
complete -c netwright -n "__fish_netwright_using_subcommand inspect" -l default -d 'Show the embedded default network'
complete -c netwright -n "__fish_netwright_using_subcommand inspect" -s h -l help -d 'Print help'
complete -c netwright -n "__fish_netwright_using_subcommand lint" -s o -l output -d 'How to write data: text and tables, or one JSON document' -r -f -a "text\t'Text and tables for people'
json\t'One JSON document'"
complete -c netwright -n "__fish_netwright_using_subcommand lint" -l timeout -d 'How long the plugins of one operation may take, in seconds' -r
complete -c netwright -n "__fish_netwright_using_subcommand lint" -l conf-dir -d 'Folder of network configurations, in place of NETCONFPATH' -r -f -a "(__fish_complete_directories)"
complete -c netwright -n "__fish_netwright_using_subcommand lint" -l strict -d 'Fail on warnings too'
complete -c netwright -n "__fish_netwright_using_subcommand lint" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c netwright -n "__fish_netwright_using_subcommand install" -l bin-dir -d 'The folder for the plugins [default: the one in the configurations of this machine\'s container runtimes; /opt/cni/bin if there is no runtime]' -r -f -a "(__fish_complete_directories)"
complete -c netwright -n "__fish_netwright_using_subcommand install" -l also -d 'Also answer to this name, by which configurations written for another project\'s plugin call ours: `multus`, `multus-shim`, `whereabouts`; may be repeated' -r
complete -c netwright -n "__fish_netwright_using_subcommand install" -s o -l output -d 'How to write data: text and tables, or one JSON document' -r -f -a "text\t'Text and tables for people'
json\t'One JSON document'"
complete -c netwright -n "__fish_netwright_using_subcommand install" -l timeout -d 'How long the plugins of one operation may take, in seconds' -r
complete -c netwright -n "__fish_netwright_using_subcommand install" -l conf-dir -d 'Folder of network configurations, in place of NETCONFPATH' -r -f -a "(__fish_complete_directories)"
complete -c netwright -n "__fish_netwright_using_subcommand install" -l no-config -d 'Do not write the default network\'s configuration'
complete -c netwright -n "__fish_netwright_using_subcommand install" -l allow-downgrade -d 'Replace a newer version, too'
complete -c netwright -n "__fish_netwright_using_subcommand install" -l linked -d 'Link to this executable where it is, in place of a copy: a package manager replaces it there. An installation that was made so stays so'
complete -c netwright -n "__fish_netwright_using_subcommand install" -l put-back -d 'Put back what another program removed or replaced since, as it was installed, and nothing else: in every folder, or in that of --bin-dir'
complete -c netwright -n "__fish_netwright_using_subcommand install" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c netwright -n "__fish_netwright_using_subcommand uninstall" -l bin-dir -d 'The folder into which `install` put the plugins [default: all that have an installation, of the folders where runtimes look for plugins]. While another folder has one, our state and the configuration stay' -r -f -a "(__fish_complete_directories)"
complete -c netwright -n "__fish_netwright_using_subcommand uninstall" -l conflist -d 'The configuration that `netwrightd multinet` wrote (its key `conflist`), which is removed first: runtimes then use the next one. Stop the daemon before' -r -F
complete -c netwright -n "__fish_netwright_using_subcommand uninstall" -l routing-conflist -d 'The configuration that `netwrightd routing` wrote (its key `conflist`), which is removed first too. Stop the daemon before' -r -F
complete -c netwright -n "__fish_netwright_using_subcommand uninstall" -l next-network -d 'The network that runtimes are to use then [default: the default network that the file of `--conflist` names, unless that is the network of `--routing-conflist`]' -r
complete -c netwright -n "__fish_netwright_using_subcommand uninstall" -s o -l output -d 'How to write data: text and tables, or one JSON document' -r -f -a "text\t'Text and tables for people'
json\t'One JSON document'"
complete -c netwright -n "__fish_netwright_using_subcommand uninstall" -l timeout -d 'How long the plugins of one operation may take, in seconds' -r
complete -c netwright -n "__fish_netwright_using_subcommand uninstall" -l conf-dir -d 'Folder of network configurations, in place of NETCONFPATH' -r -f -a "(__fish_complete_directories)"
complete -c netwright -n "__fish_netwright_using_subcommand uninstall" -l force -d 'Detach what is still attached, instead of refusing. With --keep-state: leave it attached, and name what stays of it'
complete -c netwright -n "__fish_netwright_using_subcommand uninstall" -l wait -d 'Wait until no service runs that would restore what is removed, and until Docker has no network of our driver: its containers need our plugins until Docker has removed them. Then restore the earlier plugins for new containers, wait until no container is attached and no runtime is to call our executable as a hook, and remove the rest, instead of refusing. Succeeds if nothing is installed'
complete -c netwright -n "__fish_netwright_using_subcommand uninstall" -l keep-state -d 'Only restore the earlier plugins: our state stays. Refuses while containers are attached, as no other plugin removes their published ports and masquerade. Succeeds if nothing is installed'
complete -c netwright -n "__fish_netwright_using_subcommand uninstall" -l dry-run -d 'Only say what would be done, or why it would be refused, and change nothing. With --keep-state: only why it would be refused'
complete -c netwright -n "__fish_netwright_using_subcommand uninstall" -s h -l help -d 'Print help'
complete -c netwright -n "__fish_netwright_using_subcommand setup" -l bin-dir -d 'The folder for the plugins [default: the one in the configurations of this machine\'s container runtimes; /opt/cni/bin if there is no runtime]' -r -f -a "(__fish_complete_directories)"
complete -c netwright -n "__fish_netwright_using_subcommand setup" -l also -d 'Also answer to this name, by which configurations written for another project\'s plugin call ours: `multus`, `multus-shim`, `whereabouts`; may be repeated' -r
complete -c netwright -n "__fish_netwright_using_subcommand setup" -l program-dir -d 'The folder for `netwright` and `netwrightd`, which the services run [default: /usr/local/bin, or the folder of the last time]' -r -f -a "(__fish_complete_directories)"
complete -c netwright -n "__fish_netwright_using_subcommand setup" -s o -l output -d 'How to write data: text and tables, or one JSON document' -r -f -a "text\t'Text and tables for people'
json\t'One JSON document'"
complete -c netwright -n "__fish_netwright_using_subcommand setup" -l timeout -d 'How long the plugins of one operation may take, in seconds' -r
complete -c netwright -n "__fish_netwright_using_subcommand setup" -l conf-dir -d 'Folder of network configurations, in place of NETCONFPATH' -r -f -a "(__fish_complete_directories)"
complete -c netwright -n "__fish_netwright_using_subcommand setup" -l no-config -d 'Do not write the default network\'s configuration'
complete -c netwright -n "__fish_netwright_using_subcommand setup" -l allow-downgrade -d 'Replace a newer version, too'
complete -c netwright -n "__fish_netwright_using_subcommand setup" -l no-packet -d 'Send no packet from a new container'
complete -c netwright -n "__fish_netwright_using_subcommand setup" -s y -l yes -d 'Do not ask'
complete -c netwright -n "__fish_netwright_using_subcommand setup" -l dry-run -d 'Say what would be done, and change nothing'
complete -c netwright -n "__fish_netwright_using_subcommand setup" -l undo -d 'Undo what was set up. A file that was changed since is kept, and named'
complete -c netwright -n "__fish_netwright_using_subcommand setup" -l force -d 'Undo it also while containers are attached, and leave them attached: what stays of them is named'
complete -c netwright -n "__fish_netwright_using_subcommand setup" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c netwright -n "__fish_netwright_using_subcommand conformance" -l bin-dir -d 'The folder of the plugins. Repeated, each folder is tested, and a table shows where they differ' -r -f -a "(__fish_complete_directories)"
complete -c netwright -n "__fish_netwright_using_subcommand conformance" -l plugin -d 'Test this plugin only; may be repeated' -r
complete -c netwright -n "__fish_netwright_using_subcommand conformance" -l case -d 'Run this case only; may be repeated' -r
complete -c netwright -n "__fish_netwright_using_subcommand conformance" -l config -d 'Configure plugins as this network list does, and test those that it names' -r -F
complete -c netwright -n "__fish_netwright_using_subcommand conformance" -l report -d 'Write a report in this format instead of the table' -r -f -a "junit\t'JUnit\'s XML, for CI'
json\t'One JSON document'
md\t'Markdown'
html\t'A page of HTML'"
complete -c netwright -n "__fish_netwright_using_subcommand conformance" -l report-file -d 'Write the report to this file instead of standard output' -r -F
complete -c netwright -n "__fish_netwright_using_subcommand conformance" -l workers -d 'How many cases run at the same time [default: two per processor, at most 8]' -r
complete -c netwright -n "__fish_netwright_using_subcommand conformance" -l call-timeout -d 'How long a call of a plugin may take, for slow machines; a case may take six times that [default: 30]' -r
complete -c netwright -n "__fish_netwright_using_subcommand conformance" -s o -l output -d 'How to write data: text and tables, or one JSON document' -r -f -a "text\t'Text and tables for people'
json\t'One JSON document'"
complete -c netwright -n "__fish_netwright_using_subcommand conformance" -l timeout -d 'How long the plugins of one operation may take, in seconds' -r
complete -c netwright -n "__fish_netwright_using_subcommand conformance" -l conf-dir -d 'Folder of network configurations, in place of NETCONFPATH' -r -f -a "(__fish_complete_directories)"
complete -c netwright -n "__fish_netwright_using_subcommand conformance" -l list -d 'List the cases, and run none'
complete -c netwright -n "__fish_netwright_using_subcommand conformance" -s v -l verbose -d 'Mention each case, not only those that fail'
complete -c netwright -n "__fish_netwright_using_subcommand conformance" -l serve-case -d 'Be the process of one case'
complete -c netwright -n "__fish_netwright_using_subcommand conformance" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c netwright -n "__fish_netwright_using_subcommand oci-hook" -s o -l output -d 'How to write data: text and tables, or one JSON document' -r -f -a "text\t'Text and tables for people'
json\t'One JSON document'"
complete -c netwright -n "__fish_netwright_using_subcommand oci-hook" -l timeout -d 'How long the plugins of one operation may take, in seconds' -r
complete -c netwright -n "__fish_netwright_using_subcommand oci-hook" -l conf-dir -d 'Folder of network configurations, in place of NETCONFPATH' -r -f -a "(__fish_complete_directories)"
complete -c netwright -n "__fish_netwright_using_subcommand oci-hook" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c netwright -n "__fish_netwright_using_subcommand completions" -s o -l output -d 'How to write data: text and tables, or one JSON document' -r -f -a "text\t'Text and tables for people'
json\t'One JSON document'"
complete -c netwright -n "__fish_netwright_using_subcommand completions" -l timeout -d 'How long the plugins of one operation may take, in seconds' -r
complete -c netwright -n "__fish_netwright_using_subcommand completions" -l conf-dir -d 'Folder of network configurations, in place of NETCONFPATH' -r -f -a "(__fish_complete_directories)"
complete -c netwright -n "__fish_netwright_using_subcommand completions" -s h -l help -d 'Print help'
complete -c netwright -n "__fish_netwright_using_subcommand man" -s o -l output -d 'How to write data: text and tables, or one JSON document' -r -f -a "text\t'Text and tables for people'
json\t'One JSON document'"
complete -c netwright -n "__fish_netwright_using_subcommand man" -l timeout -d 'How long the plugins of one operation may take, in seconds' -r
complete -c netwright -n "__fish_netwright_using_subcommand man" -l conf-dir -d 'Folder of network configurations, in place of NETCONFPATH' -r -f -a "(__fish_complete_directories)"
complete -c netwright -n "__fish_netwright_using_subcommand man" -l markdown -d 'Write one Markdown page with every command\'s help instead: the file DIR/cli.md'
complete -c netwright -n "__fish_netwright_using_subcommand man" -s h -l help -d 'Print help'

complete -c netwright -n "__fish_seen_subcommand_from add del check" -f -a "(netwright __names networks; netwright __names containers)"
complete -c netwright -n "__fish_seen_subcommand_from inspect" -f -a "(netwright __names networks; netwright __names containers)"
complete -c netwright -n "__fish_seen_subcommand_from status gc" -f -a "(netwright __names networks)"
complete -c netwright -n "__fish_seen_subcommand_from list repair" -f -a "(netwright __names containers)"
complete -c netwright -n "__fish_seen_subcommand_from run" -l net -x -a "(netwright __names networks)"
