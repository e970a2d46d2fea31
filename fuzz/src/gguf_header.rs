//! Any bytes as a GGUF file: refused or opened with ranges inside the bytes, never a panic, never much memory.
#![no_main]

use gguf::ModelFile;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let model = match ModelFile::parse(bytes) {
        Ok(model) => model,
        Err(error) => {
            // The sentence is made from what the file says.
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let metadata = &model.metadata;
    for (key, value) in metadata.iter() {
        assert!(metadata.get(key).is_some_and(|found| std::ptr::eq(found, value)));
        assert!(!value.to_string().is_empty());
        let _ = (metadata.string(key), metadata.boolean(key), metadata.integer(key), metadata.float(key));
        let _ = (metadata.integers(key), metadata.floats(key));
        if let Ok(Some(strings)) = metadata.strings(key) {
            assert_eq!(strings.iter().count(), strings.len());
        }
    }
    let mut end_before = 0;
    let mut by_offset: Vec<_> = model.tensors.iter().collect();
    by_offset.sort_by_key(|tensor| tensor.offset);
    for tensor in by_offset {
        assert!(tensor.offset >= end_before && tensor.offset % gguf::ALIGNMENT_MIN == 0 && tensor.len > 0);
        end_before = tensor.offset + tensor.len;
        assert!(end_before <= bytes.len() as u64);
        assert_eq!(model.tensor(&tensor.name), Some(tensor));
        let row_bytes = tensor.dtype.row_bytes(tensor.row_values() as usize).expect("whole blocks");
        assert_eq!(row_bytes as u64 * tensor.rows(), tensor.len);
    }
});
