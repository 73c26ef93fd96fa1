//! What begins the commands that findings print.

/// Returns what begins a command that runs in a network namespace, of which this is the path; `None`:
/// in that of the node.
pub(crate) fn within<'n>(netns: impl Into<Option<&'n str>>) -> String {
    netns.into().map(|netns| format!("nsenter --net={netns} ")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_runs_in_a_namespace_or_on_the_node() {
        assert_eq!(within("/run/netns/c1") + "ip route", "nsenter --net=/run/netns/c1 ip route");
        assert_eq!(within(None) + "ip route", "ip route");
    }
}
