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
