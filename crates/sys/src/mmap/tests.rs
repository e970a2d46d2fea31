use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

const PAGE: usize = 4096;

/// A file of `pages` pages, each filled with its number plus one.
fn file_of(pages: usize) -> (tempfile::NamedTempFile, Vec<u8>) {
    let bytes: Vec<u8> = (0..pages * PAGE).map(|at| (at / PAGE % 251) as u8 + 1).collect();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&bytes).unwrap();
    (file, bytes)
}

#[test]
fn maps_the_whole_file() {
    let (file, bytes) = file_of(3);
    let map = Map::open(file.path()).unwrap();
    assert_eq!(&map[..], &bytes[..]);
    assert_eq!(map.path(), file.path());
    map.advise_random(0..usize::MAX);
    map.advise_sequential(100..200);
    map.advise_willneed(PAGE..2 * PAGE);
    map.advise_willneed(10 * PAGE..11 * PAGE);
    assert_eq!(&map[..], &bytes[..]);
    assert!(!map.damaged());
    if cfg!(target_os = "linux") {
        assert_eq!(map.resident_bytes(), Some(3 * PAGE as u64));
    }
}

/// Neighbours of a range that is given up share its first and last page.
#[cfg(target_os = "linux")]
#[test]
fn pages_that_were_given_up_come_back_with_the_same_bytes() {
    let (file, bytes) = file_of(400);
    let map = Map::open(file.path()).unwrap();
    assert_eq!(&map[..], &bytes[..]);
    let mapped = pages_mapped(&map);
    assert!(mapped >= 400, "{mapped}");
    map.advise_unneeded(PAGE + 1..399 * PAGE - 1);
    // Pages 0, 1, 398 and 399 stay.
    assert_eq!(pages_mapped(&map), 4);
    map.advise_unneeded(10 * PAGE..usize::MAX);
    assert_eq!(pages_mapped(&map), 2);
    map.advise_unneeded(5..6);
    map.advise_unneeded(1000 * PAGE..1001 * PAGE);
    assert_eq!(&map[..], &bytes[..]);
    assert!(!map.damaged());
}

/// Pages of the map that this process has in its tables, by what the system says of that map alone.
#[cfg(target_os = "linux")]
fn pages_mapped(map: &Map) -> usize {
    let start = format!("{:x}-", map.as_ptr() as usize);
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (_, of_map) = maps.split_once(&format!("\n{start}")).expect("the map is listed");
    let (_, resident) = of_map.split_once("\nRss:").unwrap();
    resident.split_whitespace().next().unwrap().parse::<usize>().unwrap() * 1024 / PAGE
}

/// A file put in the place of the one that was mapped, as a download does, is not the one that is read.
#[cfg(unix)]
#[test]
fn reads_the_mapped_file_and_not_one_of_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let (path, other) = (folder.path().join("file"), folder.path().join("other"));
    std::fs::write(&path, [1; 3000]).unwrap();
    std::fs::write(&other, [2; 3000]).unwrap();
    let map = Map::open(&path).unwrap();
    std::fs::rename(&other, &path).unwrap();
    let mut bytes = [0; 1000];
    map.read(2000, &mut bytes).unwrap();
    assert_eq!(bytes, [1; 1000]);
    assert_eq!(map.read(2001, &mut bytes).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn an_empty_file_is_an_empty_map() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let map = Map::open(file.path()).unwrap();
    assert!(map.is_empty() && !map.damaged());
    map.advise_willneed(0..10);
}

#[test]
fn what_is_no_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(Map::open(folder.path()), Err(MapError::NotAFile { .. })));
    let missing = Map::open(&folder.path().join("missing")).unwrap_err();
    assert!(matches!(missing, MapError::Open { .. }));
    assert!(missing.to_string().contains("missing"), "{missing}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_cut_while_mapped_reads_as_zeros_and_says_so() {
    let (file, bytes) = file_of(64);
    let (whole_file, whole_bytes) = file_of(5);
    let map = Map::open(file.path()).unwrap();
    let whole = Map::open(whole_file.path()).unwrap();
    file.as_file().set_len((2 * PAGE + 100) as u64).unwrap();
    assert_eq!(map[2 * PAGE], bytes[2 * PAGE]);
    assert!(!map.damaged());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let map = &map;
            scope.spawn(move || {
                for page in (3..64).map(|page| 3 + (page + thread * 17) % 61) {
                    assert!(map[page * PAGE..][..PAGE].iter().all(|&byte| byte == 0));
                    assert!(map.damaged());
                }
            });
        }
    });
    assert_eq!(map[..2 * PAGE], bytes[..2 * PAGE]);
    assert_eq!(&whole[..], &whole_bytes[..]);
    assert!(!whole.damaged());
    // A slot that is used again starts undamaged.
    drop(map);
    let again: Vec<Map> = (0..3).map(|_| Map::open(whole_file.path()).unwrap()).collect();
    assert!(again.iter().all(|map| !map.damaged()));
}

#[cfg(target_os = "linux")]
#[test]
fn maps_come_and_go_while_others_fault() {
    let (whole_file, whole_bytes) = file_of(2);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    // More than one block of the registry holds.
                    let maps: Vec<Map> = (0..50).map(|_| Map::open(whole_file.path()).unwrap()).collect();
                    assert!(maps.iter().all(|map| map[..] == whole_bytes[..] && !map.damaged()));
                }
            });
        }
        let faulting: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let (file, bytes) = file_of(8);
                        let map = Map::open(file.path()).unwrap();
                        file.as_file().set_len(PAGE as u64).unwrap();
                        assert!(map[PAGE..].iter().all(|&byte| byte == 0));
                        assert!(map.damaged());
                        assert_eq!(map[..PAGE], bytes[..PAGE]);
                    }
                })
            })
            .collect();
        let outcomes: Vec<_> = faulting.into_iter().map(|thread| thread.join()).collect();
        stop.store(true, Ordering::Relaxed);
        assert!(outcomes.iter().all(Result::is_ok));
    });
}
