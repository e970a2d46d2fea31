//! Prints the memory's read bandwidth: `cargo run --release -p sys --example read_bandwidth -- [threads [MiB]]`.

fn main() {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<usize>().expect("a number"));
    let threads = numbers.next().unwrap_or_else(sys::topology::threads_default);
    let mib = numbers.next().unwrap_or(1024);
    let pool = sys::pool::Pool::new(threads).expect("a pool");
    let got = sys::bandwidth::read_bandwidth(&pool, mib << 20, 15).expect("memory for the buffer");
    let (best, median) = (got.best / 1e9, got.median / 1e9);
    println!("{threads} threads, {mib} MiB: best {best:.1} GB/s, median {median:.1} GB/s");
}
