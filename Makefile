# Short names for frequent commands. `cargo xtask` lists all commands and what they do.
.PHONY: test full only vm lint doc dist demo

test:           # what every change passes
	.ci/run
full:           # that, with soaks and large counts: about two hours
	.ci/run --full
only:           # make only T='portmap:: firewall::'
	cargo xtask only $(T)
vm:             # make vm T='-p netwright-plugins -- vm_a_vrf'
	cargo xtask vm $(T)
lint:
	cargo fmt --all --check
	cargo xtask clippy
doc:
	cargo doc --workspace --no-deps --document-private-items
dist:           # the static executables as they ship: target/dist
	cargo xtask dist
demo:
	cargo xtask demo
