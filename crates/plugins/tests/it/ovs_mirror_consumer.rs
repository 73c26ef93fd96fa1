//! `ovs-mirror-consumer`; how it works with a producer is in `ovs_mirror_producer`.

mod matrix;
