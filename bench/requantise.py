#!/usr/bin/env python3
"""The same model with every matrix in another type: `requantise.py FROM.gguf TO.gguf TYPE`.

By ggml's quantizers (of the Python package xllamacpp, through oracle/llcpp.py), with a flat importance matrix for the types
that demand one. Rows must divide into the type's blocks.
"""
import concurrent.futures
import sys
from pathlib import Path

import gguf
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "oracle"))
import llcpp  # noqa: E402


def threads(work, items):
    """ggml's functions let go of Python's lock."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return list(pool.map(work, items))


def parts(rows):
    return [slice(i, min(i + 1024, rows)) for i in range(0, rows, 1024)]


def floats(raw, name, shape):
    """The f32 values of a tensor's rows."""
    if name == "F32":
        return raw.view(np.float32).reshape(shape)
    out = np.empty(shape, np.float32)
    flat, data = out.reshape(-1, shape[-1]), raw.reshape(out.size // shape[-1], -1)

    def part(s):
        flat[s] = llcpp.ggml_dequantize(name, data[s], flat[s].shape)
    threads(part, parts(len(flat)))
    return out


def quantized(values, name):
    return np.concatenate(threads(lambda s: np.frombuffer(llcpp.ggml_quantize(name, values[s]), np.uint8),
                                  parts(len(values))))


def copy_keys(reader, writer):
    """All metadata but what the writer makes itself."""
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_array(field.name, field.contents())
        else:
            writer.add_key_value(field.name, field.contents(), field.types[0])


def requantise(source, name, path):
    """The model with every matrix in this type."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    copy_keys(reader, writer)
    kind = gguf.GGMLQuantizationType[name]
    per, size = gguf.GGML_QUANT_SIZES[kind]
    for t in reader.tensors:
        shape = [int(n) for n in t.shape[::-1]]
        values = floats(t.data, t.tensor_type.name, shape)
        if len(shape) == 1:
            writer.add_tensor(t.name, values)
            continue
        raw = quantized(values, name).reshape(shape[0], shape[1] // per * size)
        writer.add_tensor(t.name, raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    requantise(sys.argv[1], sys.argv[3], sys.argv[2])
