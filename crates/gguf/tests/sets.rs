//! Split models: whatever of a set is named opens it, and whatever is wrong with it is told with its cure.

use std::path::{Path, PathBuf};

use gguf::write::Writer;
use gguf::{ModelFile, TensorType};

const GROUPS: &[&[&str]] =
    &[&[], &["blk.0.ffn_up_exps.weight", "output.weight"], &["per_layer_token_embd.weight"]];

fn writer() -> Writer {
    let mut writer = Writer::new();
    writer
        .set("general.architecture", "qwen4exp")
        .set("tokenizer.ggml.tokens", &["a", "b"][..])
        .add_tensor("per_layer_token_embd.weight", TensorType::Q8_0, &[32, 3], vec![1; 102])
        .add_f32("blk.0.ffn_up_exps.weight", &[8, 2, 3], &[2.0; 48])
        .add_f32("output.weight", &[8, 2], &[3.0; 16]);
    writer
}

/// A set of three in a folder of its own; the paths.
fn set() -> (tempfile::TempDir, Vec<PathBuf>) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let paths = writer().write_split(&folder.path().join("tiny"), GROUPS).expect("written");
    (folder, paths)
}

fn open(path: &Path) -> ModelFile {
    ModelFile::open(path).unwrap_or_else(|e| panic!("{e}"))
}

/// Opening fails with a text that has all these words.
fn refused(path: &Path, words: &[&str]) {
    let text = match ModelFile::open(path) {
        Ok(_) => panic!("{} opened; expected {words:?}", path.display()),
        Err(error) => error.to_string(),
    };
    for word in words {
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
}

fn cut_to(path: &Path, len: u64) {
    std::fs::OpenOptions::new().write(true).open(path).expect("there").set_len(len).expect("cut");
}

fn len(path: &Path) -> u64 {
    std::fs::metadata(path).expect("there").len()
}

/// The end of the last tensor of a shard, behind which there is padding.
fn data_end(model: &ModelFile, shard: usize) -> u64 {
    model.tensors.iter().filter(|t| t.shard == shard).map(|t| t.offset + t.len).max().expect("has tensors")
}

#[test]
fn any_shard_and_the_folder_open_the_set() {
    let (folder, paths) = set();
    let model = open(&paths[0]);
    let names: Vec<&Path> = paths.iter().map(|p| p.file_name().expect("named").as_ref()).collect();
    assert_eq!(
        names,
        ["tiny-00001-of-00003.gguf", "tiny-00002-of-00003.gguf", "tiny-00003-of-00003.gguf"].map(Path::new)
    );
    assert_eq!(model.shards.iter().map(|s| s.path.clone()).collect::<Vec<_>>(), paths);
    assert_eq!(model.metadata.string("general.architecture").expect("a string"), Some("qwen4exp"));
    let shards: Vec<usize> =
        GROUPS.concat().iter().map(|name| model.tensor(name).expect(name).shard).collect();
    assert_eq!(shards, [1, 1, 2]);
    for path in [&paths[1], &paths[2], &folder.path().to_owned()] {
        let other = open(path);
        assert_eq!(
            (other.metadata, other.tensors, other.shards),
            (model.metadata.clone(), model.tensors.clone(), model.shards.clone())
        );
    }
    for (name, byte) in [("per_layer_token_embd.weight", 1u8), ("output.weight", 0)] {
        let tensor = model.tensor(name).expect(name);
        let bytes = std::fs::read(&model.shards[tensor.shard].path).expect("read");
        assert_eq!(bytes[tensor.offset as usize], byte);
        assert_eq!(tensor.offset % 32, 0);
    }
}

#[test]
fn a_short_shard_is_named_with_both_sizes() {
    let (_folder, paths) = set();
    let needed = data_end(&open(&paths[0]), 1);
    cut_to(&paths[1], needed - 1);
    let sizes = format!("has {} bytes, but its tensors need {needed}", needed - 1);
    for path in &paths {
        refused(path, &["tiny-00002-of-00003.gguf", &sizes, "download it again"]);
    }
}

#[test]
fn a_shard_cut_in_its_header_is_named() {
    let (_folder, paths) = set();
    for cut in [100, 50, 20, 1] {
        cut_to(&paths[1], cut);
        refused(&paths[0], &["tiny-00002-of-00003.gguf", &format!("{cut} bytes"), "download it again"]);
    }
    cut_to(&paths[1], 0);
    refused(
        &paths[0],
        &["tiny-00002-of-00003.gguf", "is empty (0 bytes; a header alone needs 24)", "download it again"],
    );
}

#[test]
fn all_short_shards_are_named_at_once() {
    let (_folder, paths) = set();
    cut_to(&paths[1], 0);
    cut_to(&paths[2], len(&paths[2]) - 64);
    refused(
        &paths[0],
        &[
            "2 parts of this model are incomplete",
            "00002-of-00003.gguf: is empty",
            "00003-of-00003.gguf: has",
            "download",
        ],
    );
}

#[test]
fn missing_shards_are_named() {
    let (folder, paths) = set();
    std::fs::remove_file(&paths[2]).expect("removed");
    let here = folder.path().to_str().expect("UTF-8");
    for path in [&paths[0], &paths[1], &folder.path().to_owned()] {
        refused(
            path,
            &["split into 3 parts", "one is missing", here, ": tiny-00003-of-00003.gguf;", "download"],
        );
    }
    std::fs::remove_file(&paths[0]).expect("removed");
    refused(&paths[1], &["some are missing", "tiny-00001-of-00003.gguf, tiny-00003-of-00003.gguf"]);
}

#[test]
fn swapped_shards_are_noticed() {
    let (folder, paths) = set();
    let aside = folder.path().join("aside");
    std::fs::rename(&paths[1], &aside).expect("renamed");
    std::fs::rename(&paths[2], &paths[1]).expect("renamed");
    std::fs::rename(&aside, &paths[2]).expect("renamed");
    refused(
        &paths[0],
        &["tiny-00002-of-00003.gguf: is part 2 of 3 by its name, but part 3 of 3 by its contents"],
    );
    refused(
        &paths[2],
        &["tiny-00003-of-00003.gguf: is part 3 of 3 by its name, but part 2 of 3 by its contents"],
    );
}

#[test]
fn a_shard_without_its_name_is_told_its_name() {
    let (folder, paths) = set();
    let renamed = folder.path().join("model.gguf");
    std::fs::copy(&paths[0], &renamed).expect("copied");
    refused(
        &renamed,
        &["model.gguf: is part 1 of 3 of a split model", "does not end in -00001-of-00003.gguf"],
    );
}

#[test]
fn a_whole_model_under_the_name_of_a_shard_is_told() {
    let (folder, paths) = set();
    writer().write(&paths[1]).expect("written");
    for path in &paths[..2] {
        refused(path, &["tiny-00002-of-00003.gguf: is part 2 of 3 by its name", "nothing in it says"]);
    }
    // One of one is whole.
    let single = folder.path().join("whole-00001-of-00001.gguf");
    writer().write(&single).expect("written");
    assert_eq!(open(&single).tensors.len(), 3);
}

#[test]
fn joined_shards_are_told_apart() {
    let (folder, paths) = set();
    let joined: Vec<u8> = paths.iter().flat_map(|p| std::fs::read(p).expect("read")).collect();
    let advice = &["pasted on at byte", "must not be joined", "cat", "give the name of the first"];
    for name in ["joined.gguf", "joined-00001-of-00003.gguf"] {
        let path = folder.path().join(name);
        std::fs::write(&path, &joined).expect("written");
        refused(&path, advice);
    }
    // Others than the first, and without the padding between them.
    let unpadded = data_end(&open(&paths[0]), 2);
    assert_ne!(unpadded, len(&paths[2]), "there is padding");
    let mut joined = std::fs::read(&paths[2]).expect("read");
    joined.truncate(unpadded as usize);
    joined.extend(std::fs::read(&paths[1]).expect("read"));
    let path = folder.path().join("tail.gguf");
    std::fs::write(&path, &joined).expect("written");
    refused(&path, advice);
}

#[test]
fn the_total_of_tensors_is_checked() {
    let (folder, paths) = set();
    let mut other = Writer::new();
    other.set("split.no", 2u16).set("split.count", 3u16).set("split.tensors.count", 3i32);
    other.add_f32("per_layer_token_embd.weight", &[8], &[0.0; 8]).add_f32("more", &[8], &[0.0; 8]);
    other.write(&paths[2]).expect("written");
    refused(
        &paths[0],
        &["tiny-00001-of-00003.gguf: the model should have 3 tensors in its 3 parts, but they hold 4"],
    );

    let mut none = Writer::new();
    none.set("split.no", 2u16)
        .set("split.count", 3u16)
        .set("split.tensors.count", 3i32)
        .write(&paths[2])
        .expect("written");
    refused(&paths[0], &["the model should have 3 tensors in its 3 parts, but they hold 2"]);

    other.set("split.tensors.count", 4i32).write(&paths[2]).expect("written");
    refused(
        &paths[0],
        &["tiny-00003-of-00003.gguf: does not belong", "tensors of the whole model is 4, there it is 3"],
    );

    let mut twice = Writer::new();
    twice.set("split.no", 2u16).set("split.count", 3u16).set("split.tensors.count", 3i32);
    twice.add_f32("output.weight", &[8], &[0.0; 8]).write(&paths[2]).expect("written");
    refused(
        folder.path(),
        &["tensor \"output.weight\" is in", "00002-of-00003.gguf and again in", "00003-of-00003.gguf"],
    );

    twice.set("general.architecture", "llama").write(&paths[2]).expect("written");
    refused(
        folder.path(),
        &["tiny-00003-of-00003.gguf: does not belong", "architecture is \"llama\", there it is \"qwen4exp\""],
    );
}

#[test]
fn split_keys_of_a_wrong_type_or_value_are_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("a-00001-of-00002.gguf");
    let write = |no: gguf::Value, count: gguf::Value, total: gguf::Value| {
        let mut writer = Writer::new();
        writer.set("split.no", no).set("split.count", count).set("split.tensors.count", total);
        writer.write(&path).expect("written");
    };
    write("0".into(), 2u16.into(), 0i32.into());
    refused(&path, &["\"split.no\" holds string, but an integer of at least 0 is needed"]);
    write(0u16.into(), 2f32.into(), 0i32.into());
    refused(&path, &["\"split.count\" holds f32"]);
    write(0u16.into(), 2u16.into(), (-1i32).into());
    refused(&path, &["\"split.tensors.count\" holds i32 with a negative number"]);
    write(u64::MAX.into(), u64::MAX.into(), 0i32.into());
    refused(&path, &["is part 1 of 2 by its name, but part 18446744073709551615 of 18446744073709551615"]);
    Writer::new().set("split.count", 2u16).write(&path).expect("written");
    refused(&path, &["has no metadata key \"split.no\""]);
    // A count that no folder holds is not looked for name by name: the name has to agree first.
    write(0u16.into(), u64::MAX.into(), 0i32.into());
    refused(&path, &["by its contents"]);
}

/// A file that called itself one of 999,999,999, by its name and by its keys, had every one of them looked for.
#[test]
fn a_set_of_too_many_parts_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("a-000000001-of-999999999.gguf");
    let mut writer = Writer::new();
    writer.set("split.no", 0u32).set("split.count", 999_999_999u32).write(&path).expect("written");
    refused(&path, &["a-000000001-of-999999999.gguf", "a number of parts of 999999999, but at most 65535"]);
}

#[test]
fn a_folder_is_one_model() {
    let (folder, paths) = set();
    for companion in [
        "mmproj-F16.gguf",
        "tiny-mmproj-BF16.gguf",
        "mtp-tiny.gguf",
        "MTP-TINY.GGUF",
        "._tiny.gguf",
        "README.md",
    ] {
        std::fs::write(folder.path().join(companion), b"not looked at").expect("written");
    }
    std::fs::create_dir(folder.path().join("folder.gguf")).expect("made");
    assert_eq!(open(folder.path()).shards.len(), 3);

    writer().write(&folder.path().join("whole.gguf")).expect("written");
    refused(folder.path(), &["holds several models: tiny-00001-of-00003.gguf, whole.gguf; name one"]);
    assert_eq!(open(&paths[0]).shards.len(), 3);

    let empty = tempfile::tempdir().expect("a temporary folder");
    refused(empty.path(), &["holds no model file"]);
    std::fs::write(empty.path().join("mmproj-F16.gguf"), b"").expect("written");
    refused(empty.path(), &["holds no model file", "mmproj-F16.gguf, which only goes with a model"]);
    writer().write(&empty.path().join("whole.gguf")).expect("written");
    assert_eq!(open(empty.path()).tensors.len(), 3);
    writer().write(&empty.path().join("another.gguf")).expect("written");
    refused(empty.path(), &["holds several models: another.gguf, whole.gguf; name one"]);
}

#[test]
fn what_is_no_file_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    refused(&folder.path().join("absent.gguf"), &["cannot open", "absent.gguf"]);
    #[cfg(unix)]
    refused(Path::new("/dev/null"), &["is not an ordinary file"]);
}
