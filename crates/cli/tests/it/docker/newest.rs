//! The same with Debian unstable's engine, which makes a container's namespace before it requests
//! interfaces.

use testkit::real::Engine;

use super::life::needs_newest;
use super::{
    again, attacked, compose, crash, holders, leases, life, mended, restore, settled, speed,
};

#[test]
fn a_network_list_becomes_a_docker_network() {
    needs_newest!();
    life::network_list(Engine::Newest);
}

#[test]
fn the_lines_of_the_readme() {
    testkit::require!("round:0/3", "program:curl");
    needs_newest!();
    life::readme(Engine::Newest);
}

#[test]
fn a_network_made_of_options() {
    testkit::require!("round:1/3");
    needs_newest!();
    life::made_of_options(Engine::Newest);
}

#[test]
fn a_network_list_that_gives_the_addresses_itself() {
    testkit::require!("round:2/3");
    needs_newest!();
    life::own_addresses(Engine::Newest);
}

#[test]
fn addresses_routes_and_switches() {
    testkit::require!("round:0/3");
    needs_newest!();
    settled::rich_network(Engine::Newest);
}

#[test]
fn source_based_routing() {
    testkit::require!("round:1/3");
    needs_newest!();
    settled::two_ways(Engine::Newest);
}

#[test]
fn two_services() {
    testkit::require!("round:2/3");
    needs_newest!();
    compose::services(Engine::Newest);
}

#[test]
fn containers_outlive_the_engine() {
    testkit::require!("round:0/3");
    needs_newest!();
    restore::live_restore(Engine::Newest);
}

#[test]
fn the_driver_killed_at_each_call() {
    testkit::require!("round:1/3");
    needs_newest!();
    crash::driver_killed(Engine::Newest);
}

#[test]
fn the_engine_killed_that_forgets_its_endpoints() {
    testkit::require!("round:2/3");
    needs_newest!();
    crash::forgotten(Engine::Newest);
}

#[test]
fn a_refused_network_is_the_only_one_that_is_not_there() {
    testkit::require!("round:0/3");
    needs_newest!();
    holders::refused(Engine::Newest);
}

#[test]
fn a_static_address_is_the_containers_whenever_it_comes_back() {
    testkit::require!("round:1/3");
    needs_newest!();
    again::comes_back(Engine::Newest);
}

#[test]
fn a_static_address_behind_an_engine_and_a_driver_that_were_killed() {
    testkit::require!("round:2/3");
    needs_newest!();
    crash::static_address(Engine::Newest);
}

#[test]
fn the_engine_killed_with_twenty_containers() {
    testkit::require!("round:0/3");
    needs_newest!();
    crash::engine_killed(Engine::Newest);
}

#[test]
fn beside_dockers_own_bridge() {
    testkit::require!("round:1/3");
    needs_newest!();
    speed::beside_bridge(Engine::Newest);
}

#[test]
fn a_port_at_a_loopback_address_is_for_the_host_alone() {
    testkit::require!("round:2/3");
    needs_newest!();
    attacked::loopback(Engine::Newest);
}

#[test]
fn a_container_outlives_the_namespace_of_the_driver() {
    testkit::require!("round:0/3");
    needs_newest!();
    attacked::unmounted(Engine::Newest);
}

#[test]
fn a_container_gets_no_address_of_the_node_or_of_its_neighbours() {
    testkit::require!("round:1/3");
    needs_newest!();
    attacked::addresses(Engine::Newest);
}

#[test]
fn a_containers_lease_is_renewed() {
    testkit::require!("round:2/3", "program:dnsmasq");
    needs_newest!();
    leases::renewed(Engine::Newest);
}

#[test]
fn a_route_that_covers_a_containers_address_is_not_followed() {
    testkit::require!("round:0/3");
    needs_newest!();
    mended::covered(Engine::Newest);
}

#[test]
fn what_is_flushed_comes_back() {
    testkit::require!("round:1/3");
    needs_newest!();
    mended::flushed(Engine::Newest);
}
