//! [`Series`]: measurements that differ in one size.

use super::measurement::Measurement;
use std::collections::BTreeMap;

/// Measurements of one kernel on one host that differ in one size.
pub struct Series<'a> {
    /// The name of the kernel, and everything that its measurements share.
    pub title: String,
    /// The name of the size that differs.
    pub size: &'a str,
    /// The measurements, in the order of the size.
    pub points: Vec<&'a Measurement>,
}

impl Series<'_> {
    /// The size that differs.
    pub fn x(&self, point: &Measurement) -> u64 {
        point.sizes.get(self.size).copied().unwrap_or(1)
    }
}

/// Divides measurements into series, in the order of their first measurements.
pub fn divide(all: &[Measurement]) -> Vec<Series<'_>> {
    let about = |of: &Measurement| {
        let ranks = match (of.ranks, of.nodes) {
            (1, _) => "1 rank".to_owned(),
            (ranks, 1) => format!("{ranks} ranks"),
            (ranks, nodes) => format!("{ranks} ranks on {nodes} nodes"),
        };
        let name = match of.name() == of.op {
            true => of.op.clone(),
            false => format!("{} ({})", of.name(), of.op),
        };
        format!("{name} of {}, {ranks}, {} of {}", of.dtype, of.gpu, of.host)
    };
    let mut divided = Vec::new();
    for (about, kernel) in grouped(all.iter(), about) {
        let Some(size) = differing(&kernel) else {
            continue;
        };
        let others = |of: &Measurement| {
            let others = of.sizes.iter().filter(|(name, _)| *name != size);
            let others = others.map(|(name, size)| format!("{name} = {size}"));
            others.collect::<Vec<_>>().join(", ")
        };
        for (others, mut points) in grouped(kernel.into_iter(), others) {
            points.sort_by_key(|point| point.sizes.get(size));
            let title = match others.is_empty() {
                true => about.clone(),
                false => format!("{about}, {others}"),
            };
            divided.push(Series {
                title,
                size,
                points,
            });
        }
    }
    divided
}

/// Groups measurements by a text, in the order in which the texts first occur.
fn grouped<'a>(
    all: impl Iterator<Item = &'a Measurement>,
    text: impl Fn(&Measurement) -> String,
) -> Vec<(String, Vec<&'a Measurement>)> {
    let mut groups: Vec<(String, Vec<&Measurement>)> = Vec::new();
    for measured in all {
        let text = text(measured);
        match groups.iter_mut().find(|(known, _)| *known == text) {
            Some((_, group)) => group.push(measured),
            None => groups.push((text, vec![measured])),
        }
    }
    groups
}

/// The size with the most values, and of several such sizes the number of rows. `None` if there are no sizes.
fn differing<'a>(kernel: &[&'a Measurement]) -> Option<&'a str> {
    let mut values: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for (name, size) in kernel.iter().flat_map(|of| &of.sizes) {
        let known = values.entry(name).or_default();
        if !known.contains(size) {
            known.push(*size);
        }
    }
    let is_rows = |name: &str| ["m", "seq", "max_tokens"].contains(&name);
    let most = values
        .into_iter()
        .max_by_key(|(name, values)| (values.len(), is_rows(name)));
    Some(most?.0)
}

#[cfg(test)]
mod tests {
    use super::super::measurement::example;
    use super::*;

    #[test]
    fn series_differ_in_the_size_with_the_most_values() {
        let mut all: Vec<_> = [64, 16, 32].map(|m| example(m, m as f64)).into();
        let mut wide = example(16, 30.0);
        wide.sizes.insert("n".to_owned(), 4096);
        all.push(wide);
        let mut elsewhere = example(16, 40.0);
        elsewhere.host = "node-2".to_owned();
        all.push(elsewhere);
        let series = divide(&all);
        let sizes = |of: &Series| of.points.iter().map(|point| of.x(point)).collect();
        let sizes: Vec<Vec<u64>> = series.iter().map(sizes).collect();
        assert_eq!(sizes, [vec![16, 32, 64], vec![16], vec![16]]);
        assert!(series.iter().all(|of| of.size == "m"));
        let titles: Vec<_> = series.iter().map(|of| of.title.as_str()).collect();
        let about = "gemm_ar of bf16, 4 ranks, NVIDIA H200 of node-";
        assert_eq!(titles[0], format!("{about}1, k = 2048, n = 8192"));
        assert_eq!(titles[1], format!("{about}1, k = 2048, n = 4096"));
        assert_eq!(titles[2], format!("{about}2, k = 2048, n = 8192"));
    }
}
