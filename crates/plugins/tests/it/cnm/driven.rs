//! The requests that a driver receives, and what the plugin does with its answers.

use std::fs;

use serde_json::json;
use testkit::driver::Driver;
use testkit::{Place, traffic};

use super::{asked, cnm};
use crate::support::Node;
use crate::support::fixed::succeeds;
use crate::support::matrix::{Family, addresses, ipam};

#[test]
fn a_driver_is_asked_as_dockers_engine_asks() {
    testkit::require!("root", "program:python3");
    let node = Node::new("cnm-asked");
    let driver = Driver::start(&node.lab, "weft");
    let c1 = node.container("c1");
    let keys =
        json!({ "options": { "com.example.vlan": "7" }, "endpointOptions": { "rate": "9" } });
    let result = cnm(&node, "ADD", &c1).config(keys.clone()).call().ok();
    let calls = driver.take_calls();
    let names: Vec<_> = calls.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "Plugin.Activate",
            "Plugin.Activate",
            "NetworkDriver.GetCapabilities",
            "IpamDriver.GetCapabilities",
            "IpamDriver.GetDefaultAddressSpaces",
            "IpamDriver.RequestPool",
            "IpamDriver.RequestAddress",
            "IpamDriver.RequestPool",
            "IpamDriver.RequestAddress",
            "NetworkDriver.CreateNetwork",
            "IpamDriver.RequestAddress",
            "IpamDriver.RequestAddress",
            "NetworkDriver.CreateEndpoint",
            "NetworkDriver.Join",
            "NetworkDriver.ProgramExternalConnectivity",
        ]
    );
    let network = asked(&calls, "CreateNetwork");
    assert_eq!(network["NetworkID"].as_str().unwrap().len(), 64);
    assert_eq!(
        network["Options"]["com.docker.network.generic"],
        json!({ "com.example.vlan": "7" })
    );
    assert_eq!(network["Options"]["com.docker.network.enable_ipv6"], true);
    let data = |pool: &str, gateway: &str| json!([{ "AddressSpace": "here", "Pool": pool, "Gateway": gateway }]);
    assert_eq!(network["IPv4Data"], data("10.1.0.0/24", "10.1.0.1/24"));
    assert_eq!(network["IPv6Data"], data("fd00:1::/64", "fd00:1::1/64"));
    let endpoint = asked(&calls, "CreateEndpoint");
    assert_eq!(
        endpoint["Interface"],
        json!({ "Address": "10.1.0.2/24", "AddressIPv6": "fd00:1::2/64" })
    );
    assert_eq!(endpoint["Options"], json!({ "rate": "9" }));
    assert_eq!(asked(&calls, "Join")["SandboxKey"], c1.netns().to_str().unwrap());

    let names: Vec<_> =
        (0..3).map(|at| result["interfaces"][at]["name"].as_str().unwrap()).collect();
    assert!(
        names[0].starts_with("db") && names[1].starts_with("dv") && names[2] == "eth0",
        "{result}"
    );
    let interface = &result["interfaces"][2];
    let shown = c1.sh("ip -o link show eth0");
    assert!(shown.contains(interface["mac"].as_str().unwrap()), "{result} {shown}");
    assert_eq!(result["ips"][0]["gateway"], "10.1.0.1");
    assert_eq!(
        result["routes"],
        json!([{ "dst": "0.0.0.0/0", "gw": "10.1.0.1" }, { "dst": "::/0", "gw": "fd00:1::1" }])
    );

    cnm(&node, "DEL", &c1).config(keys).call().silent();
    assert_eq!(
        driver.take_names(),
        [
            "RevokeExternalConnectivity",
            "Leave",
            "DeleteEndpoint",
            "ReleaseAddress",
            "ReleaseAddress",
            "DeleteNetwork",
            "ReleaseAddress",
            "ReleasePool",
            "ReleaseAddress",
            "ReleasePool",
        ]
    );
    driver.assert_empty();
}

#[test]
fn containers_reach_each_other_and_the_gateway() {
    testkit::require!("root", "program:python3");
    let node = Node::new("cnm-ping");
    let driver = Driver::start(&node.lab, "weft");
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    cnm(&node, "ADD", &c1).call().ok();
    let _ = driver.take_names();
    cnm(&node, "ADD", &c2).call().ok();
    let names = driver.take_names();
    assert!(
        !names.iter().any(|name| name == "CreateNetwork" || name == "RequestPool"),
        "{names:?}"
    );
    for address in ["10.1.0.3", "fd00:1::3", "10.1.0.1", "fd00:1::1"] {
        traffic::assert_pings(&c1, address);
    }
    traffic::assert_pings(&c2, "10.1.0.2");
    cnm(&node, "DEL", &c1).call().silent();
    assert_eq!(driver.held()["networks"].as_object().unwrap().len(), 1, "c2 is on it");
    traffic::assert_pings(&c2, "10.1.0.1");
    cnm(&node, "DEL", &c2).call().silent();
    driver.assert_empty();
}

#[test]
fn many_at_once_make_one_network_and_leave_none() {
    testkit::require!("root", "program:python3");
    let node = Node::new("cnm-many");
    let driver = Driver::start(&node.lab, "weft");
    let containers: Vec<_> = (1..=6).map(|number| node.container(&format!("c{number}"))).collect();
    let each = |verb: &str| {
        std::thread::scope(|scope| {
            let calls: Vec<_> = containers
                .iter()
                .map(|container| scope.spawn(|| cnm(&node, verb, container).call()))
                .collect();
            calls.into_iter().map(|call| call.join().unwrap()).collect::<Vec<_>>()
        })
    };
    let mut addresses: Vec<String> = each("ADD")
        .into_iter()
        .map(|answer| answer.ok()["ips"][0]["address"].to_string())
        .collect();
    addresses.sort();
    addresses.dedup();
    assert_eq!(addresses.len(), containers.len(), "{addresses:?}");
    asked(&driver.take_calls(), "CreateNetwork");
    each("DEL").into_iter().for_each(crate::support::Answer::silent);
    asked(&driver.take_calls(), "DeleteNetwork");
    driver.assert_empty();
    assert!(!node.roots.lib.join("cnm").exists());
}

#[test]
fn a_cni_plugin_gives_the_addresses() {
    testkit::require!("root", "program:python3");
    let node = Node::new("cnm-ipam");
    let driver = Driver::start(&node.lab, "weft");
    let c1 = node.container("c1");
    let run = |verb: &str| {
        let keys = json!({ "driver": "weft", "ipam": ipam(&node, Family::Dual) });
        node.run("cnm", verb).to(&c1).config(keys)
    };
    let result = run("ADD").call().ok();
    let calls = driver.take_calls();
    assert!(!calls.iter().any(|(name, _)| name.starts_with("Ipam")), "{calls:#?}");
    let network = asked(&calls, "CreateNetwork");
    assert_eq!(network["IPv4Data"][0]["Pool"], "10.1.0.0/24");
    assert_eq!(network["IPv6Data"][0]["Gateway"], "fd00:1::1/64");
    traffic::assert_pings(&c1, "10.1.0.1");
    traffic::assert_pings(&c1, "fd00:1::1");
    run("CHECK").prev(&result).call().silent();
    run("DEL").call().silent();
    driver.assert_empty();
    assert_eq!(addresses(&node), "");
    run("ADD")
        .config(json!({ "ipam": { "type": "dhcp" } }))
        .call()
        .fails(7, "\"ipam\": type \"dhcp\"");
}

#[test]
fn a_driver_gives_the_addresses_itself() {
    testkit::require!("root", "program:python3");
    let node = Node::new("cnm-null");
    let driver = Driver::start(&node.lab, "weft");
    let c1 = node.container("c1");
    let run = |verb: &str| {
        node.run("cnm", verb).to(&c1).config(json!({ "driver": "weft", "ipv6": true }))
    };
    let result = run("ADD").call().ok();
    assert_eq!(result["ips"][0]["address"], "10.77.0.2/24");
    assert_eq!(result["ips"][1]["address"], "fd77::2/64");
    let network = asked(&driver.take_calls(), "CreateNetwork");
    assert_eq!(network["IPv4Data"], json!([{ "AddressSpace": "null", "Pool": "0.0.0.0/0" }]));
    run("CHECK").prev(&result).call().silent();
    run("DEL").call().silent();
    driver.assert_empty();
}

#[test]
fn routes_of_both_kinds_and_a_way_out_only_if_wanted() {
    testkit::require!("root", "program:python3");
    let node = Node::new("cnm-routes");
    let driver = Driver::start(&node.lab, "weft");
    driver.misbehave(json!({ "NetworkDriver.Join": { "add": { "StaticRoutes": [
        { "Destination": "203.0.113.0/24", "RouteType": 0, "NextHop": "10.1.0.1" },
        { "Destination": "198.51.100.0/24", "RouteType": 1 },
        { "Destination": "2001:db8::/32", "RouteType": 0, "NextHop": "fd00:1::1" },
        { "Destination": "2001:db9::/32", "RouteType": 1 },
    ] } } }));
    let c1 = node.container("c1");
    let result = cnm(&node, "ADD", &c1).config(json!({ "defaultGateway": false })).call().ok();
    let routes = c1.sh("ip route; ip -6 route");
    for words in [
        "203.0.113.0/24 via 10.1.0.1 dev eth0",
        "198.51.100.0/24 dev eth0 scope link",
        "2001:db8::/32 via fd00:1::1 dev eth0",
        "2001:db9::/32 dev eth0",
    ] {
        assert!(routes.contains(words), "{words}:\n{routes}");
    }
    assert!(!routes.contains("default"), "{routes}");
    cnm(&node, "CHECK", &c1).prev(&result).call().silent();
    cnm(&node, "DEL", &c1).call().silent();
}

#[test]
fn what_the_runtime_asks_for_reaches_the_drivers() {
    testkit::require!("root", "program:python3");
    let node = Node::new("cnm-runtime");
    let driver = Driver::start(&node.lab, "weft");
    driver.misbehave(
        json!({ "IpamDriver.GetCapabilities": { "add": { "RequiresMACAddress": true } } }),
    );
    let c1 = node.container("c1");
    let keys = json!({ "runtimeConfig": {
        "mac": "02:00:00:00:00:99", "ips": ["10.1.0.77/24", "fd00:1::77"],
        "portMappings": [{ "hostPort": 8080, "containerPort": 80, "protocol": "udp" }],
    } });
    let result = cnm(&node, "ADD", &c1).config(keys.clone()).call().ok();
    assert_eq!(result["interfaces"][2]["mac"], "02:00:00:00:00:99");
    assert_eq!(result["ips"][0]["address"], "10.1.0.77/24");
    assert_eq!(result["ips"][1]["address"], "fd00:1::77/64");
    assert!(c1.sh("ip -o link show eth0").contains("02:00:00:00:00:99"));
    let held = driver.held();
    let endpoint = held["endpoints"].as_object().unwrap().values().next().unwrap().clone();
    assert_eq!(endpoint["ports"][0]["HostPort"], 8080, "{endpoint}");
    assert_eq!(endpoint["ports"][0]["Proto"], 17, "{endpoint}");
    assert_eq!(
        endpoint["options"]["com.docker.network.endpoint.exposedports"],
        json!([{ "Proto": 17, "Port": 80 }])
    );
    let taken = &held["pools"]["here/10.1.0.0/24"]["taken"]["10.1.0.77"];
    assert_eq!(taken["com.docker.network.endpoint.macaddress"], "02:00:00:00:00:99");
    assert_eq!(taken["com.docker.network.endpoint.name"], "c1");

    let c2 = node.container("c2");
    cnm(&node, "ADD", &c2).config(keys).call().fails(102, "address 10.1.0.77 is held by n/c1/eth0");
    let outside = json!({ "runtimeConfig": { "ips": ["192.0.2.1"] } });
    cnm(&node, "ADD", &c2).config(outside).call().fails(7, "192.0.2.1 is in no subnet");
    cnm(&node, "DEL", &c1).call().silent();
    driver.assert_empty();
}

#[test]
fn a_driver_may_not_publish_ports_and_may_not_want_a_gateway() {
    testkit::require!("root", "program:python3");
    let node = Node::new("cnm-404");
    let driver = Driver::start(&node.lab, "weft");
    driver.misbehave(json!({
        "NetworkDriver.ProgramExternalConnectivity": { "status": 404, "body": "" },
        "NetworkDriver.RevokeExternalConnectivity": { "status": 404, "body": "" },
        "NetworkDriver.EndpointOperInfo": { "status": 404, "body": "" },
        "NetworkDriver.GetCapabilities": { "add": { "GwAllocChecker": true } },
        "NetworkDriver.GwAllocCheck": { "reply": { "SkipIPv4": true } },
    }));
    let c1 = node.container("c1");
    let ports =
        json!({ "runtimeConfig": { "portMappings": [{ "hostPort": 8080, "containerPort": 80 }] } });
    cnm(&node, "ADD", &c1).config(ports).call().fails(111, "portmap");
    driver.assert_empty();
    let _ = driver.take_calls();
    let result = cnm(&node, "ADD", &c1).call().ok();
    let network = asked(&driver.take_calls(), "CreateNetwork");
    assert!(
        network["IPv4Data"][0]["Gateway"].is_null() && !network["IPv6Data"][0]["Gateway"].is_null(),
        "{network}"
    );
    assert_eq!(result["ips"][0]["address"], "10.1.0.1/24");
    cnm(&node, "CHECK", &c1).prev(&result).call().silent();
    cnm(&node, "DEL", &c1).call().silent();
    driver.assert_empty();
}

#[test]
fn a_driver_may_put_the_interface_into_the_container() {
    testkit::require!("root", "program:python3");
    let node = Node::new("cnm-placed");
    let driver = Driver::start(&node.lab, "weft");
    driver.misbehave(json!({ "NetworkDriver.Join": { "place": true } }));
    let c1 = node.container("c1");
    let result = cnm(&node, "ADD", &c1).call().ok();
    traffic::assert_pings(&c1, "10.1.0.1");
    cnm(&node, "CHECK", &c1).prev(&result).call().silent();
    cnm(&node, "DEL", &c1).call().silent();
    driver.assert_empty();
    assert!(!succeeds(&c1, "ip link show eth0"));
}

#[test]
fn drivers_are_found_as_docker_finds_them() {
    testkit::require!("root", "program:python3");
    let node = Node::new("cnm-found");
    let _driver = Driver::start_at(&node.lab, "/opt/weft.sock");
    let c1 = node.container("c1");
    node.sh("mkdir -p /etc/docker/plugins /usr/lib/docker/plugins 2>/dev/null || true");
    let spec = |path: &str, text: &str| {
        node.sh(&format!("mkdir -p $(dirname {path}) && printf '{text}' >{path}"));
    };
    spec("/etc/docker/plugins/one.spec", "unix:///opt/weft.sock\\n");
    spec("/etc/docker/plugins/two/two.json", "{\"Addr\":\"unix:///opt/weft.sock\"}");
    spec("/etc/docker/plugins/far.spec", "tcp://192.0.2.1:1");
    spec("/etc/docker/plugins/tls.spec", "https://192.0.2.1:1");
    for name in
        ["one", "two", "/opt/weft.sock", "unix:///opt/weft.sock", "/etc/docker/plugins/one.spec"]
    {
        let run = |verb: &str| node.run("cnm", verb).to(&c1).config(json!({ "driver": name }));
        run("STATUS").env(|env| env.container_id.clear()).call().silent();
        run("ADD").call().ok();
        run("DEL").call().silent();
    }
    for name in ["far", "tls"] {
        node.run("cnm", "ADD")
            .to(&c1)
            .config(json!({ "driver": name }))
            .call()
            .fails(111, "is not on this host");
    }
}

#[test]
fn attachments_of_one_network_agree() {
    testkit::require!("root", "program:python3");
    let node = Node::new("cnm-agree");
    let driver = Driver::start(&node.lab, "weft");
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    cnm(&node, "ADD", &c1).call().ok();
    let other = json!({ "options": { "vlan": "8" } });
    cnm(&node, "ADD", &c2)
        .config(other.clone())
        .call()
        .fails(108, "was made with another configuration");
    cnm(&node, "DEL", &c1).call().silent();
    cnm(&node, "ADD", &c2).config(other).call().ok();
    let network = driver.held()["networks"].as_object().unwrap().values().next().unwrap().clone();
    assert_eq!(network["options"]["com.docker.network.generic"]["vlan"], "8");
    cnm(&node, "DEL", &c2).call().silent();
    driver.assert_empty();
}

#[test]
fn what_somebody_changed_in_the_container_is_put_back() {
    testkit::require!("root", "program:python3");
    let node = Node::new("cnm-repair");
    let _driver = Driver::start(&node.lab, "weft");
    let c1 = node.container("c1");
    let result = cnm(&node, "ADD", &c1).call().ok();
    c1.sh("ip addr flush dev eth0 && ip link set eth0 down");
    cnm(&node, "CHECK", &c1).prev(&result).call().fails(104, "is down");
    cnm(&node, "CHECK", &c1).prev(&result).config(json!({ cni::REPAIR: true })).call().ok();
    cnm(&node, "CHECK", &c1).prev(&result).call().silent();
    traffic::assert_pings(&c1, "10.1.0.1");
}

#[test]
fn check_asks_the_driver() {
    testkit::require!("root", "program:python3");
    let node = Node::new("cnm-check");
    let driver = Driver::start(&node.lab, "weft");
    let c1 = node.container("c1");
    let result = cnm(&node, "ADD", &c1).call().ok();
    let check = || cnm(&node, "CHECK", &c1).prev(&result).call();
    check().silent();
    driver.misbehave(
        json!({ "NetworkDriver.EndpointOperInfo": { "reply": { "Err": "who is that?" } } }),
    );
    check().fails(104, "who is that?");
    driver.misbehave(json!({}));
    c1.sh("ip link set eth0 alias other");
    check().fails(104, "is not the one that ADD took");
    fs::remove_dir_all(node.roots.lib.join("cnm")).unwrap();
    check().fails(104, "nothing is written down");
}
