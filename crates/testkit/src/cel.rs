//! The subset of the Common Expression Language that our admission policies use.
//!
//! A parser and an evaluator over JSON, following the language's definition (`cel-spec`,
//! doc/langdef.md) and Kubernetes' page "Common Expression Language in Kubernetes": fields,
//! optional fields (`.?`), lists, maps, `&&` and `||` that absorb errors, `?:`, comparisons, `in`,
//! `+`, and the functions `all`, `exists`, `has`, `matches`, `orValue`, `hasValue`, `size`,
//! `startsWith`, `endsWith`, `contains`. Anything else is an error, never a value.
//!
//! ```
//! use serde_json::json;
//! use testkit::cel::{Expression, Variables};
//!
//! let variables = Variables::from([("object".to_owned(), json!({"metadata": {"labels": {"a": "1"}}}))]);
//! let expression = Expression::parse("object.metadata.?labels.orValue({}).all(k, k.startsWith('a'))").unwrap();
//! assert_eq!(expression.evaluate(&variables), Ok(json!(true)));
//! ```

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Map, Value, json};

/// The values of the names in an expression.
pub type Variables = BTreeMap<String, Value>;

/// An expression, parsed.
#[derive(Debug, Clone, PartialEq)]
pub struct Expression(Node);

#[derive(Debug, Clone, PartialEq)]
enum Node {
    Literal(Value),
    Name(String),
    List(Vec<Node>),
    Map(Vec<(Node, Node)>),
    /// A field or an element, and whether it may be absent.
    Select(Box<Node>, Box<Node>, bool),
    /// A function, called on a value or on none.
    Call(Option<Box<Node>>, String, Vec<Node>),
    Unary(&'static str, Box<Node>),
    Binary(&'static str, Box<Node>, Box<Node>),
    Choice(Box<Node>, Box<Node>, Box<Node>),
}

/// A value, or an optional one, which may be absent.
#[derive(Debug, Clone, PartialEq)]
enum CelValue {
    Plain(Value),
    Optional(Option<Value>),
}

impl Expression {
    /// Parses an expression.
    ///
    /// # Errors
    /// What is not understood, and where.
    pub fn parse(text: &str) -> Result<Self, String> {
        let tokens = tokens(text)?;
        let mut parser = Parser { tokens: &tokens, next: 0 };
        let node = parser.choice()?;
        match parser.tokens.get(parser.next) {
            None => Ok(Expression(node)),
            Some(token) => Err(format!("{token:?} is not expected in {text:?}")),
        }
    }

    /// Evaluates it.
    ///
    /// # Errors
    /// Why it has no value: an absent field, a wrong type.
    pub fn evaluate(&self, variables: &Variables) -> Result<Value, String> {
        plain(evaluate(&self.0, variables)?)
    }
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Text(String),
    Number(i64),
    Word(String),
    Sign(&'static str),
}

/// A longer sign comes before the signs that are its prefixes.
const SIGNS: [&str; 22] = [
    "&&", "||", "==", "!=", "<=", ">=", "<", ">", "!", "?", ":", ".", ",", "(", ")", "[", "]", "{",
    "}", "+", "-", "%",
];

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let word = rest.split(|c| !is_word(c)).next().unwrap_or_default();
        let length;
        if matches!(first, '\'' | '"') {
            let (string, used) = string(rest, first)?;
            tokens.push(Token::Text(string));
            length = used;
        } else if first.is_ascii_digit() {
            tokens.push(Token::Number(word.parse().map_err(|_| format!("{word:?}"))?));
            length = word.len();
        } else if !word.is_empty() {
            tokens.push(Token::Word(word.to_owned()));
            length = word.len();
        } else if let Some(sign) = SIGNS.into_iter().find(|sign| rest.starts_with(sign)) {
            tokens.push(Token::Sign(sign));
            length = sign.len();
        } else {
            return Err(format!("{first:?} in {text:?}"));
        }
        rest = rest[length..].trim_start();
    }
    Ok(tokens)
}

/// Reads a string in quotes; returns how many bytes it takes.
fn string(text: &str, quote: char) -> Result<(String, usize), String> {
    let mut found = String::new();
    let mut chars = text.char_indices().skip(1);
    while let Some((place, c)) = chars.next() {
        match c {
            _ if c == quote => return Ok((found, place + 1)),
            '\\' => match chars.next() {
                Some((_, c @ ('\\' | '\'' | '"'))) => found.push(c),
                Some((_, 'n')) => found.push('\n'),
                other => return Err(format!("escape {other:?} in {text:?}")),
            },
            c => found.push(c),
        }
    }
    Err(format!("no end of {text:?}"))
}

struct Parser<'t> {
    tokens: &'t [Token],
    next: usize,
}

impl Parser<'_> {
    fn takes(&mut self, sign: &str) -> bool {
        let is_it = match self.tokens.get(self.next) {
            Some(Token::Sign(found)) => *found == sign,
            Some(Token::Word(found)) => found == sign,
            _ => false,
        };
        self.next += usize::from(is_it);
        is_it
    }

    fn needs(&mut self, sign: &str) -> Result<(), String> {
        if self.takes(sign) {
            return Ok(());
        }
        Err(format!("{sign:?} is expected before {:?}", self.tokens.get(self.next)))
    }

    fn choice(&mut self) -> Result<Node, String> {
        let condition = self.binary(0)?;
        if !self.takes("?") {
            return Ok(condition);
        }
        let yes = self.binary(0)?;
        self.needs(":")?;
        Ok(Node::Choice(Box::new(condition), Box::new(yes), Box::new(self.choice()?)))
    }

    /// Operators, those that bind least first.
    fn binary(&mut self, level: usize) -> Result<Node, String> {
        const LEVELS: [&[&str]; 4] =
            [&["||"], &["&&"], &["==", "!=", "<=", ">=", "<", ">", "in"], &["+"]];
        let Some(signs) = LEVELS.get(level) else { return self.unary() };
        let mut left = self.binary(level + 1)?;
        while let Some(sign) = signs.iter().find(|sign| self.takes(sign)) {
            left = Node::Binary(sign, Box::new(left), Box::new(self.binary(level + 1)?));
        }
        Ok(left)
    }

    fn unary(&mut self) -> Result<Node, String> {
        match ["!", "-"].into_iter().find(|sign| self.takes(sign)) {
            Some(sign) => Ok(Node::Unary(sign, Box::new(self.unary()?))),
            None => self.member(),
        }
    }

    fn member(&mut self) -> Result<Node, String> {
        let mut node = self.primary()?;
        loop {
            if self.takes(".") {
                let optional = self.takes("?");
                let name = self.word()?;
                node = if !optional && self.takes("(") {
                    Node::Call(Some(Box::new(node)), name, self.list(")")?)
                } else {
                    let key = Box::new(Node::Literal(json!(name)));
                    Node::Select(Box::new(node), key, optional)
                };
            } else if self.takes("[") {
                let optional = self.takes("?");
                let key = Box::new(self.choice()?);
                self.needs("]")?;
                node = Node::Select(Box::new(node), key, optional);
            } else {
                return Ok(node);
            }
        }
    }

    fn word(&mut self) -> Result<String, String> {
        let Some(Token::Word(word)) = self.tokens.get(self.next) else {
            return Err(format!("a name is expected before {:?}", self.tokens.get(self.next)));
        };
        self.next += 1;
        Ok(word.clone())
    }

    fn list(&mut self, end: &str) -> Result<Vec<Node>, String> {
        let mut all = Vec::new();
        while !self.takes(end) {
            if !all.is_empty() {
                self.needs(",")?;
            }
            all.push(self.choice()?);
        }
        Ok(all)
    }

    fn primary(&mut self) -> Result<Node, String> {
        if self.takes("(") {
            let node = self.choice()?;
            return self.needs(")").map(|()| node);
        }
        if self.takes("[") {
            return self.list("]").map(Node::List);
        }
        if self.takes("{") {
            let mut all = Vec::new();
            while !self.takes("}") {
                if !all.is_empty() {
                    self.needs(",")?;
                }
                let key = self.binary(0)?;
                self.needs(":")?;
                all.push((key, self.choice()?));
            }
            return Ok(Node::Map(all));
        }
        let token = self.tokens.get(self.next).cloned();
        self.next += 1;
        match token {
            Some(Token::Text(text)) => Ok(Node::Literal(json!(text))),
            Some(Token::Number(number)) => Ok(Node::Literal(json!(number))),
            Some(Token::Word(word)) => match word.as_str() {
                "true" => Ok(Node::Literal(json!(true))),
                "false" => Ok(Node::Literal(json!(false))),
                "null" => Ok(Node::Literal(Value::Null)),
                _ if self.takes("(") => Ok(Node::Call(None, word, self.list(")")?)),
                _ => Ok(Node::Name(word)),
            },
            other => Err(format!("{other:?} is not expected")),
        }
    }
}

fn evaluate(node: &Node, variables: &Variables) -> Result<CelValue, String> {
    let value = |node: &Node| plain(evaluate(node, variables)?);
    let found = match node {
        Node::Literal(literal) => literal.clone(),
        Node::Name(name) => variables.get(name).cloned().ok_or(format!("no variable {name:?}"))?,
        Node::List(all) => Value::Array(all.iter().map(value).collect::<Result<_, _>>()?),
        Node::Map(all) => {
            let pair = |(key, of): &(Node, Node)| Ok((text(&value(key)?)?, value(of)?));
            Value::Object(all.iter().map(pair).collect::<Result<Map<_, _>, String>>()?)
        }
        Node::Select(of, key, optional) => {
            let key = value(key)?;
            let (of, optional) = match evaluate(of, variables)? {
                CelValue::Plain(of) => (of, *optional),
                CelValue::Optional(Some(of)) => (of, true),
                CelValue::Optional(None) => return Ok(CelValue::Optional(None)),
            };
            let found = select(&of, &key)?;
            if optional {
                return Ok(CelValue::Optional(found));
            }
            found.ok_or(format!("no such key: {key}"))?
        }
        Node::Call(of, name, arguments) => return call(of.as_deref(), name, arguments, variables),
        Node::Unary(sign, of) => match (*sign, value(of)?) {
            ("!", Value::Bool(is)) => json!(!is),
            ("-", Value::Number(number)) => json!(-number.as_i64().unwrap_or_default()),
            (sign, of) => return Err(format!("no such overload: {sign}{of}")),
        },
        Node::Choice(condition, yes, no) => match value(condition)? {
            Value::Bool(is) => return evaluate(if is { yes } else { no }, variables),
            other => return Err(format!("no such overload: {other} ? :")),
        },
        Node::Binary(sign @ ("&&" | "||"), left, right) => {
            // One side is enough to decide, whatever the other is.
            let decides = json!(*sign == "||");
            match (value(left), value(right)) {
                (Ok(left), _) if left == decides => left,
                (_, Ok(right)) if right == decides => right,
                (Ok(Value::Bool(_)), Ok(right @ Value::Bool(_))) => right,
                (Err(error), _) | (_, Err(error)) => return Err(error),
                (left, right) => {
                    return Err(format!("no such overload: {left:?} {sign} {right:?}"));
                }
            }
        }
        Node::Binary(sign @ ("==" | "!="), left, right) => {
            let same = evaluate(left, variables)? == evaluate(right, variables)?;
            json!(same == (*sign == "=="))
        }
        Node::Binary(sign, left, right) => binary(sign, &value(left)?, &value(right)?)?,
    };
    Ok(CelValue::Plain(found))
}

fn binary(sign: &str, left: &Value, right: &Value) -> Result<Value, String> {
    let wrong = || format!("no such overload: {left} {sign} {right}");
    Ok(match (sign, left, right) {
        ("in", left, Value::Array(all)) => json!(all.contains(left)),
        ("in", Value::String(key), Value::Object(map)) => json!(map.contains_key(key)),
        ("+", Value::String(left), Value::String(right)) => json!(format!("{left}{right}")),
        ("+", Value::Array(left), Value::Array(right)) => {
            Value::Array(left.iter().chain(right).cloned().collect())
        }
        (_, Value::Number(left), Value::Number(right)) => {
            let (Some(left), Some(right)) = (left.as_i64(), right.as_i64()) else {
                return Err(wrong());
            };
            match sign {
                "+" => json!(left + right),
                "<" => json!(left < right),
                ">" => json!(left > right),
                "<=" => json!(left <= right),
                ">=" => json!(left >= right),
                _ => return Err(wrong()),
            }
        }
        _ => return Err(wrong()),
    })
}

fn select(of: &Value, key: &Value) -> Result<Option<Value>, String> {
    match (of, key) {
        (Value::Object(map), Value::String(key)) => Ok(map.get(key).cloned()),
        (Value::Array(all), Value::Number(place)) => {
            let place = place.as_u64().and_then(|place| usize::try_from(place).ok());
            Ok(place.and_then(|place| all.get(place)).cloned())
        }
        _ => Err(format!("no such overload: {of}[{key}]")),
    }
}

fn call(
    of: Option<&Node>,
    name: &str,
    arguments: &[Node],
    variables: &Variables,
) -> Result<CelValue, String> {
    let unknown = || format!("no such function: {name} with {} arguments", arguments.len());
    // Macros: their arguments are not values.
    match (of, name, arguments) {
        (None, "has", [Node::Select(of, key, false)]) => {
            let of = plain(evaluate(of, variables)?)?;
            let key = plain(evaluate(key, variables)?)?;
            return Ok(CelValue::Plain(json!(select(&of, &key)?.is_some())));
        }
        (Some(of), "all" | "exists", [Node::Name(each), condition]) => {
            let of = plain(evaluate(of, variables)?)?;
            return each_of(&of, each, condition, name == "all", variables).map(CelValue::Plain);
        }
        _ => {}
    }
    let of = of.map(|of| evaluate(of, variables)).transpose()?;
    let arguments = arguments.iter().map(|node| plain(evaluate(node, variables)?));
    let arguments = arguments.collect::<Result<Vec<_>, String>>()?;
    let found = match (of, name, arguments.as_slice()) {
        (Some(CelValue::Optional(found)), "orValue", [other]) => found.unwrap_or(other.clone()),
        (Some(CelValue::Optional(found)), "hasValue", []) => json!(found.is_some()),
        (Some(CelValue::Plain(Value::String(of))), _, [Value::String(other)]) => match name {
            "startsWith" => json!(of.starts_with(other)),
            "endsWith" => json!(of.ends_with(other)),
            "contains" => json!(of.contains(other)),
            "matches" => json!(matches(&of, other)?),
            _ => return Err(unknown()),
        },
        (None, "size", [of]) => size(of)?,
        (Some(CelValue::Plain(of)), "size", []) => size(&of)?,
        _ => return Err(unknown()),
    };
    Ok(CelValue::Plain(found))
}

/// Whether a condition holds for all keys or elements, or for one. If one element decides, errors
/// of the others do not matter.
fn each_of(
    of: &Value,
    each: &str,
    condition: &Node,
    all: bool,
    variables: &Variables,
) -> Result<Value, String> {
    let elements: Vec<Value> = match of {
        Value::Array(all) => all.clone(),
        Value::Object(map) => map.keys().map(|key| json!(key)).collect(),
        other => return Err(format!("no such overload: {other}.all()")),
    };
    let mut scope = variables.clone();
    let mut failed = None;
    for element in elements {
        scope.insert(each.to_owned(), element);
        match evaluate(condition, &scope).and_then(plain) {
            Ok(Value::Bool(is)) if is != all => return Ok(json!(is)),
            Ok(Value::Bool(_)) => {}
            Ok(other) => failed = Some(format!("{other} is no condition")),
            Err(error) => failed = Some(error),
        }
    }
    failed.map_or(Ok(json!(all)), Err)
}

fn size(of: &Value) -> Result<Value, String> {
    match of {
        Value::String(text) => Ok(json!(text.chars().count())),
        Value::Array(all) => Ok(json!(all.len())),
        Value::Object(map) => Ok(json!(map.len())),
        other => Err(format!("no such overload: size({other})")),
    }
}

/// Matches a regular expression with `grep`. RE2, which Kubernetes uses, and `grep` read the
/// expressions used here in the same way.
fn matches(text: &str, pattern: &str) -> Result<bool, String> {
    let mut grep = Command::new("grep");
    grep.args(["-zPq", "--", pattern]).stdin(Stdio::piped()).stderr(Stdio::null());
    let failed = |error: std::io::Error| format!("grep: {error}");
    let mut child = grep.spawn().map_err(failed)?;
    // `grep` may end before it has read everything.
    let _ = child.stdin.take().map(|mut input| input.write_all(text.as_bytes()));
    match child.wait().map_err(failed)?.code() {
        Some(0) => Ok(true),
        Some(1) => Ok(false),
        other => Err(format!("grep ends with {other:?} for {pattern:?}")),
    }
}

fn plain(found: CelValue) -> Result<Value, String> {
    match found {
        CelValue::Plain(value) => Ok(value),
        CelValue::Optional(_) => Err("an optional value is no value".to_owned()),
    }
}

fn text(value: &Value) -> Result<String, String> {
    value.as_str().map(str::to_owned).ok_or(format!("{value} is no text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Result<Value, String> {
        let object = json!({
            "metadata": {"name": "p", "annotations": {"a": "1"}, "finalizers": ["x"]}, "list": [1, 2],
        });
        let variables = Variables::from([("object".to_owned(), object)]);
        Expression::parse(text)?.evaluate(&variables)
    }

    #[test]
    fn expressions_have_their_values() {
        for (text, expected) in [
            ("1 + 1 == 2 && 'a' + \"b\" == 'ab'", json!(true)),
            ("object.metadata.name", json!("p")),
            ("object.metadata.annotations['a']", json!("1")),
            ("object.list[1] > object.list[0]", json!(true)),
            ("object.?spec.?nodeName.orValue('none')", json!("none")),
            ("object.metadata.?annotations['b'].orValue('x')", json!("x")),
            ("object.metadata.?annotations.orValue({})", json!({"a": "1"})),
            ("object.?spec == object.?status", json!(true)),
            ("object.metadata.?finalizers == object.?status", json!(false)),
            ("object.metadata.annotations.all(k, k in ['a', 'b'])", json!(true)),
            ("object.list.exists(n, n == 3)", json!(false)),
            ("has(object.spec) ? 'yes' : 'no'", json!("no")),
            ("!(object.metadata.name.matches('^q')) && size(object.list) == 2", json!(true)),
            // One side is enough to decide.
            ("object.spec.x || true", json!(true)),
            ("false && object.spec.x", json!(false)),
            ("[{'a': 1}, {}]", json!([{"a": 1}, {}])),
        ] {
            assert_eq!(value(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_has_no_value_is_an_error() {
        for text in [
            "object.spec",
            "object.spec.x || false",
            "object.?spec",
            "object.list[9]",
            "other",
            "1 && true",
            "object.unknown()",
            "object.",
            "'open",
            "1 2",
            "object.metadata.annotations.all(k, object.spec == k)",
        ] {
            assert!(value(text).is_err(), "{text}: {:?}", value(text));
        }
    }
}
