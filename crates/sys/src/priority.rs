//! How much of a processor a thread gets beside others.

/// How far a background thread steps back from the rest of its process: beside a thread that computes it gets about a quarter
/// of a processor, and all of one that is idle. (Ten steps would be a tenth: on a busy machine its work took minutes.)
#[cfg(target_os = "linux")]
const STEP: libc::c_int = 5;

/// The least there is.
#[cfg(target_os = "linux")]
const NICENESS_MAX: libc::c_int = 19;

/// Lets the calling thread step back behind others. Where the system refuses or knows no priority of a thread it goes on
/// as before, which is slower for others and wrong for nobody.
pub fn step_back() {
    // On Linux the process 0 is the calling thread alone; elsewhere it would be the whole process.
    #[cfg(target_os = "linux")]
    // SAFETY: neither call has preconditions.
    unsafe {
        let before = libc::getpriority(libc::PRIO_PROCESS as _, 0);
        libc::setpriority(libc::PRIO_PROCESS as _, 0, (before + STEP).min(NICENESS_MAX));
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// Of this thread and of nobody else, or the threads that compute would step back too.
    #[test]
    fn only_the_calling_thread_steps_back() {
        let niceness = || {
            // SAFETY: no preconditions.
            unsafe { libc::getpriority(libc::PRIO_PROCESS as _, 0) }
        };
        let before = niceness();
        let of_thread = std::thread::spawn(move || {
            step_back();
            niceness()
        });
        assert_eq!(of_thread.join().unwrap(), (before + STEP).min(NICENESS_MAX));
        assert_eq!(niceness(), before);
    }
}
