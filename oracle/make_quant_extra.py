"""Writes golden/quants_extra.npz: what quants.npz (quantised normal values) cannot show about the block formats.

* `<type>/bytes`, `<type>/f32`: blocks of random bytes (wild scales, NaN and infinity included) and their floats as ggml's
  own to_float gives them (xllamacpp), asserted equal to the numpy definitions of the `gguf` package or of ggufio.
* `act/x`, `act/q`, `act/d`: rows of 1280 activations, their int8 codes and scales per 32.
* `dot/<type>/bytes`, `dot/<type>/f32`: four weight rows, and the product of each with each activation row (4 x 4) by the
  definition of crates/kernels/src/quant/dot.rs, in numpy float32.
"""
from pathlib import Path

import gguf
import numpy as np

import ggufio
import llcpp

F = np.float32
ggufio.TYPES["NVFP4"] = (40, 64, 36)


def same(a, b):
    return bool(((a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))).all())


def decode(out, rng):
    for tn, (_, values, size) in ggufio.TYPES.items():
        if tn in ("F32", "I32", "I64"):
            continue
        count = 256 if tn == "MXFP4" else 4096 // values
        blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
        blocks[0], blocks[1] = 0, 255
        if tn in ("MXFP4", "NVFP4"):     # every scale byte once
            scales = blocks[:, :256 // count]
            scales[:] = np.arange(256).reshape(scales.shape)
        n = blocks.shape[0] * values
        ours = llcpp.ggml_dequantize(tn, blocks, (n,))
        with np.errstate(all="ignore"):
            if tn in ("F16", "BF16", "Q1_0", "Q2_0"):
                other = ggufio.dequantize(tn, blocks, (n,))
            else:
                other = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[tn]).ravel().astype(F)
        assert same(ours, other), tn
        out[f"{tn}/bytes"], out[f"{tn}/f32"] = blocks.ravel(), ours


def quantize_activations(x):
    g = x.reshape(-1, 32)
    q, d = np.zeros(g.shape, np.int64), np.zeros(len(g), F)
    for i, v in enumerate(g):
        amax = np.abs(v).max()
        if not np.isfinite(v).all():
            d[i] = np.nan
        elif amax >= F(1e-30):
            d[i] = amax / F(127)
            q[i] = np.clip(np.rint(v * (F(127) / amax)), -127, 127)
    return q.reshape(x.shape), d.reshape(*x.shape[:-1], -1)


def nib(b):
    """(blocks, n * 16) bytes -> (blocks, n * 32): low nibbles of 16 bytes, then the high ones."""
    b = b.reshape(len(b), -1, 1, 16)
    return np.concatenate([b & 15, b >> 4], axis=2).reshape(len(b), -1).astype(np.int64)


def f16(b):
    return np.ascontiguousarray(b).view("<f2").astype(F)


def integer_view(tn, b):
    """In value order: codes times integer scales, integer minima, float scale per 16 values, float minimum per 32."""
    n = len(b)
    ones, none = lambda k: np.ones((n, k), F), np.zeros((n, 0))
    if tn == "Q8_0":
        return b[:, 2:].view(np.int8).astype(np.int64), none, f16(b[:, :2]) * ones(2), none
    if tn == "Q4_1":
        return nib(b[:, 4:]), np.ones((n, 32), np.int64), f16(b[:, :2]) * ones(2), f16(b[:, 2:4])
    if tn == "Q6_K":
        lo, hi = b[:, :128].reshape(n, 2, 1, 64), b[:, 128:192].reshape(n, 2, 1, 32)
        lo = np.concatenate([lo & 15, lo >> 4], axis=2).reshape(n, 2, 4, 32)
        hi = np.concatenate([hi >> s & 3 for s in (0, 2, 4, 6)], axis=2)
        q = (lo | hi << 4).reshape(n, 256).astype(np.int64) - 32
        return q * b[:, 192:208].view(np.int8).astype(np.int64).repeat(16, 1), none, f16(b[:, 208:]) * ones(16), none
    if tn == "Q4_K":
        s, m = gguf.quants.Q4_K.get_scale_min(np.ascontiguousarray(b[:, 4:16]))
        qs = b[:, 16:].reshape(n, 4, 1, 32)
        q = np.concatenate([qs & 15, qs >> 4], axis=2).reshape(n, 256).astype(np.int64)
        s, m = (v.astype(np.int64).repeat(32, 1) for v in (s, m))
        return q * s, m, f16(b[:, :2]) * ones(16), -f16(b[:, 2:4]) * ones(8)
    if tn == "NVFP4":
        qs = b[:, 4:].reshape(n, 4, 1, 8)
        codes = np.concatenate([qs & 15, qs >> 4], axis=2).reshape(n, 64)
        return (np.array(gguf.quants.NVFP4.kvalues)[codes], none, gguf.quants.NVFP4.ue4m3_to_fp32(b[:, :4]).astype(F), none)
    raise KeyError(tn)


def dot(tn, blocks, q, d_a):
    sq, m, d, mins = integer_view(tn, blocks)
    sq, m, d, mins = sq.ravel(), m.ravel(), d.ravel(), mins.ravel()
    chains = []
    for g in range(len(q) // 32):
        if g % 16 == 0:
            chains.append(F(0))
        at = slice(32 * g, 32 * g + 32)
        p = sq[at] * q[at]
        if tn == "NVFP4":
            for h in (0, 1):
                chains[-1] = chains[-1] + F(p[16 * h:16 * h + 16].sum()) * (d[2 * g + h] * d_a[g])
            continue
        t = F(p.sum()) * (d[2 * g] * d_a[g])
        if len(m):
            t = t + F((m[at] * q[at]).sum()) * (mins[g] * d_a[g])
        chains[-1] = chains[-1] + t
    total = chains[0]
    for c in chains[1:]:
        total = total + c
    assert type(total) is F
    return total


def products(out, rng):
    n = 1280
    x = (rng.standard_normal((4, n)) * np.exp(rng.standard_normal((4, n // 32)).repeat(32, 1))).astype(F)
    # Ties, zeros, tiny and huge groups in the second row; NaN and infinities in the last.
    x[1, :32] = np.arange(32) / F(2) - F(8)
    x[1, 0] = 127
    x[1, 32:64], x[1, 64:96], x[1, 96:128], x[1, 130] = 0, 1e-31, -1e30, 1e-12
    x[1, 160:192] = F(1e-30) * rng.choice([-1, 1], 32)
    # The third row lies on and beside the ties of its groups.
    amax = np.abs(rng.standard_normal((n // 32, 1))).astype(F) + F(0.1)
    near = (rng.integers(-127, 127, (n // 32, 32)) + F(0.5)) * amax / F(127)
    near[:, 0] = amax[:, 0]
    x[2] = near.ravel()
    x[3, 40], x[3, 70], x[3, 100] = np.nan, np.inf, -np.inf
    out["act/x"] = x
    q, d_a = quantize_activations(x)
    out["act/q"], out["act/d"] = q, d_a
    scales = {"Q8_0": [0], "Q4_1": [0, 2], "Q6_K": [208], "Q4_K": [0, 2]}
    for tn in (*scales, "NVFP4"):
        _, values, size = ggufio.TYPES[tn]
        rows = rng.integers(0, 256, (4, n // values, size), dtype=np.uint8)
        for at in scales.get(tn, []):
            rows[..., at:at + 2] = (rng.standard_normal((4, n // values, 1)) * 0.02).astype("<f2").view(np.uint8)
        if tn == "NVFP4":
            rows[..., :4] = rng.integers(0x10, 0x60, rows[..., :4].shape)
        w = gguf.quants.dequantize(rows.reshape(4, -1), gguf.GGMLQuantizationType[tn]).astype(np.float64)
        y = np.array([[dot(tn, r, q[i], d_a[i]) for i in range(4)] for r in rows], F)
        a = (q * d_a.repeat(32, 1).astype(np.float64)).T[:, :3]
        assert (np.abs(y[:, :3] - w @ a) <= 1e-5 * (np.abs(w) @ np.abs(a))).all(), tn
        assert np.isnan(y[:, 3]).all()
        out[f"dot/{tn}/bytes"], out[f"dot/{tn}/f32"] = rows.ravel(), y


if __name__ == "__main__":
    out, rng = {}, np.random.default_rng(11)
    decode(out, rng)
    with np.errstate(all="ignore"):
        products(out, rng)
    path = Path(__file__).parent / "golden/quants_extra.npz"
    np.savez_compressed(path, **out)
    print(path.name, path.stat().st_size, "bytes,", len(out), "arrays")
