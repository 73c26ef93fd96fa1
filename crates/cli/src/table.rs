//! Tables for people: columns as wide as they need to be.

use cni::text::one_line;

/// A table that is printed with two spaces between its columns.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Starts a table with the headings of its columns.
    pub(crate) fn new(headings: &[&str]) -> Self {
        Table { rows: vec![headings.iter().map(|heading| (*heading).to_owned()).collect()] }
    }

    /// Adds a row; an empty cell is shown as a dash.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        let cells = cells.into_iter().map(Into::into);
        // The width counts what is shown.
        let shown = |cell: String| if cell.is_empty() { "-".to_owned() } else { one_line(cell) };
        self.rows.push(cells.map(shown).collect());
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                line.push_str(&format!("{cell:<width$}  "));
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_lines_have_no_tail() {
        let mut table = Table::new(&["NAME", "STATE"]);
        table.row(["a", "ready"]);
        table.row(["longer-name", ""]);
        expect_test::expect![[r#"
            NAME         STATE
            a            ready
            longer-name  -
        "#]]
        .assert_eq(&table.to_string());
    }
}
