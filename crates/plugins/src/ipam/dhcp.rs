//! `dhcp`: addresses from DHCP servers, through a daemon that keeps the leases.
//!
//! A lease must be renewed as long as the container lives, which a plugin cannot do. A runtime
//! calls this module: it reads the configuration and sends requests to `netwrightd dhcp` over a
//! Unix socket ([`node_api::dhcp`]). Configuration, option names and messages are the reference's. The
//! differences:
//!
//! - The result has DNS, domain, search list, and the MTU (option 26) on each route.
//! - CHECK compares `prevResult` with the lease, and requests no lease.
//! - DEL succeeds while the daemon is down: it leaves a note that the daemon processes when it
//!   starts ([`Note`]).
//! - GC and STATUS exist. A daemon that was ready within the last minute is being replaced: STATUS
//!   then tolerates its absence, and ADD waits for it.
//! - `families` can request IPv6 (DHCPv6) too.
//! - `request` and `provide` know the names of more options ([`options`]).

mod client;
mod config;
pub mod options;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cni::{AddResult, Error, code};
use cni_plugin::{Call, Info, Plugin, Role, codes};
use ipnet::IpNet;
use node_api::client::START_TIMEOUT;
use node_api::dhcp::{Answer, LeaseRequest, Note, RESULT_VERSION, Request};
use node_api::{AskError, inbox, ready};

use client::{is_daemon_away, is_daemon_down, unanswered};
use config::Config;

use crate::shared::failure::Failure;

/// How long ADD waits for a lease if the caller sets no deadline: the daemon gives up first, after
/// its `-resendtimeout` (208 seconds by default).
const LEASE_TIMEOUT: Duration = Duration::from_secs(600);

/// How long the daemon may take for a request that involves no server.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// What the plugin is.
pub const INFO: Info = Info::new("dhcp").role(Role::Addresses).over_the_link();

/// The plugin `dhcp`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Dhcp;

impl Plugin for Dhcp {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn add(&self, call: &Call<'_>) -> Result<AddResult, Error> {
        let config = Config::of(call)?;
        let netns = call.open_netns()?;
        let id = netns.id();
        let path = absolute(call.netns_path().unwrap_or(Path::new("")))?;
        let acquire = LeaseRequest {
            attachment: call.attachment().clone(),
            netns: path,
            netns_id: Some(id.into()),
            pid_ns: kernel::living::own_pid_ns(),
            client: config.client,
        };
        let start = if ready::was_ready(&config.socket) { START_TIMEOUT } else { Duration::ZERO };
        let acquire = Request::Acquire(Box::new(acquire));
        let timeout = timeout(call, LEASE_TIMEOUT);
        match client::ask_when_there(&config.socket, acquire, start, timeout)
            .map_err(|error| unanswered(&error))?
        {
            Answer::Lease(result) => Ok(read_result(&result)?),
            Answer::Failed(error) => Err(error.into_error().context(CALLING_ALLOCATE)),
            other => Err(unexpected(&other).into()),
        }
    }

    fn del(&self, call: &Call<'_>) -> Result<(), Error> {
        let socket = match config::socket_path(call) {
            Ok(socket) => socket,
            // ADD refused it too, and the daemon looks after the leases that it has.
            Err(error) => {
                call.warn(format_args!("the daemon is not asked: {error}"));
                return Ok(());
            }
        };
        match release(call, &socket) {
            Err(ReleaseError::Ask(error)) if is_daemon_down(&error) => {
                Note(call.attachment().clone()).leave(&socket).map_err(|error| {
                    Error::from_chain(codes::STATE, &error)
                        .with_details("the DHCP daemon does not run, and cannot be told later")
                })?;
                let why = unanswered(&error).message().to_owned();
                call.warn(format_args!("{why}; the lease is released when the daemon starts"));
                Ok(())
            }
            Err(ReleaseError::Ask(error)) => Err(unanswered(&error).into()),
            Err(ReleaseError::Refused(error)) => Err(error.into()),
            Ok(()) => Ok(()),
        }
    }

    fn check(&self, call: &Call<'_>) -> Result<(), Error> {
        let config = Config::of(call)?;
        let inspect = Request::Inspect { attachment: call.attachment().clone() };
        let lease = match ask(call, &config.socket, inspect, ANSWER_TIMEOUT)? {
            Answer::Lease(result) => read_result(&result)?,
            Answer::Unknown => {
                return Err(Error::new(
                    codes::DRIFT,
                    format!("dhcp: the daemon has no lease for {}", call.attachment()),
                )
                .with_details(
                    "it was released, refused by the server, or never granted; detach and attach",
                ));
            }
            Answer::Failed(error) => return Err(error.into_error()),
            other => return Err(unexpected(&other).into()),
        };
        match call.prev_result()? {
            Some(previous) => Ok(compare(&lease, &previous, call.ifname().as_str())?),
            None => Ok(()),
        }
    }

    fn gc(&self, call: &Call<'_>) -> Result<(), Error> {
        let socket = config::socket_path(call)?;
        let collect = Request::Collect {
            network: call.network().clone(),
            valid: call.valid_attachments().to_vec(),
        };
        let answer = match client::ask(&socket, collect, timeout(call, ANSWER_TIMEOUT)) {
            // No daemon has run since the machine started, so there is nothing to collect.
            Err(error) if is_daemon_down(&error) && !inbox::folder(&socket).is_dir() => {
                return Ok(());
            }
            Err(error) => return Err(unanswered(&error).into()),
            Ok(answer) => answer,
        };
        match answer {
            Answer::Done => Ok(()),
            Answer::Failed(error) => Err(error.into_error()),
            other => Err(unexpected(&other).into()),
        }
    }

    fn validate(&self, call: &Call<'_>) -> Result<(), Error> {
        Ok(Config::of(call).map(drop)?)
    }

    fn status(&self, call: &Call<'_>) -> Result<(), Error> {
        let config = Config::of(call)?;
        let unavailable = |error: Failure| error.with_code(code::PLUGIN_NOT_AVAILABLE);
        match client::ask(&config.socket, Request::Status, timeout(call, ANSWER_TIMEOUT)) {
            Ok(Answer::Done) => Ok(()),
            Ok(Answer::Failed(error)) => Err(unavailable(error.into_error().into()).into()),
            Ok(other) => Err(unavailable(unexpected(&other)).into()),
            Err(error) if is_daemon_away(&error) && ready::was_ready(&config.socket) => Ok(()),
            Err(error) => Err(unavailable(unanswered(&error)).into()),
        }
    }

    fn unknown_keys(
        &self,
        config: &str,
    ) -> Result<Vec<cni::json::UnknownKey>, cni::json::JsonError> {
        config::unknown_keys(config)
    }
}

/// The prefix that the reference puts before the daemon's message.
const CALLING_ALLOCATE: &str = "error calling DHCP.Allocate";

enum ReleaseError {
    Ask(AskError),
    Refused(Failure),
}

fn release(call: &Call<'_>, socket: &Path) -> Result<(), ReleaseError> {
    let ask = Request::Release { attachment: call.attachment().clone() };
    let answer =
        client::ask(socket, ask, timeout(call, ANSWER_TIMEOUT)).map_err(ReleaseError::Ask)?;
    match answer {
        // The daemon has no such lease, so it is gone.
        Answer::Done | Answer::Unknown => Ok(()),
        Answer::Failed(error) => Err(ReleaseError::Refused(
            error.into_error().context("error calling DHCP.Release").into(),
        )),
        other => Err(ReleaseError::Refused(unexpected(&other))),
    }
}

fn ask(call: &Call<'_>, socket: &Path, ask: Request, most: Duration) -> Result<Answer, Failure> {
    client::ask(socket, ask, timeout(call, most)).map_err(|error| unanswered(&error))
}

fn timeout(call: &Call<'_>, most: Duration) -> Duration {
    match call.context().deadline {
        Some(deadline) => most.min(deadline.saturating_duration_since(Instant::now())),
        None => most,
    }
}

fn read_result(result: &serde_json::Value) -> Result<AddResult, Failure> {
    let text = serde_json::to_vec(result).expect("a JSON value serialises");
    Ok(AddResult::parse(&text, RESULT_VERSION)
        .map_err(|error| error.context("read the DHCP daemon's answer"))?)
}

fn unexpected(answer: &Answer) -> Failure {
    Failure::new(codes::DAEMON, format!("the DHCP daemon answered something else: {answer:?}"))
        .with_details("plugin and daemon should be of one version")
}

/// Compares a lease with what ADD reported.
fn compare(lease: &AddResult, previous: &AddResult, ifname: &str) -> Result<(), Failure> {
    let reported: Vec<IpNet> = previous.container_ips(ifname).map(|ip| ip.address).collect();
    for ip in &lease.ips {
        if !reported.contains(&ip.address) {
            let reported: Vec<String> = reported.iter().map(ToString::to_string).collect();
            return Err(Failure::new(
                codes::DRIFT,
                format!("dhcp: the lease is for {}, ADD reported {}", ip.address, reported.join(", ")),
            )
            .with_details(
                "a DHCP server gave another address since; runtimes learn it when the container is attached anew",
            ));
        }
    }
    let of = |result: &AddResult| -> Vec<(IpNet, IpAddr)> {
        result.ips.iter().filter_map(|ip| Some((ip.address, ip.gateway?))).collect()
    };
    let gateways = of(previous);
    for (address, gateway) in of(lease) {
        let differs = |&&(known, old): &&(IpNet, IpAddr)| known == address && old != gateway;
        if let Some((_, old)) = gateways.iter().find(differs) {
            return Err(Failure::new(
                codes::DRIFT,
                format!("dhcp: the lease's gateway is {gateway}, ADD reported {old}"),
            ));
        }
    }
    Ok(())
}

/// Makes a path absolute: the daemon has a working directory of its own.
fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|error| {
        Failure::from_chain(code::INVALID_ENVIRONMENT, &error).context("make CNI_NETNS absolute")
    })
}
