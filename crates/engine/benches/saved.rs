//! Saving and loading a conversation, beside a file of the same size that is written and read past the system's cache with
//! nothing else to do. Rounds of all four, one after the other; per round and as a median GB/s and the part of the disk's.
//!
//! The file of the disk alone is read into the same few buffers, so the conversation is loaded into memory that the process keeps, from
//! the second round on. How long the system takes to find memory that was never there stands in front: a virtual machine's host
//! may take longer for that than any disk.
//!
//! Arguments: the folder to measure in (the system's for temporary files without one), MiB, rounds.

use std::path::PathBuf;
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
    let kv_growth = KvGrowth { hold: true, ..KvGrowth::default() };
    let options =
        LoadOptions { kv: KvType::F32, context_tokens: Some(1 << 26), kv_growth, ..LoadOptions::default() };
    let path = oracle::model("llama-tiny-F32");
    let model = Arc::new(Model::load(&path, &options).expect("a model"));
    let blocks = (mib << 20) / model.layout.block_bytes;
    let kernels = Kernels::detect();
    let conversation = MeasuredConversation::new(&model, blocks * engine::PARTITION_CELLS, &kernels);
    println!("memory that was never there: {:.2} GB/s", fresh_memory(mib << 20) / 1e9);
    // After it the memory of the next ones is there.
    conversation.round(folder.path()).expect("a disk");
    let ratios = |speed: &SavedSpeed| [speed.save / speed.raw_write, speed.load / speed.raw_read];
    let mut all = Vec::new();
    for _ in 0..rounds {
        let speed = conversation.round(folder.path()).expect("a disk");
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
        println!("{what} at {:.0} % of the disk (median of {rounds})", 100.0 * all[all.len() / 2][at]);
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
