//! `ovs-mirror-consumer`; its tests with a producer are in `ovs_mirror_producer`.

mod matrix;
