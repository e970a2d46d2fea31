//! What was measured, as a table and as JSON.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use engine::graph::Part;
use engine::stage::{PartTimes, Touched};
use engine::{Model, Work};
use serde_json::{Value, json};

use super::measure::{Bench, Limits, Taken, Test};
use super::parts::{self, PartLine};
use super::peer::Peer;
use crate::output::plain;

const GIGA: f64 = 1e9;

/// Head and width of the column of routed experts.
const EXPERTS: &str = "experts a step";
const EXPERTS_WIDTH: usize = 20;

/// Figures of all rounds.
pub struct Report {
    lines: Vec<Line>,
    limits: Vec<Limits>,
    peers: Vec<Against>,
}

/// One test.
struct Line {
    test: Test,
    /// Its group.
    group: usize,
    /// Of each round: seconds, and what the machine could do then.
    rounds: Vec<(f64, Limits)>,
    /// Of each round: how long the parts of the model took; nothing where that was not wanted.
    parts: Vec<PartTimes>,
    /// Routed experts that were read in a round: the same ones in every round.
    touched: Touched,
    /// For each peer: tokens per second of each round.
    peers: Vec<Vec<f64>>,
}

/// One peer.
struct Against {
    name: String,
    /// The groups that it failed at, and why.
    failed: Vec<(usize, String)>,
}

/// The figures of a test.
struct Figures {
    rate: f64,
    /// Bytes or products for one token.
    work: f64,
    work_rate: f64,
    fraction: f64,
}

impl Report {
    /// Without figures yet.
    pub fn new(groups: &[Vec<Test>], peers: &[Peer]) -> Report {
        let lines = groups.iter().enumerate().flat_map(|(group, tests)| {
            tests.iter().map(move |&test| Line {
                test,
                group,
                rounds: Vec::new(),
                parts: Vec::new(),
                touched: Touched::default(),
                peers: vec![Vec::new(); peers.len()],
            })
        });
        let peers = peers.iter().map(|peer| Against { name: peer.name(), failed: Vec::new() });
        Report { lines: lines.collect(), limits: Vec::new(), peers: peers.collect() }
    }

    /// A test of ours took so long.
    pub fn add(&mut self, test: &Test, limits: &Limits, taken: Taken) {
        let line = self.line(test);
        line.rounds.push((taken.seconds, *limits));
        line.parts.push(taken.parts);
        line.touched = taken.touched;
        self.limits.push(*limits);
    }

    /// What the machine can do, where nothing else is measured.
    pub fn add_limits(&mut self, limits: &Limits) {
        self.limits.push(*limits);
    }

    /// A peer's tokens per second in these tests.
    pub fn add_peer(&mut self, peer: usize, group: &[Test], rates: &[f64]) {
        for (test, &rate) in group.iter().zip(rates) {
            self.line(test).peers[peer].push(rate);
        }
    }

    /// A peer gave no figures for a group.
    pub fn peer_failed(&mut self, peer: usize, group: usize, reason: String) {
        self.peers[peer].failed.push((group, reason));
    }

    /// Whether a peer need not be asked again.
    pub fn has_failed(&self, peer: usize, group: usize) -> bool {
        self.peers[peer].failed.iter().any(|&(failed, _)| failed == group)
    }

    fn line(&mut self, test: &Test) -> &mut Line {
        self.lines.iter_mut().find(|line| line.test == *test).expect("a test of this report")
    }

    fn limits(&self) -> Limits {
        Limits {
            bandwidth: median(self.limits.iter().map(|limits| limits.bandwidth)),
            products: median(self.limits.iter().map(|limits| limits.products)),
        }
    }

    /// Everything, with the figures of each round.
    pub fn json(&self, bench: &Bench) -> Value {
        let limits = self.limits();
        let backend = bench.engine.stage().backend();
        json!({
            "architecture": bench.engine.model().spec.architecture,
            "threads": bench.threads(),
            "isa": backend.kernels().isa().name(),
            "kv": bench.kv().name(),
            "bandwidth_bytes_per_second": limits.bandwidth,
            "int8_products_per_second": limits.products,
            "peak_memory_bytes": sys::memory::peak_resident_bytes(),
            "tests": self.lines.iter().map(|line| self.line_json(line, bench)).collect::<Vec<_>>(),
        })
    }

    fn line_json(&self, line: &Line, bench: &Bench) -> Value {
        let Figures { rate, work, work_rate, fraction } = line.figures(bench);
        let mut value = match line.test {
            Test::Prompt { tokens } => json!({
                "kind": "read", "tokens": tokens,
                "products_per_token": work, "products_per_second": work_rate, "products_fraction": fraction,
            }),
            Test::Write { tokens, depth, sequences } => json!({
                "kind": "write", "tokens": tokens, "depth": depth, "sequences": sequences,
                "bytes_per_token": work, "bytes_per_second": work_rate, "bandwidth_fraction": fraction,
            }),
        };
        let round = |(seconds, limits): &(f64, Limits)| {
            json!({
                "seconds": seconds,
                "bandwidth_bytes_per_second": limits.bandwidth,
                "int8_products_per_second": limits.products,
            })
        };
        let peer = |(peer, rates): (&Against, &Vec<f64>)| {
            let failed = peer.failed.iter().find(|(group, _)| *group == line.group);
            json!({
                "name": peer.name,
                "tokens_per_second": (!rates.is_empty()).then(|| median(rates.iter().copied())),
                "ratio": line.ratio(rates),
                "failed": failed.map(|(_, reason)| reason),
                "rounds": rates,
            })
        };
        if let Test::Write { sequences, .. } = line.test {
            value["bytes_per_step"] = (work * sequences as f64).into();
        }
        if let Some((experts, bytes)) = line.experts() {
            value["experts_per_step"] = experts.into();
            value["expert_bytes_per_step"] = bytes.into();
        }
        value["tokens_per_second"] = rate.into();
        value["rounds"] = line.rounds.iter().map(round).collect();
        let parts = line.part_lines(bench);
        if !parts.is_empty() {
            value["parts"] = parts.iter().map(PartLine::json).collect();
        }
        value["peers"] = self.peers.iter().zip(&line.peers).map(peer).collect();
        value
    }

    /// The table.
    pub fn write(&self, out: &mut dyn Write, bench: &Bench, rounds: usize) -> io::Result<()> {
        let backend = bench.engine.stage().backend();
        let limits = self.limits();
        writeln!(
            out,
            "{} on {} threads, {} kernels, {} cache; medians of {rounds} rounds",
            bench.engine.model().spec.architecture,
            bench.threads(),
            backend.kernels().isa(),
            bench.kv().name(),
        )?;
        let (bandwidth, products) = (limits.bandwidth / GIGA, limits.products / GIGA);
        writeln!(out, "machine: {bandwidth:.2} GB/s read bandwidth, {products:.1} int8 GMAC/s")?;
        let names: Vec<String> = self.lines.iter().map(|line| line.test.to_string()).collect();
        let width = names.iter().map(String::len).max().unwrap_or(0);
        let header: String =
            (1..=self.peers.len()).map(|number| format!("{:>20}", format!("[{number}]"))).collect();
        let with_experts = self.lines.iter().any(|line| line.experts().is_some());
        if !self.lines.is_empty() {
            let experts = if with_experts { format!("  {EXPERTS:>EXPERTS_WIDTH$}") } else { String::new() };
            writeln!(
                out,
                "{:width$}  {:>9}  {:>12}  {:>8}{experts}{header}",
                "", "tok/s", "work", "of bound"
            )?;
        }
        for (line, name) in self.lines.iter().zip(&names) {
            let figures = line.figures(bench);
            let unit = if matches!(line.test, Test::Prompt { .. }) { "GMAC/s" } else { "GB/s" };
            let work = format!("{:.2} {unit}", figures.work_rate / GIGA);
            let (rate, percent) = (figures.rate, figures.fraction * 100.0);
            write!(out, "{name:width$}  {rate:>9.2}  {work:>12}  {percent:>6.1} %")?;
            if with_experts {
                let experts = line
                    .experts()
                    .map_or("-".into(), |(experts, bytes)| format!("{experts:.1} = {:.3} GB", bytes / GIGA));
                write!(out, "  {experts:>EXPERTS_WIDTH$}")?;
            }
            for rates in &line.peers {
                let cell = line.ratio(rates).map_or("-".into(), |ratio| {
                    format!("{:.2} ({ratio:.2}x)", median(rates.iter().copied()))
                });
                write!(out, "{cell:>20}")?;
            }
            writeln!(out)?;
        }
        for (number, peer) in self.peers.iter().enumerate() {
            writeln!(
                out,
                "[{}] {}, tok/s and how many times as fast strata is",
                number + 1,
                plain(&peer.name)
            )?;
        }
        for (line, name) in self.lines.iter().zip(&names) {
            parts::write(out, name, &line.part_lines(bench))?;
        }
        Ok(())
    }
}

impl Line {
    fn rates(&self) -> impl Iterator<Item = f64> {
        self.rounds.iter().map(|(seconds, _)| self.test.tokens() as f64 / seconds)
    }

    fn figures(&self, bench: &Bench) -> Figures {
        let model = bench.engine.model();
        let (work, limit): (f64, fn(&Limits) -> f64) = match self.test {
            Test::Prompt { .. } => (model.layer_products() as f64, |limits| limits.products),
            Test::Write { tokens, depth, sequences } => {
                let work = self.step_work(model, tokens, depth, sequences);
                let bytes: usize = work.values().map(bytes).sum();
                (bytes as f64 / sequences as f64, |limits| limits.bandwidth)
            }
        };
        let rate = median(self.rates());
        let fractions = self.rates().zip(&self.rounds).map(|(rate, (_, limits))| rate * work / limit(limits));
        Figures { rate, work, work_rate: rate * work, fraction: median(fractions) }
    }

    /// Of a step in the middle of what is written, which stands for all of them; with the experts that were read, each once in a
    /// step, however many of its sequences chose it.
    fn step_work(
        &self,
        model: &Model,
        tokens: usize,
        depth: usize,
        sequences: usize,
    ) -> BTreeMap<Part, Work> {
        let mut work = model.step_work(sequences, depth + 1 + tokens / 2);
        if let (Some(experts), Some((_, bytes))) = (work.get_mut(&Part::Experts), self.experts()) {
            experts.weight_bytes = bytes.round() as usize;
        }
        work
    }

    /// Routed experts of a step of what is written, over all layers, and their bytes; nothing where there are none.
    fn experts(&self) -> Option<(f64, f64)> {
        let Touched { windows, experts, bytes } = self.touched;
        let writes = matches!(self.test, Test::Write { .. });
        (writes && experts > 0).then(|| (experts as f64 / windows as f64, bytes as f64 / windows as f64))
    }

    /// The parts of the model, each with its median over all rounds.
    fn part_lines(&self, bench: &Bench) -> Vec<PartLine> {
        let model = bench.engine.model();
        let (work, per_token): (BTreeMap<Part, Work>, f64) = match self.test {
            Test::Prompt { .. } => (model.step_work(1, 0), 1.0),
            Test::Write { tokens, depth, sequences } => {
                (self.step_work(model, tokens, depth, sequences), 1.0 / sequences as f64)
            }
        };
        let line = |part: Part| {
            let seconds = |times: &PartTimes| times.get(&part).map_or(0.0, Duration::as_secs_f64);
            let share = |times: &PartTimes| {
                seconds(times) / times.values().map(Duration::as_secs_f64).sum::<f64>().max(f64::MIN_POSITIVE)
            };
            let work = work.get(&part).copied().unwrap_or_default();
            let (work, limit): (usize, fn(&Limits) -> f64) = match self.test {
                // The head is for the last row only.
                Test::Prompt { tokens } if part == Part::Head => (work.products / tokens, |l| l.products),
                Test::Prompt { .. } => (work.products, |l| l.products),
                Test::Write { .. } => (bytes(&work), |l| l.bandwidth),
            };
            let work = work as f64 * per_token;
            let rounds = || self.parts.iter().zip(&self.rounds);
            let each = |times: &PartTimes| seconds(times) / self.test.tokens() as f64;
            PartLine {
                part,
                reading: matches!(self.test, Test::Prompt { .. }),
                seconds: median(rounds().map(|(times, _)| each(times))),
                share: median(rounds().map(|(times, _)| share(times))),
                work,
                fraction: median(rounds().map(|(times, (_, l))| work / each(times).max(1e-12) / limit(l))),
            }
        };
        let taken =
            Part::ALL.into_iter().filter(|part| self.parts.iter().any(|times| times.contains_key(part)));
        taken.map(line).collect()
    }

    /// How many times as fast as a peer in the same round, the median; nothing where it gave no figures.
    fn ratio(&self, rates: &[f64]) -> Option<f64> {
        (!rates.is_empty()).then(|| median(self.rates().zip(rates).map(|(ours, theirs)| ours / theirs)))
    }
}

fn bytes(work: &Work) -> usize {
    work.weight_bytes + work.state_bytes
}

/// The middle value; of an even number, the upper one of the middle.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}
