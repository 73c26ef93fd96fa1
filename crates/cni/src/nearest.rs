//! Finds the known word nearest to a mistyped one.

/// How many letters may differ between a mistyped word and a known one: one in three, three at
/// most.
fn tolerance(word: &str) -> usize {
    (word.chars().count() / 3).clamp(1, 3)
}

/// Returns the nearest of `known`, if one is near enough.
#[must_use]
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    known
        .into_iter()
        .map(|candidate| (distance(&word, &candidate.to_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= tolerance(&word))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Counts the insertions, deletions, replacements and swaps of neighbouring letters between two
/// words (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if 1 < i && 1 < j && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(before_last[j - 2] + 1);
            }
            row.push(best);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_recognised_and_strangers_are_not() {
        let known = ["isGateway", "ipMasq", "mtu", "hairpinMode"];
        assert_eq!(nearest("isGatway", known), Some("isGateway"));
        assert_eq!(nearest("ipmask", known), Some("ipMasq"));
        assert_eq!(nearest("mut", known), Some("mtu"));
        assert_eq!(nearest("hairpin-mode", known), Some("hairpinMode"));
        assert_eq!(nearest("colour", known), None);
        assert_eq!(nearest("", known), None);
    }
}
