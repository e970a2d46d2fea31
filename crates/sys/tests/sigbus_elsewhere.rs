//! A SIGBUS that is not about one of our maps ends the process as it always did.
#![cfg(target_os = "linux")]

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

const ROLE: &str = "SYS_SIGBUS_ROLE";

/// Runs this test program again as a process that installs the guard and then does `role`.
fn signal_of(role: &str) -> Option<i32> {
    let program = std::env::current_exe().unwrap();
    let status =
        Command::new(program).args(["the_child", "--exact"]).env(ROLE, role).output().unwrap().status;
    assert!(!status.success());
    status.signal()
}

#[test]
fn a_foreign_map_still_ends_the_process() {
    assert_eq!(signal_of("foreign map"), Some(libc::SIGBUS));
}

#[test]
fn a_sent_signal_still_ends_the_process() {
    assert_eq!(signal_of("sent"), Some(libc::SIGBUS));
}

#[test]
fn the_child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(4096).unwrap();
    // The Rust runtime's own handler swallows the first SIGBUS that is sent; what is asked here is the system's action.
    // SAFETY: no other thread of this process uses signals.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    let guarded = sys::mmap::Map::open(file.path()).unwrap();
    // SAFETY: the test wants exactly what this risks: the file is cut while mapped.
    let foreign = unsafe { memmap2::Mmap::map(file.as_file()) }.unwrap();
    file.as_file().set_len(0).unwrap();
    assert_eq!(guarded[0], 0);
    assert!(guarded.damaged());
    match role.as_str() {
        "foreign map" => assert_eq!(foreign[0], 0),
        // SAFETY: raise has no preconditions.
        "sent" => assert_eq!(unsafe { libc::raise(libc::SIGBUS) }, 0),
        other => panic!("unknown role {other}"),
    }
}
