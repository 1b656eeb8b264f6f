//! The demo's measurements as a picture (SVG): traffic between zones, one panel per policy. Pure.
//!
//! Each panel is a flow diagram: client zones on the left, pod zones on the right, a band's
//! thickness is its share of all connections. Bands that cross zones have another colour.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::{Matrix, Outcome, Scenario};

/// Without a policy; with the one that never crosses zones; with the one that also limits load.
const SHOWN: [Scenario; 3] = [Scenario::NothingSet, Scenario::PreferSameZone, Scenario::Balanced];

const PANEL_WIDTH: f64 = 320.0;
const HEIGHT: f64 = 330.0;
/// Height of all connections together.
const FLOW: f64 = 170.0;
const GAP: f64 = 14.0;
const TOP: f64 = 74.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 250.0;
const BAR: f64 = 10.0;

const SAME_ZONE: &str = "#2a9d6f";
const CROSS_ZONE: &str = "#e07a3f";
const INK: &str = "#24292f";

/// Draws the panels of `SHOWN`, as far as they were measured.
pub fn draw_svg(outcomes: &[Outcome]) -> String {
    let shown: Vec<&Outcome> = SHOWN
        .iter()
        .filter_map(|scenario| outcomes.iter().find(|outcome| outcome.scenario == *scenario))
        .collect();
    let width = PANEL_WIDTH * shown.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{HEIGHT}\" \
         viewBox=\"0 0 {width} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"13\" fill=\"{INK}\">\n\
         <title>Traffic between zones under three policies, measured by nearhop demo</title>\n\
         <rect width=\"{width}\" height=\"{HEIGHT}\" rx=\"8\" fill=\"#ffffff\"/>\n"
    );
    for (n, outcome) in shown.iter().enumerate() {
        let _ = writeln!(svg, "<g transform=\"translate({},0)\">", PANEL_WIDTH * n as f64);
        draw_panel(&mut svg, outcome);
        svg += "</g>\n";
    }
    svg + "</svg>\n"
}

fn draw_panel(svg: &mut String, outcome: &Outcome) {
    let measured = &outcome.measured;
    let crossed = format!("{:.0}% of connections cross zones", measured.crossed * 1e2);
    let busiest = format!("busiest pod: {:.1} times the mean", measured.worst);
    draw_text(svg, (PANEL_WIDTH / 2.0, 28.0), "middle", outcome.title, " font-weight=\"bold\"");
    draw_text(svg, (LEFT + BAR, 56.0), "end", "clients", "");
    draw_text(svg, (RIGHT, 56.0), "start", "pods", "");
    draw_flows(svg, &measured.matrix);
    let cross_colour = format!(" fill=\"{CROSS_ZONE}\" font-weight=\"bold\"");
    let colour = if measured.crossed > 0.0 { cross_colour.as_str() } else { "" };
    draw_text(svg, (PANEL_WIDTH / 2.0, HEIGHT - 34.0), "middle", &crossed, colour);
    draw_text(svg, (PANEL_WIDTH / 2.0, HEIGHT - 14.0), "middle", &busiest, "");
}

fn draw_flows(svg: &mut String, matrix: &Matrix) {
    let zones: BTreeSet<&String> =
        matrix.iter().flat_map(|(from, row)| std::iter::once(from).chain(row.keys())).collect();
    let share = |from: &String, to: &String| {
        matrix.get(from).and_then(|row| row.get(to)).copied().unwrap_or(0.0)
    };
    let sent: Vec<f64> =
        zones.iter().map(|from| zones.iter().map(|to| share(from, to)).sum()).collect();
    let received: Vec<f64> =
        zones.iter().map(|to| zones.iter().map(|from| share(from, to)).sum()).collect();
    let mut starts = stack(&zones, &sent);
    let mut ends = stack(&zones, &received);
    for (n, zone) in zones.iter().enumerate() {
        draw_bar(svg, LEFT, starts[*zone], sent[n]);
        draw_bar(svg, RIGHT - BAR, ends[*zone], received[n]);
        let middle = |top: f64, share: f64| top + share * FLOW / 2.0 + 4.0;
        draw_text(svg, (LEFT - 6.0, middle(starts[*zone], sent[n])), "end", zone, "");
        draw_text(svg, (RIGHT + 6.0, middle(ends[*zone], received[n])), "start", zone, "");
    }
    for from in &zones {
        for to in &zones {
            let thick = share(from, to) * FLOW;
            let colour = if from == to { SAME_ZONE } else { CROSS_ZONE };
            if thick > 0.0 {
                draw_band(svg, (starts[*from], ends[*to]), thick, colour);
            }
            *starts.get_mut(*from).expect("every zone is stacked") += thick;
            *ends.get_mut(*to).expect("every zone is stacked") += thick;
        }
    }
}

/// The upper edge of each zone's bar.
fn stack<'a>(zones: &BTreeSet<&'a String>, shares: &[f64]) -> BTreeMap<&'a String, f64> {
    let mut top = TOP;
    let place = |(zone, share): (&&'a String, &f64)| {
        let at = top;
        top += share * FLOW + GAP;
        (*zone, at)
    };
    zones.iter().zip(shares).map(place).collect()
}

fn draw_bar(svg: &mut String, x: f64, y: f64, share: f64) {
    let height = share * FLOW;
    let _ = writeln!(
        svg,
        "<rect x=\"{x}\" y=\"{y:.1}\" width=\"{BAR}\" height=\"{height:.1}\" fill=\"#57606a\"/>"
    );
}

fn draw_band(svg: &mut String, (start, end): (f64, f64), thick: f64, colour: &str) {
    let (left, right) = (LEFT + BAR, RIGHT - BAR);
    let middle = (left + right) / 2.0;
    let _ = writeln!(
        svg,
        "<path d=\"M{left} {start:.1}C{middle} {start:.1} {middle} {end:.1} {right} {end:.1}V{:.1}\
         C{middle} {:.1} {middle} {:.1} {left} {:.1}Z\" fill=\"{colour}\" fill-opacity=\"0.55\"/>",
        end + thick,
        end + thick,
        start + thick,
        start + thick,
    );
}

fn draw_text(svg: &mut String, (x, y): (f64, f64), anchor: &str, text: &str, more: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ =
        writeln!(svg, "<text x=\"{x}\" y=\"{y:.1}\" text-anchor=\"{anchor}\"{more}>{text}</text>");
}

#[cfg(test)]
mod tests {
    use super::super::judge::{Measured, Predicted, Verdict};
    use super::*;

    fn outcome(scenario: Scenario, cells: &[(&str, &str, f64)]) -> Outcome {
        let mut matrix = Matrix::new();
        for (from, to, share) in cells {
            matrix.entry((*from).to_owned()).or_default().insert((*to).to_owned(), *share);
        }
        let crossed = cells.iter().filter(|(from, to, _)| from != to).map(|cell| cell.2).sum();
        let predicted = Predicted { matrix: matrix.clone(), crossed, worst: 1.0 };
        let measured = Measured { matrix, crossed, worst: 1.0, ..Measured::default() };
        let (title, words) = (scenario.title(), String::new());
        Outcome { scenario, title, words, measured, predicted, verdict: Verdict::Agrees }
    }

    #[test]
    fn bands_have_the_thickness_of_their_share_and_the_colour_of_their_kind() {
        let cells = [("a", "a", 0.5), ("a", "b<", 0.25), ("b<", "b<", 0.25)];
        let svg = draw_svg(&[outcome(Scenario::NothingSet, &cells)]);
        assert_eq!(svg.matches(&format!("fill=\"{SAME_ZONE}\"")).count(), 2, "{svg}");
        assert_eq!(svg.matches(&format!("fill=\"{CROSS_ZONE}\" fill-opacity")).count(), 1);
        assert!(svg.contains("25% of connections cross zones"));
        // Half of all connections: from 74 down to 74 + 85.
        assert!(svg.contains("M80 74.0C160 74.0 160 74.0 240 74.0V159.0"), "{svg}");
        assert!(svg.contains("b&lt;") && !svg.contains("b<<"));
    }

    #[test]
    fn only_measured_policies_get_a_panel() {
        let cells = [("a", "a", 1.0)];
        let outcomes = [
            outcome(Scenario::Balanced, &cells),
            outcome(Scenario::TopologyKeys, &cells),
            outcome(Scenario::NothingSet, &cells),
        ];
        let svg = draw_svg(&outcomes);
        assert_eq!(svg.matches("<g ").count(), 2);
        assert!(svg.find("nothing set") < svg.find("nearhop.dev/Balanced"));
    }
}
