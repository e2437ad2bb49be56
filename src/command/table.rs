//! Plain tables for a terminal: left-aligned first column, right-aligned numbers.

use std::io::{self, Write};

use crate::shown::one_line;

/// What is wider stands out of its column.
const WIDTH_MAX: usize = 200;

/// Rows of cells under a heading.
#[derive(Debug)]
pub(super) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings.
    pub(super) fn new(heading: &[&str]) -> Table {
        Table { rows: vec![heading.iter().map(|cell| (*cell).to_owned()).collect()] }
    }

    /// Adds a row.
    pub(super) fn row(&mut self, cells: Vec<String>) {
        // What a manifest calls a run or a language must not steer the terminal.
        self.rows.push(cells.iter().map(|cell| one_line(cell).into_owned()).collect());
    }

    /// Prints it.
    pub(super) fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0).min(WIDTH_MAX)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
                0 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            });
            writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        Ok(())
    }
}
