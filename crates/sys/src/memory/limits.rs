//! What this process holds and what it may still take.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::cgroup::{self, Version};

/// Bytes this process may still take, and what sets that limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Available {
    /// Bytes; `u64::MAX` where the system does not tell ([`Limit::Unknown`]).
    pub bytes: u64,
    /// The tightest limit.
    pub reason: Limit,
}

/// What sets a limit on memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Limit {
    /// The machine's memory that is free or can be freed.
    Machine,
    /// A control group.
    Cgroup {
        /// Its folder.
        path: PathBuf,
    },
    /// The system does not tell.
    Unknown,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::Machine => write!(f, "the machine's available memory"),
            Limit::Cgroup { path } => write!(f, "the memory limit of control group {}", path.display()),
            Limit::Unknown => write!(f, "no limit known"),
        }
    }
}

/// What this process holds in memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Resident {
    /// Its own pages: heap, stacks, buffers.
    pub anonymous: u64,
    /// Pages of mapped files, which the system may drop and read again.
    pub file: u64,
    /// Shared memory.
    pub shared: u64,
}

impl Resident {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.anonymous + self.file + self.shared
    }
}

/// What this process may still take: the least of the machine's available memory and the room in each of its control
/// groups (both versions, the process's own up to the topmost). A group's room is its limit less its usage, file
/// cache it could drop not counted as used.
pub fn available() -> Available {
    available_on(Path::new("/"))
}

/// As [`available`], of the machine whose files lie under `root`.
pub fn available_on(root: &Path) -> Available {
    let machine = kib_field(&root.join("proc/meminfo"), "MemAvailable:")
        .map(|bytes| Available { bytes, reason: Limit::Machine });
    let groups = cgroup::folders(root, "memory").into_iter().filter_map(|(version, path)| {
        let bytes = match version {
            Version::V1 => room_v1(&path),
            Version::V2 => room_v2(&path),
        };
        Some(Available { bytes: bytes?, reason: Limit::Cgroup { path } })
    });
    machine
        .into_iter()
        .chain(groups)
        .min_by_key(|limit| limit.bytes)
        .unwrap_or(Available { bytes: u64::MAX, reason: Limit::Unknown })
}

/// Bytes of the machine's memory, in use or not; `None` where the system does not tell.
pub fn total_bytes() -> Option<u64> {
    kib_field(Path::new("/proc/meminfo"), "MemTotal:")
}

/// The most this process ever held in memory, in bytes; `None` where the system does not tell.
pub fn peak_resident_bytes() -> Option<u64> {
    kib_field(Path::new("/proc/self/status"), "VmHWM:")
}

/// What this process holds in memory now; `None` where the system does not tell.
pub fn resident() -> Option<Resident> {
    let status = Path::new("/proc/self/status");
    Some(Resident {
        anonymous: kib_field(status, "RssAnon:")?,
        file: kib_field(status, "RssFile:")?,
        shared: kib_field(status, "RssShmem:")?,
    })
}

/// Bytes of anonymous memory that may still be mapped for huge pages: what limits on addresses (`ulimit -v`), on data
/// (`ulimit -d`) and on promises (without overcommitting) leave, `u64::MAX` without one, and 0 where the system gives no huge
/// pages to who asks for them.
pub fn huge_page_room() -> u64 {
    let root = Path::new("/");
    match huge_pages_on(root) {
        true => limit_room().min(commit_room(root)),
        false => 0,
    }
}

/// What the system may still promise where it promises no more than it has (`vm.overcommit_memory` is 2).
fn commit_room(root: &Path) -> u64 {
    if cgroup::number(&root.join("proc/sys/vm/overcommit_memory")) != Some(2) {
        return u64::MAX;
    }
    let field = |name| kib_field(&root.join("proc/meminfo"), name).unwrap_or(0);
    field("CommitLimit:").saturating_sub(field("Committed_AS:"))
}

/// Whether memory may lie in huge pages if its owner asks for it, on the machine whose files lie under `root`.
fn huge_pages_on(root: &Path) -> bool {
    // The setting in force stands in brackets: `always [madvise] never`.
    let setting = cgroup::text(&root.join("sys/kernel/mm/transparent_hugepage/enabled"));
    setting.is_some_and(|setting| setting.contains("[always]") || setting.contains("[madvise]"))
}

/// What this process's own limits leave.
#[cfg(unix)]
fn limit_room() -> u64 {
    let room = |resource, taken: &str| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the kernel writes into `limit`, which lives through the call.
        let got = unsafe { libc::getrlimit(resource, &mut limit) };
        if got != 0 || limit.rlim_cur == libc::RLIM_INFINITY {
            return u64::MAX;
        }
        limit.rlim_cur.saturating_sub(kib_field(Path::new("/proc/self/status"), taken).unwrap_or(0))
    };
    room(libc::RLIMIT_AS, "VmSize:").min(room(libc::RLIMIT_DATA, "VmData:"))
}

#[cfg(not(unix))]
fn limit_room() -> u64 {
    u64::MAX
}

/// Bytes from a line `name <number> kB` (the kernel's kB are KiB).
fn kib_field(path: &Path, name: &str) -> Option<u64> {
    let content = cgroup::text(path)?;
    let value = content.lines().find_map(|line| line.strip_prefix(name))?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn room_v1(group: &Path) -> Option<u64> {
    let cache = cgroup::field_sum(&group.join("memory.stat"), &["total_inactive_file", "total_active_file"]);
    let room_of = |kind: &str| {
        let limit = cgroup::number(&group.join(format!("{kind}.limit_in_bytes")))?;
        // "No limit" is the largest whole number of pages in 63 bits.
        let limit = Some(limit).filter(|&limit| limit < 1 << 62)?;
        Some(room(limit, cgroup::number(&group.join(format!("{kind}.usage_in_bytes"))), cache))
    };
    // The second one counts what was swapped out as well: what it has no room for is not given, however little of the
    // group is in memory. Version 2 limits swap by itself, which takes no memory away.
    [room_of("memory"), room_of("memory.memsw")].into_iter().flatten().min()
}

fn room_v2(group: &Path) -> Option<u64> {
    // Above `high` a group is slowed down until it is useless, so it counts as a limit.
    let limits = ["memory.max", "memory.high"].map(|name| cgroup::number(&group.join(name)));
    let limit = limits.into_iter().flatten().min()?;
    let used = cgroup::number(&group.join("memory.current"));
    let droppable = ["inactive_file", "active_file", "slab_reclaimable"];
    Some(room(limit, used, cgroup::field_sum(&group.join("memory.stat"), &droppable)))
}

/// A group that does not tell what it uses still has its limit.
fn room(limit: u64, used: Option<u64>, droppable: u64) -> u64 {
    limit.saturating_sub(used.unwrap_or(0).saturating_sub(droppable))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::invented::{V1_MOUNTS, V2_MOUNT, machine};

    const MEMINFO: (&str, &str) =
        ("proc/meminfo", "MemTotal:       32000 kB\nMemFree:  10 kB\nMemAvailable:   20000 kB\n");

    fn check(files: &[(&str, &str)], bytes: u64, reason: &str) {
        let machine = machine(files);
        let got = available_on(machine.path());
        let root = format!("{}/", machine.path().display());
        assert_eq!((got.bytes, got.reason.to_string().replace(&root, "").as_str()), (bytes, reason));
    }

    #[test]
    fn without_groups_the_machine_counts() {
        check(&[MEMINFO], 20000 * 1024, "the machine's available memory");
        check(&[], u64::MAX, "no limit known");
        check(&[("proc/meminfo", "MemAvailable: many kB\n")], u64::MAX, "no limit known");
    }

    #[test]
    fn the_tightest_v2_group_counts_with_its_cache() {
        let group = [
            MEMINFO,
            ("proc/self/mountinfo", V2_MOUNT),
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/b/memory.high", "max\n"),
            ("sys/fs/cgroup/a/b/memory.current", "5000\n"),
            ("sys/fs/cgroup/a/memory.max", "1000000\n"),
            ("sys/fs/cgroup/a/memory.current", "900000\n"),
            (
                "sys/fs/cgroup/a/memory.stat",
                "anon 600000\nfile 300000\nactive_file 200000\ninactive_file 90000\nslab_reclaimable 1000\n",
            ),
        ];
        check(&group, 391_000, "the memory limit of control group sys/fs/cgroup/a");
        let high = [&group[..], &[("sys/fs/cgroup/a/b/memory.high", "6000\n")]].concat();
        check(&high, 1000, "the memory limit of control group sys/fs/cgroup/a/b");
        let full = [&group[..], &[("sys/fs/cgroup/a/memory.max", "500\n")]].concat();
        check(&full, 0, "the memory limit of control group sys/fs/cgroup/a");
    }

    #[test]
    fn a_v1_group_counts_with_its_cache() {
        let group = [
            MEMINFO,
            ("proc/self/mountinfo", V1_MOUNTS),
            ("proc/self/cgroup", "4:memory:/job\n1:cpu,cpuacct:/\n0::/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "1\n"),
            ("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "100000\n"),
            ("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "60000\n"),
            (
                "sys/fs/cgroup/memory/job/memory.stat",
                "cache 50000\ntotal_cache 50000\ntotal_inactive_file 20000\ntotal_active_file 1000\n",
            ),
        ];
        check(&group, 61_000, "the memory limit of control group sys/fs/cgroup/memory/job");
        let unlimited = [&group[..], &[("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "-1\n")]].concat();
        check(&unlimited, 20000 * 1024, "the machine's available memory");
    }

    /// Swapped-out memory counted for nothing: a group that may not take a byte more seemed to have room.
    #[test]
    fn a_v1_group_counts_what_was_swapped_out() {
        let group = [
            MEMINFO,
            ("proc/self/mountinfo", V1_MOUNTS),
            ("proc/self/cgroup", "4:memory:/job\n"),
            ("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "100000\n"),
            ("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "60000\n"),
            ("sys/fs/cgroup/memory/job/memory.memsw.limit_in_bytes", "120000\n"),
            ("sys/fs/cgroup/memory/job/memory.memsw.usage_in_bytes", "110000\n"),
        ];
        check(&group, 10_000, "the memory limit of control group sys/fs/cgroup/memory/job");
        let unlimited = [&group[..], &[(group[5].0, "9223372036854771712\n")]].concat();
        check(&unlimited, 40_000, "the memory limit of control group sys/fs/cgroup/memory/job");
    }

    #[test]
    fn huge_pages_are_there_where_the_setting_says_so() {
        let on = |setting: Option<&str>| {
            let file = setting.map(|setting| ("sys/kernel/mm/transparent_hugepage/enabled", setting));
            huge_pages_on(machine(file.as_slice()).path())
        };
        assert!(on(Some("[always] madvise never\n")) && on(Some("always [madvise] never\n")));
        assert!(!on(Some("always madvise [never]\n")) && !on(None));
    }

    /// Where nothing is promised beyond what there is, a copy of the weights would take what the cells were promised.
    #[test]
    fn promises_are_limited_where_the_system_does_not_overcommit() {
        let room = |mode: &str| {
            let memory = "CommitLimit:    5000 kB\nCommitted_AS:    2000 kB\n";
            let files = [("proc/sys/vm/overcommit_memory", mode), ("proc/meminfo", memory)];
            commit_room(machine(&files).path())
        };
        assert_eq!((room("2\n"), room("0\n"), room("1\n")), (3000 * 1024, u64::MAX, u64::MAX));
    }

    /// Version 2 limits swap apart from memory, and no swap at all takes no memory away. A pool of huge pages is taken
    /// out of the machine's figure by the kernel; its own lines say nothing here.
    #[test]
    fn swap_and_huge_pages_take_no_memory_away() {
        let group = [
            (
                "proc/meminfo",
                "MemAvailable:   20000 kB\nSwapFree: 0 kB\nHugePages_Total: 4\nHugePages_Free: 4\n",
            ),
            ("proc/self/mountinfo", V2_MOUNT),
            ("proc/self/cgroup", "0::/a\n"),
            ("sys/fs/cgroup/a/memory.max", "100000\n"),
            ("sys/fs/cgroup/a/memory.current", "40000\n"),
            ("sys/fs/cgroup/a/memory.swap.max", "0\n"),
            ("sys/fs/cgroup/a/memory.swap.current", "0\n"),
        ];
        check(&group, 60_000, "the memory limit of control group sys/fs/cgroup/a");
    }

    /// A limit above what the machine has is none.
    #[test]
    fn a_limit_above_the_machine_is_passed_over() {
        let group = |limit: &'static str| {
            [
                MEMINFO,
                ("proc/self/mountinfo", V2_MOUNT),
                ("proc/self/cgroup", "0::/a\n"),
                ("sys/fs/cgroup/a/memory.max", limit),
                ("sys/fs/cgroup/a/memory.current", "4096\n"),
            ]
        };
        check(&group("99999999999999\n"), 20000 * 1024, "the machine's available memory");
        check(&group("99999999999999999999999\n"), 20000 * 1024, "the machine's available memory");
    }

    /// Without its use a group's limit was passed over as a whole.
    #[test]
    fn what_is_missing_or_garbage_leaves_the_rest() {
        let group = |file: &'static str, content: &'static str| {
            [
                MEMINFO,
                ("proc/self/mountinfo", V2_MOUNT),
                ("proc/self/cgroup", "0::/a/b\n"),
                ("sys/fs/cgroup/a/memory.max", "500000\n"),
                (file, content),
            ]
        };
        let of_a = "the memory limit of control group sys/fs/cgroup/a";
        check(&group("sys/fs/cgroup/a/b/cgroup.procs", "1\n"), 500_000, of_a);
        check(&group("sys/fs/cgroup/a/memory.current", "plenty\n"), 500_000, of_a);
        check(&group("sys/fs/cgroup/a/memory.current", "400000\n"), 100_000, of_a);
        check(&group("sys/fs/cgroup/a/b/memory.max", "\u{0}garbage"), 500_000, of_a);
        // A folder where a file should be cannot be read, not even by root.
        check(&group("sys/fs/cgroup/a/memory.stat/x", ""), 500_000, of_a);
        check(&group("sys/fs/cgroup/a/b/memory.max/x", ""), 500_000, of_a);
        let without_machine: Vec<_> = group("sys/fs/cgroup/a/memory.current", "0\n")[1..].to_vec();
        check(&without_machine, 500_000, of_a);
    }
}
