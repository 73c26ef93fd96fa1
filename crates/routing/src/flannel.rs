//! flannel's dialect: annotations of Nodes, leases in etcd, its configuration, `subnet.env`.

pub mod annotations;
pub mod config;
pub mod lease;
pub mod subnet_env;
