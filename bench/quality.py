#!/usr/bin/env python3
"""What rounding activations to 8 bits costs, in strata and in llama.cpp, type by type.

    python3 bench/quality.py --model Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf --strata target/release/strata --text FILE
        --folder FOLDER [--types Q8_0,Q4_K,...] [--tokens 512] [--csv bench/quality.csv]

The model's matrices are requantised to each type (ggml's quantizers, a flat importance matrix where one is demanded; the
file stays in --folder). The yardstick is the forward pass in f32 over the very weights in that file, so what the type
itself costs is in neither figure. Printed are the mean KL divergence from it over all positions, in strata and in
llama.cpp, the share of positions where the likeliest token is the same, and the ratio of the divergences: at most 1.05.
Exit code 1 where it is more. The cache holds f16 in both. Architecture `qwen2` only.
"""
import argparse
import json
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "oracle"))
import llcpp  # noqa: E402
import figures  # noqa: E402
from requantise import floats, requantise  # noqa: E402

TYPES = ("Q8_0,Q6_K,Q5_K,Q4_K,Q3_K,Q2_K,Q5_1,Q5_0,Q4_1,Q4_0,IQ4_NL,IQ4_XS,IQ3_S,IQ3_XXS,IQ2_S,IQ2_XS,IQ2_XXS,IQ1_M,"
         "IQ1_S,MXFP4,F16,BF16")
RATIO_MAX = 1.05


def reference(path, ids):
    """Logits of every position: the definition of `qwen2` in f32, from the file's weights."""
    reader = gguf.GGUFReader(path)
    tensors = {t.name: t for t in reader.tensors}
    key = lambda name: reader.fields["qwen2." + name].contents()
    heads, kv_heads, eps = key("attention.head_count"), key("attention.head_count_kv"), key(
        "attention.layer_norm_rms_epsilon")
    n = len(ids)

    def get(name):
        t = tensors[name]
        return floats(t.data, t.tensor_type.name, [int(d) for d in t.shape[::-1]])

    def rms(x, name):
        return x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + eps).astype(np.float32) * get(name)

    x = get("token_embd.weight")[ids]
    d = x.shape[1] // heads
    angles = np.arange(n)[:, None] * key("rope.freq_base") ** (-np.arange(0, d, 2) / d)
    cos, sin = np.cos(angles).astype(np.float32)[:, None], np.sin(angles).astype(np.float32)[:, None]

    def rope(x):
        a, b = x[..., :d // 2], x[..., d // 2:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    hidden = np.triu(np.full((n, n), -np.inf, np.float32), 1)
    for layer in range(key("block_count")):
        b = f"blk.{layer}."
        h = rms(x, b + "attn_norm.weight")
        q, k, v = ((h @ get(f"{b}attn_{w}.weight").T + get(f"{b}attn_{w}.bias")).reshape(n, -1, d) for w in "qkv")
        q, k = rope(q), rope(k)
        group = heads // kv_heads
        attended = np.empty_like(q)
        for head in range(heads):
            scores = q[:, head] @ k[:, head // group].T / np.float32(np.sqrt(d)) + hidden
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            attended[:, head] = scores / scores.sum(-1, keepdims=True) @ v[:, head // group]
        x = x + attended.reshape(n, -1) @ get(b + "attn_output.weight").T
        h = rms(x, b + "ffn_norm.weight")
        gate = h @ get(b + "ffn_gate.weight").T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ get(b + "ffn_up.weight").T)) @ get(b + "ffn_down.weight").T
    head = "output.weight" if "output.weight" in tensors else "token_embd.weight"
    return rms(x, "output_norm.weight") @ get(head).T


def log_softmax(row):
    row = row.astype(np.float64)
    row = row - row.max()
    return row - np.log(np.exp(row).sum())


def compare(rows, wanted):
    """Mean KL divergence from `wanted`, its standard error, and the share of equal likeliest tokens."""
    divergences, same = [], 0
    for row, reference_row in zip(rows, wanted):
        p, q = log_softmax(reference_row), log_softmax(row)
        divergences.append(float((np.exp(p) * (p - q)).sum()))
        same += int(row.argmax() == reference_row.argmax())
    assert len(divergences) == len(wanted), (len(divergences), len(wanted))
    return float(np.mean(divergences)), float(np.std(divergences) / np.sqrt(len(wanted))), same / len(wanted)


def strata_rows(strata, path, ids):
    """One row after the other: all of them as Python numbers would take gigabytes."""
    command = [strata, "logits", "-m", path, "--kv", "f16", "--json", "--tokens", ",".join(map(str, ids))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        numbers = line.strip().removeprefix('{"logits": [').strip("[]},")
        if numbers:
            yield np.array(numbers.split(","), np.float32)
    if process.wait() != 0:
        sys.exit(f"{' '.join(command[:4])}: exit code {process.returncode}")


def llamacpp_rows(path, ids):
    model = llcpp.Model(path)
    context = llcpp.Ctx(model, n_ctx=len(ids), kv="F16", flash=True)
    rows = context.decode(ids)
    context.close()
    model.close()
    return rows


def measure(a, name, ids):
    path = str(Path(a.folder) / f"quality-{name}.gguf")
    if not Path(path).exists():
        requantise(a.model, name, path + ".part")
        Path(path + ".part").rename(path)
    wanted = reference(path, ids)
    ours, our_error, our_same = compare(strata_rows(a.strata, path, ids), wanted)
    theirs, their_error, their_same = compare(llamacpp_rows(path, ids), wanted)
    if not a.keep:
        Path(path).unlink()
    row = dict(type=name, positions=len(ids), kl=ours, kl_error=our_error, same=our_same, llamacpp_kl=theirs,
               llamacpp_kl_error=their_error, llamacpp_same=their_same, ratio=ours / theirs)
    print(f"{name:8} KL {ours:.3e} +- {our_error:.0e}, llama.cpp {theirs:.3e} +- {their_error:.0e}, ratio"
          f" {ours / theirs:.3f}; likeliest token the same {our_same:.4f}, llama.cpp {their_same:.4f}", flush=True)
    return row


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True)
    p.add_argument("--strata", required=True)
    p.add_argument("--text", required=True)
    p.add_argument("--folder", required=True)
    p.add_argument("--types", default=TYPES)
    p.add_argument("--tokens", type=int, default=512)
    p.add_argument("--keep", action="store_true", help="keep the requantised files")
    p.add_argument("--csv")
    a = p.parse_args()
    words = [a.strata, "tokenize", "-m", a.model, "-p", "-", "--json"]
    tokenized = subprocess.run(words, input=Path(a.text).read_text(), capture_output=True, text=True)
    if tokenized.returncode != 0:
        sys.exit(f"{' '.join(words)}: {tokenized.stderr}")
    ids = json.loads(tokenized.stdout)["tokens"]
    first = len(ids) // 2
    ids = ids[first:first + a.tokens]
    rows = []
    for name in a.types.split(","):
        rows.append(measure(a, name, ids))
        if a.csv:
            text = lambda v: f"{v:.6g}" if isinstance(v, float) else v
            figures.append(a.csv, [{key: text(v) for key, v in rows[-1].items()}])
    sys.exit(0 if all(row["ratio"] <= RATIO_MAX for row in rows) else 1)


if __name__ == "__main__":
    main()
