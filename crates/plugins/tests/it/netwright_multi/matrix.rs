//! `netwright-multi` in the table plugin × verb × address family.

use node_api::Refusal;
use node_api::multinet::{Answer, Request};
use serde_json::json;
use testkit::Place;

use crate::support::matrix::{self, Subject};
use crate::support::multinet::Daemon;

const SUBJECT: Subject = Subject {
    plugin: "netwright-multi",
    host: |node, _| Daemon::start(node, |_| Answer::Ok.into()).forget(),
    config: |node, _, family| {
        json!({ "delegates": [
            { "name": "cluster", "type": "bridge", "bridge": "first", "isGateway": true, "ipMasq": true,
              "ipam": matrix::ipam(node, family) },
        ] })
    },
    holds: |node, c1, _| {
        let port = "ip link show master first | grep -q netwright:";
        node.lab.try_sh(port).status.success()
            && c1.try_sh("ip link show dev eth0 up").status.success()
    },
    damage: |_, c1, _| {
        c1.sh("ip link set eth0 down");
    },
    unready: Some(|node, family| {
        let refuses = |request: &Request| match request {
            Request::Status => {
                Answer::Refused(Refusal::for_now("the API server does not answer")).into()
            }
            _ => Answer::Ok.into(),
        };
        Daemon::start(node, refuses).forget();
        json!({ "delegates": [
            { "name": "cluster", "type": "bridge", "ipam": matrix::ipam(node, family) },
        ] })
    }),
};
matrix::tests!(SUBJECT, modules: full);
