//! The processors this process may really use.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::cgroup::{self, Version};

/// So many fast cores keep memory busy; with fewer, slow ones help.
pub const FAST_CORES_MIN: usize = 4;

/// Processors this process may use. All counts are at least 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Processors {
    /// Logical processors the process may be scheduled on (its affinity mask).
    pub allowed: usize,
    /// Physical cores among those: several hardware threads of a core count once.
    pub cores: usize,
    /// One logical processor of each fast core: of each core where they are alike, or where there are fewer than
    /// [`FAST_CORES_MIN`] fast ones. A step of a pass ends with its slowest thread, and memory is what most of it waits for.
    pub fast: Vec<usize>,
    /// Memory nodes those cores belong to.
    pub nodes: usize,
    /// Processor time its control groups grant, in whole processors, rounded up; `None` without a quota.
    pub quota: Option<usize>,
}

impl Processors {
    /// Threads for work bound by arithmetic or memory: one for each fast core, within the quota.
    pub fn threads_default(&self) -> usize {
        self.fast.len().min(self.quota.unwrap_or(usize::MAX)).max(1)
    }

    /// The most threads that can run at once: one for each allowed logical processor, within the quota.
    pub fn threads_max(&self) -> usize {
        self.allowed.min(self.quota.unwrap_or(usize::MAX)).max(1)
    }

    /// Where `threads` threads that work side by side should stay, each on any of these; `None` where the system's own choice
    /// is as good: cores are alike and have one hardware thread each, or there are more threads than fast cores.
    pub fn placing(&self, threads: usize) -> Option<&[usize]> {
        let chosen = self.fast.len() < self.allowed && threads <= self.fast.len();
        chosen.then_some(&self.fast)
    }
}

/// The processors of this process.
pub fn processors() -> Processors {
    processors_on(Path::new("/"), &affinity())
}

/// As [`processors`], of the machine whose files lie under `root` and a process allowed on the logical processors
/// `allowed` (their numbers).
pub fn processors_on(root: &Path, allowed: &[usize]) -> Processors {
    let mut seen = BTreeSet::new();
    let firsts: Vec<usize> =
        allowed.iter().copied().filter(|&processor| seen.insert(core_of(root, processor))).collect();
    let slow = slow_processors(root, &firsts);
    let fast: Vec<usize> = firsts.iter().copied().filter(|processor| !slow.contains(processor)).collect();
    let nodes = nodes(root);
    let of_ours = |node: &&Vec<usize>| node.iter().any(|processor| firsts.contains(processor));
    Processors {
        allowed: allowed.len().max(1),
        cores: firsts.len().max(1),
        nodes: nodes.iter().filter(of_ours).count().max(1),
        fast: if fast.len() < FAST_CORES_MIN { firsts } else { fast },
        quota: cgroup::folders(root, "cpu")
            .into_iter()
            .filter_map(|(version, folder)| match version {
                Version::V1 => quota_v1(&folder),
                Version::V2 => quota_v2(&folder),
            })
            .min(),
    }
}

/// Lets the calling thread run on these logical processors only. False where the system does not allow that; then it stays
/// where it was.
#[cfg(target_os = "linux")]
pub fn stay_on(processors: &[usize]) -> bool {
    const BITS: usize = u64::BITS as usize;
    let words = processors.iter().max().map_or(0, |processor| processor / BITS + 1);
    let mut mask = vec![0u64; words];
    for processor in processors {
        mask[processor / BITS] |= 1 << (processor % BITS);
    }
    // SAFETY: the mask has the size that is passed, and the kernel only reads it.
    unsafe { libc::sched_setaffinity(0, mask.len() * 8, mask.as_ptr().cast()) == 0 }
}

/// Lets the calling thread run on some logical processors only: not here.
#[cfg(not(target_os = "linux"))]
pub fn stay_on(_processors: &[usize]) -> bool {
    false
}

/// Threads to use when nobody says: [`Processors::threads_default`] of this process.
pub fn threads_default() -> usize {
    processors().threads_default()
}

/// A name that the logical processors of one core share: the list of its hardware threads. A processor the system
/// says nothing about is a core of its own.
fn core_of(root: &Path, processor: usize) -> String {
    let folder: PathBuf = root.join(format!("sys/devices/system/cpu/cpu{processor}/topology"));
    ["core_cpus_list", "thread_siblings_list"]
        .iter()
        .find_map(|name| cgroup::text(&folder.join(name)))
        .map(|list| list.trim().to_owned())
        .filter(|list| !list.is_empty())
        .unwrap_or_else(|| processor.to_string())
}

/// Those of the allowed logical processors whose core is of a slower kind: what Linux calls atom cores (hybrid x86), or what
/// has less than half of the greatest capacity (ARM). None where it says nothing.
fn slow_processors(root: &Path, allowed: &[usize]) -> Vec<usize> {
    let atoms = root.join("sys/devices/cpu_atom/cpus");
    let atoms = cgroup::text(&atoms).map(|list| numbers(&list)).unwrap_or_default();
    let capacity = |processor: usize| {
        cgroup::number(&root.join(format!("sys/devices/system/cpu/cpu{processor}/cpu_capacity")))
    };
    let capacities: Vec<Option<u64>> = allowed.iter().map(|&processor| capacity(processor)).collect();
    let greatest = capacities.iter().flatten().max().copied().unwrap_or(0);
    let small = |capacity: &Option<u64>| capacity.is_some_and(|capacity| capacity < greatest / 2);
    let slow =
        allowed.iter().zip(&capacities).filter(|(cpu, capacity)| atoms.contains(cpu) || small(capacity));
    slow.map(|(&processor, _)| processor).collect()
}

/// The logical processors of each memory node that has some.
fn nodes(root: &Path) -> Vec<Vec<usize>> {
    let folder = root.join("sys/devices/system/node");
    let online = cgroup::text(&folder.join("online")).map(|list| numbers(&list)).unwrap_or_default();
    let processors =
        |node| cgroup::text(&folder.join(format!("node{node}/cpulist"))).map(|list| numbers(&list));
    online.into_iter().filter_map(processors).filter(|processors| !processors.is_empty()).collect()
}

/// Numbers of a list like `0-3,8`, as Linux writes them; what is no number is left out.
fn numbers(list: &str) -> Vec<usize> {
    /// More logical processors than any machine has: a damaged file does not fill the memory.
    const NUMBER_MAX: usize = 1 << 16;
    let ranges = list.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse().ok()?..=last.parse::<usize>().ok()?.min(NUMBER_MAX))
    });
    ranges.flatten().take(NUMBER_MAX).collect()
}

/// `cpu.max`: the granted time and the period, in microseconds, or "max" for no quota.
fn quota_v2(group: &Path) -> Option<usize> {
    let content = cgroup::text(&group.join("cpu.max"))?;
    let mut fields = content.split_whitespace();
    let (granted, period) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    whole_processors(granted, period)
}

/// The granted time is -1, which is no number here, without a quota.
fn quota_v1(group: &Path) -> Option<usize> {
    let granted = cgroup::number(&group.join("cpu.cfs_quota_us"))?;
    whole_processors(granted, cgroup::number(&group.join("cpu.cfs_period_us"))?)
}

fn whole_processors(granted: u64, period: u64) -> Option<usize> {
    if period == 0 {
        return None;
    }
    usize::try_from(granted.div_ceil(period).max(1)).ok()
}

/// Numbers of the logical processors this process may be scheduled on.
#[cfg(target_os = "linux")]
fn affinity() -> Vec<usize> {
    const BITS: usize = u64::BITS as usize;
    // The kernel refuses a mask shorter than its own; its longest is 8192 bits today.
    for words in [16, 128, 1024, 8192] {
        let mut mask = vec![0u64; words];
        // SAFETY: the mask has the size that is passed, and the kernel writes no more than that.
        let got = unsafe { libc::sched_getaffinity(0, words * 8, mask.as_mut_ptr().cast()) };
        if got == 0 {
            return (0..words * BITS).filter(|bit| mask[bit / BITS] >> (bit % BITS) & 1 == 1).collect();
        }
    }
    (0..std::thread::available_parallelism().map_or(1, usize::from)).collect()
}

#[cfg(not(target_os = "linux"))]
fn affinity() -> Vec<usize> {
    (0..std::thread::available_parallelism().map_or(1, usize::from)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::invented::{V1_MOUNTS, V2_MOUNT, machine};

    #[test]
    fn hardware_threads_of_a_core_count_once() {
        let list = |cpu: usize| format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        let (a, b, c, d) = (list(0), list(1), list(4), list(5));
        let machine = machine(&[(&a, "0,4\n"), (&b, "1,5\n"), (&c, "0,4\n"), (&d, "1,5\n")]);
        let on = |allowed: &[usize]| {
            let got = processors_on(machine.path(), allowed);
            assert_eq!(got.quota, None);
            (got.allowed, got.cores, got.threads_default(), got.threads_max())
        };
        assert_eq!(on(&[0, 1, 4, 5]), (4, 2, 2, 4));
        assert_eq!(on(&[0, 4]), (2, 1, 1, 2));
        assert_eq!(on(&[4, 5]), (2, 2, 2, 2));
        assert_eq!(on(&[0, 1, 8, 9]), (4, 4, 4, 4), "unknown processors are cores of their own");
        assert_eq!(on(&[]), (1, 1, 1, 1));
    }

    #[test]
    fn slow_cores_and_second_threads_are_left_out() {
        let siblings = |cpu: usize| format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        // Four fast cores of two threads, two slow cores of one.
        let names: Vec<String> = (0..8).map(siblings).collect();
        let cores: Vec<String> = (0..8).map(|cpu| format!("{}-{}\n", cpu / 2 * 2, cpu / 2 * 2 + 1)).collect();
        let mut files: Vec<(&str, &str)> =
            names.iter().zip(&cores).map(|(name, core)| (&name[..], &core[..])).collect();
        files.push(("sys/devices/cpu_atom/cpus", "8-9\n"));
        let hybrid = machine(&files);
        let on = |allowed: std::ops::Range<usize>| processors_on(hybrid.path(), &allowed.collect::<Vec<_>>());
        let here = on(0..10);
        assert_eq!((here.cores, here.threads_default()), (6, 4));
        assert_eq!(here.placing(4), Some(&[0, 2, 4, 6][..]));
        // A set and not one each: two processes must be able to keep out of each other's way.
        assert_eq!(here.placing(2), Some(&[0, 2, 4, 6][..]));
        assert_eq!(here.placing(5), None, "more threads than fast cores");
        // Two fast cores do not keep memory busy.
        assert_eq!((on(4..10).threads_default(), on(8..10).threads_default()), (4, 2));
        assert_eq!(on(8..10).placing(2), None);
    }

    #[test]
    fn cores_of_less_capacity_are_slow() {
        let names: Vec<String> =
            (0..6).map(|cpu| format!("sys/devices/system/cpu/cpu{cpu}/cpu_capacity")).collect();
        let capacities = ["400\n", "1024\n", "760\n", "760\n", "18446744073709551615\n", "760\n"];
        let files = |count: usize| -> Vec<(&str, &str)> {
            names.iter().map(|name| &name[..]).zip(capacities).take(count).collect()
        };
        let on = |files: &[(&str, &str)]| processors_on(machine(files).path(), &[0, 1, 2, 3, 5]).fast;
        let mut usual = files(4);
        usual.push((&names[5], capacities[5]));
        assert_eq!(on(&usual), [1, 2, 3, 5], "a prime core does not make slow ones of the middle ones");
        let few = machine(&files(3));
        assert_eq!(processors_on(few.path(), &[0, 1, 2]).fast, [0, 1, 2], "too few would be left");
        processors_on(machine(&files(6)).path(), &[0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn memory_nodes_of_allowed_processors_count() {
        let machine = machine(&[
            ("sys/devices/system/node/online", "0-2\n"),
            ("sys/devices/system/node/node0/cpulist", "0,2\n"),
            ("sys/devices/system/node/node1/cpulist", "1,3\n"),
            ("sys/devices/system/node/node2/cpulist", "\n"),
        ]);
        let nodes = |allowed: &[usize]| processors_on(machine.path(), allowed).nodes;
        assert_eq!((nodes(&[0, 1, 2, 3]), nodes(&[1, 3]), nodes(&[])), (2, 1, 1));
        assert!(numbers("0-65535,0-65535,0-99999999999").len() <= 1 << 16);
    }

    #[test]
    fn a_thread_stays_where_it_was_put() {
        let first = affinity()[0];
        let there = std::thread::spawn(move || stay_on(&[first]).then(affinity)).join().unwrap();
        assert_eq!(there.unwrap_or(vec![first]), [first]);
        assert!(!stay_on(&[60_000]) && !stay_on(&[]), "no such processor");
    }

    fn quota(files: &[(&str, &str)]) -> Option<usize> {
        processors_on(machine(files).path(), &[0, 1, 2, 3, 4, 5, 6, 7]).quota
    }

    #[test]
    fn the_tightest_quota_counts_rounded_up() {
        let v2 = |own, above| {
            quota(&[
                ("proc/self/mountinfo", V2_MOUNT),
                ("proc/self/cgroup", "0::/a/b\n"),
                ("sys/fs/cgroup/a/b/cpu.max", own),
                ("sys/fs/cgroup/a/cpu.max", above),
            ])
        };
        assert_eq!(v2("max 100000\n", "max 100000\n"), None);
        assert_eq!(v2("400000 100000\n", "max 100000\n"), Some(4));
        assert_eq!(v2("400000 100000\n", "250000 100000\n"), Some(3));
        assert_eq!(v2("1000 100000\n", ""), Some(1));
        assert_eq!(v2("1000 0\n", "nonsense"), None);
        let v1 = |granted| {
            quota(&[
                ("proc/self/mountinfo", V1_MOUNTS),
                ("proc/self/cgroup", "1:cpu,cpuacct:/job\n"),
                ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n"),
                ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
                ("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", granted),
                ("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "50000\n"),
            ])
        };
        assert_eq!(v1("-1\n"), None);
        assert_eq!(v1("150000\n"), Some(3));
        assert_eq!(v1("150001\n"), Some(4));
    }

    #[test]
    fn the_quota_bounds_the_threads() {
        let on = |quota| {
            let processors = Processors { allowed: 16, cores: 8, fast: (0..8).collect(), nodes: 1, quota };
            (processors.threads_default(), processors.threads_max())
        };
        assert_eq!(on(None), (8, 16));
        assert_eq!(on(Some(12)), (8, 12));
        assert_eq!(on(Some(3)), (3, 3));
    }

    #[test]
    fn this_process_has_processors() {
        let here = processors();
        assert!(here.allowed >= here.cores && here.cores >= 1, "{here:?}");
        assert!(threads_default() >= 1);
        let told = std::thread::available_parallelism().unwrap().get();
        assert_eq!(here.threads_max().min(told), told, "{here:?}");
    }
}
