//! Finds the pod sets that a pod may be in, without looking at all of them.

use std::collections::{BTreeMap, BTreeSet};

use crate::labels::Selector;
use crate::object::{Namespace, Pod};
use crate::policy::{PodSet, Scope};

/// A label, or none.
type Label = Option<(String, String)>;

/// The namespaces of a pod set, as far as they can be looked up.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Named(String),
    Labelled(Label),
}

/// Things by the pods that they are about.
///
/// A pod set stands where its scope and one label that its pods must have lead to. A pod asks at
/// each place to which its namespace, that one's labels and its own labels lead. So sets about
/// other namespaces or other labels cost nothing.
#[derive(Debug, Clone)]
pub(crate) struct Index<T> {
    places: BTreeMap<Place, BTreeMap<Label, BTreeSet<T>>>,
}

impl<T> Default for Index<T> {
    fn default() -> Self {
        Index { places: BTreeMap::new() }
    }
}

impl<T: Ord + Clone> Index<T> {
    pub(crate) fn insert(&mut self, pods: &PodSet, thing: &T) {
        for (place, label) in keys(pods) {
            let labels = self.places.entry(place).or_default();
            labels.entry(label).or_default().insert(thing.clone());
        }
    }

    pub(crate) fn remove(&mut self, pods: &PodSet, thing: &T) {
        for (place, label) in keys(pods) {
            let Some(labels) = self.places.get_mut(&place) else { continue };
            if let Some(things) = labels.get_mut(&label) {
                things.remove(thing);
                if things.is_empty() {
                    labels.remove(&label);
                }
            }
            if labels.is_empty() {
                self.places.remove(&place);
            }
        }
    }

    /// Returns what may be about a pod; the caller has to look closer.
    pub(crate) fn near(&self, pod: &Pod, namespace: Option<&Namespace>) -> BTreeSet<&T> {
        let mut places = vec![Place::Named(pod.namespace.to_string()), Place::Labelled(None)];
        let labels = namespace.into_iter().flat_map(|namespace| &namespace.labels);
        places.extend(labels.map(|(key, value)| labelled(key, value)));
        let mut own: Vec<Label> = vec![None];
        own.extend(pod.labels.iter().map(|(key, value)| Some((key.clone(), value.clone()))));
        let mut found = BTreeSet::new();
        for labels in places.iter().filter_map(|place| self.places.get(place)) {
            for things in own.iter().filter_map(|label| labels.get(label)) {
                found.extend(things);
            }
        }
        found
    }
}

fn labelled(key: &str, value: &str) -> Place {
    Place::Labelled(Some((key.to_owned(), value.to_owned())))
}

/// The most values of a label by which a pod set is looked up. A selector may have thousands, and
/// two of them would be millions of places.
const MOST: usize = 16;

/// Returns where a pod set stands: at several places if a label may have several values.
fn keys(pods: &PodSet) -> Vec<(Place, Label)> {
    let places: Vec<Place> = match &pods.namespaces {
        Scope::Own(name) => vec![Place::Named(name.clone())],
        Scope::Matching(selector) => one_of(selector).into_iter().map(Place::Labelled).collect(),
    };
    let labels = one_of(&pods.pods);
    let each = |place: Place| labels.iter().map(move |label| (place.clone(), label.clone()));
    places.into_iter().flat_map(each).collect()
}

fn one_of(selector: &Selector) -> Vec<Label> {
    let owned = |(key, value): (&str, &str)| Some((key.to_owned(), value.to_owned()));
    let labels: Vec<Label> = selector.one_of().into_iter().flatten().map(owned).collect();
    if labels.is_empty() || MOST < labels.len() { vec![None] } else { labels }
}
