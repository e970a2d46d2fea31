//! The control groups this process is in: where their folders lie, and the numbers in their files.
//!
//! Formats: `proc_pid_mountinfo(5)`, `cgroups(7)`, and the kernel's `admin-guide/cgroup-v1` and `cgroup-v2`.

use std::fs;
use std::path::{Path, PathBuf};

/// The two generations of control groups; a machine may use both at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    V1,
    V2,
}

/// The folders of the groups of this process that govern `controller` ("memory", "cpu"), each hierarchy's from the
/// process's own group up to the topmost that is visible. `root` is `/`, or a test's invented machine.
pub(crate) fn folders(root: &Path, controller: &str) -> Vec<(Version, PathBuf)> {
    let groups = text(&root.join("proc/self/cgroup")).unwrap_or_default();
    let mounts = text(&root.join("proc/self/mountinfo")).unwrap_or_default();
    let mut folders = Vec::new();
    for line in mounts.lines() {
        let Some(mount) = Mount::parse(line) else { continue };
        let version = match mount.kind {
            "cgroup2" => Version::V2,
            "cgroup" if mount.options.split(',').any(|option| option == controller) => Version::V1,
            _ => continue,
        };
        let Some(group) = group_path(&groups, version, controller) else { continue };
        let top = below(root, &mount.point);
        // A container may show a part of the hierarchy only: what lies above the mount's root is out of sight, and a
        // path outside it leaves the top of what is visible.
        let group = Path::new(group).strip_prefix(&mount.root).unwrap_or(Path::new(""));
        let visible = !group.components().any(|part| part.as_os_str() == "..");
        let own = if visible { top.join(group) } else { top.clone() };
        for folder in own.ancestors().take_while(|folder| folder.starts_with(&top)) {
            folders.push((version, folder.to_path_buf()));
        }
    }
    folders
}

/// The number a group's file holds; `None` when there is no such file or it says there is no limit ("max", -1).
pub(crate) fn number(path: &Path) -> Option<u64> {
    text(path)?.trim().parse().ok()
}

/// The sum of the named fields of a file of `name value` lines; missing ones count as 0.
pub(crate) fn field_sum(path: &Path, names: &[&str]) -> u64 {
    let content = text(path).unwrap_or_default();
    let value = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        if names.contains(&name) { value.trim().parse::<u64>().ok() } else { None }
    };
    content.lines().filter_map(value).fold(0, u64::saturating_add)
}

pub(crate) fn text(path: &Path) -> Option<String> {
    Some(String::from_utf8_lossy(&fs::read(path).ok()?).into_owned())
}

/// An absolute path of the machine that lies at `root`.
fn below(root: &Path, absolute: &str) -> PathBuf {
    root.join(absolute.trim_start_matches('/'))
}

/// One line of `mountinfo`.
struct Mount<'a> {
    root: String,
    point: String,
    kind: &'a str,
    options: &'a str,
}

impl Mount<'_> {
    fn parse(line: &str) -> Option<Mount<'_>> {
        let (place, system) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let (root, point) = (unescaped(place.next()?), unescaped(place.next()?));
        let mut system = system.split(' ');
        let kind = system.next()?;
        Some(Mount { root, point, kind, options: system.nth(1)? })
    }
}

/// `mountinfo` writes blanks and backslashes as three octal digits.
fn unescaped(field: &str) -> String {
    field.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

/// This process's path in the hierarchy of `controller`, from the lines `number:controllers:path`.
fn group_path<'a>(groups: &'a str, version: Version, controller: &str) -> Option<&'a str> {
    groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let found = match version {
            Version::V2 => number == "0" && controllers.is_empty(),
            Version::V1 => controllers.split(',').any(|name| name == controller),
        };
        found.then_some(path)
    })
}

#[cfg(test)]
pub(crate) mod invented {
    //! Machines made of files.

    use std::fs;

    /// A folder holding the given files (path, content).
    pub(crate) fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        root
    }

    pub(crate) const V2_MOUNT: &str =
        "30 23 0:27 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
    pub(crate) const V1_MOUNTS: &str = "\
        31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
        32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
        35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(mounts: &str, groups: &str, controller: &str) -> Vec<String> {
        let machine = invented::machine(&[("proc/self/mountinfo", mounts), ("proc/self/cgroup", groups)]);
        let name = |(version, path): (Version, PathBuf)| {
            format!("{version:?} {}", path.strip_prefix(machine.path()).unwrap().display())
        };
        folders(machine.path(), controller).into_iter().map(name).collect()
    }

    #[test]
    fn the_group_and_all_above_it_are_found() {
        assert_eq!(
            found(invented::V2_MOUNT, "0::/user.slice/app.scope\n", "memory"),
            ["V2 sys/fs/cgroup/user.slice/app.scope", "V2 sys/fs/cgroup/user.slice", "V2 sys/fs/cgroup"]
        );
        let groups = "9:name=systemd:/x\n4:memory:/jobs/7\n1:cpu,cpuacct:/c\n0::/\n";
        assert_eq!(
            found(invented::V1_MOUNTS, groups, "memory"),
            [
                "V1 sys/fs/cgroup/memory/jobs/7",
                "V1 sys/fs/cgroup/memory/jobs",
                "V1 sys/fs/cgroup/memory",
                "V2 sys/fs/cgroup/unified"
            ]
        );
        let cpu = found(invented::V1_MOUNTS, groups, "cpu");
        assert_eq!(cpu[..2], ["V1 sys/fs/cgroup/cpu,cpuacct/c", "V1 sys/fs/cgroup/cpu,cpuacct"]);
    }

    #[test]
    fn a_container_sees_a_part() {
        // The mount shows the container's own group as its root; the path is the host's.
        let mounts = "35 31 0:32 /docker/ab12 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        assert_eq!(
            found(mounts, "4:memory:/docker/ab12/inner\n", "memory"),
            ["V1 sys/fs/cgroup/memory/inner", "V1 sys/fs/cgroup/memory"]
        );
        assert_eq!(found(mounts, "4:memory:/elsewhere\n", "memory"), ["V1 sys/fs/cgroup/memory"]);
        assert_eq!(found(invented::V2_MOUNT, "0::/../sibling\n", "memory"), ["V2 sys/fs/cgroup"]);
    }

    #[test]
    fn nonsense_gives_nothing() {
        assert!(found("", "", "memory").is_empty());
        assert!(found("a b c\n1 - \n - cgroup2\n", "x\n0:\n::::\n", "memory").is_empty());
        assert!(found(invented::V2_MOUNT, "4:memory:/a\n", "memory").is_empty());
        assert!(folders(Path::new("/nonexistent"), "memory").is_empty());
    }

    #[test]
    fn escaped_mount_points_are_read() {
        let mounts = "30 23 0:27 / /mnt/my\\040groups rw - cgroup2 none rw\n";
        assert_eq!(found(mounts, "0::/\n", "cpu"), ["V2 mnt/my groups"]);
    }
}
