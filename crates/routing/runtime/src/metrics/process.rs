//! Metrics of this process from the kernel, read from `/proc` at each scrape.
//!
//! The collector of the prometheus crate needs libc and procfs for the same four numbers. A number
//! that cannot be read is omitted.

use std::fs;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, Gauge};

/// `USER_HZ`, the unit of CPU time in `/proc`: 100 on every platform that Rust's std supports.
const TICKS_PER_SECOND: f64 = 100.0;

pub(super) struct ProcessCollector {
    descriptions: Vec<Desc>,
}

impl ProcessCollector {
    pub(super) fn new() -> Self {
        let none = Reading { cpu_seconds: 0.0, start_seconds: 0.0, resident_bytes: 0.0, fds: 0.0 };
        let counter = none.counter();
        let gauges = none.gauges();
        let described = gauges.iter().flat_map(Collector::desc);
        let descriptions = counter.desc().into_iter().chain(described).cloned().collect();
        Self { descriptions }
    }
}

impl Collector for ProcessCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Some(reading) = Reading::take() else { return Vec::new() };
        let mut families = reading.counter().collect();
        families.extend(reading.gauges().iter().flat_map(Collector::collect));
        families
    }
}

struct Reading {
    cpu_seconds: f64,
    start_seconds: f64,
    resident_bytes: f64,
    fds: f64,
}

impl Reading {
    fn take() -> Option<Self> {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        let ticks = Ticks::parse(&stat)?;
        let boot = number_after(&fs::read_to_string("/proc/stat").ok()?, "btime ")?;
        // In kB, so that the page size is not needed.
        let resident = number_after(&fs::read_to_string("/proc/self/status").ok()?, "VmRSS:")?;
        // One of them is the directory that this code reads.
        let fds = fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1);
        Some(Self {
            cpu_seconds: ticks.cpu / TICKS_PER_SECOND,
            start_seconds: boot + ticks.start / TICKS_PER_SECOND,
            resident_bytes: resident * 1024.0,
            fds: fds as f64,
        })
    }

    /// Created for each scrape, because a counter cannot be set.
    fn counter(&self) -> Counter {
        let help = "Total user and system CPU time spent in seconds.";
        let counter = Counter::new("process_cpu_seconds_total", help).expect("the name is valid");
        counter.inc_by(self.cpu_seconds);
        counter
    }

    fn gauges(&self) -> [Gauge; 3] {
        let gauge = |name: &str, help: &str, value| {
            let gauge = Gauge::new(name, help).expect("the name is valid");
            gauge.set(value);
            gauge
        };
        [
            gauge("process_open_fds", "Number of open file descriptors.", self.fds),
            gauge(
                "process_resident_memory_bytes",
                "Resident memory size in bytes.",
                self.resident_bytes,
            ),
            gauge(
                "process_start_time_seconds",
                "Start time of the process since unix epoch in seconds.",
                self.start_seconds,
            ),
        ]
    }
}

#[derive(Debug, PartialEq)]
struct Ticks {
    cpu: f64,
    start: f64,
}

impl Ticks {
    /// From `/proc/PID/stat`, see proc_pid_stat(5): utime is field 14, stime 15, starttime 22. The
    /// command, field 2, may itself contain blanks and brackets.
    fn parse(stat: &str) -> Option<Self> {
        let (_, rest) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
        Some(Self { cpu: field(14)? + field(15)?, start: field(22)? })
    }
}

/// The number in the line that begins with `key`.
fn number_after(text: &str, key: &str) -> Option<f64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::Metrics;
    use super::*;

    #[test]
    fn command_names_with_parentheses_are_parsed() {
        let stat = "7 (a) b (c)) S 1 1 1 0 -1 4194304 1 0 0 0 250 50 0 0 20 0 3 0 900 1 2";
        assert_eq!(Ticks::parse(stat), Some(Ticks { cpu: 300.0, start: 900.0 }));
        assert_eq!(Ticks::parse("7 (a) S 1"), None);
        assert_eq!(Ticks::parse(""), None);
    }

    #[test]
    fn metrics_describe_this_process() {
        let text = Metrics::of_process().encode();
        let value = |name: &str| number_after(&text, &format!("{name} ")).expect(name);
        assert!(value("process_resident_memory_bytes") > 100_000.0, "{text}");
        assert!(value("process_open_fds") >= 3.0, "{text}");
        assert!(value("process_start_time_seconds") > 1.6e9, "{text}");
        assert!(value("process_cpu_seconds_total") >= 0.0, "{text}");
    }
}
