//! What the process holds; a program of its own, as other tests take and give back memory meanwhile.
#![cfg(target_os = "linux")]

use sys::memory::{AlignedBuf, Limit, available, peak_resident_bytes, resident};

#[test]
fn this_process_holds_what_it_touched() {
    const BYTES: u64 = 64 << 20;
    let here = available();
    assert!(here.bytes > 0 && here.reason != Limit::Unknown, "{here:?}");

    let before = resident().unwrap();
    let mut buffer = AlignedBuf::<u8>::zeroed(BYTES as usize).unwrap();
    let reserved = resident().unwrap();
    assert!(reserved.anonymous < before.anonymous + BYTES / 2, "untouched pages are not held: {reserved:?}");
    buffer.fill(1);
    let touched = resident().unwrap();
    // The kernel counts per thread and sums up in lots of pages.
    assert!(touched.anonymous > before.anonymous + BYTES - (1 << 20), "{before:?} {touched:?}");
    assert!(touched.total() >= touched.anonymous);
    drop(buffer);
    assert!(resident().unwrap().anonymous < before.anonymous + BYTES / 2);
    assert!(peak_resident_bytes().unwrap() > BYTES - (1 << 20));
}
