//! The network configuration.

use expect_test::expect;
use netwright_routing::render::{AttachMode, NetworkConfig, Policy, conflist};
use serde_json::{Value, json};

use crate::support::net;

#[test]
fn pods_get_addresses_of_the_nodes_prefixes() {
    let config = NetworkConfig {
        name: "pods".to_owned(),
        attach: AttachMode::Bridge("nw0".to_owned()),
        prefixes: vec![net("10.244.1.0/24"), net("fd00:244:0:1::/64")],
        mtu: 1450,
        policy: None,
    };
    expect![[r#"
        {
          "cniVersion": "1.0.0",
          "cniVersions": [
            "1.0.0",
            "1.1.0"
          ],
          "name": "pods",
          "plugins": [
            {
              "bridge": "nw0",
              "hairpinMode": true,
              "ipMasq": false,
              "ipam": {
                "ranges": [
                  [
                    {
                      "subnet": "10.244.1.0/24"
                    }
                  ],
                  [
                    {
                      "subnet": "fd00:244:0:1::/64"
                    }
                  ]
                ],
                "routes": [
                  {
                    "dst": "0.0.0.0/0"
                  },
                  {
                    "dst": "::/0"
                  }
                ],
                "type": "host-local"
              },
              "isGateway": true,
              "mtu": 1450,
              "type": "bridge"
            },
            {
              "capabilities": {
                "portMappings": true
              },
              "type": "portmap"
            }
          ]
        }
    "#]]
    .assert_eq(&conflist(&config));
    let text = conflist(&NetworkConfig { attach: AttachMode::Ptp, ..config.clone() });
    assert!(text.contains("\"type\": \"ptp\""), "{text}");
    assert!(!text.contains("isGateway"), "{text}");
    // Network policy is the last but one in the chain, so that the plugin that publishes ports
    // leads to a closed container.
    for (socket, shown) in [
        (None, json!({ "type": "policy" })),
        (Some("/run/p.sock".into()), json!({ "type": "policy", "socketpath": "/run/p.sock" })),
    ] {
        let text = conflist(&NetworkConfig { policy: Some(Policy { socket }), ..config.clone() });
        let list: Value = serde_json::from_str(&text).unwrap();
        let types: Vec<&str> = list["plugins"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|one| one["type"].as_str())
            .collect();
        assert_eq!(types, ["bridge", "policy", "portmap"]);
        assert_eq!(list["plugins"][1], shown);
    }
}
