//! Rough speed of a model: `speed MODEL PROMPT_TOKENS GENERATED_TOKENS [THREADS]`.

use std::ops::ControlFlow;
use std::path::Path;

use engine::{Engine, EngineConfig, LoadOptions, Request, Sampling};

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number = |i: usize, default: usize| args.get(i).map_or(default, |a| a.parse().expect("a number"));
    let config =
        EngineConfig { load: LoadOptions::default(), threads: number(4, 2), isa: None, chunk_tokens: 512 };
    let start = std::time::Instant::now();
    let mut engine = Engine::load(Path::new(&args[1]), &config).expect("a model");
    println!("loaded in {:.3} s", start.elapsed().as_secs_f64());
    for _ in 0..3 {
        let request = Request {
            prompt: (0..number(2, 512)).map(|i| 100 + (i * 37 % 1000) as u32).collect(),
            sampling: Sampling::default(),
            tokens_max: number(3, 64),
            stop_tokens: Vec::new(),
        };
        let ended = engine.generate(&request, |_| ControlFlow::Continue(())).expect("an answer");
        println!(
            "read {:.1} tok/s, write {:.1} tok/s",
            ended.prompt_tokens as f64 / ended.read_time.as_secs_f64(),
            (ended.generated_tokens - 1) as f64 / ended.write_time.as_secs_f64()
        );
    }
}
