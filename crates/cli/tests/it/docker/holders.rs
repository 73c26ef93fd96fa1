//! Which network holds a pool: the calls of engines that create several networks at once, in the
//! order in which libnetwork sends them.

use std::sync::Barrier;
use std::thread;

use serde_json::{Value, json};
use testkit::{Container, Lab, Place as _, require};

use super::journals::{address, call, create_endpoint, done, of_endpoint, release};
use super::life::needs_docker;
use super::support::{Driver, LAN, write_network};
use crate::system::{NETWRIGHT, install};
use testkit::real::{Docker, Engine};
use testkit::traffic::assert_pings;

const SUBNET: &str = "10.71.0.0/24";
const GATEWAY: &str = "10.71.0.1/24";

/// Requests the pool of the list `lan`.
fn list_pool(pool: &str, part: &str) -> Result<String, String> {
    let asked = json!({
        "AddressSpace": "netwright", "Pool": pool, "SubPool": part, "Options": {"conflist": "lan"},
    });
    Ok(call("IpamDriver.RequestPool", &asked)?["PoolID"].as_str().unwrap().to_owned())
}

fn own_pool(pool: &str) -> Result<String, String> {
    let asked = json!({ "AddressSpace": "netwright", "Pool": pool });
    Ok(call("IpamDriver.RequestPool", &asked)?["PoolID"].as_str().unwrap().to_owned())
}

fn create(id: &str, generic: &Value, pool: &str, gateway: &str) -> Result<Value, String> {
    let asked = json!({
        "NetworkID": id, "Options": {"com.docker.network.generic": generic},
        "IPv4Data": [{"AddressSpace": "netwright", "Pool": pool, "Gateway": gateway}], "IPv6Data": [],
    });
    call("NetworkDriver.CreateNetwork", &asked)
}

/// The call that libnetwork sends when it removes a network, or when its creation failed.
fn give_back(pool: &str) {
    release(pool, GATEWAY).unwrap();
    done("IpamDriver.ReleasePool", &json!({ "PoolID": pool }));
}

fn asks_for(pool: &str, address: &str) -> Result<Value, String> {
    call("IpamDriver.RequestAddress", &json!({ "PoolID": pool, "Address": address }))
}

fn on_lan() -> Value {
    json!({"conflist": "lan"})
}

fn with_driver(name: &str, test: impl FnOnce(&Lab, &mut Driver<'_>) + Send) {
    let lab = Lab::with_processes(name);
    install(&lab);
    write_network(&lab, "lan", LAN);
    lab.enter(|| test(&lab, &mut Driver::start(&lab)));
}

#[test]
fn a_create_that_is_refused_takes_nothing_from_the_networks_of_its_list() {
    require!("root");
    with_driver("docker-holders", |lab, driver| {
        let first = list_pool(SUBNET, "10.71.0.128/25").unwrap();
        create("first", &on_lan(), SUBNET, GATEWAY).unwrap();
        let held = address(&first).unwrap();
        create_endpoint("first", "e1", &held).unwrap();

        let second = list_pool(SUBNET, "").unwrap();
        let said = create("second", &json!({"conflist": "lan", "mtuu": "1"}), SUBNET, GATEWAY);
        assert!(said.unwrap_err().contains("unknown option \"mtuu\""));
        give_back(&second);

        // The first network keeps working, also after a restart of the driver.
        for again in [false, true] {
            if again {
                driver.kill();
                driver.again();
            }
            let next = address(&first).unwrap();
            assert!(next != held && next.starts_with("10.71.0.1"), "{next}: not of its range");
            let said = asks_for(&first, "10.71.0.1").unwrap_err();
            assert!(said.contains("the gateway has it"), "{said}");
            let said = asks_for(&first, held.split('/').next().unwrap()).unwrap_err();
            assert!(said.contains("a container has it"), "{said}");
            release(&first, &next).unwrap();
        }
        // Releasing a pool twice, or one that was never assigned, is not an error.
        give_back(&second);
        for unknown in ["lan.10.99.0.0-24", "nothing at all", "", "../../x"] {
            give_back(unknown);
        }
        assert!(address(&second).unwrap_err().contains("is not known"));

        done("NetworkDriver.DeleteEndpoint", &of_endpoint("first", "e1"));
        release(&first, &held).unwrap();
        give_back(&first);
        done("NetworkDriver.DeleteNetwork", &json!({"NetworkID": "first"}));
        let left = lab.sh("ls /var/lib/netwright/docker/*/ | grep -v : || true");
        assert_eq!(left.trim(), "");
    });
}

/// Two networks on one list are made and removed in any order.
#[test]
fn networks_on_one_list_give_back_their_own() {
    require!("root");
    with_driver("docker-several", |lab, _| {
        let pools = ["one", "two", "three"].map(|name| {
            let pool = list_pool(SUBNET, "").unwrap();
            (name, pool)
        });
        for (name, _) in pools.iter().rev() {
            create(name, &on_lan(), SUBNET, GATEWAY).unwrap();
        }
        for (number, (name, pool)) in pools.iter().enumerate() {
            give_back(pool);
            done("NetworkDriver.DeleteNetwork", &json!({"NetworkID": name}));
            let left = lab.sh("ls /var/lib/netwright/docker/networks");
            assert_eq!(left.lines().count(), 2 - number, "{left}");
            for (_, pool) in &pools[number + 1..] {
                let given = address(pool).unwrap();
                release(pool, &given).unwrap();
            }
        }
        let left = lab.sh("ls /var/lib/netwright/docker/*/ | grep -v : || true");
        assert_eq!(left.trim(), "");
    });
}

/// A pool of the driver's own that overlaps a list's does not mean that the list's network is gone.
#[test]
fn a_network_of_options_does_not_remove_one_of_a_list() {
    require!("root");
    with_driver("docker-beside", |lab, _| {
        let first = list_pool(SUBNET, "").unwrap();
        create("first", &on_lan(), SUBNET, GATEWAY).unwrap();
        let held = address(&first).unwrap();
        create_endpoint("first", "e1", &held).unwrap();
        let second = own_pool(SUBNET).unwrap();
        let said = create("second", &json!({"bridge": "second0"}), SUBNET, GATEWAY).unwrap_err();
        assert!(said.contains("overlaps 10.71.0.0/24 of network first"), "{said}");
        give_back(&second);
        let left = lab.sh("cd /var/lib/netwright/docker && ls networks endpoints | grep json");
        assert_eq!(left.split_whitespace().collect::<Vec<_>>(), ["e1.json", "first.json"]);
        done("NetworkDriver.DeleteEndpoint", &of_endpoint("first", "e1"));
    });
}

/// The subnet decides what a host can have, not the part of it that `--ip-range` names.
#[test]
fn no_address_is_given_that_no_host_can_have() {
    require!("root");
    with_driver("docker-hosts", |_, _| {
        let pool = |subnet: &str, part: &str| {
            let asked = json!({ "AddressSpace": "netwright", "Pool": subnet, "SubPool": part });
            let pool = call("IpamDriver.RequestPool", &asked)?;
            Ok::<_, String>(pool["PoolID"].as_str().unwrap().to_owned())
        };
        for (subnet, part, addresses) in [
            ("10.81.0.0/24", "10.81.0.254/31", &["10.81.0.254/24"][..]),
            ("10.82.0.0/24", "10.82.0.0/30", &["10.82.0.1/24", "10.82.0.2/24", "10.82.0.3/24"]),
            ("10.84.0.0/30", "", &["10.84.0.1/30", "10.84.0.2/30"]),
            ("10.85.0.0/31", "", &["10.85.0.0/31", "10.85.0.1/31"]),
            ("10.86.0.5/32", "", &["10.86.0.5/32"]),
            ("fd86::/64", "fd86::/126", &["fd86::1/64", "fd86::2/64", "fd86::3/64"]),
            ("fd88::/127", "", &["fd88::/127", "fd88::1/127"]),
        ] {
            let pool = pool(subnet, part).unwrap();
            let given: Vec<String> = (0..8).map_while(|_| address(&pool).ok()).collect();
            assert_eq!(given, addresses, "{part} of {subnet}");
        }
        for (subnet, wanted, what) in [
            ("10.87.0.0/24", "10.87.0.255", "the broadcast address of 10.87.0.0/24"),
            ("10.88.0.0/24", "10.88.0.0", "the network address of 10.88.0.0/24"),
            ("fd87::/64", "fd87::", "the address of the routers of fd87::/64"),
        ] {
            let pool = pool(subnet, "").unwrap();
            let gateway = json!({ "RequestAddressType": "com.docker.network.gateway" });
            for options in [json!({}), gateway] {
                let asked = json!({ "PoolID": pool, "Address": wanted, "Options": options });
                let said = call("IpamDriver.RequestAddress", &asked).unwrap_err();
                assert!(said.contains(&format!("address {wanted} is {what}")), "{said}");
            }
        }
        for (subnet, what) in [
            ("224.0.1.0/24", "multicast addresses"),
            ("ff03::/64", "multicast addresses"),
            ("127.0.0.0/24", "loopback addresses"),
            ("0.0.0.0/8", "addresses of 0.0.0.0/8"),
        ] {
            let said = pool(subnet, "").unwrap_err();
            assert!(said.contains(&format!("{subnet} has {what}")), "{said}");
        }
    });
}

/// A network on which no container could be started is not made.
#[test]
fn a_network_that_could_attach_nobody_is_not_made() {
    require!("root");
    with_driver("docker-nobody", |_, _| {
        for (generic, words) in [
            (json!({"type": "loopback"}), "plugin \"loopback\" makes no interface"),
            (json!({"type": "portmap"}), "portmap"),
            (json!({"type": "macvlan", "master": "nosuch0"}), "\"nosuch0\": Link not found"),
            (json!({"type": "ipvlan", "master": "nosuch0"}), "\"nosuch0\": Link not found"),
            (json!({"type": "host-device", "device": "nosuch0"}), "nosuch0"),
            (json!({"vrf": "nosuch0"}), "nosuch0"),
        ] {
            let said = create("4711", &generic, SUBNET, GATEWAY).unwrap_err();
            assert!(said.contains(words), "{generic}: {said}");
        }
        create("4711", &json!({}), SUBNET, GATEWAY).unwrap();
    });
}

/// Two networks with one subnet are created at overlapping times: one of them is made, and stays.
#[test]
fn of_two_that_ask_for_one_subnet_one_gets_it() {
    require!("root");
    with_driver("docker-twins", |_, _| {
        let subnet = "10.72.0.0/24";
        let gateway = json!({"RequestAddressType": "com.docker.network.gateway"});
        let first = own_pool(subnet).unwrap();
        let second = own_pool(subnet).unwrap();
        let asked = |pool: &str| {
            let body = json!({"PoolID": pool, "Address": "", "Options": gateway});
            call("IpamDriver.RequestAddress", &body)
        };
        let [one, two] = [asked(&first), asked(&second)];
        assert!(one.unwrap_err().contains("is not known"));
        assert_eq!(two.unwrap()["Address"], "10.72.0.1/24");
        create("two", &json!({"bridge": "two0"}), subnet, "10.72.0.1/24").unwrap();
        give_back(&first);
        let held = address(&second).unwrap();
        create_endpoint("two", "e2", &held).unwrap();
        done("NetworkDriver.DeleteEndpoint", &of_endpoint("two", "e2"));
        assert!(own_pool(subnet).unwrap_err().contains("which is in use"));

        // Two networks of one name at once: the removal of one would remove everything of the
        // other.
        for round in 0..10 {
            let ids = [format!("a{round}"), format!("b{round}")];
            let pools =
                [format!("10.73.{}.0/24", 2 * round), format!("10.73.{}.0/24", 2 * round + 1)];
            let barrier = Barrier::new(2);
            let made = thread::scope(|scope| {
                let makers: Vec<_> = ids
                    .iter()
                    .zip(&pools)
                    .map(|(id, pool)| {
                        let barrier = &barrier;
                        scope.spawn(move || {
                            own_pool(pool).unwrap();
                            let options = json!({"name": "twin", "bridge": format!("{id}0")});
                            barrier.wait();
                            create(id, &options, pool, &pool.replace(".0/", ".1/")).is_ok()
                        })
                    })
                    .collect();
                makers.into_iter().map(|maker| maker.join().unwrap()).collect::<Vec<_>>()
            });
            assert_eq!(made.iter().filter(|made| **made).count(), 1, "round {round}: {made:?}");
            for id in &ids {
                done("NetworkDriver.DeleteNetwork", &json!({ "NetworkID": id }));
            }
        }
    });
}

/// If the driver assigns a subnet that the host has, the engine requests another, for ever, and
/// keeps all of them.
#[test]
fn a_lists_subnet_that_docker_would_not_take_is_refused_unless_it_is_asked_for() {
    require!("root");
    with_driver("docker-again", |lab, _| {
        let give = "create the network with --subnet 10.71.0.0/24";
        // No subnet of the host overlaps it.
        let free = list_pool("", "").unwrap();
        give_back(&free);
        for (meets, parts) in [
            (
                "ip link add lan0 type bridge; ip link set lan0 up; ip addr add 10.71.0.1/24 dev lan0",
                "ip link del lan0",
            ),
            ("ip route add blackhole 10.71.0.192/26", "ip route del blackhole 10.71.0.192/26"),
            ("ip route add blackhole 10.0.0.0/8", "ip route del blackhole 10.0.0.0/8"),
            ("echo nameserver 10.71.0.53 >/etc/resolv.conf", "rm /etc/resolv.conf"),
        ] {
            lab.sh(meets);
            let said = list_pool("", "").unwrap_err();
            assert!(said.contains(give), "{meets}: {said}");
            let asked_for = list_pool(SUBNET, "").unwrap();
            give_back(&asked_for);
            lab.sh(parts);
        }
        // Whatever reason an engine has to refuse, the requests end.
        let mut given = Vec::new();
        let said = loop {
            match list_pool("", "") {
                Ok(pool) => given.push(pool),
                Err(said) => break said,
            }
            assert!(given.len() < 100, "it is given for ever");
        };
        assert!(said.contains(give), "{said}");
        for pool in &given {
            done("IpamDriver.ReleasePool", &json!({ "PoolID": pool }));
        }
        assert!(list_pool("", "").is_ok(), "free again");
    });
}

/// A call of an engine, which is a process of its own.
fn engine(lab: &Lab, name: &str, body: &Value) -> String {
    let script = "import http.client, socket, sys\n\
        c = http.client.HTTPConnection('driver')\n\
        c.sock = socket.socket(socket.AF_UNIX)\n\
        c.sock.connect(sys.argv[1])\n\
        c.request('POST', '/' + sys.argv[2], sys.argv[3])\n\
        print(c.getresponse().read().decode())";
    let mut command = lab.command("python3");
    command.args(["-c", script, super::support::SOCKET, name, &body.to_string()]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// An engine joins the endpoint `e1` of the network `one`, whose sandbox has this path, and puts
/// the interface into a container.
fn start_container(lab: &Lab, sandbox: &str, address: &str) -> Container {
    let mut join = of_endpoint("one", "e1");
    join["SandboxKey"] = json!(sandbox);
    let joined: Value = serde_json::from_str(&engine(lab, "NetworkDriver.Join", &join)).unwrap();
    let link = joined["InterfaceName"]["SrcName"].as_str().unwrap();
    let container = lab.container("c1");
    lab.sh(&format!("ip link set {link} netns c1 name eth0"));
    container.sh(&format!("ip addr add {address} dev eth0 && ip link set eth0 up"));
    container
}

/// A killed engine reports nothing of the containers it has lost. The next engine gets their
/// addresses nevertheless, if the driver sees that their namespaces are gone.
#[test]
fn an_address_of_a_container_that_an_engine_lost_is_free_for_the_next() {
    require!("root", "program:python3");
    with_driver("docker-lost-address", |lab, _| {
        let subnet = "10.72.0.0/24";
        let pool = own_pool(subnet).unwrap();
        create("one", &json!({"bridge": "one0"}), subnet, "10.72.0.1/24").unwrap();
        asks_for(&pool, "10.72.0.9").unwrap();
        create_endpoint("one", "e1", "10.72.0.9/24").unwrap();
        lab.sh("mkdir /run/sandboxes; touch /run/sandboxes/s1");
        let mut join = of_endpoint("one", "e1");
        join["SandboxKey"] = json!("/run/sandboxes/s1");
        let said = engine(lab, "NetworkDriver.Join", &join);
        assert!(said.contains("InterfaceName"), "{said}");
        // The driver does not believe a caller whose process it cannot see.
        let said = asks_for(&pool, "10.72.0.9").unwrap_err();
        assert!(said.contains("a container has it"), "{said}");
        // Nor does it release an address whose container lives.
        let c1 = lab.container("c1");
        lab.sh("mount --bind /run/netns/c1 /run/sandboxes/s1");
        let wanted = json!({"PoolID": pool, "Address": "10.72.0.9"});
        let said = engine(lab, "IpamDriver.RequestAddress", &wanted);
        assert!(said.contains("a container has it"), "{said}");
        lab.sh("umount --lazy /run/sandboxes/s1");
        drop(c1);
        let said = engine(lab, "IpamDriver.RequestAddress", &wanted);
        assert!(said.contains("10.72.0.9/24"), "{said}");
        create_endpoint("one", "e2", "10.72.0.9/24").unwrap();
        let left = lab.sh("cd /var/lib/netwright/docker && ls endpoints");
        assert_eq!(left.trim(), "e2.json");
        done("NetworkDriver.DeleteEndpoint", &of_endpoint("one", "e2"));
    });
}

/// With `live-restore` a container outlives its engine. If some other program has removed the path
/// of its namespace meanwhile, its address and its published port are not given to another.
#[test]
fn a_container_that_lost_only_its_path_keeps_its_address_and_its_port() {
    require!("root", "program:python3");
    with_driver("docker-lost-path", |lab, _| {
        let subnet = "10.72.0.0/24";
        let pool = own_pool(subnet).unwrap();
        create("one", &json!({"bridge": "one0"}), subnet, "10.72.0.1/24").unwrap();
        for (id, address) in [("e1", "10.72.0.9"), ("e2", "10.72.0.10")] {
            asks_for(&pool, address).unwrap();
            create_endpoint("one", id, &format!("{address}/24")).unwrap();
        }
        lab.sh("mkdir /run/sandboxes");
        let c1 = start_container(lab, "/run/sandboxes/s1", "10.72.0.9/24");
        let publish = |id: &str| {
            let mut asked = of_endpoint("one", id);
            let port = json!({"Proto": 6, "Port": 80, "HostPort": 8080, "HostPortEnd": 8080});
            asked["Options"] = json!({"com.docker.network.portmap": [port]});
            engine(lab, "NetworkDriver.ProgramExternalConnectivity", &asked)
        };
        assert_eq!(publish("e1").trim(), "{}");
        let wanted = json!({"PoolID": pool, "Address": "10.72.0.9"});
        let said = engine(lab, "IpamDriver.RequestAddress", &wanted);
        assert!(said.contains("a container has it"), "{said}");
        let mut join = of_endpoint("one", "e2");
        join["SandboxKey"] = json!("/run/sandboxes/s2");
        let said = engine(lab, "NetworkDriver.Join", &join);
        assert!(said.contains("InterfaceName"), "{said}");
        let said = publish("e2");
        assert!(said.contains("8080"), "{said}");
        let left = lab.sh("cd /var/lib/netwright/docker && ls endpoints");
        assert_eq!(left.split_whitespace().collect::<Vec<_>>(), ["e1.json", "e2.json"]);
        assert_pings(&c1, "10.72.0.1");
        drop(c1);
        assert_eq!(publish("e2").trim(), "{}");
        let left = lab.sh("cd /var/lib/netwright/docker && ls endpoints");
        assert_eq!(left.trim(), "e2.json");
        done("NetworkDriver.DeleteEndpoint", &of_endpoint("one", "e2"));
    });
}

/// Two engines share the driver. Neither knows which subnets the other's IPAM has given.
#[test]
fn a_network_with_another_engines_containers_is_not_replaced() {
    require!("root", "program:python3");
    with_driver("docker-two-engines", |lab, _| {
        let create = |id: &str| {
            let asked = json!({
                "NetworkID": id,
                "Options": {"com.docker.network.generic": {"bridge": format!("{id}0")}},
                "IPv4Data": [{
                    "AddressSpace": "LocalDefault", "Pool": "10.72.0.0/24", "Gateway": "10.72.0.1/24",
                }],
                "IPv6Data": [],
            });
            engine(lab, "NetworkDriver.CreateNetwork", &asked)
        };
        assert_eq!(create("one").trim(), "{}");
        create_endpoint("one", "e1", "10.72.0.9/24").unwrap();
        let refused = || {
            let said = create("two");
            assert!(said.contains("overlaps 10.72.0.0/24 of network one"), "{said}");
            let left = lab.sh("cd /var/lib/netwright/docker && ls networks endpoints | grep json");
            assert_eq!(left.split_whitespace().collect::<Vec<_>>(), ["e1.json", "one.json"]);
        };
        // A container is starting, and then runs.
        refused();
        let c1 = start_container(lab, "/run/netns/c1", "10.72.0.9/24");
        refused();
        assert_pings(&c1, "10.72.0.1");
        // The engine has lost the container and forgotten the network.
        drop(c1);
        assert_eq!(create("two").trim(), "{}");
        let left = lab.sh("cd /var/lib/netwright/docker && ls networks endpoints | grep json");
        assert_eq!(left.trim(), "two.json");
    });
}

/// A list that came to the node after Docker's network, and has its name, keeps its containers when
/// Docker removes the network.
#[test]
fn a_removed_network_takes_no_container_from_a_list_of_its_name() {
    require!("root");
    with_driver("docker-namesake", |lab, _| {
        own_pool("10.72.0.0/24").unwrap();
        let options = json!({"name": "lan", "bridge": "one0"});
        lab.sh("mv /etc/cni/net.d/lan.conflist /run/");
        create("one", &options, "10.72.0.0/24", "10.72.0.1/24").unwrap();
        create_endpoint("one", "e1", "10.72.0.9/24").unwrap();
        lab.sh("mv /run/lan.conflist /etc/cni/net.d/");
        let c1 = lab.container("c1");
        lab.sh(&format!("{NETWRIGHT} add lan c1 --publish 8080:80"));
        done("NetworkDriver.DeleteNetwork", &json!({"NetworkID": "one"}));
        lab.sh(&format!("{NETWRIGHT} check lan c1"));
        assert_pings(&c1, "10.71.0.1");
        let left = lab.sh("ls /var/lib/netwright/docker/*/ | grep json || true");
        assert_eq!(left.trim(), "");
    });
}

/// The same with an engine: the second network is refused, the error says what to do, and the first
/// keeps working.
#[test]
fn a_refused_network_is_the_only_one_that_is_not_there() {
    needs_docker!();
    refused(Engine::Installed);
}

pub(super) fn refused(engine: Engine) {
    let lab = Lab::with_processes("docker-refused");
    install(&lab);
    write_network(&lab, "lan", LAN);
    let driver = Driver::start(&lab);
    let docker = Docker::of(&lab, engine, &[]);
    let list = ["--ipam-driver", "netwright", "--ipam-opt", "conflist=lan"];
    docker.create_network(&format!("--opt conflist=lan {} --subnet {SUBNET} lan", list.join(" ")));
    let one = docker.start_container("one", &["--network", "lan", "--ip", "10.71.0.9"]);
    let create = |options: &[&str]| {
        let head = ["network", "create", "--driver", "netwright", "--opt", "conflist=lan"];
        docker.refused(&[&head[..], &list, options, &["again"]].concat())
    };
    let said = create(&["--subnet", SUBNET, "--opt", "mtuu=1400"]);
    assert!(said.contains("unknown option \"mtuu\""), "{said}");
    // The bridge is up: the engine would not choose a subnet that the host has, and would request
    // another for ever.
    let said = create(&[]);
    assert!(said.contains("create the network with --subnet 10.71.0.0/24"), "{said}");
    let asked = driver.log().matches("call=IpamDriver.RequestPool").count();
    assert!(asked < 9, "{asked} times:\n{}", driver.log());
    let two = docker.start_container("two", &["--network", "lan"]);
    assert_pings(&two, "10.71.0.9");
    let run = ["run", "--rm", "--network", "lan", "--ip", "10.71.0.9", Docker::IMAGE, "true"];
    let said = docker.refused(&run);
    assert!(said.contains("10.71.0.9 is taken"), "{said}");
    drop((one, two));
    docker.remove(&["one", "two"]);
    docker.run(&["container", "prune", "--force"]);
    docker.run(&["network", "rm", "lan"]);
    let left = lab.sh("ls /var/lib/netwright/docker/*/ | grep -v : || true");
    assert_eq!(left.trim(), "");
    drop(driver);
}
