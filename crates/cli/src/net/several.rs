//! The networks of one container: everything is decided before the first change, and either all are
//! attached or none.

use std::path::Path;

use cni::{AddResult, ContainerId, IfName, code};
use cni_runtime::{Attachment, Member, Runtime};
use kernel::netns::Netns;
use plugins::multi::default_route::{self, DefaultRoute};
use state::Index;

use super::forwarding;
use super::ports::PortMapping;
use super::session::{Network, Session};
use super::spec::NetworkSpec;
use super::taken;
use super::{attach, default};
use crate::args::Attach;
use crate::failure::Failure;
use crate::shell::Shell;
use crate::world::World;

/// Which networks a container is to be attached to, and how.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) members: Vec<Member>,
    /// What is to be said once all are attached.
    warnings: Vec<String>,
    default_route: Option<DefaultRoute>,
    netns: String,
}

impl Plan {
    /// Decides on networks, interface names, addresses, ports and the default route.
    pub(crate) fn new(
        specs: &[NetworkSpec],
        ports: &[PortMapping],
        id: &ContainerId,
        netns: &str,
        session: &Session,
        world: &World,
    ) -> Result<Self, Failure> {
        let networks: Vec<Network> =
            specs.iter().map(|spec| session.network(&spec.name)).collect::<Result<_, _>>()?;
        let publisher = networks.iter().position(|network| attach::can_publish(&network.list));
        let mut plan = Plan {
            members: Vec::new(),
            warnings: Vec::new(),
            default_route: None,
            netns: netns.to_owned(),
        };
        for (index, (network, spec)) in networks.into_iter().zip(specs).enumerate() {
            let ifname = match &spec.addresses.ifname {
                Some(ifname) => ifname.clone(),
                None => IfName::new(&format!("eth{index}"))?,
            };
            // If none can publish ports, the first network's error explains what is missing.
            let publishes = publisher.unwrap_or_default() == index;
            let asked = Attach {
                publish: if publishes { ports.to_vec() } else { Vec::new() },
                addresses: spec.addresses.clone(),
                ..Attach::default()
            };
            let attachment =
                attach::describe(&network.list, id.clone(), ifname, netns, &asked, world)?;
            plan.add(network, attachment, spec)?;
        }
        Ok(plan)
    }

    fn add(
        &mut self,
        network: Network,
        attachment: Attachment,
        spec: &NetworkSpec,
    ) -> Result<(), Failure> {
        let refused = |text: String| Failure::new(code::INVALID_CONFIG, text);
        let ifname = &attachment.ifname;
        if let Some(other) = self.members.iter().find(|one| one.attachment.ifname == *ifname) {
            return Err(refused(format!(
                "networks {:?} and {:?} both get interface {ifname}",
                other.list.name, network.list.name
            ))
            .hint("give one of them another name: NAME:ifname=…"));
        }
        if let Some(gateways) = &spec.default_route {
            let chosen = DefaultRoute { ifname: ifname.clone(), gateways: gateways.clone() };
            if let Some(other) = self.default_route.replace(chosen) {
                return Err(refused(format!(
                    "interfaces {} and {ifname} are both to have the default route",
                    other.ifname
                )));
            }
        }
        self.warnings.extend(default::lacks_ipv6(&network));
        self.members.push(Member { list: network.list, attachment });
        Ok(())
    }

    /// Attaches to all networks, or to none; returns their results in order.
    pub(crate) fn attach(
        &self,
        session: &Session,
        shell: &Shell,
    ) -> Result<Vec<AddResult>, Failure> {
        for Member { list, attachment } in &self.members {
            attach::refuse_out_of_place(list)?;
            default::refuse_ipv6(list, attachment)?;
            taken::refuse(list, attachment)?;
        }
        let (runtime, deadline) = (&session.runtime, session.deadline());
        let added = runtime.add_several(&self.members, deadline);
        let added = added.map_err(|error| Failure::from(error.to_cni()).look_around(None))?;
        let mut results: Vec<_> = added.into_iter().map(|one| one.result).collect();
        let chosen = self.default_route.as_ref();
        let given = self.members.iter().zip(&results).try_for_each(|(member, result)| {
            let given = member.attachment.require_given(result);
            given.map_err(|error| error.context(format_args!("network {:?}", member.list.name)))
        });
        let settled = given.and_then(|()| match Netns::open(Path::new(&self.netns)) {
            Ok(netns) => {
                default_route::settle(runtime, &netns, chosen, &self.members, &mut results)
                    .map_err(cni::Error::from)
            }
            Err(error) => Err(cni::Error::from_chain(code::INVALID_NETNS, &error)),
        });
        if let Err(error) = settled {
            let left = runtime.clone().undoing().del_several(&self.members, session.deadline());
            return Err(Failure::from(left.tell(error)));
        }
        self.warnings.iter().for_each(|line| shell.warn(line));
        let index = Index::new(&session.roots);
        for (member, result) in self.members.iter().zip(&results) {
            forwarding::warn(&member.list, result, &index, shell);
        }
        Ok(results)
    }

    /// Detaches from all networks, the last first; reports those that failed.
    pub(crate) fn detach(&self, session: &Session, shell: &Shell) {
        self.detach_by(&session.runtime, session, shell);
    }

    /// Does the same for an attachment that was not reported yet.
    pub(crate) fn undo(&self, session: &Session, shell: &Shell) {
        self.detach_by(&session.runtime.clone().undoing(), session, shell);
    }

    fn detach_by(&self, runtime: &Runtime<'_>, session: &Session, shell: &Shell) {
        for (network, error) in runtime.del_several(&self.members, session.deadline()).0 {
            shell.warn(format_args!(
                "detaching from network {network:?} failed: {error}; `netwright gc` tries again"
            ));
        }
    }
}
