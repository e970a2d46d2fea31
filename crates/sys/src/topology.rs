//! The processors this process may really use.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::cgroup::{self, Version};

/// Processors this process may use. All counts are at least 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Processors {
    /// Logical processors the process may be scheduled on (its affinity mask).
    pub allowed: usize,
    /// Physical cores among those: several hardware threads of a core count once.
    pub cores: usize,
    /// Processor time its control groups grant, in whole processors, rounded up; `None` without a quota.
    pub quota: Option<usize>,
}

impl Processors {
    /// Threads for work bound by arithmetic or memory: one for each core, within the quota.
    pub fn threads_default(&self) -> usize {
        self.cores.min(self.quota.unwrap_or(usize::MAX)).max(1)
    }

    /// The most threads that can run at once: one for each allowed logical processor, within the quota.
    pub fn threads_max(&self) -> usize {
        self.allowed.min(self.quota.unwrap_or(usize::MAX)).max(1)
    }
}

/// The processors of this process.
pub fn processors() -> Processors {
    processors_on(Path::new("/"), &affinity())
}

/// As [`processors`], of the machine whose files lie under `root` and a process allowed on the logical processors
/// `allowed` (their numbers).
pub fn processors_on(root: &Path, allowed: &[usize]) -> Processors {
    let cores: BTreeSet<String> = allowed.iter().map(|&processor| core_of(root, processor)).collect();
    Processors {
        allowed: allowed.len().max(1),
        cores: cores.len().max(1),
        quota: cgroup::folders(root, "cpu")
            .into_iter()
            .filter_map(|(version, folder)| match version {
                Version::V1 => quota_v1(&folder),
                Version::V2 => quota_v2(&folder),
            })
            .min(),
    }
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
            let processors = Processors { allowed: 16, cores: 8, quota };
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
