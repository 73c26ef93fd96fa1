//! What a setting may be, and how it is read and written.

use std::fmt::Debug;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use serde_json::{Value, json};
use toml::de::DeValue;

/// Why a value is refused: what it must be, such as `a duration such as "10s"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expectation(pub String);

/// How a setting is given on a command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A switch: `--act`, or `--act=false`.
    Switch,
    /// One value, such as `DURATION`.
    One(&'static str),
    /// Several values, such as `URL[,URL…]`: the flag may also be repeated.
    Several(&'static str),
}

/// One setting: a field of [`Config`](crate::Config).
pub trait Setting: Debug {
    /// Takes a value of the configuration.
    ///
    /// # Errors
    /// [`Expectation`] when the value is of another type, or makes no sense; then nothing has changed.
    fn read(&mut self, value: &DeValue<'_>) -> Result<(), Expectation>;

    /// Takes the value of a flag. Of a setting with several values, each is added.
    ///
    /// # Errors
    /// As [`Setting::read`].
    fn read_flag(&mut self, text: &str) -> Result<(), Expectation>;

    /// Forgets the values, so that flags can be added.
    fn clear(&mut self) {}

    /// Returns the value as TOML; `None` if there is none.
    fn show(&self) -> Option<String>;

    /// Returns how it is given on a command line.
    fn form(&self) -> Form;

    /// Returns its JSON schema, without default and description.
    fn schema(&self) -> Value;
}

/// A value that is written as a string.
pub trait Item: Sized + Debug {
    /// What a value must be, to follow "must be".
    const WANTED: &'static str;
    /// What a command line's help calls the value.
    const PLACEHOLDER: &'static str;
    /// What it calls several values.
    const PLACEHOLDERS: &'static str = "NAME[,NAME…]";
    /// What separates several values of one flag.
    const SEPARATOR: char = ',';

    /// Reads a value of the configuration.
    fn parse(text: &str) -> Option<Self>;

    /// Reads a value of a command line.
    fn parse_flag(text: &str) -> Option<Self> {
        Self::parse(text)
    }

    /// Writes the value.
    fn text(&self) -> String;

    /// Returns its JSON schema.
    fn schema() -> Value {
        json!({"type": "string"})
    }
}

fn wanted<T: Item>() -> Expectation {
    Expectation(T::WANTED.to_owned())
}

impl Setting for bool {
    fn read(&mut self, value: &DeValue<'_>) -> Result<(), Expectation> {
        *self = value.as_bool().ok_or_else(|| Expectation("true or false".to_owned()))?;
        Ok(())
    }

    fn read_flag(&mut self, text: &str) -> Result<(), Expectation> {
        // What Go's strconv.ParseBool takes, as this flag always did.
        *self = match text {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => true,
            "0" | "f" | "F" | "false" | "FALSE" | "False" => false,
            _ => return Err(Expectation("true or false".to_owned())),
        };
        Ok(())
    }

    fn show(&self) -> Option<String> {
        Some(self.to_string())
    }

    fn form(&self) -> Form {
        Form::Switch
    }

    fn schema(&self) -> Value {
        json!({"type": "boolean"})
    }
}

impl<T: Item> Setting for T {
    fn read(&mut self, value: &DeValue<'_>) -> Result<(), Expectation> {
        *self = value.as_str().and_then(T::parse).ok_or_else(wanted::<T>)?;
        Ok(())
    }

    fn read_flag(&mut self, text: &str) -> Result<(), Expectation> {
        *self = T::parse_flag(text).ok_or_else(wanted::<T>)?;
        Ok(())
    }

    fn show(&self) -> Option<String> {
        Some(quoted(&self.text()))
    }

    fn form(&self) -> Form {
        Form::One(T::PLACEHOLDER)
    }

    fn schema(&self) -> Value {
        T::schema()
    }
}

/// A setting that may be missing. An empty string says that it is, so that a drop-in can take back
/// what the file says.
impl<T: Item> Setting for Option<T> {
    fn read(&mut self, value: &DeValue<'_>) -> Result<(), Expectation> {
        let text = value.as_str().ok_or_else(wanted::<T>)?;
        *self = match text {
            "" => None,
            text => Some(T::parse(text).ok_or_else(wanted::<T>)?),
        };
        Ok(())
    }

    fn read_flag(&mut self, text: &str) -> Result<(), Expectation> {
        *self = match text {
            "" => None,
            text => Some(T::parse_flag(text).ok_or_else(wanted::<T>)?),
        };
        Ok(())
    }

    fn show(&self) -> Option<String> {
        self.as_ref().map(|item| quoted(&item.text()))
    }

    fn form(&self) -> Form {
        Form::One(T::PLACEHOLDER)
    }

    fn schema(&self) -> Value {
        T::schema()
    }
}

impl<T: Item> Setting for Vec<T> {
    fn read(&mut self, value: &DeValue<'_>) -> Result<(), Expectation> {
        let wanted = || Expectation(format!("a list, each of it {}", T::WANTED));
        let items = value.as_array().ok_or_else(wanted)?;
        let items = items.iter().map(|item| item.get_ref().as_str().and_then(T::parse));
        *self = items.collect::<Option<_>>().ok_or_else(wanted)?;
        Ok(())
    }

    fn read_flag(&mut self, text: &str) -> Result<(), Expectation> {
        let items = text.split(T::SEPARATOR).map(str::trim).filter(|item| !item.is_empty());
        let items: Option<Vec<T>> = items.map(T::parse_flag).collect();
        self.extend(items.ok_or_else(wanted::<T>)?);
        Ok(())
    }

    fn clear(&mut self) {
        Vec::clear(self);
    }

    fn show(&self) -> Option<String> {
        let items: Vec<String> = self.iter().map(|item| quoted(&item.text())).collect();
        Some(format!("[{}]", items.join(", ")))
    }

    fn form(&self) -> Form {
        Form::Several(T::PLACEHOLDERS)
    }

    fn schema(&self) -> Value {
        json!({"type": "array", "items": T::schema()})
    }
}

impl Item for String {
    const WANTED: &'static str = "a string that is not empty";
    const PLACEHOLDER: &'static str = "NAME";

    fn parse(text: &str) -> Option<Self> {
        (!text.is_empty()).then(|| text.to_owned())
    }

    fn text(&self) -> String {
        self.clone()
    }

    fn schema() -> Value {
        json!({"type": "string", "minLength": 1})
    }
}

impl Item for PathBuf {
    const WANTED: &'static str = "an absolute path";
    const PLACEHOLDER: &'static str = "PATH";
    const PLACEHOLDERS: &'static str = "PATH[:PATH…]";
    const SEPARATOR: char = ':';

    fn parse(text: &str) -> Option<Self> {
        text.starts_with('/').then(|| text.into())
    }

    /// A person's path may be relative to the folder in which the command is called.
    fn parse_flag(text: &str) -> Option<Self> {
        (!text.is_empty()).then(|| text.into())
    }

    fn text(&self) -> String {
        self.display().to_string()
    }

    fn schema() -> Value {
        json!({"type": "string", "pattern": "^/"})
    }
}

/// The URL of a server, such as `https://192.0.2.1:2379`: scheme, host and port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerUrl(String);

impl ServerUrl {
    /// Returns the URL, without a slash at its end.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Item for ServerUrl {
    const WANTED: &'static str = "a URL such as https://192.0.2.1:2379";
    const PLACEHOLDER: &'static str = "URL";
    const PLACEHOLDERS: &'static str = "URL[,URL…]";

    fn parse(text: &str) -> Option<Self> {
        let url = text.trim_end_matches('/');
        let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"))?;
        let whole = !rest.is_empty() && !rest.contains('/');
        whole.then(|| ServerUrl(url.to_owned()))
    }

    fn text(&self) -> String {
        self.0.clone()
    }

    fn schema() -> Value {
        json!({"type": "string", "pattern": "^https?://[^/]+/?$"})
    }
}

/// A range of addresses, such as `10.244.0.0/16`.
impl Item for IpNet {
    const WANTED: &'static str =
        "a range of addresses such as 10.244.0.0/16, with no bit set after its length";
    const PLACEHOLDER: &'static str = "RANGE";
    const PLACEHOLDERS: &'static str = "RANGE[,RANGE…]";

    fn parse(text: &str) -> Option<Self> {
        cni::text::parse_cidr(text).filter(|range| range.trunc() == *range)
    }

    fn text(&self) -> String {
        self.to_string()
    }

    fn schema() -> Value {
        json!({"type": "string", "pattern": "^[0-9a-fA-F.:]+/[0-9]+$"})
    }
}

/// An address of a host, such as `192.0.2.1`.
impl Item for IpAddr {
    const WANTED: &'static str = "an address such as 192.0.2.1";
    const PLACEHOLDER: &'static str = "ADDRESS";
    const PLACEHOLDERS: &'static str = "ADDRESS[,ADDRESS…]";

    fn parse(text: &str) -> Option<Self> {
        cni::text::parse_ip(text)
    }

    fn text(&self) -> String {
        self.to_string()
    }

    fn schema() -> Value {
        json!({"type": "string", "pattern": "^[0-9a-fA-F.:]+$"})
    }
}

/// A whole number within bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Number<const LEAST: u32, const MOST: u32>(pub u32);

impl<const LEAST: u32, const MOST: u32> Number<LEAST, MOST> {
    fn wanted() -> Expectation {
        Expectation(format!("a whole number from {LEAST} to {MOST}"))
    }

    fn within(number: Option<u32>) -> Result<Self, Expectation> {
        number.filter(|number| (LEAST..=MOST).contains(number)).map(Number).ok_or_else(Self::wanted)
    }
}

impl<const LEAST: u32, const MOST: u32> Setting for Number<LEAST, MOST> {
    fn read(&mut self, value: &DeValue<'_>) -> Result<(), Expectation> {
        *self = Self::within(whole(value))?;
        Ok(())
    }

    fn read_flag(&mut self, text: &str) -> Result<(), Expectation> {
        *self = Self::within(text.parse().ok())?;
        Ok(())
    }

    fn show(&self) -> Option<String> {
        Some(self.0.to_string())
    }

    fn form(&self) -> Form {
        Form::One("NUMBER")
    }

    fn schema(&self) -> Value {
        json!({"type": "integer", "minimum": LEAST, "maximum": MOST})
    }
}

fn whole(value: &DeValue<'_>) -> Option<u32> {
    let number = value.as_integer()?;
    u32::from_str_radix(number.as_str(), number.radix()).ok()
}

/// The shortest and longest MTU of pods, in bytes: IPv6's least (RFC 8200 §5), and what 16 bits
/// count.
const POD_MTU: std::ops::RangeInclusive<u32> = 1280..=65_535;

/// Which MTU pods get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodMtu {
    /// The lowest of the paths in use.
    Paths,
    /// That of the link between the nodes.
    Underlay,
    /// So many bytes.
    Fixed(u32),
}

impl PodMtu {
    fn read_word(text: &str) -> Option<Self> {
        match text {
            "paths" => Some(PodMtu::Paths),
            "underlay" => Some(PodMtu::Underlay),
            _ => None,
        }
    }

    fn fixed(number: Option<u32>) -> Option<Self> {
        number.filter(|number| POD_MTU.contains(number)).map(PodMtu::Fixed)
    }

    fn wanted() -> Expectation {
        let (least, most) = (POD_MTU.start(), POD_MTU.end());
        Expectation(format!("paths, underlay, or a number of bytes from {least} to {most}"))
    }
}

impl Setting for PodMtu {
    fn read(&mut self, value: &DeValue<'_>) -> Result<(), Expectation> {
        let read = match value.as_str() {
            Some(text) => PodMtu::read_word(text),
            None => PodMtu::fixed(whole(value)),
        };
        *self = read.ok_or_else(PodMtu::wanted)?;
        Ok(())
    }

    fn read_flag(&mut self, text: &str) -> Result<(), Expectation> {
        let read = PodMtu::read_word(text).or_else(|| PodMtu::fixed(text.parse().ok()));
        *self = read.ok_or_else(PodMtu::wanted)?;
        Ok(())
    }

    fn show(&self) -> Option<String> {
        Some(match self {
            PodMtu::Paths => quoted("paths"),
            PodMtu::Underlay => quoted("underlay"),
            PodMtu::Fixed(number) => number.to_string(),
        })
    }

    fn form(&self) -> Form {
        Form::One("paths|underlay|BYTES")
    }

    fn schema(&self) -> Value {
        json!({"anyOf": [
            {"enum": ["paths", "underlay"]},
            {"type": "integer", "minimum": POD_MTU.start(), "maximum": POD_MTU.end()},
        ]})
    }
}

/// Where to listen by TCP. A port alone means the loopback address, which no other host reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListenAddress(pub SocketAddr);

impl Item for ListenAddress {
    const WANTED: &'static str =
        "a port such as \"9470\", or an address and a port such as \"192.0.2.1:9470\"";
    const PLACEHOLDER: &'static str = "[ADDRESS:]PORT";

    fn parse(text: &str) -> Option<Self> {
        let port = text.parse().ok().map(|port: u16| (Ipv4Addr::LOCALHOST, port).into());
        port.or_else(|| text.parse().ok())
            .filter(|at: &SocketAddr| at.port() != 0)
            .map(ListenAddress)
    }

    fn text(&self) -> String {
        self.0.to_string()
    }

    fn schema() -> Value {
        json!({"type": "string", "pattern": r"^(.+:)?[0-9]+$"})
    }
}

/// Durations are written as in Go: `10s`, `1m30s`, `500ms`.
impl Item for Duration {
    const WANTED: &'static str = "a duration such as \"10s\" or \"1m30s\"";
    const PLACEHOLDER: &'static str = "DURATION";

    fn parse(text: &str) -> Option<Self> {
        duration(text)
    }

    fn text(&self) -> String {
        duration_text(*self)
    }

    fn schema() -> Value {
        json!({"type": "string", "pattern": r"^(0|([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+)$"})
    }
}

/// Go's time.ParseDuration without negative durations: numbers, perhaps with a fraction, each with
/// its unit.
#[must_use]
pub fn duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest.is_empty() {
        return None;
    }
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..end].parse().ok()?;
        let after = &rest[end..];
        let unit_end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let unit = match &after[..unit_end] {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        seconds += number * unit;
        rest = &after[unit_end..];
    }
    Duration::try_from_secs_f64(seconds).ok()
}

/// Writes a duration so that [`duration`] reads it: `1m30s`, and `1.5ms` below a second.
fn duration_text(duration: Duration) -> String {
    if duration.is_zero() {
        return "0s".to_owned();
    }
    if duration.subsec_nanos() != 0 {
        return format!("{}ms", duration.as_nanos() as f64 / 1e6);
    }
    let (seconds, mut text) = (duration.as_secs(), String::new());
    for (number, unit) in [(seconds / 3600, 'h'), (seconds / 60 % 60, 'm'), (seconds % 60, 's')] {
        if number != 0 {
            text.push_str(&format!("{number}{unit}"));
        }
    }
    text
}

/// One of a few words.
pub trait Choice: Copy + PartialEq + Debug + 'static {
    /// The words, with what each means.
    const WORDS: &'static [(&'static str, Self)];
    /// The words as a message names them.
    const WANTED: &'static str;
}

/// A setting that is one of a few words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OneOf<T>(pub T);

impl<T: Choice> Item for OneOf<T> {
    const WANTED: &'static str = T::WANTED;
    const PLACEHOLDER: &'static str = "WORD";

    fn parse(text: &str) -> Option<Self> {
        let found = T::WORDS.iter().find(|(word, _)| *word == text);
        found.map(|(_, choice)| OneOf(*choice))
    }

    fn text(&self) -> String {
        let found = T::WORDS.iter().find(|(_, choice)| *choice == self.0);
        found.map(|(word, _)| (*word).to_owned()).unwrap_or_default()
    }

    fn schema() -> Value {
        json!({"enum": T::WORDS.iter().map(|(word, _)| *word).collect::<Vec<_>>()})
    }
}

/// Writes a string of TOML (TOML 1.0 "String"): what JSON escapes, TOML escapes alike, but DEL.
fn quoted(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_in_go_and_written_so_that_they_can_be_read() {
        for (text, want) in [
            ("0", Duration::ZERO),
            ("10s", Duration::from_secs(10)),
            ("1m30s", Duration::from_secs(90)),
            ("1.5h", Duration::from_secs(5400)),
            ("500ms", Duration::from_millis(500)),
            ("1s500ms", Duration::from_millis(1500)),
        ] {
            assert_eq!(duration(text), Some(want), "{text}");
            assert_eq!(duration(&duration_text(want)), Some(want), "{text}");
        }
        for bad in ["", "10", "s", "1x", "-1s", "1..s", "+"] {
            assert_eq!(duration(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_empty_string_takes_a_setting_back() {
        let mut path = Some(PathBuf::from("/a"));
        path.read_flag("").unwrap();
        assert_eq!(path, None);
        assert!(path.read(&DeValue::String("relative".into())).is_err());
    }

    #[test]
    fn numbers_and_ranges_have_bounds() {
        let read = |setting: &mut dyn Setting, text: &str| {
            let file = format!("k = {text}");
            let (table, _) = toml::de::DeTable::parse_recoverable(&file);
            let (_, value) = table.get_ref().iter().next().unwrap();
            let done = setting.read(value.get_ref());
            done.map(|()| setting.show().unwrap()).map_err(|wanted| wanted.0)
        };
        let mut vni = Number::<1, 16_777_215>(1);
        assert_eq!(read(&mut vni, "0x10").unwrap(), "16");
        for bad in ["0", "16777216", "-1", "1.0", "\"1\""] {
            assert_eq!(read(&mut vni, bad).unwrap_err(), "a whole number from 1 to 16777215");
        }
        let mut mtu = PodMtu::Paths;
        for (text, want) in [("1400", "1400"), ("\"underlay\"", "\"underlay\"")] {
            assert_eq!(read(&mut mtu, text).unwrap(), want);
        }
        assert!(read(&mut mtu, "1279").is_err() && mtu.read_flag("no").is_err());
        mtu.read_flag("1400").unwrap();
        assert_eq!(mtu, PodMtu::Fixed(1400));
        assert_eq!(<IpNet as Item>::parse("10.244.0.0/16").unwrap().text(), "10.244.0.0/16");
        assert_eq!(<IpNet as Item>::parse("10.244.1.0/16"), None);
    }

    #[test]
    fn a_port_alone_is_the_loopback_address() {
        for (text, want) in
            [("9470", "127.0.0.1:9470"), ("192.0.2.1:9470", "192.0.2.1:9470"), ("[::]:1", "[::]:1")]
        {
            assert_eq!(ListenAddress::parse(text).unwrap().text(), want);
            assert_eq!(ListenAddress::parse(want), ListenAddress::parse(text));
        }
        for bad in ["0", "127.0.0.1:0", "65536", ":9470", "localhost:9470", "127.0.0.1", "-1", " 1"]
        {
            assert_eq!(ListenAddress::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn urls_have_a_scheme_and_a_host() {
        assert_eq!(ServerUrl::parse("https://a:2379/").unwrap().as_str(), "https://a:2379");
        for bad in ["a:2379", "http://", "https://a/b", "ftp://a"] {
            assert_eq!(ServerUrl::parse(bad), None, "{bad}");
        }
    }
}
