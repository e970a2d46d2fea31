//! What `strata inspect` tells, against counts that were made with the Python package gguf.

mod support;

use serde_json::Value;
use support::*;

/// File, parameters, parameters that a token uses, bytes of the tensors: counted with gguf's GGUFReader, where of the
/// stacked experts those that are used count, of the embedding and the n-gram table the rows, of the draft layer nothing.
const COUNTS: [(&str, u64, u64, u64); 6] = [
    ("llama-tiny-F32", 223_680, 158_208, 894_720),
    ("q2-tiny-F32", 224_064, 158_592, 896_256),
    ("q3moe-tiny-F32", 503_424, 216_768, 2_013_696),
    ("q35moe-tiny-F32", 658_516, 298_132, 2_634_064),
    ("q4e-tiny-F16", 1_741_128, 861_416, 3_522_848),
    ("q4e-quant-Q4_K", 6_075_864, 3_373_016, 4_592_864),
];

fn sum(sums: &Value, key: &str) -> u64 {
    let sums = sums.as_object().expect("an object").values();
    sums.map(|sum| sum[key].as_u64().expect("a number")).sum()
}

#[test]
fn counts_are_those_of_another_reader() {
    for (name, parameters, active, bytes) in COUNTS {
        let told = json(&["inspect", &model(name), "--json", "--tensors"]);
        assert_eq!(told["parameters"], parameters, "{name}");
        assert_eq!(told["active_parameters"], active, "{name}");
        assert_eq!(told["bytes"], bytes, "{name}");
        for sums in ["roles", "types"] {
            assert_eq!(sum(&told[sums], "parameters"), parameters, "{name} {sums}");
            assert_eq!(sum(&told[sums], "bytes"), bytes, "{name} {sums}");
        }
        let tensors = told["tensors"].as_array().expect("an array");
        assert_eq!(sum(&told["types"], "tensors"), tensors.len() as u64, "{name}");
        assert_eq!(told["supported"], true);
        assert!(told["roles"].get("unused").is_none(), "{name}");
    }
}

#[test]
fn shape_tokenizer_and_template_are_told() {
    let told = json(&["inspect", &model("q4e-tiny-F16"), "--json"]);
    assert_eq!(told["architecture"], "qwen4exp");
    let shape = &told["shape"];
    let layers =
        (&shape["layers"], &shape["attention_layers"], &shape["delta_net_layers"], &shape["draft_layer"]);
    assert_eq!(layers, (&8.into(), &2.into(), &6.into(), &true.into()));
    assert_eq!(
        (&told["experts"], &told["width"], &told["vocabulary"]),
        (&16.into(), &64.into(), &1024.into())
    );
    assert_eq!(told["tokenizer"]["model"], "gpt2");
    assert!(told["tokenizer"]["eos"]["text"].as_str().is_some_and(|text| text.starts_with("<|")), "{told}");
    assert!(told["template"]["chars"].as_u64().is_some_and(|chars| chars > 10), "{told}");
    assert!(told.get("tensors").is_none() && told.get("metadata").is_none());
}

#[test]
fn the_table_says_the_same() {
    let file = model("q4e-tiny-split-F16-00002-of-00002");
    let told = strata(&["inspect", &file, "--tensors", "--metadata"]);
    assert_eq!(told.code, 0, "{told:?}");
    for words in [
        "architecture qwen4exp\n",
        "parameters   1.7 million parameters, 861.4 thousand active per token\n",
        "layers       8: 2 with attention, 6 with delta net, 2 with sparse attention, 8 with experts, and a draft layer\n",
        "q4e-tiny-split-F16-00001-of-00002.gguf (3.53 MB)\n",
        "q4e-tiny-split-F16-00002-of-00002.gguf (41.2 kB)\n",
        "\nrole ",
        "\nexperts ",
        "\ntype ",
        "\nblk.0.ffn_gate_exps.weight ",
        "64 x 32 x 16",
        "\nqwen4exp.block_count ",
        " more]\n",
    ] {
        assert!(told.stdout.contains(words), "{words:?} in {}", told.stdout);
    }
    let short = strata(&["inspect", &file]).stdout;
    assert!(!short.contains("blk.0.") && !short.contains("block_count"), "{short}");
}

/// A file of an architecture that cannot be run is told as far as its header goes.
#[test]
fn an_unknown_architecture_is_told_too() {
    let mut bytes = std::fs::read(oracle::model("q2-tiny-F32")).expect("read");
    let found: Vec<usize> = (0..bytes.len() - 5).filter(|&at| &bytes[at..at + 5] == b"qwen2").collect();
    for at in found {
        bytes[at + 4] = b'9';
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("qwen9 \u{fc}.gguf");
    std::fs::write(&path, bytes).expect("written");
    let told = json(&["inspect", &text(&path), "--json", "--metadata"]);
    assert_eq!((&told["architecture"], &told["supported"]), (&"qwen9".into(), &false.into()));
    assert_eq!((&told["parameters"], &told["active_parameters"]), (&224_064.into(), &Value::Null));
    assert_eq!((&told["layers"], &told["width"]), (&3.into(), &64.into()));
    assert!(told["unsupported_reason"].as_str().is_some_and(|why| why.contains("`qwen9` is not known")));
    assert_eq!(told["metadata"]["general.architecture"], "qwen9");
    assert_eq!(
        told["metadata"]["tokenizer.ggml.tokens"]["length"],
        1024.min(told["vocabulary"].as_u64().expect("n"))
    );
    let table = strata(&["inspect", &text(&path)]);
    assert!(table.code == 0 && table.stdout.contains("supported    no: architecture `qwen9`"), "{table:?}");
    assert!(table.stdout.contains("layers       3\n"), "{table:?}");
}

#[test]
fn what_is_no_model_is_refused() {
    let ran = strata(&["inspect", "/"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (3, ""), "{ran:?}");
    assert_eq!(ran.stderr.lines().count(), 1);
}
