//! A line of a file, with a caret below the place that a message is about.

use std::fmt;

use serde::Serialize;

/// Longer lines are cut: a configuration may be one line of thousands of characters.
const WIDTH: usize = 100;

/// A place in a file, both numbers counted from 1; 0 if not known. Columns count bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Place {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for number in [self.line, self.column].into_iter().take_while(|number| *number != 0) {
            write!(f, ":{number}")?;
        }
        Ok(())
    }
}

impl Place {
    /// Returns where `part`, a slice of `text`, begins; the unknown place if it is no slice of it.
    #[must_use]
    pub fn of(text: &str, part: &str) -> Self {
        Place::at(text, part.as_ptr().addr().wrapping_sub(text.as_ptr().addr()))
    }

    /// Returns the place of a byte of `text`; the unknown place if it is not in it.
    #[must_use]
    pub fn at(text: &str, offset: usize) -> Self {
        let Some(before) = text.get(..offset) else { return Place::default() };
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Place { line: before.matches('\n').count() + 1, column: before.len() - line_start + 1 }
    }

    /// Returns the place in the file of `inner`, which is relative to a piece that begins here.
    #[must_use]
    pub fn within(self, inner: Place) -> Self {
        match (self.line, inner.line) {
            (0, _) => inner,
            (_, 0) => self,
            (line, 1) => Place { line, column: self.column + inner.column.max(1) - 1 },
            (line, below) => Place { line: line + below - 1, column: inner.column },
        }
    }
}

/// Returns the line and the caret, ready to print; empty when the place is not known.
#[must_use]
pub fn excerpt(text: &str, place: Place) -> String {
    let Some(line) = place.line.checked_sub(1).and_then(|index| text.lines().nth(index)) else {
        return String::new();
    };
    let number = place.line.to_string();
    let margin = " ".repeat(number.len());
    let before = place.column.saturating_sub(1).min(line.len());
    let before = (0..=before).rev().find(|at| line.is_char_boundary(*at)).unwrap_or_default();
    let caret_at = line[..before].chars().count();
    // The window begins so that the caret is inside it.
    let skip = caret_at.saturating_sub(WIDTH - WIDTH / 4);
    let shown: String = line.chars().skip(skip).take(WIDTH).map(plain).collect();
    let mut excerpt = format!("{margin} |\n{number} | {}\n", shown.trim_end());
    if place.column != 0 {
        excerpt.push_str(&format!("{margin} | {}^\n", " ".repeat(caret_at - skip)));
    }
    excerpt
}

/// Replaces tabs and control characters, which would move the caret or the terminal's cursor.
fn plain(c: char) -> char {
    if c.is_control() { ' ' } else { c }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn the_caret_stands_below_the_place() {
        let text = "{\n\t\"name\": \"x\"\n}\n";
        let part = &text[text.find("\"x\"").unwrap()..];
        assert_eq!(Place::of(text, part), Place { line: 2, column: 10 });
        expect![[r#"
              |
            2 |  "name": "x"
              |          ^
        "#]]
        .assert_eq(&excerpt(text, Place::of(text, part)));
        assert_eq!(excerpt(text, Place::default()), "");
        assert_eq!(excerpt(text, Place { line: 9, column: 1 }), "");
    }

    #[test]
    fn long_lines_are_cut_around_the_place() {
        let text = format!("{}X{}", "a".repeat(500), "b".repeat(500));
        let shown = excerpt(&text, Place { line: 1, column: 501 });
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[1].chars().count(), 4 + WIDTH);
        assert_eq!(lines[1].find('X'), lines[2].find('^'));
    }

    #[test]
    fn places_nest() {
        let outer = Place { line: 3, column: 5 };
        assert_eq!(outer.within(Place { line: 1, column: 4 }), Place { line: 3, column: 8 });
        assert_eq!(outer.within(Place { line: 2, column: 4 }), Place { line: 4, column: 4 });
        assert_eq!(outer.within(Place::default()), outer);
    }
}
