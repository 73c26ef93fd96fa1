//! `netwrightd agent serve`: answers for all services where systemd or a person starts them, as the
//! supervisor does for its own.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use agent::load::Surroundings;
use agent::report::{AGENT, Status};
use agent::{Config, accepted};
use service_kit::attendant::{self, Attendant, Duties};
use service_kit::bell::Bell;
use service_kit::health::{Health, Manager};
use service_kit::listen::Listener;
use service_kit::log;
use service_kit::poll::{Interest, Poller};
use service_kit::process::{CONFIGURATION, stop_signals, variable};
use service_kit::stop::{Stop, failed};
use signal_hook::consts::SIGHUP;
use state::Roots;

use crate::probes::{Look, Probes};
use crate::{status, supervisor};

/// Numbers of the descriptors that the loop waits for.
const STOP: u64 = 0;
const HANGUP: u64 = 1;
/// The longest pause between attempts to listen.
const PAUSE: Duration = Duration::from_secs(5);

/// Runs until a signal ends it, with the configuration in `file`, or the one that was accepted last
/// while that is wrong.
pub(crate) fn run(
    file: &Path,
    around: Surroundings,
    environment: &[(OsString, OsString)],
    roots: &Roots,
    manager: Manager,
) -> Result<(), Stop> {
    let standing = accepted::standing(file, roots, around).map_err(Stop::Configuration)?;
    let mut loaded = standing.loaded;
    let health = Health::new(AGENT, manager, loaded.config.agent.watchdog);
    let journal = variable(environment, "JOURNAL_STREAM").is_some();
    let level = variable(environment, "NETWRIGHT_LOG");
    let control = log::start(AGENT, None, &loaded.config.log, level, journal, Some(health.clone()));
    supervisor::refuse(&health, &standing.refused);
    let stop = stop_signals().map_err(failed)?;
    let hangups = Bell::of_signals(&[SIGHUP]).map_err(failed)?;
    let poller = Poller::new().map_err(failed)?;
    poller.add(&stop, STOP, Interest::Read).map_err(failed)?;
    poller.add(&hangups, HANGUP, Interest::Read).map_err(failed)?;
    let counts = Arc::new(Mutex::new(loaded.config.clone()));
    let look = look(roots, &counts);
    let socket = attendant::socket(roots, AGENT);
    let listener = Listener::open(Vec::new(), &socket).map_err(failed)?;
    let mut probes = Probes::new(Arc::clone(&look), health.clone());
    let duties = Duties { answer: supervisor::answers(look), reload: None, changed: None };
    let attendant =
        Attendant::start(Some(listener), duties, &AtomicBool::new(false)).map_err(failed)?;
    probes.follow(&loaded.config.agent);
    health.serves(Some(&socket));
    tracing::info!(socket = %socket.display(), "ready");
    loop {
        health.turns();
        let woken = poller.wait(Some(health.pause(PAUSE))).map_err(failed)?;
        if woken.contains(&STOP) {
            break;
        }
        if !woken.contains(&HANGUP) {
            probes.look_again();
            continue;
        }
        hangups.heard();
        match accepted::renewed(file, &loaded, around) {
            Ok(new) => {
                health.tell_reloading();
                health.needs(CONFIGURATION, Ok(()));
                control.change(&new.config.log);
                probes.follow(&new.config.agent);
                *counts.lock().unwrap_or_else(PoisonError::into_inner) = new.config.clone();
                loaded = new;
                tracing::info!("read the configuration again");
                health.reloaded(Vec::new());
            }
            Err(problems) => {
                supervisor::refuse(&health, &problems);
                health.refused();
            }
        }
    }
    health.stops();
    drop(attendant);
    tracing::info!("stopped");
    Ok(())
}

/// Returns what asks the services that this configuration enables.
fn look(roots: &Roots, counts: &Arc<Mutex<Config>>) -> Look {
    let (roots, counts) = (roots.clone(), Arc::clone(counts));
    Arc::new(move || {
        let config = counts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Status { agent: None, services: status::enabled(&roots, &config) }
    })
}
