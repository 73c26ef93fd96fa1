//! The annotations of a pod: which networks it gets beside the cluster's, and which instead of it.
//!
//! An annotation names networks in one of two forms (NPWG standard v1.3 §4.1): a list of names,
//! `net-a,other/net-b@data0`, or a JSON list of [`Selection`]s, for pods that request more than a
//! network. Its content decides which form it is: JSON contains one of `[`, `{`, `"`.
//!
//! Anything that could leave a pod without a requested interface is refused. The refusal names the
//! element and says what to write instead.
//!
//! ```
//! use netwright_npwg::annotation;
//!
//! let read = annotation::parse("net-a, other/net-b@data0", "default")?;
//! assert_eq!(read[1].namespace, "other");
//! assert_eq!(read[1].interface.as_ref().unwrap().as_str(), "data0");
//! let refused = annotation::parse(r#"[{"name": "net-a", "ips": ["10.0.0.300"]}]"#, "default").unwrap_err();
//! assert_eq!(refused.to_string(), r#"network 1 ("net-a"): "ips": "10.0.0.300" is neither an address nor an address with a prefix length"#);
//! # Ok::<(), annotation::AnnotationError>(())
//! ```

use std::collections::{BTreeMap, BTreeSet};

use cni::json::{JsonError, Object};
use cni::{IfName, json};
use serde_json::value::RawValue;

use crate::selection::{ElementError, Selection};

/// The networks a pod gets beside the cluster's.
pub const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";

/// The same in what preceded the standard, newest first: from the time of its drafts, and from the
/// proposal of 2017.
pub const LEGACY_NETWORKS: [&str; 2] = ["kubernetes.v1.cni.cncf.io/networks", PROPOSAL];

/// The key of the proposal of 2017. Other programs may use a key of that name for anything: only a
/// JSON list of objects with names is taken as ours.
const PROPOSAL: &str = "networks";

/// The one network a pod gets instead of the cluster's (Multus).
pub const DEFAULT_NETWORK: &str = "v1.multus-cni.io/default-network";

/// The annotation of a definition whose attachments need a device of a resource.
pub const RESOURCE_NAME: &str = "k8s.v1.cni.cncf.io/resourceName";

/// The annotation with the result: [`crate::status`].
pub const STATUS: &str = "k8s.v1.cni.cncf.io/network-status";

/// The same under the name that older readers look for.
pub const LEGACY_STATUS: &str = "k8s.v1.cni.cncf.io/networks-status";

/// The most networks of a pod: more than pods have in practice, and few enough that a plan fits
/// into a message.
pub const MAX_NETWORKS: usize = 256;

/// The prefix of the names of unnamed interfaces; the network's position follows (NPWG, Multus).
const UNNAMED_IFNAME: &str = "net";

/// Why an annotation cannot be followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AnnotationError {
    /// It looks like JSON and is not valid JSON.
    #[error("neither a list of names nor JSON: {0}")]
    Json(#[source] JsonError),
    /// It is JSON and not a list.
    #[error("JSON, but not a list: write [ and ] around it")]
    NotAList,
    /// An element of the list is not an object.
    #[error("network {place} is not an object: write {{\"name\": …}}")]
    NotAnObject {
        /// The element, counted from 1.
        place: usize,
    },
    /// There is nothing between two commas, or before or after one.
    #[error("network {place} has no name: there is a comma too many")]
    NoName {
        /// The element, counted from 1.
        place: usize,
    },
    /// An element of the short form has a slash or an `@` too many.
    #[error("network {place}, {text:?}, is not [namespace/]name[@interface]")]
    NotAName {
        /// The element, counted from 1.
        place: usize,
        /// Its text.
        text: String,
    },
    /// One element is invalid.
    #[error("network {place}{}: {problem}", called(.name))]
    Element {
        /// The element, counted from 1.
        place: usize,
        /// Its name.
        name: String,
        /// The error.
        #[source]
        problem: Box<ElementError>,
    },
    /// Two request the same interface.
    #[error("networks {first} and {second} both ask for interface {ifname}")]
    SameInterface {
        /// The first, counted from 1.
        first: usize,
        /// The other.
        second: usize,
        /// The interface.
        ifname: IfName,
    },
    /// One requests the interface of the default network.
    #[error("network {place} asks for interface {ifname}, which is the default network's")]
    DefaultInterface {
        /// The element, counted from 1.
        place: usize,
        /// The interface.
        ifname: IfName,
    },
    /// Two request the default route (NPWG v1.3 "default-route").
    #[error(
        "networks {first} and {second} both ask for the default route: it can be on one network only"
    )]
    TwoDefaultRoutes {
        /// The first, counted from 1.
        first: usize,
        /// The other.
        second: usize,
    },
    /// There are more than [`MAX_NETWORKS`].
    #[error("{0} networks, more than {MAX_NETWORKS}")]
    TooMany(usize),
    /// [`DEFAULT_NETWORK`] names none, or several.
    #[error("names {0} networks, must name one")]
    NotOne(usize),
}

fn called(name: &str) -> String {
    if name.is_empty() { String::new() } else { format!(" ({name:?})") }
}

/// An annotation that cannot be followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("annotation {key}: {error}")]
pub struct PodError {
    /// Which.
    pub key: &'static str,
    /// Why.
    #[source]
    pub error: AnnotationError,
}

/// What a pod's annotations request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodRequest {
    /// Instead of the cluster's network.
    pub default: Option<Selection>,
    /// Beside it, in their order.
    pub networks: Vec<Selection>,
}

impl PodRequest {
    /// Reads the annotations of a pod in this namespace. A name without a namespace is in the pod's
    /// namespace, except that [`DEFAULT_NETWORK`] is in `default_namespace`. `default_ifname` is
    /// the default network's interface.
    ///
    /// # Errors
    /// [`PodError`]; then the pod must not get any network.
    pub fn read(
        annotations: &BTreeMap<String, String>,
        namespace: &str,
        default_namespace: &str,
        default_ifname: &str,
    ) -> Result<Self, PodError> {
        let default = match annotations.get(DEFAULT_NETWORK) {
            Some(text) => parse_default(text, default_namespace)
                .map(Some)
                .map_err(|error| PodError { key: DEFAULT_NETWORK, error })?,
            None => None,
        };
        let Some((key, text)) = networks(annotations) else {
            return Ok(PodRequest { default, networks: Vec::new() });
        };
        let networks = parse(text, namespace).and_then(|networks| {
            refuse_conflicts(&networks, default_ifname)?;
            Ok(networks)
        });
        let networks = networks.map_err(|error| PodError { key, error })?;
        let asked = PodRequest { default, networks };
        let second = asked.networks.iter().position(|network| network.default_route.is_some());
        match (&asked.default, second) {
            (Some(default), Some(second)) if default.default_route.is_some() => Err(PodError {
                key,
                error: AnnotationError::TwoDefaultRoutes { first: 0, second: second + 1 },
            }),
            _ => Ok(asked),
        }
    }
}

/// Returns the annotation that names a pod's networks, and its key.
#[must_use]
pub fn networks(annotations: &BTreeMap<String, String>) -> Option<(&'static str, &str)> {
    let keys = [NETWORKS].into_iter().chain(LEGACY_NETWORKS);
    let mut found = keys.filter_map(|key| Some((key, annotations.get(key)?.as_str())));
    found.find(|(key, text)| *key != PROPOSAL || is_list_of_objects(text))
}

fn is_list_of_objects(text: &str) -> bool {
    json::from_str::<Vec<Object>>(text)
        .is_ok_and(|list| list.iter().all(|object| object.get_ignore_case("name").is_some()))
}

/// Reads an annotation of networks, [`NETWORKS`] or an older one. A blank one counts as none.
///
/// # Errors
/// [`AnnotationError`].
pub fn parse(text: &str, namespace: &str) -> Result<Vec<Selection>, AnnotationError> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let read = if text.contains(['[', '{', '"']) { parse_json(text)? } else { parse_short(text)? };
    if MAX_NETWORKS < read.len() {
        return Err(AnnotationError::TooMany(read.len()));
    }
    let mut route: Option<usize> = None;
    for (place, network) in (1..).zip(&read) {
        if network.default_route.is_some()
            && let Some(first) = route.replace(place)
        {
            return Err(AnnotationError::TwoDefaultRoutes { first, second: place });
        }
    }
    let of_pod = |mut network: Selection| {
        if network.namespace.is_empty() {
            namespace.clone_into(&mut network.namespace);
        }
        network
    };
    Ok(read.into_iter().map(of_pod).collect())
}

/// Reads [`DEFAULT_NETWORK`]: one network in either form.
///
/// # Errors
/// [`AnnotationError`].
pub fn parse_default(text: &str, namespace: &str) -> Result<Selection, AnnotationError> {
    let mut read = parse(text, namespace)?;
    match (read.pop(), read.len()) {
        (Some(one), 0) => Ok(one),
        (None, _) => Err(AnnotationError::NotOne(0)),
        (Some(_), rest) => Err(AnnotationError::NotOne(rest + 1)),
    }
}

/// Refuses networks that request an interface another one has.
///
/// # Errors
/// [`AnnotationError::SameInterface`], [`AnnotationError::DefaultInterface`].
pub fn refuse_conflicts(
    networks: &[Selection],
    default_ifname: &str,
) -> Result<(), AnnotationError> {
    let mut seen: BTreeMap<&IfName, usize> = BTreeMap::new();
    for (place, network) in (1..).zip(networks) {
        let Some(ifname) = &network.interface else { continue };
        if ifname.as_str() == default_ifname {
            return Err(AnnotationError::DefaultInterface { place, ifname: ifname.clone() });
        }
        if let Some(first) = seen.insert(ifname, place) {
            let ifname = ifname.clone();
            return Err(AnnotationError::SameInterface { first, second: place, ifname });
        }
    }
    Ok(())
}

/// Names every interface: as requested, else `net` and the position of its network, counted from 1,
/// or the next free number.
///
/// `asked` are the networks beside the default one, in their order; `is_taken` says which names
/// must not be used.
///
/// # Panics
/// When `is_taken` rejects every name.
#[must_use]
pub fn interface_names(asked: &[Option<IfName>], is_taken: impl Fn(&str) -> bool) -> Vec<IfName> {
    let mut given: BTreeSet<IfName> = cni::order::gather(asked.iter().flatten().cloned());
    let name = |(place, asked): (usize, &Option<IfName>)| {
        if let Some(asked) = asked {
            return asked.clone();
        }
        let names = (place..).map(|number| format!("{UNNAMED_IFNAME}{number}"));
        let free = |name: &String| !given.contains(name.as_str()) && !is_taken(name);
        let name = names.take(2 * MAX_NETWORKS).find(free).expect("there are more names");
        let name = IfName::new(&name).expect("a word and a small number");
        given.insert(name.clone());
        name
    };
    (1..).zip(asked).map(name).collect()
}

fn parse_json(text: &str) -> Result<Vec<Selection>, AnnotationError> {
    let list: Vec<Box<RawValue>> = match json::from_str(text) {
        Ok(list) => list,
        Err(error) => {
            let whole: Result<Box<RawValue>, _> = json::from_str(text);
            let is_json = whole.is_ok();
            return Err(if is_json {
                AnnotationError::NotAList
            } else {
                AnnotationError::Json(error)
            });
        }
    };
    let element = |(place, raw): (usize, &RawValue)| {
        let object = match raw.get().as_bytes().first() {
            Some(b'{') => Object::parse(raw.get().as_bytes()).map_err(AnnotationError::Json)?,
            _ => return Err(AnnotationError::NotAnObject { place }),
        };
        Selection::of(&object).map_err(|problem| {
            let name = object.get_ignore_case("name");
            let name = name.and_then(|raw| serde_json::from_str(raw.get()).ok());
            let name = name.unwrap_or_default();
            AnnotationError::Element { place, name, problem: Box::new(problem) }
        })
    };
    (1..).zip(list.iter().map(|raw| &**raw)).map(element).collect()
}

fn parse_short(text: &str) -> Result<Vec<Selection>, AnnotationError> {
    let element = |(place, element): (usize, &str)| {
        let element = element.trim();
        if element.is_empty() {
            return Err(AnnotationError::NoName { place });
        }
        let not_a_name = || AnnotationError::NotAName { place, text: element.to_owned() };
        let (rest, ifname) = match element.split_once('@') {
            Some((rest, ifname)) => (rest, Some(ifname)),
            None => (element, None),
        };
        let (namespace, name) = match rest.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, rest),
        };
        let is_bare = |part: &str| !part.trim().is_empty() && !part.contains(['/', '@']);
        let parts = [Some(name), namespace, ifname].into_iter().flatten();
        if !parts.into_iter().all(is_bare) {
            return Err(not_a_name());
        }
        Selection::named(namespace.map(str::trim), name.trim(), ifname.map(str::trim)).map_err(
            |problem| {
                let name = name.trim().to_owned();
                AnnotationError::Element { place, name, problem: Box::new(problem) }
            },
        )
    };
    (1..).zip(text.split(',')).map(element).collect()
}
