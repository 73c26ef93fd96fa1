//! The same with Debian unstable's engine, which makes a container's namespace before it asks for interfaces.

use testkit::real::Engine;

use super::life::needs_newest;
use super::{compose, crash, life, restore, settled, speed};

#[test]
fn a_network_list_becomes_a_docker_network() {
    needs_newest!();
    life::network_list(Engine::Newest);
}

#[test]
fn a_network_made_of_options() {
    needs_newest!();
    life::made_of_options(Engine::Newest);
}

#[test]
fn a_network_list_that_gives_the_addresses_itself() {
    needs_newest!();
    life::own_addresses(Engine::Newest);
}

#[test]
fn addresses_routes_and_switches() {
    needs_newest!();
    settled::rich_network(Engine::Newest);
}

#[test]
fn source_based_routing() {
    needs_newest!();
    settled::two_ways(Engine::Newest);
}

#[test]
fn two_services() {
    needs_newest!();
    compose::services(Engine::Newest);
}

#[test]
fn containers_outlive_the_engine() {
    needs_newest!();
    restore::live_restore(Engine::Newest);
}

#[test]
fn the_driver_killed_at_each_call() {
    testkit::require!("full");
    needs_newest!();
    crash::driver_killed(Engine::Newest);
}

#[test]
fn the_engine_killed_that_forgets_its_endpoints() {
    needs_newest!();
    crash::forgotten(Engine::Newest);
}

#[test]
fn the_engine_killed_with_twenty_containers() {
    testkit::require!("full");
    needs_newest!();
    crash::engine_killed(Engine::Newest);
}

#[test]
fn beside_dockers_own_bridge() {
    testkit::require!("full");
    needs_newest!();
    speed::beside_bridge(Engine::Newest);
}
