//! The command lines of the services.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use agent::load;
use agent::setting::ServerUrl;
use service_kit::command_line::{Invocation, read};
use service_kit::stop::Stop;
use state::Roots;

use super::find;

fn parse(line: &str) -> Result<Invocation, String> {
    let mut words = line.split_whitespace();
    let service = find(words.next().unwrap()).unwrap();
    let arguments: Vec<OsString> = words.map(OsString::from).collect();
    let roots = Roots::new("/nowhere", "/nowhere");
    read(service, &arguments, load::Surroundings::default(), &roots).map_err(|stop| match stop {
        Stop::Usage(text) | Stop::Print(text) => text,
        other => format!("{other:?}"),
    })
}

#[test]
fn flags_are_the_keys_with_one_dash_or_two() {
    for line in ["-interval 2s --ovsdb a -ovsdb=b,c", "--interval=2s --ovsdb a,b --ovsdb c"] {
        let invocation = parse(&format!("repair {line}")).unwrap();
        assert_eq!(invocation.config().repair.interval, Duration::from_secs(2));
        assert_eq!(invocation.config().repair.ovsdb, ["a", "b", "c"]);
        assert!(invocation.loaded.sets("repair", "interval"));
        assert!(!invocation.loaded.sets("repair", "path"));
    }
    let invocation = parse("collect -act -once -path /a:/b -cache /c --cache /d -grace 0").unwrap();
    let collect = &invocation.config().collect;
    assert!(collect.act && invocation.more.get_flag("once"));
    assert_eq!(collect.path, [PathBuf::from("/a"), "/b".into()]);
    assert_eq!(collect.cache, [PathBuf::from("/c"), "/d".into()]);
    assert!(!parse("collect -act=false").unwrap().config().collect.act);
}

#[test]
fn what_go_reads_is_read_alike() {
    let line = "-pidfile /run/d.pid --hostprefix=/host -socketpath /s -broadcast -timeout 2s --resendmax=1m30s -resendtimeout 500ms --state /st";
    let invocation = parse(&format!("dhcp {line}")).unwrap();
    let dhcp = &invocation.config().dhcp;
    assert_eq!(dhcp.pidfile, Some("/run/d.pid".into()));
    assert_eq!(dhcp.hostprefix, Some("/host".into()));
    assert_eq!((dhcp.broadcast, dhcp.timeout), (true, Duration::from_secs(2)));
    assert_eq!(dhcp.resendtimeout, Duration::from_millis(500));
    let usual = parse("dhcp -pidfile= -socketpath= -state= -broadcast=false").unwrap();
    let want = agent::config::Dhcp { enable: true, ..Default::default() };
    assert_eq!(usual.config().dhcp, want);
}

#[test]
fn old_names_and_units_are_read() {
    for line in ["-patience 3", "--timeout 3", "--timeout 3s"] {
        let invocation = parse(&format!("docker {line}")).unwrap();
        assert_eq!(invocation.config().docker.timeout, Duration::from_secs(3), "{line}");
    }
    let invocation = parse("ipam -socket /s --etcd=https://a:2379,https://b:2379/").unwrap();
    let ipam = &invocation.config().ipam;
    assert_eq!(ipam.socketpath, PathBuf::from("/s"));
    let urls: Vec<&str> = ipam.etcd.iter().map(ServerUrl::as_str).collect();
    assert_eq!(urls, ["https://a:2379", "https://b:2379"]);
}

#[test]
fn what_makes_no_sense_is_said() {
    let refused = |line: &str| parse(line).unwrap_err();
    for (line, want) in [
        ("ipam", "ipam has no store for its addresses"),
        ("ipam --etcd http://a --kubeconfig /k", "etcd and kubeconfig exclude each other"),
        ("ipam --etcd https://a --etcd-cert /c", "etcd-cert and etcd-key go together"),
        ("ipam --kubeconfig /k --etcd-ca /c", "etcd-ca, etcd-cert and etcd-key need etcd"),
        ("ipam --etcd http://a --lease 1ms", "lease is shorter than 1s"),
        ("ipam --etcd host:2379", "--etcd must be a URL such as https://192.0.2.1:2379"),
        ("ipam --import api", "ipam has no store"),
        ("ipam --import /a --apply", "ipam has no store"),
        ("ipam --import /a --output yaml", "text, json"),
        ("docker --timeout 301", "timeout must be from 1s to 5m"),
        ("docker --timeout x", "--timeout must be a duration"),
        ("docker --confdir=", "--confdir must be an absolute path"),
        ("dhcp -pidfile d.pid", "Error writing pidfile: path not absolute"),
        ("dhcp -port 7", "unexpected argument '--port'"),
        ("dhcp -timeout", "a value is required for '--timeout <DURATION>'"),
        ("dhcp -timeout=", "--timeout must be a duration"),
        ("dhcp -timeout 10", "--timeout must be a duration"),
        ("repair --intervall 2s", "--interval"),
        ("repair now", "unexpected argument 'now'"),
        ("multinet", "multinet finds no API server"),
        ("multinet --kubeconfig /k --status fancy", "library or text"),
        ("policy", "policy does not know any policies"),
        ("policy --source kubernetes", "policy finds no API server"),
        ("policy --source kubernetes --kubeconfig /k --objects /o", "objects are for"),
        ("policy --objects /o --kubeconfig /k", "kubeconfig is for the source kubernetes"),
        ("policy --objects /o --interval 0", "interval is shorter than 1ms"),
        ("policy --objects /o --isolate-to A", "--isolate-to must be a namespace such as"),
        ("policy --objects /o --log-group 65536", "a whole number from 0 to 65535"),
        ("routing --source etcd --flannel replace", "does not know etcd's members"),
        ("routing --source etcd --etcd http://a", "etcd has flannel's leases, and flannel is none"),
        ("routing --source etcd --etcd a:1", "--etcd must be a URL"),
        (
            "routing --source etcd --etcd http://a --flannel replace --cluster 10.0.0.0/8",
            "cluster is set, and flanneld's configuration has the ranges",
        ),
        (
            "routing --source etcd --etcd http://a --flannel replace --nodes /n",
            "nodes is a list for the source file, and source is another",
        ),
        (
            "routing --source etcd --etcd https://a --flannel replace --etcd-key /k",
            "etcd-cert and etcd-key go together",
        ),
        (
            "routing --source etcd --etcd http://a --flannel replace --underlay 192.0.2.1,192.0.2.2",
            "underlay has two addresses of one family",
        ),
        (
            "routing --source etcd --etcd http://a --flannel replace --underlay a",
            "--underlay must be an address such as 192.0.2.1",
        ),
        ("routing --nodes /n --cluster 10.0.0.0/8 --etcd http://a", "need the source etcd"),
        ("routing --nodes /n --cluster 10.0.0.0/8 --etcd-ca /c", "need the source etcd"),
        ("routing --nodes /n --cluster 10.0.0.0/8 --underlay ::1", "need the source etcd"),
        ("routing --nodes /n --flannel replace", "flannel needs the source kubernetes or etcd"),
    ] {
        let text = refused(line);
        assert!(text.contains(want), "{line}: {text}");
    }
    assert!(parse("ipam --import /a,/b").is_ok());
    assert!(parse("policy --objects /o --isolate namespaces --isolate-from a,b:c=d").is_ok());
    assert!(parse("routing --source etcd --etcd http://a --flannel standby").is_ok());
    assert!(parse("ipam --import api --apply --kubeconfig /k --etcd http://a").is_ok());
    assert!(refused("repair --help").contains("netwrightd repair --interval 10s"));
    assert!(refused("repair -help").contains("Usage: netwrightd repair [FLAG…]"));
}
