#!/usr/bin/env python3
"""Write a random-weight mixture-of-experts GGUF of any size, for benchmarks and loader tests.

Where no MoE checkpoint can be had, the benchmarks use a synthetic one: architecture `qwen3moe`, or `qwen4exp` with
`--size flash` (delta-net layers, sparse attention, hyper-connections, n-gram table), tokenizer copied from any GGUF that
has one, every quantised block filled with random bits and given a scale that makes the dequantised weights zero-mean with standard deviation gain/sqrt(fan_in). Activations therefore
stay finite over any depth, the router spreads tokens over the experts, and a reader does exactly the memory traffic
and arithmetic of a real model of that shape. What it says is noise: use it for speed, memory, loading, offload and
for comparing two engines' logits on the same file, never for quality.

The same flags and seed give the same bytes (each tensor has its own random stream, keyed by seed and name), so a
figure quoted with its command line can be measured again. The data is streamed: peak memory is one tensor.

Needs: numpy, gguf (both from PyPI).

Examples
  # ~1 GiB: 16 layers, hidden 1024, 64 experts of 512, 8 used
  make_moe_gguf.py --vocab-from SmolLM2-135M-Instruct.Q4_1.gguf --out moe-1g.gguf --size small
  # ~5 GiB: 30 layers, hidden 2048, 64 experts of 768, 8 used
  make_moe_gguf.py --vocab-from SmolLM2-135M-Instruct.Q4_1.gguf --out moe-5g.gguf --size large
  # the same shape in other block types
  make_moe_gguf.py ... --size small --type IQ4_XS --down-type IQ4_XS
  # ~1.4 GiB of qwen4exp: the published model's width, heads and streams, with 4 layers and 64 experts
  make_moe_gguf.py ... --out q4x.gguf --size flash
  # 2.3 MB, for unit tests
  make_moe_gguf.py ... --size tiny --vocab 512
"""
import argparse
import json
import sys
import zlib

import numpy as np
import gguf
from gguf import GGMLQuantizationType as T
from gguf import GGUFValueType as V

# What sizes mean: layers, hidden, heads, kv heads, head dim, experts, used, expert hidden, context.
SIZES = {
    "tiny": dict(layers=2, embd=256, heads=4, kv_heads=2, head_dim=64, experts=8, used=2, ff=256, ctx=2048),
    "small": dict(layers=16, embd=1024, heads=16, kv_heads=4, head_dim=128, experts=64, used=8, ff=512, ctx=32768),
    "large": dict(layers=30, embd=2048, heads=32, kv_heads=4, head_dim=128, experts=64, used=8, ff=768, ctx=32768),
    "flash": dict(layers=4, embd=2560, heads=24, kv_heads=2, head_dim=256, experts=64, used=10, ff=640, ctx=262144),
}
# What only qwen4exp has, as published; the n-gram table is cut from 20,000,000 rows a head.
FLASH = dict(key_heads=16, value_heads=48, state=128, taps=4, streams=4, rank=320, indexer_heads=4, indexer_dim=128,
             indexer_budget=2048, block_cells=4, rotated=64, sections=[11, 11, 10, 0], ngram=3, heads_per_ngram=8,
             ngram_row=160, ngram_rows=100_000, ngram_layer=1, ngram_seed=1234)

# Where a block keeps its f16 scale (byte offset), and for types with a separate minimum, that one's offset with the
# ratio min_scale/scale which centres the weights on zero when sub-scales and sub-minimums are drawn alike: half of
# the largest quant. Types without f16 scales are not made.
SCALE_AT = {
    T.Q4_0: (0, None, 0.0), T.Q4_1: (0, 2, 7.5), T.Q5_0: (0, None, 0.0), T.Q5_1: (0, 2, 15.5), T.Q8_0: (0, None, 0.0),
    T.Q2_K: (80, 82, 1.5), T.Q3_K: (108, None, 0.0), T.Q4_K: (0, 2, 7.5), T.Q5_K: (0, 2, 15.5), T.Q6_K: (208, None, 0.0),
    T.IQ4_NL: (0, None, 0.0), T.IQ4_XS: (0, None, 0.0), T.IQ3_XXS: (0, None, 0.0), T.IQ3_S: (0, None, 0.0),
    T.IQ2_XXS: (0, None, 0.0), T.IQ2_XS: (0, None, 0.0), T.IQ2_S: (0, None, 0.0), T.IQ1_S: (0, None, 0.0),
    T.TQ1_0: (52, None, 0.0), T.TQ2_0: (64, None, 0.0),
}
# Minimum subtracted (K types) or added (Q4_1, Q5_1): the sign the stored minimum needs.
MIN_ADDED = {T.Q4_1, T.Q5_1}


def stream(seed, name):
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, zlib.crc32(name.encode())])))


def put_f16(blocks, at, values):
    blocks[:, at:at + 2] = np.asarray(values, dtype="<f2").reshape(-1, 1).view(np.uint8)


def block_std(qtype, seed=1):
    """Standard deviation of the weights in random blocks whose scale is one (measured, so no table of formulas)."""
    blocks = raw_blocks(qtype, 2048, stream(seed, "calibration"))
    at, min_at, ratio = SCALE_AT[qtype]
    set_scales(qtype, blocks, np.ones(len(blocks)))
    w = gguf.quants.dequantize(blocks.reshape(-1), qtype)
    return float(w.std()), float(w.mean())


def raw_blocks(qtype, n, rng):
    size = gguf.GGML_QUANT_SIZES[qtype][1]
    blocks = np.frombuffer(rng.bytes(n * size), dtype=np.uint8).reshape(n, size).copy()
    if qtype == T.Q2_K:  # a nibble each of scale and minimum: equal, so that the block is centred
        blocks[:, :16] = (blocks[:, :16] & 15) * 17
    elif qtype in (T.Q4_K, T.Q5_K):
        # eight 6-bit scales and minimums packed in twelve bytes; below 16 the packing needs no high bits, and equal
        # scale and minimum centre the block: 8..15 for every sub-block
        sub = (blocks[:, 4:12] & 7) | 8
        blocks[:, 4:8] = sub[:, :4]
        blocks[:, 8:12] = sub[:, :4]
        blocks[:, 12:16] = sub[:, 4:] * 17
    elif qtype == T.TQ2_0:  # two bits a weight, of which 3 is not a value
        blocks[:, :64] &= ~((blocks[:, :64] & 0xAA) & ((blocks[:, :64] << 1) & 0xAA))
    return blocks


def set_scales(qtype, blocks, scale):
    at, min_at, ratio = SCALE_AT[qtype]
    put_f16(blocks, at, scale)
    if min_at is not None:
        put_f16(blocks, min_at, (-ratio if qtype in MIN_ADDED else ratio) * np.asarray(scale))


class Maker:
    def __init__(self, seed, gain):
        self.seed, self.gain, self.std = seed, gain, {}

    def scale_for(self, qtype, fan_in):
        if qtype not in self.std:
            self.std[qtype] = block_std(qtype)[0]
        return self.gain / np.sqrt(fan_in) / self.std[qtype]

    def tensor(self, name, shape, qtype):
        """The tensor's bytes in pieces of at most ~64 MiB; shape is numpy order, the last axis is the fan-in."""
        rng, n = stream(self.seed, name), int(np.prod(shape))
        if qtype in (T.F32, T.F16, T.BF16):
            std = self.gain / np.sqrt(shape[-1])
            step = 1 << 22
            for i in range(0, n, step):
                w = rng.standard_normal(min(step, n - i), dtype=np.float32) * np.float32(std)
                if qtype == T.F16:
                    w = w.astype("<f2")
                elif qtype == T.BF16:
                    w = (w.view(np.uint32) >> 16).astype("<u2")
                yield w.view(np.uint8)
            return
        per, size = gguf.GGML_QUANT_SIZES[qtype]
        assert shape[-1] % per == 0, f"{name}: rows of {shape[-1]} do not divide into {qtype.name} blocks of {per}"
        blocks, step = n // per, max(1, (64 << 20) // size)
        base = self.scale_for(qtype, shape[-1])
        for i in range(0, blocks, step):
            b = raw_blocks(qtype, min(step, blocks - i), rng)
            set_scales(qtype, b, base * rng.uniform(0.75, 1.25, len(b)))
            yield b.reshape(-1)

    def router(self, name, shape, skew):
        """Router rows whose norms differ by exp(skew*N(0,1)): a row of larger norm wins more often, as in real models."""
        rng = stream(self.seed, name)
        w = rng.standard_normal(shape, dtype=np.float32) / np.float32(np.sqrt(shape[-1]))
        norm = np.exp(skew * rng.standard_normal((shape[0], 1), dtype=np.float32))
        return [(w * norm * np.float32(4.0)).astype("<f4").reshape(-1).view(np.uint8)]

    def floats(self, name, shape, mean, std):
        """Plain f32 values: decays, biases, convolution taps."""
        w = stream(self.seed, name).standard_normal(shape, dtype=np.float32) * np.float32(std) + np.float32(mean)
        return [w.astype("<f4").reshape(-1).view(np.uint8)]

    def decays(self, name, shape):
        """-exp(A_log): a decay rate for each head, most of them slow."""
        w = stream(self.seed, name).uniform(0.02, 1.5, shape)
        return [(-w).astype("<f4").view(np.uint8)]


def copy_tokenizer(writer, path, limit):
    reader = gguf.GGUFReader(path)
    fields = {k: f.contents() for k, f in reader.fields.items() if k.startswith("tokenizer.")}
    tokens = fields["tokenizer.ggml.tokens"]
    n = len(tokens) if not limit else min(limit, len(tokens))
    kept = set(tokens[:n])
    for key, value in fields.items():
        if key in ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.scores"):
            writer.add_array(key, value[:n])
        elif key == "tokenizer.ggml.merges" and n < len(tokens):
            writer.add_array(key, [m for m in value if m.replace(" ", "", 1) in kept
                                   and all(p in kept for p in m.split(" ", 1))])
        elif isinstance(value, list):
            writer.add_array(key, value)
        else:
            kind = reader.fields[key].types[0]
            if key.endswith("_token_id") and value >= n:
                value = 0
            writer.add_key_value(key, value, kind)
    return n


def moe_keys(w, s):
    w.add_rope_freq_base(1e6)
    w.add_feed_forward_length(s["ff"] * s["used"])


def moe_plan(a, s, vocab):
    """Tensors of `qwen3moe` in file order: name, shape in numpy order, type or the way its values are made."""
    attn, down = kind(a.attn_type), [kind(x) for x in a.down_type.split("/")]
    q_dim, kv_dim = s["heads"] * s["head_dim"], s["kv_heads"] * s["head_dim"]
    plan = [("token_embd.weight", (vocab, s["embd"]), kind(a.embd_type))]
    for i in range(s["layers"]):
        b = f"blk.{i}."
        plan += [
            (b + "attn_norm.weight", (s["embd"],), "ones"),
            (b + "attn_q.weight", (q_dim, s["embd"]), attn),
            (b + "attn_k.weight", (kv_dim, s["embd"]), attn),
            (b + "attn_v.weight", (kv_dim, s["embd"]), attn),
            (b + "attn_q_norm.weight", (s["head_dim"],), "ones"),
            (b + "attn_k_norm.weight", (s["head_dim"],), "ones"),
            (b + "attn_output.weight", (s["embd"], q_dim), attn),
            (b + "ffn_norm.weight", (s["embd"],), "ones"),
            *experts(a, s, b, down[i % len(down)]),
        ]
    return plan + [("output_norm.weight", (s["embd"],), "ones")] + output(a, s, vocab)


def kind(name):
    return T[name.upper()]


def experts(a, s, b, down):
    return [
        (b + "ffn_gate_inp.weight", (s["experts"], s["embd"]), "router"),
        (b + "ffn_gate_exps.weight", (s["experts"], s["ff"], s["embd"]), kind(a.type)),
        (b + "ffn_up_exps.weight", (s["experts"], s["ff"], s["embd"]), kind(a.type)),
        (b + "ffn_down_exps.weight", (s["experts"], s["embd"], s["ff"]), down),
    ]


def output(a, s, vocab):
    return [] if a.output_type == "tied" else [("output.weight", (vocab, s["embd"]), kind(a.output_type))]


def recurrent(layer):
    return (layer + 1) % 4 != 0


def ngram_heads():
    """Rows of each head of the n-gram table: the first primes from the wanted size on."""
    heads, n = [], FLASH["ngram_rows"]
    while len(heads) < (FLASH["ngram"] - 1) * FLASH["heads_per_ngram"]:
        if n > 1 and all(n % d for d in range(2, int(n ** 0.5) + 1)):
            heads.append(n)
        n += 1
    return heads


def ngram_multipliers(vocab):
    """The hash's odd multipliers, derived from a seed as the published model's are."""
    mask, half, golden = (1 << 64) - 1, max(1, ((1 << 63) - 1) // vocab // 2), 0x9E3779B97F4A7C15

    def splitmix64(v):
        v = (v + golden) & mask
        v = (v ^ v >> 30) * 0xBF58476D1CE4E5B9 & mask
        v = (v ^ v >> 27) * 0x94D049BB133111EB & mask
        return v ^ v >> 31

    return [2 * (splitmix64((FLASH["ngram_seed"] + (i + 1) * golden) & mask) % half) + 1
            for i in range(FLASH["ngram"])]


def flash_keys(w, s, vocab):
    f, arch = FLASH, "qwen4exp"
    put = lambda key, value: w.add_uint32(f"{arch}.{key}", value)
    array = lambda key, values, sub: w.add_key_value(f"{arch}.{key}", values, V.ARRAY, sub_type=sub)
    w.add_rope_freq_base(1e7)
    w.add_rope_dimension_count(f["rotated"])
    array("rope.dimension_sections", f["sections"], V.INT32)
    put("expert_shared_feed_forward_length", s["ff"])
    put("ssm.conv_kernel", f["taps"])
    put("ssm.state_size", f["state"])
    put("ssm.group_count", f["key_heads"])
    put("ssm.time_step_rank", f["value_heads"])
    put("ssm.inner_size", f["value_heads"] * f["state"])
    layers = range(s["layers"])
    array("attention.recurrent_layers", [recurrent(i) for i in layers], V.BOOL)
    put("full_attention_interval", 4)
    put("hyper_connection.count", f["streams"])
    put("hyper_connection.low_rank", f["rank"])
    put("attention.indexer.head_count", f["indexer_heads"])
    put("attention.indexer.key_length", f["indexer_dim"])
    put("attention.indexer.top_k", f["indexer_budget"])
    array("attention.compress_ratios", [0 if recurrent(i) else f["block_cells"] for i in layers], V.INT32)
    heads = ngram_heads()
    array("ple.layers", [f["ngram_layer"]], V.INT32)
    put("ple.ngram_size", f["ngram"])
    put("ple.heads_per_ngram", f["heads_per_ngram"])
    put("ple.conv_kernel", f["taps"])
    put("ple.eos_token_id", 2)
    put("embedding_length_per_layer_input", f["ngram_row"])
    array("ple.layer_multipliers", ngram_multipliers(vocab), V.UINT64)
    array("ple.head_vocab_sizes", heads, V.UINT64)
    array("ple.head_offsets", [sum(heads[:i]) for i in range(len(heads))], V.UINT64)


def flash_plan(a, s, vocab):
    """Tensors of `qwen4exp` in file order, as `moe_plan`."""
    f, hc, down = FLASH, kind(a.hc_type), [kind(x) for x in a.down_type.split("/")]
    flat = f["streams"] * s["embd"]

    def read(name):
        return [(name + "_norm.weight", (flat,), "ones"), (name + "_down.weight", (f["rank"], flat), hc),
                (name + "_up.weight", (flat, f["rank"]), hc)]

    plan = [("token_embd.weight", (vocab, s["embd"]), kind(a.embd_type))] + output(a, s, vocab) + read("output_hc")
    for i in range(s["layers"]):
        b = f"blk.{i}."
        for part in ("hc_attn", "hc_ffn"):
            plan += read(b + part) + [(f"{b}{part}_inject.weight", (f["streams"], flat), hc)]
        plan += delta_net(a, s, b) if recurrent(i) else sparse_attention(a, s, b)
        if i == f["ngram_layer"]:
            plan += ngram_layer(a, s, b)
        plan += experts(a, s, b, down[i % len(down)])
        plan += [(b + "ffn_gate_inp_shexp.weight", (1, s["embd"]), T.F32),
                 (b + "ffn_gate_shexp.weight", (s["ff"], s["embd"]), kind(a.attn_type)),
                 (b + "ffn_up_shexp.weight", (s["ff"], s["embd"]), kind(a.attn_type)),
                 (b + "ffn_down_shexp.weight", (s["embd"], s["ff"]), down[i % len(down)])]
    # The largest tensor by far, of which a few rows are read: last, as in the published files.
    rows = -(-sum(ngram_heads()) // 64) * 64
    return plan + [("per_layer_token_embd.weight", (rows, f["ngram_row"]), kind(a.ngram_type))]


def delta_net(a, s, b):
    f, t = FLASH, kind(a.attn_type)
    inner, heads = f["value_heads"] * f["state"], f["value_heads"]
    channels = 2 * f["key_heads"] * f["state"] + inner
    return [
        (b + "attn_qkv.weight", (channels, s["embd"]), t),
        (b + "attn_gate.weight", (inner, s["embd"]), t),
        (b + "ssm_beta.weight", (heads, s["embd"]), kind(a.hc_type)),
        (b + "ssm_alpha.weight", (heads, s["embd"]), kind(a.hc_type)),
        (b + "ssm_conv1d.weight", (channels, f["taps"]), (0.0, 0.5)),
        (b + "ssm_a", (heads,), "decays"),
        (b + "ssm_dt.bias", (heads,), (-1.0, 1.0)),
        (b + "ssm_norm.weight", (f["state"],), "ones"),
        (b + "ssm_out.weight", (s["embd"], inner), t),
    ]


def sparse_attention(a, s, b):
    f, t = FLASH, kind(a.attn_type)
    q_dim, kv_dim = s["heads"] * s["head_dim"], s["kv_heads"] * s["head_dim"]
    return [
        (b + "attn_q.weight", (2 * q_dim, s["embd"]), t),  # each head's query, then its output gate
        (b + "attn_k.weight", (kv_dim, s["embd"]), t),
        (b + "attn_v.weight", (kv_dim, s["embd"]), t),
        (b + "attn_output.weight", (s["embd"], q_dim), t),
        (b + "attn_q_norm.weight", (s["head_dim"],), "ones"),
        (b + "attn_k_norm.weight", (s["head_dim"],), "ones"),
        (b + "indexer.q_proj.weight", (f["indexer_heads"] * f["indexer_dim"], s["embd"]), kind(a.hc_type)),
        (b + "indexer.k_proj.weight", (f["indexer_dim"], s["embd"]), kind(a.hc_type)),
        (b + "indexer.q_norm.weight", (f["indexer_dim"],), "ones"),
        (b + "indexer.k_norm.weight", (f["indexer_dim"],), "ones"),
    ]


def ngram_layer(a, s, b):
    flat, t = FLASH["streams"] * s["embd"], kind(a.attn_type)
    width = (FLASH["ngram"] - 1) * FLASH["heads_per_ngram"] * FLASH["ngram_row"]
    return [
        (b + "ple_key.weight", (flat, width), t),
        (b + "ple_value.weight", (s["embd"], width), t),
        (b + "ple_norm_key.weight", (flat,), "ones"),
        (b + "ple_norm_query.weight", (flat,), "ones"),
        (b + "ple_norm_conv.weight", (flat,), "ones"),
        (b + "ple_conv1d.weight", (flat, FLASH["taps"]), (0.0, 0.5)),
    ]


def is_f32(t):
    """Whether the values are made some way of their own, which is always in f32."""
    return t == T.F32 or not isinstance(t, T)


def values(maker, a, name, shape, t):
    """The tensor's bytes in pieces."""
    if t == "ones":
        return [np.ones(shape, dtype="<f4").view(np.uint8)]
    if t == "router":
        return maker.router(name, shape, a.router_skew)
    if t == "decays":
        return maker.decays(name, shape)
    if isinstance(t, tuple):
        return maker.floats(name, shape, *t)
    return maker.tensor(name, shape, t)


def write(w, plan, maker, a):
    """Declares the plan's tensors and streams them; returns their bytes."""
    total = 0
    for name, shape, t in plan:
        q = T.F32 if is_f32(t) else t
        per, size = gguf.GGML_QUANT_SIZES[q]
        nbytes = int(np.prod(shape)) // per * size
        raw_shape = shape if q == T.F32 else (*shape[:-1], shape[-1] // per * size)
        w.add_tensor_info(name, raw_shape, np.dtype(np.float32 if q == T.F32 else np.uint8), nbytes,
                          raw_dtype=None if q == T.F32 else q)
        total += nbytes
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    out = w.fout[0]
    for n, (name, shape, t) in enumerate(plan):
        w.write_padding(out, out.tell())
        for piece in values(maker, a, name, shape, t):
            out.write(memoryview(piece))
        if sys.stderr.isatty():
            print(f"\r{n + 1}/{len(plan)} {name:40}", end="", file=sys.stderr)
    w.write_padding(out, out.tell())
    w.close()
    return total


def active_bytes(plan, s, a):
    """Weights that a token reads; rows of a table that is only looked up count as nothing."""
    active = 0
    for name, shape, t in plan:
        per, size = gguf.GGML_QUANT_SIZES[T.F32 if is_f32(t) else t]
        nbytes = int(np.prod(shape)) // per * size
        if "_exps" in name:
            active += nbytes * s["used"] // s["experts"]
        elif name not in ("token_embd.weight", "per_layer_token_embd.weight") or (
                name == "token_embd.weight" and a.output_type == "tied"):
            active += nbytes
    return active


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", required=True)
    p.add_argument("--vocab-from", required=True, help="a GGUF whose tokenizer is copied")
    p.add_argument("--vocab", type=int, default=0, help="keep only the first N tokens (0: all)")
    p.add_argument("--size", choices=SIZES, default="small")
    for k, what in dict(layers="blocks", embd="hidden size", heads="query heads", kv_heads="key/value heads",
                        head_dim="head size", experts="experts a layer", used="experts a token",
                        ff="hidden size of one expert", ctx="context length").items():
        p.add_argument("--" + k.replace("_", "-"), type=int, help=f"{what} (default: by --size)")
    p.add_argument("--type", default="Q4_K", help="block type of the experts' gate and up (default Q4_K)")
    p.add_argument("--down-type", help="the experts' down; A/B alternates by layer (Q4_K/Q6_K; with --size flash IQ4_NL)")
    p.add_argument("--attn-type", default="Q4_K", help="attention matrices (default Q4_K)")
    p.add_argument("--embd-type", default="Q4_K", help="token embeddings (default Q4_K)")
    p.add_argument("--output-type", default="Q6_K", help="output matrix, or 'tied' for none (default Q6_K)")
    p.add_argument("--hc-type", default="Q8_0", help="flash: hyper-connections and indexer (default Q8_0)")
    p.add_argument("--ngram-type", default="IQ4_NL", help="flash: n-gram table (default IQ4_NL)")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--gain", type=float, default=1.0, help="weights' standard deviation times sqrt(fan-in)")
    p.add_argument("--router-skew", type=float, default=0.0,
                   help="0: experts equally likely; 0.3: some used several times more often than others")
    a = p.parse_args()
    if not a.down_type:  # 640 values a row do not divide into blocks of 256
        a.down_type = "IQ4_NL" if a.size == "flash" else "Q4_K/Q6_K"
    return a


def main():
    a = arguments()
    s = {k: getattr(a, k) or v for k, v in SIZES[a.size].items()}
    arch = "qwen4exp" if a.size == "flash" else "qwen3moe"
    w = gguf.GGUFWriter(a.out, arch)
    flags = {k: v for k, v in vars(a).items() if k not in ("out", "vocab_from")}
    w.add_name(f"synthetic-{arch}-{a.size}")
    w.add_description("random weights, for benchmarks only: " + json.dumps(flags, sort_keys=True))
    w.add_block_count(s["layers"])
    w.add_context_length(s["ctx"])
    w.add_embedding_length(s["embd"])
    w.add_expert_feed_forward_length(s["ff"])
    w.add_head_count(s["heads"])
    w.add_head_count_kv(s["kv_heads"])
    w.add_key_length(s["head_dim"])
    w.add_value_length(s["head_dim"])
    w.add_layer_norm_rms_eps(1e-6)
    w.add_expert_count(s["experts"])
    w.add_expert_used_count(s["used"])
    w.add_quantization_version(gguf.GGML_QUANT_VERSION)
    vocab = copy_tokenizer(w, a.vocab_from, a.vocab)
    w.add_vocab_size(vocab)
    if arch == "qwen4exp":
        flash_keys(w, s, vocab)
        plan = flash_plan(a, s, vocab)
    else:
        moe_keys(w, s)
        plan = moe_plan(a, s, vocab)
    total = write(w, plan, Maker(a.seed, a.gain), a)
    print(json.dumps(dict(out=a.out, tensors=len(plan), weight_bytes=total,
                          active_bytes_per_token=active_bytes(plan, s, a), gib=round(total / 2**30, 3), **s,
                          vocab=vocab)))


if __name__ == "__main__":
    main()
