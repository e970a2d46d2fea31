//! A shard named without a folder finds its set in the current one. Alone in its program, since it moves there.

use std::path::Path;

use gguf::ModelFile;
use gguf::write::Writer;

#[test]
fn a_name_without_a_folder_opens_the_set() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::env::set_current_dir(folder.path()).expect("entered");
    let mut writer = Writer::new();
    writer.add_f32("a", &[2], &[1.0, 2.0]);
    writer.write_split(Path::new("tiny"), &[&[], &["a"]]).expect("written");
    for name in ["tiny-00002-of-00002.gguf", "."] {
        let model = ModelFile::open(Path::new(name)).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((model.shards.len(), model.tensors.len()), (2, 1));
    }
    std::fs::remove_file("tiny-00001-of-00002.gguf").expect("removed");
    let text = ModelFile::open(Path::new("tiny-00002-of-00002.gguf")).expect_err("incomplete").to_string();
    assert!(text.contains("one is missing in .: tiny-00001-of-00002.gguf"), "{text}");
}
