//! What an attachment of `cnm` wants, for CHECK and repair: the container's side. The driver is
//! responsible for its own, and CHECK asks it whether it knows the endpoint.

use cni::IpConfig;
use cnm::method::Method;
use cnm::network::EndpointName;
use wanted::{Item, Place, Reason, State, Wanted};

use super::Cnm;
use super::config::Config;
use super::connect::OPTIONS;
use super::driver::{Driver, Timeouts};
use super::journal::{Journal, ReadOutcome, damaged, endpoint_id, network_id};
use super::remove::EndpointReport;
use crate::engine::{self, Attachment, Comparison, Difference, Picture, Wants, sound};
use crate::shared::failure::Failure;
use crate::shared::{container, owner};

impl Wants for Cnm {
    type Observation = ();

    fn wanted(attached: &Attachment<'_, Self>, (): &()) -> Wanted {
        let ips: Vec<IpConfig> = attached.result.container_ips(attached.ifname).cloned().collect();
        let link = || attached.ifname.to_owned();
        let mut wanted = Wanted::new();
        let is_there = State::Link { link: link(), kinds: Vec::new() };
        wanted.push(Item::container(is_there, Reason::Created));
        let taken = State::Taken { link: link(), alias: owner::alias(attached.key) };
        wanted.push(Item::container(taken, Reason::Ownership));
        let (ifname, result) = (attached.ifname, attached.result);
        wanted.extend(container::wanted_side(ifname, result, &ips, OPTIONS, false));
        wanted
    }

    fn compare(_: &Config, picture: &mut Picture<'_>, item: &Item) -> Comparison {
        let State::Taken { link: ifname, alias } = &item.state else {
            return Err(engine::unknown(item));
        };
        let found = picture.link(Place::Container, ifname)?;
        if found.is_none_or(|link| link.alias.as_ref() == Some(alias)) {
            return sound();
        }
        let text = format!("interface {ifname:?} is not the one that ADD took");
        Ok(vec![engine::Mismatch::new(text).without_link()])
    }

    /// Compares the record and what the driver knows.
    fn others(
        attached: &Attachment<'_, Self>,
        (): &(),
        picture: &mut Picture<'_>,
    ) -> Result<Vec<Difference>, Failure> {
        let config = attached.config;
        let (call, key) = (picture.call, attached.key);
        let journal = Journal::new(call.roots(), key.network.as_str());
        let endpoint = match journal.endpoint(key)? {
            ReadOutcome::This(endpoint) => endpoint,
            ReadOutcome::Nothing => {
                return Ok(vec![Difference::text(format!("nothing is written down about {key}"))]);
            }
            ReadOutcome::Damaged(words) => return Err(damaged(&key.to_string(), &words)),
        };
        let timeouts = Timeouts::new(config.timeout, call.context().deadline);
        let driver = Driver::again(&endpoint.driver, &timeouts)?;
        let network_id = network_id(key.network.as_str());
        let name = EndpointName { network_id, endpoint_id: endpoint_id(key) };
        match driver.ask::<EndpointReport>(Method::EndpointOperInfo, &name) {
            Err(error) if error.is_refusal() && !error.is_unsupported() => {
                let text = format!("the driver does not know the endpoint: {error}");
                Ok(vec![Difference::text(text)])
            }
            Err(error) if !error.is_refusal() => Err(error.into()),
            _ => Ok(Vec::new()),
        }
    }
}
