//! AVX-512 by Bochs, which emulates a whole computer: Debian's kernel boots from a CD image with the test program in its
//! initial file system and writes to a serial line, which is a file here.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::{PRESENCE_TEST, install, test_program, unpack};
use crate::process::{self, Counts, command};

/// Booting and all tests take some minutes of a free core.
const TIME_MAX: Duration = Duration::from_secs(3600);

const NEEDED: &[(&str, &str)] = &[
    ("/usr/bin/bochs-bin", "bochs"),
    ("/usr/share/bochs/BIOS-bochs-latest", "bochsbios"),
    ("/usr/lib/x86_64-linux-gnu/bochs/plugins/libbx_term_gui.so", "bochs-term"),
    ("/usr/lib/ISOLINUX/isolinux.bin", "isolinux"),
    ("/usr/lib/syslinux/modules/bios/ldlinux.c32", "syslinux-common"),
    ("/usr/bin/xorrisofs", "xorriso"),
    ("/bin/busybox", "busybox-static"),
];

/// The kernel for virtual machines: few drivers, and an image that unpacks fast.
const KERNEL: &str = "linux-image-cloud-amd64";

/// Bits of CPUID that Bochs 2.7 gets wrong, by the kernel's numbers. XSAVEC and XSAVES (321, 323): the size it tells for
/// their format is not that of the format. PKU and OSPKE (515, 516): it has their register and tells no place for it in
/// the saved state; either would make the kernel turn AVX-512 off. FSRM (580): without the fast string operations of
/// its MSR the kernel's memmove takes a short move for an endless one.
const CLEARED: &str = "321,323,515,516,580";

/// Ice Lake is Bochs's only kind of CPU with VNNI besides its successor.
const MACHINE: &str = "\
config_interface: textconfig
display_library: term
romimage: file=/usr/share/bochs/BIOS-bochs-latest, options=fastboot
vgaromimage: file=/usr/share/bochs/VGABIOS-lgpl-latest
cpu: model=corei7_icelake_u, count=1, ips=100000000, reset_on_triple_fault=0
memory: guest=512, host=512
ata0-master: type=cdrom, path=boot.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=serial.txt
clock: sync=none
log: bochs.log
panic: action=fatal
error: action=ignore
info: action=ignore
debug: action=ignore
";

/// Bochs 2.7 rounds up where a value lies halfway between two of half precision. F16C of a real CPU passes.
const SKIPPED: &str = "floats::half_precision_ties";

/// What the initial process says when the tests have ended, before their exit status.
const ENDED: &str = "tests ended: ";

/// See [`super::run`].
pub fn run(root: &Path, folder: &Path, filter: &str) -> Result<(), String> {
    install(NEEDED)?;
    let kernel = kernel(folder)?;
    let tests = test_program(command(root, "cargo test --package kernels --test kernels"))?;
    image(folder, &kernel, &tests, filter)?;
    let serial = boot(folder)?;
    judge(&serial)
}

/// The kernel's file, downloaded once.
fn kernel(folder: &Path) -> Result<std::path::PathBuf, String> {
    let boot = folder.join("kernel").join("boot");
    let find = || {
        let mut files = fs::read_dir(&boot).ok()?.flatten().map(|entry| entry.path());
        files.find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz")))
    };
    if let Some(found) = find() {
        return Ok(found);
    }
    let depends = process::read(command(folder, &format!("apt-cache depends {KERNEL}")))?;
    let package = depends.lines().find_map(|line| line.trim().strip_prefix("Depends: "));
    let package = package.ok_or_else(|| format!("apt knows no kernel behind {KERNEL}; apt-get update?"))?;
    unpack(&[], folder, &[package], "kernel")?;
    find().ok_or_else(|| format!("{package} holds no kernel"))
}

/// Writes `boot.iso`: boot loader, kernel, and an initial file system with the tests and their libraries.
fn image(folder: &Path, kernel: &Path, tests: &Path, filter: &str) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    let (files, disc) = (folder.join("files"), folder.join("disc"));
    for folder in [&files, &disc] {
        if folder.exists() {
            fs::remove_dir_all(folder).map_err(failed)?;
        }
    }
    for folder in [files.join("bin"), files.join("proc"), disc.clone()] {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    fs::copy("/bin/busybox", files.join("bin/busybox")).map_err(failed)?;
    let mut strip = Command::new("strip");
    strip.arg("-o").arg(files.join("bin/tests")).arg(tests);
    process::run(strip)?;
    let mut ldd = Command::new("ldd");
    ldd.arg(tests);
    for library in process::read(ldd)?.split_whitespace().filter(|word| word.starts_with('/')) {
        let copy = files.join(&library[1..]);
        fs::create_dir_all(copy.parent().expect("a library lies in a folder")).map_err(failed)?;
        fs::copy(library, copy).map_err(failed)?;
    }
    let init = files.join("init");
    fs::write(&init, script(filter)).map_err(failed)?;
    process::run(command(&files, "chmod 755 init"))?;

    for file in ["/usr/lib/ISOLINUX/isolinux.bin", "/usr/lib/syslinux/modules/bios/ldlinux.c32"] {
        fs::copy(file, disc.join(Path::new(file).file_name().expect("a file"))).map_err(failed)?;
    }
    fs::copy(kernel, disc.join("vmlinuz")).map_err(failed)?;
    let loader = format!(
        "DEFAULT tests\nPROMPT 0\nLABEL tests\nKERNEL vmlinuz\nINITRD initrd\n\
         APPEND console=ttyS0 quiet nokaslr mitigations=off tsc=reliable random.trust_cpu=on no_timer_check panic=-1 \
         lsm=lockdown clearcpuid={CLEARED}\n"
    );
    fs::write(disc.join("isolinux.cfg"), loader).map_err(failed)?;
    let mut pack = Command::new("sh");
    pack.current_dir(&files).args(["-c", "find . | busybox cpio -o -H newc > ../disc/initrd"]);
    process::run(pack)?;
    process::run(command(
        folder,
        "xorrisofs -quiet -o boot.iso -b isolinux.bin -c boot.cat -no-emul-boot -boot-load-size 4 -boot-info-table disc",
    ))
}

/// The initial process: runs the tests on this one CPU and turns the machine off when the serial line has sent it all.
fn script(filter: &str) -> String {
    format!(
        "#!/bin/busybox sh\n\
         /bin/busybox mount -t proc none /proc\n\
         /bin/tests --include-ignored --exact {PRESENCE_TEST} &&\n\
         RUST_BACKTRACE=1 /bin/tests --test-threads 1 --skip {SKIPPED} {filter}\n\
         /bin/busybox echo \"{ENDED}$?\"\n\
         /bin/busybox sleep 2\n\
         /bin/busybox poweroff -f\n"
    )
}

/// Starts the machine, passes on what it says and returns that when it has turned itself off.
fn boot(folder: &Path) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    fs::write(folder.join("bochsrc"), MACHINE).map_err(failed)?;
    // Debian's Bochs stops in its debugger first.
    fs::write(folder.join("commands"), "continue\n").map_err(failed)?;
    let serial = folder.join("serial.txt");
    fs::write(&serial, "").map_err(failed)?;
    let screen = fs::File::create(folder.join("screen.txt")).map_err(failed)?;
    let mut bochs = command(folder, "bochs-bin -q -f bochsrc -rc commands");
    bochs.env("TERM", "linux").stdin(Stdio::null());
    bochs.stderr(screen.try_clone().map_err(failed)?).stdout(screen);
    let mut machine = bochs.spawn().map_err(|error| format!("bochs could not be started: {error}"))?;
    let outcome = watch(&mut machine, &serial);
    // It has ended, or must.
    let _ = machine.kill();
    machine.wait().map_err(failed)?;
    outcome
}

fn watch(machine: &mut Child, serial: &Path) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", serial.display());
    let mut file = fs::File::open(serial).map_err(failed)?;
    let (mut said, start) = (Vec::new(), Instant::now());
    loop {
        let ended = machine.try_wait().map_err(failed)?.is_some();
        let before = said.len();
        file.read_to_end(&mut said).map_err(failed)?;
        print!("{}", String::from_utf8_lossy(&said[before..]));
        let text = String::from_utf8_lossy(&said);
        if ended || status(&text).is_some() {
            return Ok(text.into_owned());
        }
        if start.elapsed() > TIME_MAX {
            return Err(format!("after {} s the emulated computer had not finished", TIME_MAX.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// The exit status that the whole line at the end tells.
fn status(serial: &str) -> Option<&str> {
    let (status, _) = serial.split_once(ENDED)?.1.split_once('\n')?;
    Some(status.trim())
}

/// Whether all tests passed, by what the machine said: the result of [`PRESENCE_TEST`], then that of the others.
fn judge(serial: &str) -> Result<(), String> {
    let results = serial.lines().filter(|line| line.starts_with("test result:"));
    let passed: Vec<u64> = results.map(|line| Counts::of_line(line).passed).collect();
    match (status(serial), &passed[..]) {
        (Some("0"), [1, 0]) => Err("no test has that name".into()),
        (Some("0"), [1, _]) => Ok(()),
        (Some("0"), _) => Err(format!("`{PRESENCE_TEST}` did not run")),
        (Some(status), _) => Err(format!("the tests ended with status {status} on the emulated CPU")),
        (None, _) => {
            Err("the emulated computer turned itself off before the tests ended; see bochs.log".into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_finished_run_with_tests_counts() {
        let presence = "test result: ok. 1 passed; 0 failed; 0 ignored";
        let all = "test result: ok. 23 passed; 0 failed; 1 ignored";
        assert_eq!(judge(&format!("{presence}\r\n{all}\r\ntests ended: 0\r\n")), Ok(()));
        assert!(judge(&format!("{all}\n{all}\ntests ended: 0\n")).unwrap_err().contains("did not run"));
        let nothing = "test result: ok. 0 passed; 0 failed; 1 ignored";
        assert!(judge(&format!("{presence}\n{nothing}\ntests ended: 0\n")).unwrap_err().contains("no test"));
        assert!(judge(&format!("{presence}\n{all}\ntests ended: 101\n")).unwrap_err().contains("101"));
        assert!(judge(&format!("{presence}\n{all}\ntests ended: ")).unwrap_err().contains("before"));
    }
}
