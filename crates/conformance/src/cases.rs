//! Every case, by subject.

mod add;
mod chained;
mod check;
mod connectivity;
mod conventions;
mod del;
mod delegation;
mod gc;
mod ipam;
mod protocol;
mod results;
mod status;

use crate::case::Case;

const SUBJECTS: [&[Case]; 12] = [
    protocol::CASES,
    add::CASES,
    results::CASES,
    chained::CASES,
    ipam::CASES,
    del::CASES,
    check::CASES,
    status::CASES,
    gc::CASES,
    delegation::CASES,
    conventions::CASES,
    connectivity::CASES,
];

/// Lists every case; a case comes after the one that it depends on.
pub fn cases() -> impl Iterator<Item = &'static Case> {
    SUBJECTS.into_iter().flatten()
}

/// Finds a case by its name.
#[must_use]
pub fn find(id: &str) -> Option<&'static Case> {
    cases().find(|case| case.id == id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_cases_follow_those_they_depend_on() {
        let ids: Vec<_> = cases().map(|case| case.id).collect();
        for (at, case) in cases().enumerate() {
            assert!(!ids[..at].contains(&case.id), "{} is there twice", case.id);
            assert!(
                case.id.bytes().all(|c| c.is_ascii_lowercase() || b"0123456789.-".contains(&c))
            );
            assert!(!case.kinds.is_empty() && case.text.ends_with('.'), "{}", case.id);
            match case.after {
                Some(after) => {
                    assert!(ids[..at].contains(&after), "{} depends on {after}", case.id);
                }
                None => assert_eq!(case.id, "version-answers"),
            }
        }
    }
}
