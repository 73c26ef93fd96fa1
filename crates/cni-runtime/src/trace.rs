//! Trace context for plugins.

use std::fmt;

/// The position of a call in a distributed trace, in the form of [W3C Trace
/// Context](https://www.w3.org/TR/trace-context/).
///
/// Plugins get it as `TRACEPARENT`, `TRACESTATE` and `BAGGAGE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext {
    traceparent: String,
    tracestate: Option<String>,
    baggage: Option<String>,
}

/// Says which part of a trace context is malformed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid {field} {value:?}: {reason}")]
#[non_exhaustive]
pub struct TraceError {
    /// `traceparent`, `tracestate` or `baggage`.
    pub field: &'static str,
    /// The text.
    pub value: String,
    /// What is wrong with it.
    pub reason: &'static str,
}

/// The most members `tracestate` may have (W3C Trace Context §3.3.1.1).
const TRACESTATE_MEMBERS: usize = 32;

/// The most bytes `baggage` may have (W3C Baggage §3.3.2).
const BAGGAGE_BYTES: usize = 8192;

impl TraceContext {
    /// Takes a `traceparent`.
    ///
    /// # Errors
    /// [`TraceError`] when it is not `VV-TTT…-SSS…-FF` in lower-case hexadecimal, or names no trace
    /// or span.
    pub fn new(traceparent: &str) -> Result<Self, TraceError> {
        check_traceparent(traceparent).map_err(refuse("traceparent", traceparent))?;
        Ok(TraceContext { traceparent: traceparent.to_owned(), tracestate: None, baggage: None })
    }

    /// Adds a `tracestate`.
    ///
    /// # Errors
    /// [`TraceError`] when a member is not `key=value` or there are more than 32.
    pub fn with_tracestate(mut self, tracestate: &str) -> Result<Self, TraceError> {
        check_tracestate(tracestate).map_err(refuse("tracestate", tracestate))?;
        self.tracestate = Some(tracestate.to_owned());
        Ok(self)
    }

    /// Adds `baggage`.
    ///
    /// # Errors
    /// [`TraceError`] when a member is not `key=value`, or it is longer than 8192 bytes.
    pub fn with_baggage(mut self, baggage: &str) -> Result<Self, TraceError> {
        check_baggage(baggage).map_err(refuse("baggage", baggage))?;
        self.baggage = Some(baggage.to_owned());
        Ok(self)
    }

    /// Continues the trace that an environment carries.
    ///
    /// As the recommendation demands, a malformed `TRACEPARENT` means no trace, and a malformed
    /// `TRACESTATE` or `BAGGAGE` is left out.
    pub fn from_vars(vars: impl IntoIterator<Item = (String, String)>) -> Option<Self> {
        let (mut traceparent, mut tracestate, mut baggage) = (None, None, None);
        for (key, value) in vars {
            match key.as_str() {
                "TRACEPARENT" => traceparent = Some(value),
                "TRACESTATE" => tracestate = Some(value),
                "BAGGAGE" => baggage = Some(value),
                _ => {}
            }
        }
        let mut context = TraceContext::new(&traceparent?).ok()?;
        context.tracestate = tracestate.filter(|text| check_tracestate(text).is_ok());
        context.baggage = baggage.filter(|text| check_baggage(text).is_ok());
        Some(context)
    }

    /// Returns the variables a plugin gets.
    #[must_use]
    pub fn to_vars(&self) -> Vec<(String, String)> {
        let mut vars = vec![("TRACEPARENT".to_owned(), self.traceparent.clone())];
        vars.extend(self.tracestate.iter().map(|text| ("TRACESTATE".to_owned(), text.clone())));
        vars.extend(self.baggage.iter().map(|text| ("BAGGAGE".to_owned(), text.clone())));
        vars
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.traceparent)
    }
}

fn refuse(field: &'static str, value: &str) -> impl FnOnce(&'static str) -> TraceError {
    move |reason| TraceError { field, value: value.to_owned(), reason }
}

/// W3C Trace Context §3.2.2.
fn check_traceparent(text: &str) -> Result<(), &'static str> {
    let parts: Vec<&str> = text.split('-').collect();
    let [version, trace, span, flags, rest @ ..] = parts.as_slice() else {
        return Err("it has fewer than four parts");
    };
    if !is_lower_hex(version, 2) || *version == "ff" {
        return Err("the version is not two lower-case hexadecimal digits other than ff");
    }
    if *version == "00" && !rest.is_empty() {
        return Err("version 00 has four parts");
    }
    if !is_lower_hex(trace, 32) || is_zero(trace) {
        return Err("the trace ID is not 32 lower-case hexadecimal digits, or all zero");
    }
    if !is_lower_hex(span, 16) || is_zero(span) {
        return Err("the parent ID is not 16 lower-case hexadecimal digits, or all zero");
    }
    if !is_lower_hex(flags, 2) {
        return Err("the flags are not two lower-case hexadecimal digits");
    }
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("it has characters that are not printable ASCII");
    }
    Ok(())
}

fn is_lower_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_zero(text: &str) -> bool {
    text.bytes().all(|byte| byte == b'0')
}

/// W3C Trace Context §3.3.1.
fn check_tracestate(text: &str) -> Result<(), &'static str> {
    let members: Vec<&str> =
        text.split(',').map(|member| member.trim_matches([' ', '\t'])).collect();
    if TRACESTATE_MEMBERS < members.len() {
        return Err("it has more than 32 members");
    }
    for member in members.into_iter().filter(|member| !member.is_empty()) {
        let Some((key, value)) = member.split_once('=') else {
            return Err("a member is not key=value");
        };
        let key_char = |c: char| {
            c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '-' | '*' | '/' | '@')
        };
        if key.is_empty() || 256 < key.len() || !key.chars().all(key_char) {
            return Err("a key has characters that are not allowed");
        }
        let value_byte = |byte| matches!(byte, 0x20..=0x7e) && byte != b',' && byte != b'=';
        if value.is_empty() || 256 < value.len() || !value.bytes().all(value_byte) {
            return Err("a value has characters that are not allowed");
        }
    }
    Ok(())
}

/// W3C Baggage §3.3.1.
fn check_baggage(text: &str) -> Result<(), &'static str> {
    if BAGGAGE_BYTES < text.len() {
        return Err("it is longer than 8192 bytes");
    }
    if !text.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\t')) {
        return Err("it has characters that are not printable ASCII");
    }
    let well_formed = text.split(',').all(|member| {
        member
            .split(';')
            .next()
            .and_then(|pair| pair.split_once('='))
            .is_some_and(|(key, _)| !key.trim_matches([' ', '\t']).is_empty())
    });
    if well_formed { Ok(()) } else { Err("a member is not key=value") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_context_becomes_the_three_variables() {
        let context = TraceContext::new(PARENT)
            .and_then(|context| context.with_tracestate("rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"))
            .and_then(|context| context.with_baggage("userId=alice;ttl=1, isProduction=false"))
            .unwrap();
        let vars = context.to_vars();
        assert_eq!(
            vars.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(),
            cni::call::TRACE_VARIABLES
        );
        assert_eq!(TraceContext::from_vars(vars), Some(context));
    }

    #[test]
    fn malformed_parents_are_refused() {
        for text in [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1",
        ] {
            assert!(TraceContext::new(text).is_err(), "{text}");
        }
        // A later version may say more.
        assert!(TraceContext::new(&PARENT.replacen("00", "01", 1).replace("-01", "-01-x")).is_ok());
    }

    #[test]
    fn malformed_companions_are_refused_or_left_out() {
        let context = TraceContext::new(PARENT).unwrap();
        for text in ["novalue", "K=v", "k=a=b", "k=\n"] {
            assert!(context.clone().with_tracestate(text).is_err(), "{text}");
        }
        for text in ["novalue", "=v", "a=b\nc=d"] {
            assert!(context.clone().with_baggage(text).is_err(), "{text}");
        }
        let vars = [("TRACEPARENT", PARENT), ("TRACESTATE", "bad"), ("BAGGAGE", "bad")];
        let vars = vars.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(TraceContext::from_vars(vars), Some(context));
    }
}
