//! Opens a model and prints how long that took: `cargo run --release -p gguf --example open -- MODEL`. Without a model,
//! a file with 250,000 tokens and as many merges is made for it.

use std::path::PathBuf;
use std::time::Instant;

use gguf::write::Writer;
use gguf::{ModelFile, StringArray};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let made = std::env::temp_dir().join(format!("large-vocabulary-{}.gguf", std::process::id()));
    let named = std::env::args_os().nth(1).map(PathBuf::from);
    if named.is_none() {
        large_vocabulary().write(&made)?;
    }
    let path = named.as_ref().unwrap_or(&made);
    let start = Instant::now();
    let opened = ModelFile::open(path);
    let seconds = start.elapsed().as_secs_f64();
    if named.is_none() {
        std::fs::remove_file(&made)?;
    }
    let model = opened?;
    for (key, value) in model.metadata.iter() {
        println!("{key} = {value} ({})", value.type_name());
    }
    let bytes: u64 = model.shards.iter().map(|shard| shard.len).sum();
    println!(
        "{} tensors, {} files, {bytes} bytes; opened in {:.1} ms",
        model.tensors.len(),
        model.shards.len(),
        seconds * 1e3
    );
    Ok(())
}

fn large_vocabulary() -> Writer {
    let tokens: StringArray = (0..250_000).map(|i| format!("token{i}")).collect();
    let merges: StringArray = (0..250_000).map(|i| format!("tok en{i}")).collect();
    let mut writer = Writer::new();
    writer.set("tokenizer.ggml.tokens", tokens).set("tokenizer.ggml.merges", merges);
    writer.set("tokenizer.ggml.scores", vec![0.0f32; 250_000]).add_f32("x", &[1], &[1.0]);
    writer
}
