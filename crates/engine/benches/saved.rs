//! Saving and loading a conversation, beside a file of the same size that is written and read past the system's cache with
//! nothing else to do. Rounds of all four, one after the other; per round and as a median GB/s and the part of the disk's.
//!
//! The file of the disk alone is read into the same few buffers. The conversation is loaded into memory that the process keeps, and
//! then, as after a restart, into memory that the system finds for it: how long that takes alone stands in front, since a virtual
//! machine's host may take longer for it than any disk.
//!
//! Arguments: the folder to measure in (the system's for temporary files without one), MiB, rounds.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use engine::{KvGrowth, KvType, LoadOptions, MeasuredConversation, Model, SavedSpeed};
use kernels::Kernels;
use sys::memory::AlignedBuf;

fn main() {
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    let folder = args.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let mut number = |usual| args.next().map_or(usual, |text| text.parse().expect("a number"));
    let (mib, rounds): (usize, usize) = (number(1024), number(7));
    let folder = tempfile::tempdir_in(folder).expect("a folder");
    println!("memory that was never there: {:.2} GB/s", fresh_memory(mib << 20) / 1e9);
    for (hold, memory) in [(true, "memory that is kept"), (false, "new memory")] {
        let kv_growth = KvGrowth { hold, ..KvGrowth::default() };
        let context_tokens = Some(1 << 26);
        let options = LoadOptions { kv: KvType::F32, context_tokens, kv_growth, ..LoadOptions::default() };
        let model = Model::load(&oracle::model("llama-tiny-F32"), &options).expect("a model");
        measure(&Arc::new(model), mib, rounds, folder.path(), memory);
    }
}

fn measure(model: &Arc<Model>, mib: usize, rounds: usize, folder: &Path, memory: &str) {
    let tokens = (mib << 20) / model.layout.block_bytes * engine::PARTITION_CELLS;
    let conversation = MeasuredConversation::new(model, tokens, &Kernels::detect());
    // After it the memory of the next ones is there, where it is kept.
    conversation.round(folder).expect("a disk");
    let ratios = |speed: &SavedSpeed| [speed.save / speed.raw_write, speed.load / speed.raw_read];
    let mut all = Vec::new();
    for _ in 0..rounds {
        let speed = conversation.round(folder).expect("a disk");
        let SavedSpeed { bytes, raw_write, save, raw_read, load } = speed;
        let [of_write, of_read] = ratios(&speed);
        println!(
            "{bytes} bytes: written {:.2} GB/s, saved {:.2} ({:.0} %); read {:.2} GB/s, loaded {:.2} ({:.0} %)",
            raw_write / 1e9,
            save / 1e9,
            100.0 * of_write,
            raw_read / 1e9,
            load / 1e9,
            100.0 * of_read,
        );
        all.push([of_write, of_read]);
    }
    for (at, what) in ["saved", "loaded"].into_iter().enumerate() {
        all.sort_by(|a, b| a[at].total_cmp(&b[at]));
        let median = 100.0 * all[all.len() / 2][at];
        println!("{memory}: {what} at {median:.0} % of the disk (median of {rounds})");
    }
}

/// Bytes per second.
fn fresh_memory(bytes: usize) -> f64 {
    let start = Instant::now();
    let mut memory = AlignedBuf::<u8>::zeroed(bytes).expect("memory");
    memory.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
    std::hint::black_box(&memory);
    bytes as f64 / start.elapsed().as_secs_f64()
}
