//! Where nodes are learnt, and what the source says of this one.

use std::path::Path;

use agent::config::{self, RoutingSource};
use ipnet::IpNet;
use routing::cluster::{Event, NodeRecord};
use routing::settings::OwnNode;
use routing::{Routing, SourceNode, Todo};
use service_kit::bell::Bell;
use service_kit::stop::Stop;

use super::cluster_nodes::{ClusterNodes, NodeReport, NodesEvent};
use super::context::Context;
use super::etcd_leases::{EtcdLeases, LeasesEvent};
use super::host::Host;
use super::nodes::Nodes;
use super::own_lease::{self, Configuration};
use super::schedule::Due;

/// Where nodes are learnt.
#[derive(Debug)]
pub(super) enum Origin {
    File(Nodes),
    Kubernetes(ClusterNodes),
    Etcd(Box<EtcdLeases>),
}

/// What was heard of nodes.
#[derive(Debug)]
pub(super) enum SourceEvent {
    /// A list was read, or cannot be.
    List(Result<Vec<NodeRecord>, String>),
    Nodes(NodesEvent),
    Leases(LeasesEvent),
}

/// The source of nodes, and what it says.
#[derive(Debug)]
pub(super) struct NodeSource {
    pub(super) origin: Origin,
    /// This node.
    pub(super) own: Result<SourceNode, String>,
    /// The prefixes of all nodes.
    pub(super) prefixes: Vec<IpNet>,
}

impl NodeSource {
    /// Follows the source that the configuration names.
    pub(super) fn follow(
        config: &config::Routing,
        context: &Context,
        of_etcd: Option<Configuration>,
    ) -> Result<Self, Stop> {
        let origin = match (config.source.0, of_etcd) {
            (RoutingSource::Etcd, Some(Configuration { text, windows, .. })) => {
                let of_file = own_lease::prefixes_of_file(config);
                Origin::Etcd(Box::new(EtcdLeases::follow(config, text, windows, of_file)?))
            }
            (RoutingSource::Kubernetes, _) => {
                let kubeconfig = config.kubeconfig.clone();
                let nodes = ClusterNodes::follow(kubeconfig, &context.node, &context.settings)?;
                Origin::Kubernetes(nodes)
            }
            (RoutingSource::File | RoutingSource::Etcd, _) => {
                Origin::File(Nodes::new(config.nodes.as_deref().unwrap_or(Path::new(""))))
            }
        };
        let own = Err("the list of nodes has not been read yet".to_owned());
        Ok(NodeSource { origin, own, prefixes: Vec::new() })
    }

    /// Returns what becomes readable when something was heard; `None` if a look finds that.
    pub(super) fn bell(&self) -> Option<&Bell> {
        match &self.origin {
            Origin::File(_) => None,
            Origin::Kubernetes(nodes) => Some(nodes.bell()),
            Origin::Etcd(leases) => Some(leases.bell()),
        }
    }

    /// Returns what was heard since the last call. Each event is to be carried out before the next
    /// one is taken.
    pub(super) fn heard(&mut self, context: &Context) -> Vec<SourceEvent> {
        match &mut self.origin {
            Origin::File(nodes) => {
                nodes.look(&context.settings).map(SourceEvent::List).into_iter().collect()
            }
            Origin::Kubernetes(nodes) => {
                nodes.heard().into_iter().map(SourceEvent::Nodes).collect()
            }
            Origin::Etcd(leases) => leases.heard().into_iter().map(SourceEvent::Leases).collect(),
        }
    }

    /// Takes what was heard. Returns what follows for other nodes, and whether this node is another
    /// now, or the list is the first: then everything is to be looked at.
    pub(super) fn take(&mut self, context: &Context, heard: SourceEvent) -> (Todo, Due) {
        match heard {
            SourceEvent::List(read) => self.take_list(context, read),
            SourceEvent::Nodes(heard) => self.take_nodes(context, heard),
            SourceEvent::Leases(heard) => self.take_leases(context, heard),
        }
    }

    /// Takes a list of nodes. One that cannot be read changes nothing: the last one counts.
    fn take_list(
        &mut self,
        context: &Context,
        read: Result<Vec<NodeRecord>, String>,
    ) -> (Todo, Due) {
        let before = self.own.clone();
        let was_listed = context.routing().cluster().listed();
        let event = match read {
            Ok(nodes) => {
                context.health.needs("list of nodes", Ok(()));
                let readable = nodes.iter().filter_map(|node| node.node.as_ref().ok());
                self.prefixes = readable.flat_map(|node| node.prefixes.iter().copied()).collect();
                if let Origin::File(file) = &self.origin {
                    let path = file.path().display().to_string();
                    self.take_own(context, SourceNode::of_list(&nodes, &context.node, &path));
                }
                Event::Listed(nodes)
            }
            Err(why) => {
                tracing::error!(error = why, "the list of nodes is wrong; the last one is used");
                context.health.needs("list of nodes", Err(why));
                Event::Silent
            }
        };
        let todo = context.event(event);
        (todo, Due::look_if(!was_listed || self.own != before))
    }

    /// Takes what was heard of the cluster's Nodes.
    fn take_nodes(&mut self, context: &Context, heard: NodesEvent) -> (Todo, Due) {
        let before = self.own.clone();
        let was_listed = context.routing().cluster().listed();
        let of_cluster = |fields| SourceNode::of_cluster(fields, &context.node, &context.settings);
        let event = match heard {
            NodesEvent::Listed(nodes) => {
                let own = nodes.iter().find_map(|node| node.own.as_deref());
                self.take_own(context, of_cluster(own));
                self.prefixes = nodes.iter().flat_map(|node| &node.prefixes).copied().collect();
                Event::Listed(nodes.into_iter().map(|node| node.seen).collect())
            }
            NodesEvent::Changed(node) => {
                let NodeReport { prefixes, seen, own } = *node;
                add_new(&mut self.prefixes, &prefixes);
                if let Some(fields) = own {
                    self.take_own(context, of_cluster(Some(&fields)));
                }
                Event::Changed(seen)
            }
            NodesEvent::Deleted(name) => {
                if name == context.node {
                    self.take_own(context, of_cluster(None));
                }
                Event::Deleted(name)
            }
            NodesEvent::Silent(why) => {
                context.health.needs("API server", Err(why));
                return (context.event(Event::Silent), Due::default());
            }
            NodesEvent::Answers => Event::Answers,
            NodesEvent::Written(done) => {
                context.health.needs("Node of this node", done);
                return (Todo::default(), Due::default());
            }
        };
        context.health.needs("API server", Ok(()));
        let todo = context.event(event);
        let routing = context.routing();
        let is_first = !was_listed && routing.cluster().listed();
        let mut due = Due::look_if(self.own != before || is_first);
        if routing.has_earlier() {
            // Another node may have been given what is kept here.
            due |= Due::LOOK;
        }
        (todo, due)
    }

    /// Takes what the source says of this node. If it says nothing, what is programmed stays.
    fn take_own(&mut self, context: &Context, own: Result<SourceNode, String>) {
        if let Err(why) = &own {
            // This comes before the list counts: a list that lacks this node may lack other nodes
            // too.
            context.wait_for(why);
        }
        self.own = own;
    }

    /// Publishes what this node is, where others read it.
    pub(super) fn publish(&self, routing: &Routing, own: &OwnNode) {
        // What the disk has of this node lacks what its Node says of it.
        if let Origin::Kubernetes(nodes) = &self.origin
            && routing.cluster().listed()
        {
            nodes.annotate(routing.annotations(own, self.own.as_ref().ok()));
        }
    }

    /// Says in this node's Node whether its pods have a network.
    pub(super) fn publish_condition(&self, context: &Context) {
        if let Origin::Kubernetes(nodes) = &self.origin
            && let Some(condition) = context.routing().condition(context.clock.now())
        {
            nodes.set_condition(condition);
        }
    }

    /// Reports whether the nodes are a cluster of Kubernetes.
    pub(super) fn is_kubernetes(&self) -> bool {
        matches!(self.origin, Origin::Kubernetes(_))
    }
}

/// Finds out what this node is, if its source says this.
pub(super) fn identify(
    context: &Context,
    source: &SourceNode,
    host: &Host,
) -> Result<OwnNode, String> {
    let facts = host.facts(source);
    context.routing().identify(source, &facts)
}

/// Adds the prefixes of a node: a node changes all the time, and its prefixes do not.
pub(super) fn add_new(known: &mut Vec<IpNet>, prefixes: &[IpNet]) {
    for prefix in prefixes {
        if !known.contains(prefix) {
            known.push(*prefix);
        }
    }
}
