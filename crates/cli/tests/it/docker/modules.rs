//! The modules for which the driver makes the kernel look.

use std::sync::mpsc;
use std::thread;

use serde_json::json;
use testkit::{Lab, ModuleRequests, Place as _, require};

use super::journals::{address, create_endpoint, done, of_endpoint, release};
use super::support::{Driver, LAN, write_network};
use crate::system::install;

/// The calls that an engine sends for `network create`, `run --publish`, `rm` and `network rm`, and
/// what it does itself in between.
fn life(lab: &Lab, container: &str) {
    let (subnet, gateway) = ("10.71.0.0/24", "10.71.0.1/24");
    let asked = json!({
        "AddressSpace": "netwright", "Pool": subnet, "SubPool": "", "Options": {"conflist": "lan"},
    });
    let pool = done("IpamDriver.RequestPool", &asked)["PoolID"].as_str().unwrap().to_owned();
    let create = json!({
        "NetworkID": "one", "Options": {"com.docker.network.generic": {"conflist": "lan"}},
        "IPv4Data": [{"AddressSpace": "netwright", "Pool": subnet, "Gateway": gateway}],
        "IPv6Data": [],
    });
    done("NetworkDriver.CreateNetwork", &create);
    let held = address(&pool).unwrap();
    create_endpoint("one", "e1", &held).unwrap();
    let sandbox = lab.container(container);
    let endpoint = of_endpoint("one", "e1");
    let mut join = endpoint.clone();
    join["SandboxKey"] = json!(format!("/run/netns/{container}"));
    join["Options"] = json!({});
    let joined = done("NetworkDriver.Join", &join);
    let link = joined["InterfaceName"]["SrcName"].as_str().unwrap();
    lab.sh(&format!("ip link set {link} netns {container} name eth0"));
    sandbox.sh(&format!("ip addr add {held} dev eth0; ip link set eth0 up"));
    let mut ports = endpoint.clone();
    let port = json!({ "Proto": 6, "Port": 80, "HostPort": 8080, "HostPortEnd": 8080 });
    ports["Options"] = json!({ "com.docker.network.portmap": [port] });
    done("NetworkDriver.ProgramExternalConnectivity", &ports);
    done("NetworkDriver.EndpointOperInfo", &endpoint);
    done("NetworkDriver.RevokeExternalConnectivity", &endpoint);
    done("NetworkDriver.Leave", &endpoint);
    done("NetworkDriver.DeleteEndpoint", &endpoint);
    release(&pool, &held).unwrap();
    release(&pool, gateway).unwrap();
    done("IpamDriver.ReleasePool", &json!({ "PoolID": pool }));
    done("NetworkDriver.DeleteNetwork", &json!({ "NetworkID": "one" }));
}

/// Neither the driver's start nor any of its calls makes the kernel look for a module, once those
/// that the first network needs are loaded.
#[test]
fn vm_no_call_of_the_driver_asks_for_a_module() {
    require!("root", "full", "module-requests");
    let lab = Lab::with_processes("docker-modules");
    install(&lab);
    write_network(&lab, "lan", LAN);
    // The lab has a sysfs of its own.
    lab.sh("mount -t tracefs tracefs /sys/kernel/tracing");
    let asked = lab.enter(|| {
        let mut driver = Driver::start(&lab);
        life(&lab, "first");
        driver.kill();
        let requests = ModuleRequests::new();
        // Only the thread that starts the driver is followed. This thread does the engine's part.
        let (started, until_started) = mpsc::channel();
        let (ended, until_ended) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let driver = &mut driver;
            let followed = scope.spawn(move || {
                let run = || {
                    driver.again();
                    started.send(()).unwrap();
                    // An error says that the other thread is done.
                    let _ = until_ended.recv();
                };
                requests.during(run).1
            });
            until_started.recv().unwrap();
            life(&lab, "second");
            drop(ended);
            followed.join().unwrap()
        })
    });
    assert_eq!(asked, Vec::<String>::new(), "the driver has the kernel look for modules");
}
