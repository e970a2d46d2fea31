//! What the program prints of its numbers equals the oracle, or what can be computed from its other output.

mod support;

use serde_json::Value;
use support::*;

const F32_MODELS: [&str; 8] =
    ["llama-tiny", "q2-tiny", "q3-tiny", "q3moe-tiny", "q3next-tiny", "q35-tiny", "q35moe-tiny", "q4e-tiny"];

fn short_prompt(name: &str) -> Vec<u32> {
    ids(&oracle::json("index.json")[name]["prompts"]["short"]["tokens"])
}

fn assert_close(found: &[f32], wanted: &[f32], bound: f32, what: &str) {
    assert_eq!(found.len(), wanted.len(), "{what}");
    for (i, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        assert!((found - wanted).abs() < bound, "{what} value {i}: {found}, expected {wanted}");
    }
}

#[test]
fn logits_equal_the_oracle() {
    for name in F32_MODELS {
        let bound = if name == "q35moe-tiny" { 5e-4 } else { 2e-4 };
        let golden = oracle::npz(name);
        let wanted = &golden["short/logits"];
        let prompt = listed(&short_prompt(name));
        let found = rows(
            &json(&["logits", "-m", &model(&format!("{name}-F32")), "--tokens", &prompt, "--json"])["logits"],
        );
        assert_eq!(found.len(), wanted.shape[0], "{name}: a row for every position");
        for (i, row) in found.iter().enumerate() {
            assert_close(row, wanted.row(i), bound, &format!("{name} row {i}"));
        }
    }
}

#[test]
fn intermediates_equal_the_oracle_and_change_no_logit() {
    let name = "q4e-tiny";
    let golden = oracle::npz(name);
    let (file, prompt) = (model("q4e-tiny-F32"), listed(&short_prompt(name)));
    let tapped = json(&["logits", "-m", &file, "--tokens", &prompt, "--json", "--taps"]);
    let plain = json(&["logits", "-m", &file, "--tokens", &prompt, "--json"]);
    assert!(plain.get("taps").is_none());
    assert_eq!(tapped["logits"], plain["logits"]);
    let mut compared = 0;
    for (tap, found) in tapped["taps"].as_object().expect("names") {
        let Some(wanted) = golden.get(&format!("short/{tap}")) else { continue };
        let oracle::Data::F32(values) = &wanted.data else { continue };
        // The oracle orders chosen experts and cells in its own way.
        if [".moe.ids", ".moe.weights", ".selected"].iter().any(|end| tap.ends_with(end)) {
            continue;
        }
        let width: usize = wanted.shape[1..].iter().product();
        assert_eq!(found["width"], width, "{tap}");
        let found = rows(&found["values"]);
        assert!(found.iter().all(|row| row.len() == width), "{tap}");
        assert_close(&found.concat(), values, 1e-4, tap);
        compared += 1;
    }
    assert!(compared > 10, "only {compared} intermediates were compared");
}

#[test]
fn printed_numbers_are_the_same_floats_on_any_number_of_threads() {
    let (file, prompt) = (model("q4e-quant-Q4_K"), listed(&short_prompt("q4e-quant")));
    let print = |threads: &str, more: &[&str]| {
        let args = ["logits", "-m", &file, "--tokens", &prompt, "--json", "--threads", threads];
        let ran = strata(&[&args[..], more].concat());
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        ran.stdout
    };
    let one = print("1", &[]);
    assert_eq!(one, print("3", &[]));
    assert_eq!(one, print("2", &["--isa", "scalar", "--kv", "f32"]));
    let mut kinds = ["f16", "int8", "k8v4", "q4"].map(|kv| print("1", &["--kv", kv])).to_vec();
    // The names that ggml's programs have.
    assert_eq!(
        [print("1", &["--kv", "q8_0"]), print("1", &["--kv", "q4_0"])],
        [kinds[1].clone(), kinds[3].clone()]
    );
    kinds.push(one.clone());
    kinds.sort();
    kinds.dedup();
    assert_eq!(kinds.len(), 5);
    // The shortest digits that read back the same: no number can lose one and stay.
    let document: Value = serde_json::from_str(&one).expect("JSON");
    let number = document["logits"][0][0].as_f64().expect("a number") as f32;
    assert!(one.starts_with(&format!("{{\"logits\": [[{number:?},")), "{}", &one[..60]);
}

#[test]
fn long_inputs_are_read_in_several_passes() {
    let name = "q3next-tiny";
    let golden = oracle::npz(name);
    let wanted = &golden["long/logits"];
    let prompt = ids(&oracle::json("index.json")[name]["prompts"]["long"]["tokens"]);
    assert!(prompt.len() > 64, "longer than a pass");
    let printed = json(&["logits", "-m", &model("q3next-tiny-F32"), "--tokens", &listed(&prompt), "--json"]);
    let found = rows(&printed["logits"]);
    let first = found.len() - wanted.shape[0];
    for (i, row) in found[first..].iter().enumerate() {
        assert_close(row, wanted.row(i), 2e-4, &format!("row {}", first + i));
    }
}

#[test]
fn the_table_shows_the_likeliest_token() {
    let (file, prompt) = (model("q2-tiny-F32"), listed(&short_prompt("q2-tiny")));
    let printed = json(&["logits", "-m", &file, "--tokens", &prompt, "--json"]);
    let best: Vec<String> = rows(&printed["logits"]).iter().map(|row| argmax(row).to_string()).collect();
    let table = strata(&["logits", "-m", &file, "--tokens", &prompt]).stdout;
    let column: Vec<&str> =
        table.lines().skip(1).map(|line| line.split_whitespace().nth(2).expect("a column")).collect();
    assert_eq!(column, best);
}

/// The convention, written down a second time from the logits of each chunk alone.
#[test]
fn perplexity_is_that_of_the_second_halves() {
    let file = model("q2-tiny-F32");
    let text = "The quick brown fox jumps over the lazy dog, and 1234 other words follow it.\n".repeat(3);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("text.txt");
    std::fs::write(&path, &text).expect("written");
    let path = support::text(&path);
    let ctx = 32;
    let tokens = ids(&json(&["tokenize", "-m", &file, "-p", text.trim_end(), "--json"])["tokens"]);
    let mut nll = Vec::new();
    for chunk in tokens.chunks_exact(ctx) {
        let args = ["logits", "-m", &file, "--tokens", &listed(chunk), "--json", "--kv", "f16"];
        let logits = rows(&json(&args)["logits"]);
        for i in ctx / 2..ctx - 1 {
            let sum: f64 = logits[i].iter().map(|&logit| f64::from(logit).exp()).sum();
            nll.push(sum.ln() - f64::from(logits[i][chunk[i + 1] as usize]));
        }
    }
    let chunks = tokens.len() / ctx;
    assert!(chunks >= 3, "{} tokens are too few for this test", tokens.len());
    let mean = nll.iter().sum::<f64>() / nll.len() as f64;
    let variance = nll.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / nll.len() as f64;
    let error = (variance / (nll.len() - 1) as f64).sqrt() * mean.exp();
    let found = json(&["perplexity", "-m", &file, "-f", &path, "--ctx", "32", "--json"]);
    assert_eq!((&found["chunks"], &found["scored_tokens"]), (&chunks.into(), &nll.len().into()));
    let relative = |key: &str, wanted: f64| (found[key].as_f64().expect("a number") / wanted - 1.0).abs();
    assert!(relative("perplexity", mean.exp()) < 1e-9, "{found}, expected {}", mean.exp());
    assert!(relative("standard_error", error) < 1e-6, "{found}, expected {error}");
    let fewer = json(&["perplexity", "-m", &file, "-f", &path, "--ctx", "32", "--chunks", "1", "--json"]);
    assert_eq!(fewer["chunks"], 1);
}

#[test]
fn bench_figures_fit_together() {
    let file = model("q3moe-tiny-F32");
    let args = ["bench", "-m", &file, "-p", "40,8", "-n", "4", "-d", "0,30", "-b", "1,3", "--repeat", "1"];
    let report = json(&[&args[..], &["--json"]].concat());
    let number =
        |value: &Value, key: &str| value[key].as_f64().unwrap_or_else(|| panic!("{key} in {report}"));
    let close = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-6;
    let tests = report["tests"].as_array().expect("a list");
    let kinds: Vec<String> = tests
        .iter()
        .map(|test| format!("{} {} {} {}", test["kind"], test["tokens"], test["depth"], test["sequences"]))
        .collect();
    assert_eq!(
        kinds,
        [
            "\"read\" 40 null null",
            "\"read\" 8 null null",
            "\"write\" 4 0 1",
            "\"write\" 4 30 1",
            "\"write\" 4 0 3",
            "\"write\" 4 30 3"
        ]
    );
    for test in tests {
        let (round, rate) = (&test["rounds"][0], number(test, "tokens_per_second"));
        let tokens = number(test, "tokens") * test["sequences"].as_f64().unwrap_or(1.0);
        assert!(close(rate, tokens / number(round, "seconds")), "{test}");
        let (work, limit, fraction) = match test["kind"].as_str() {
            Some("read") => ("products", "int8_products_per_second", "products_fraction"),
            _ => ("bytes", "bandwidth_bytes_per_second", "bandwidth_fraction"),
        };
        let work_rate = number(test, &format!("{work}_per_second"));
        assert!(close(work_rate, rate * number(test, &format!("{work}_per_token"))), "{test}");
        assert!(close(number(test, fraction), work_rate / number(round, limit)), "{test}");
    }
    let bytes = |index: usize| number(&tests[index], "bytes_per_token");
    assert!(bytes(3) > bytes(2), "a state is read too: {report}");
    assert!(bytes(4) < bytes(2), "sequences share what they read of the weights: {report}");
    let table = strata(&args).stdout;
    assert_eq!(table.lines().count(), 3 + tests.len(), "{table}");
    assert!(table.lines().any(|line| line.starts_with("write 4 x 3 after 30 ")), "{table}");
}

#[test]
fn bench_tells_where_the_time_goes() {
    let args =
        ["bench", "-m", &model("q4e-tiny-F32"), "-p", "40", "-n", "4", "-d", "30", "-r", "1", "--parts"];
    let report = json(&[&args[..], &["--json"]].concat());
    let tests = report["tests"].as_array().expect("a list");
    for test in tests {
        let parts = test["parts"].as_array().expect("a list");
        let sum = |key: &str| parts.iter().filter_map(|part| part[key].as_f64()).sum::<f64>();
        let named = |name: &str| parts.iter().any(|part| part["part"] == name);
        let wanted =
            ["embedding", "n-grams", "residual", "attention", "indexer", "delta net", "router", "experts"];
        assert!(wanted.into_iter().chain(["shared expert", "head"]).all(named), "{test}");
        assert!((sum("share") - 1.0).abs() < 1e-9, "{test}");
        let whole = test["rounds"][0]["seconds"].as_f64().expect("seconds");
        let tokens = test["tokens"].as_f64().expect("tokens");
        assert!(sum("seconds_per_token") * tokens <= whole, "{test}");
        if test["kind"] == "write" {
            let whole = test["bytes_per_token"].as_f64().expect("bytes");
            assert!((sum("bytes_per_token") / whole - 1.0).abs() < 1e-9, "{test}");
        }
    }
    let table = strata(&args).stdout;
    assert!(table.contains("\n  delta net "), "{table}");
}
