//! The names of DHCP options.

/// The reference's names, then those of `dhcp-options(5)` for what clients request.
const NAMES: &[(&str, u8)] = &[
    ("dhcp-client-identifier", 61),
    ("subnet-mask", 1),
    ("routers", 3),
    ("host-name", 12),
    ("user-class", 77),
    ("vendor-class-identifier", 60),
    ("domain-name-servers", 6),
    ("domain-name", 15),
    ("domain-search", 119),
    ("interface-mtu", 26),
    ("broadcast-address", 28),
    ("static-routes", 33),
    ("classless-static-routes", 121),
    ("rfc3442-classless-static-routes", 121),
    ("ntp-servers", 42),
    ("dhcp-requested-address", 50),
    ("dhcp-lease-time", 51),
    ("dhcp-parameter-request-list", 55),
    ("dhcp-max-message-size", 57),
    ("dhcp-renewal-time", 58),
    ("dhcp-rebinding-time", 59),
    ("fqdn", 81),
];

/// The longest value of an option that the reference accepts.
pub const MAX_VALUE: usize = 255;

/// Reads a name or a decimal number.
///
/// # Errors
/// The reference's words for an unknown name or an invalid number.
pub fn parse(name: &str) -> Result<u8, String> {
    if let Some((_, code)) = NAMES.iter().find(|(known, _)| *known == name) {
        return Ok(*code);
    }
    name.parse().map_err(|error| format!("Can not parse option {name:?}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers() {
        assert_eq!(parse("host-name"), Ok(12));
        assert_eq!(parse("252"), Ok(252));
        assert_eq!(
            parse("hostname").unwrap_err(),
            "Can not parse option \"hostname\": invalid digit found in string"
        );
        assert!(parse("256").is_err() && parse("-1").is_err() && parse("").is_err());
    }
}
