//! Bars, drawn as SVG.

use std::fmt::Write as _;

/// One pair of bars: a label, the reference's time and ours, in milliseconds.
pub(crate) struct Pair {
    pub(crate) label: String,
    pub(crate) theirs: f64,
    pub(crate) ours: f64,
}

const ROW: f64 = 46.0;
const LEFT: f64 = 290.0;
const WIDTH: f64 = 560.0;

/// A logarithmic scale from 1 ms on: each line is ten times the one before.
pub(crate) fn svg(pairs: &[Pair]) -> String {
    let longest = pairs.iter().flat_map(|pair| [pair.theirs, pair.ours]).fold(10.0, f64::max);
    let decades = longest.log10().ceil();
    let x = |time: f64| LEFT + WIDTH * time.max(1.0).log10() / decades;
    let height = ROW * f64::from(u32::try_from(pairs.len()).unwrap_or_default()) + 50.0;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        LEFT + WIDTH + 70.0
    );
    let mut line = 1.0;
    while line <= 10f64.powf(decades) {
        let at = x(line);
        let _ = writeln!(
            text,
            "<line x1=\"{at:.1}\" y1=\"20\" x2=\"{at:.1}\" y2=\"{:.1}\" stroke=\"#ccc\"/>\
             <text x=\"{at:.1}\" y=\"14\" text-anchor=\"middle\" fill=\"#555\">{line} ms</text>",
            height - 24.0
        );
        line *= 10.0;
    }
    let mut y = 26.0;
    for pair in pairs {
        let _ = writeln!(
            text,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 8.0,
            y + 22.0,
            pair.label
        );
        for (time, colour, top) in [(pair.theirs, "#b0b7c3", y), (pair.ours, "#d9582b", y + 18.0)] {
            let _ = writeln!(
                text,
                "<rect x=\"{LEFT}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"16\" fill=\"{colour}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\">{time:.1}</text>",
                x(time) - LEFT,
                x(time) + 4.0,
                top + 13.0
            );
        }
        y += ROW;
    }
    let _ = writeln!(
        text,
        "<text x=\"{LEFT}\" y=\"{:.1}\" fill=\"#555\">grey: the Go plugins, orange: Netwright, milliseconds, logarithmic</text>\n</svg>",
        height - 8.0
    );
    text
}
