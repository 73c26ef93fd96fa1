//! Annotations of pods, definitions, and the messages of the multi-network socket.

use std::collections::BTreeMap;

use netwright_node_api::Message;
use netwright_node_api::multinet::{Answer, Request};
use netwright_npwg::annotation::{self, PodRequest};
use netwright_npwg::definition::Definition;
use netwright_npwg::{Selection, device};

/// Annotations in every form, definitions, and device information: what is accepted keeps its
/// meaning.
pub fn annotations(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(read) = annotation::parse(text, "ns") {
        assert!(read.len() <= annotation::MAX_NETWORKS);
        let routed = |network: &&Selection| network.default_route.is_some();
        assert!(read.iter().filter(routed).count() <= 1);
        assert!(
            read.iter().all(|network| !network.namespace.is_empty() && !network.name.is_empty())
        );
        let asked: Vec<_> = read.iter().map(|network| network.interface.clone()).collect();
        if annotation::refuse_conflicts(&read, "eth0").is_ok() {
            let names = annotation::interface_names(&asked, |name| name == "eth0");
            let different: std::collections::BTreeSet<_> = names.iter().collect();
            assert_eq!(different.len(), read.len());
        }
        for network in &read {
            let _ = (network.runtime_config(), network.args());
        }
    }
    let keys = [annotation::NETWORKS, annotation::DEFAULT_NETWORK, "networks"];
    for key in keys {
        let annotations = BTreeMap::from([(key.to_owned(), text.to_owned())]);
        if let Err(error) = PodRequest::read(&annotations, "ns", "kube-system", "eth0") {
            assert!(!error.to_string().is_empty());
        }
    }
    match Definition::of("net", Some(text), &netwright_plugins::netwright_multi::is_called_by) {
        Ok(Definition::Here(list)) => {
            let list = netwright_cni::NetworkList::parse(&list.to_vec());
            assert!(!list.expect("what was accepted is a list").plugins.is_empty());
        }
        Ok(Definition::OnNode(_)) => assert!(text.trim().is_empty()),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Ok(info) = device::read(data) {
        assert!(device::read(&info.to_vec()).is_ok());
    }
}

/// Messages between the plugin and the daemon: writing and reading one gives the same message, on
/// one line.
pub fn messages(data: &[u8]) {
    if let Ok(request) = Request::from_line(data) {
        let line = request.to_line().expect("it fitted before");
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        let again = Request::from_line(&line).expect("what we write we read");
        assert_eq!(again.to_line().expect("it fitted"), line);
    }
    if let Ok(answer) = Answer::from_line(data) {
        let line = answer.to_line().expect("it fitted before");
        let again = Answer::from_line(&line).expect("what we write we read");
        assert_eq!(again.to_line().expect("it fitted"), line);
    }
}
