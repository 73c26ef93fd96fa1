//! The world that files describe, for a user who asks without a cluster.
//!
//! Files of a repository have no addresses, and seldom pods: a workload counts as one pod of its
//! template, and made-up addresses stand for those that the pods will have.

use std::collections::{BTreeMap, BTreeSet};

use policy::isolation::Isolation;
use policy::labels::Labels;
use policy::multi_policy::MultiPolicy;
use policy::object::{self, Uid};
use policy::{Change, Namespace, Networks, Pod, PolicyId, World};
use serde_json::{Value, json};

use super::further::FurtherNetworks;
use super::kinds::{Kind, Object};
use super::objects::ObjectFile;
use super::said::{IgnoredObjects, ObjectClass, said};

/// What files describe.
#[derive(Debug)]
pub(crate) struct FileWorld {
    pub(crate) world: World,
    /// The further networks that policies are for.
    pub(crate) networks: Networks,
    /// What a reader should know of it, in sentences.
    pub(crate) notes: Vec<String>,
    /// What is wrong with objects, with their places. What holds instead is in the world.
    pub(crate) faults: Vec<String>,
}

/// Makes the world of files.
///
/// # Errors
/// Something cannot be read, so it is not known what would hold: sentences.
pub(crate) fn world(
    files: Vec<ObjectFile>,
    isolation: Option<Isolation>,
) -> Result<FileWorld, Vec<String>> {
    let mut maker = Maker::default();
    for file in files {
        let path = cni::text::one_line(file.path.display());
        let objects = match file.objects {
            Ok(objects) => objects,
            Err(why) => {
                maker.unreadable.push(format!("{path}: {why}"));
                continue;
            }
        };
        for (object, place) in objects.into_iter().zip(file.places) {
            maker.add(&object, &format!("{path}: {place}"));
        }
    }
    if !maker.unreadable.is_empty() {
        return Err(maker.unreadable);
    }
    Ok(maker.finish(isolation))
}

#[derive(Debug, Default)]
struct Maker {
    changes: Vec<Change>,
    multi: Vec<MultiPolicy>,
    /// What pods say of further networks.
    further: BTreeMap<Uid, FurtherNetworks>,
    /// Kind and name of each object, with its place.
    seen: BTreeMap<String, String>,
    passed_over: IgnoredObjects,
    notes: Vec<String>,
    faults: Vec<String>,
    unreadable: Vec<String>,
}

impl Maker {
    fn add(&mut self, object: &Value, place: &str) {
        let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default();
        let read = match said(object) {
            Ok(ObjectClass::Workload(template)) => {
                self.add_template(object, kind, template, place);
                Ok(())
            }
            Ok(ObjectClass::Other(other)) => {
                self.passed_over.add(other.name);
                Ok(())
            }
            Ok(ObjectClass::Read(of)) => {
                self.see(object, kind, place);
                self.read(of, object, place)
            }
            Err(refused) => Err(refused),
        };
        if let Err(refused) = read {
            self.unreadable.push(format!("{place}: {refused}"));
        }
    }

    fn read(&mut self, kind: Kind, object: &Value, place: &str) -> Result<(), policy::Refusal> {
        let object = Object::of(kind, object)?;
        self.faults.extend(object.faults().iter().map(|fault| format!("{place}: {fault}")));
        let further = object.meta.further.clone();
        match object.into_change() {
            Ok(change) => {
                if let Change::Pod(uid, _) = &change {
                    self.further.insert(uid.clone(), further);
                }
                self.changes.push(change);
            }
            Err(policy) => self.multi.push(*policy),
        }
        Ok(())
    }

    /// Adds the pod that a workload's template makes, under the workload's name.
    fn add_template(&mut self, object: &Value, kind: &str, template: &str, place: &str) {
        let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        let Some(template) = object.pointer(template).filter(|_| !name.is_empty()) else {
            self.unreadable.push(format!("{place}: a {kind} without a name or a template of pods"));
            return;
        };
        let mut pod = json!({
            "metadata": {
                "name": name,
                "namespace": object.pointer("/metadata/namespace"),
                "labels": template.pointer("/metadata/labels"),
                "annotations": template.pointer("/metadata/annotations"),
            },
            "spec": template.get("spec"),
        });
        let namespace = pod["metadata"]["namespace"].as_str().unwrap_or_default();
        // Another workload may have the same name, and so may a pod.
        pod["metadata"]["uid"] = format!("{kind} {namespace}/{name}").into();
        self.see(&pod, kind, place);
        match Pod::read(&pod) {
            Ok(read) => {
                self.further.insert(read.uid.clone(), FurtherNetworks::read(&pod));
                self.changes.push(read.into());
            }
            Err(refused) => self.unreadable.push(format!("{place}: {refused}")),
        }
    }

    /// Remembers an object, and notes a fault if it is there already.
    fn see(&mut self, object: &Value, kind: &str, place: &str) {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
        let name = text("/metadata/name").unwrap_or_default();
        let full = match text("/metadata/namespace") {
            Some(namespace) => format!("{kind} {namespace}/{name}"),
            None => format!("{kind} {name}"),
        };
        if let Some(before) = self.seen.insert(full.clone(), place.to_owned()) {
            let full = cni::text::one_line(full);
            self.notes
                .push(format!("{full} is there twice, and the second is used: {before}, {place}"));
        }
    }

    fn finish(mut self, isolation: Option<Isolation>) -> FileWorld {
        let mut known = BTreeSet::new();
        let mut used = BTreeSet::new();
        for change in &self.changes {
            match change {
                Change::Namespace(name, _) => {
                    known.insert(name.clone());
                }
                Change::Pod(_, Some(pod)) => {
                    used.insert(pod.namespace.to_string());
                }
                Change::Policy(PolicyId::Network { namespace, .. }, _) => {
                    used.insert(namespace.clone());
                }
                _ => {}
            }
        }
        used.extend(self.multi.iter().filter_map(|policy| match &policy.policy.id {
            PolicyId::MultiNetwork { namespace, .. } => Some(namespace.clone()),
            _ => None,
        }));
        let missing: Vec<String> = used.difference(&known).cloned().collect();
        if !missing.is_empty() {
            let (which, taken) = if missing.len() == 1 {
                ("the namespace", "it is taken")
            } else {
                ("any of the namespaces", "each is taken")
            };
            self.notes.push(format!(
                "no file has {which} {}: {taken} to have no label but its name",
                cni::text::one_line(missing.join(", "))
            ));
        }
        self.changes.extend(missing.iter().map(|name| Namespace::new(name, Labels::new()).into()));
        let mut number = 0;
        for change in &mut self.changes {
            if let Change::Pod(_, Some(pod)) = change
                && pod.addresses.is_empty()
            {
                number += 1;
                pod.addresses = object::stand_ins(number).to_vec();
            }
        }
        let world = World::of(isolation, self.changes);
        let networks = networks(&world, self.multi, &self.further, number);
        for policy in networks.policies() {
            let without_pods = |name: &&String| {
                let world = networks.world(name.as_str());
                world.is_none_or(|world| world.pods().next().is_none())
            };
            for name in policy.networks.iter().filter(without_pods) {
                let id = &policy.policy.id;
                self.notes.push(cni::text::one_line(format!(
                    "{id} is for network {name}, and no pod asks for that"
                )));
            }
        }
        let passed_over = self.passed_over.list();
        self.notes.extend(passed_over.map(|kinds| format!("ignored: {kinds}")));
        FileWorld { world, networks, notes: self.notes, faults: self.faults }
    }
}

/// Makes the further networks that policies are for. `number` is how many addresses are made up.
fn networks(
    world: &World,
    policies: Vec<MultiPolicy>,
    further: &BTreeMap<Uid, FurtherNetworks>,
    mut number: u32,
) -> Networks {
    let mut networks = Networks::new("");
    for policy in policies {
        let id = policy.policy.id.clone();
        networks.policy(&id, Some(policy), world);
    }
    for pod in world.pods().filter(|pod| !pod.host_network) {
        let Some(further) = further.get(&pod.uid) else { continue };
        let all = further.all(|| {
            number += 1;
            object::stand_ins(number).to_vec()
        });
        networks.pod(&pod.uid, Some((pod.clone(), all)), world);
    }
    networks
}

#[cfg(test)]
mod tests {
    use super::super::objects::read_stream;
    use super::*;
    use expect_test::{Expect, expect};

    /// Shows what a file says: its pods, its policies, and the notes about it.
    fn check(text: &str, expected: Expect) {
        let read = read_stream("a.yaml", text.as_bytes());
        let shown: String = match world(vec![read], None) {
            Err(why) => why.iter().map(|line| format!("unreadable: {line}\n")).collect(),
            Ok(of) => {
                let pods = of.world.pods().map(|pod| format!("{}\n", pod.full_name()));
                let policies = of.world.policies().map(|policy| format!("{}\n", policy.id));
                let notes = of.notes.iter().map(|note| format!("note: {note}\n"));
                let faults = of.faults.iter().map(|fault| format!("fault: {fault}\n"));
                pods.chain(policies).chain(notes).chain(faults).collect()
            }
        };
        expected.assert_eq(&shown);
    }

    #[test]
    fn a_repository_has_workloads_and_no_addresses() {
        check(
            "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec: {template: {metadata: {labels: {app: web}}, spec: {containers: [{name: a, ports: [{name: http, containerPort: 80}]}]}}}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: report}
spec: {jobTemplate: {spec: {template: {metadata: {labels: {app: report}}}}}}
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: shop}
---
apiVersion: v1
kind: Service
metadata: {name: db}
---
apiVersion: v1
kind: Service
metadata: {name: web}
---
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: web}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web}
spec: {podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.1}}]}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: default}
spec: {podSelector: {}}
---
apiVersion: k8s.cni.cncf.io/v1beta1
kind: MultiNetworkPolicy
metadata: {name: storage}
spec: {podSelector: {}}
",
            expect![[r#"
                default/report
                shop/web
                shop/db
                NetworkPolicy default/web
                note: NetworkPolicy default/web is there twice, and the second is used: a.yaml: document 7, a.yaml: document 8
                note: no file has any of the namespaces default, shop: each is taken to have no label but its name
                note: ignored: NetworkPolicy of projectcalico.org/v3, Service (2)
                fault: a.yaml: document 7: NetworkPolicy default/web: refused: spec.ingress[0].from[0].ipBlock.cidr: "10.0.0.1" is not a prefix such as 10.244.1.0/24; the rule allows nothing
                fault: a.yaml: document 9: MultiNetworkPolicy default/storage: refused: metadata.annotations: k8s.v1.cni.cncf.io/policy-for: it is missing; the policy is for no network
            "#]],
        );
    }

    /// It closes the pods that it selects, here as in the service.
    #[test]
    fn a_policy_of_another_version_is_closed() {
        check(
            "
apiVersion: networking.k8s.io/v1beta1
kind: NetworkPolicy
metadata: {name: web}
spec: {podSelector: {}, ingress: [{}]}
---
kind: NetworkPolicy
metadata: {name: db}
spec: {podSelector: {}}
",
            expect![[r#"
                NetworkPolicy default/db
                NetworkPolicy default/web
                note: no file has the namespace default: it is taken to have no label but its name
                fault: a.yaml: document 1: NetworkPolicy default/web: refused: apiVersion: "networking.k8s.io/v1beta1" is not read here, networking.k8s.io/v1 is; the policy allows nothing
                fault: a.yaml: document 2: NetworkPolicy default/db: refused: apiVersion: "" is not read here, networking.k8s.io/v1 is; the policy allows nothing
            "#]],
        );
    }

    #[test]
    fn what_cannot_be_read_is_not_judged() {
        check(
            "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {namespace: shop}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
---
kind: Pod
metadata: {name: web}
",
            expect![[r#"
                unreadable: a.yaml: document 1: a NetworkPolicy: refused: metadata.name: it is missing; the object is ignored
                unreadable: a.yaml: document 2: a Deployment without a name or a template of pods
                unreadable: a.yaml: document 3: Pod default/web: refused: apiVersion: "" is not read here, v1 is; the object is ignored
            "#]],
        );
    }
}
