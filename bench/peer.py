#!/usr/bin/env python3
"""A peer that comes as a Python module, measured as `llama-bench` measures: the same options, the same JSON.

    python3 bench/peer.py xllamacpp -m MODEL [-t 2] [-p 128,512] [-n 64] [-d 0,2048] [-npl 1,8] [-r 1]

Modules: `xllamacpp` (llama.cpp) and `ik_llama_cpp` (package ik-llama-cpp-python). For each depth of -d: each prompt of
-p, then -n tokens written, one sequence at a time and, with -npl, several in one batch. Tokens are arbitrary, what is
written is not what was chosen, as in llama-bench. A warm-up of each kind comes first and is not counted.
-fa 0|1: flash attention (1). -rtr 0|1: weights repacked at load, where the module knows how (0).
--greedy IDS: print 16 greedy tokens after these ids instead, to see whether the answer is right.
"""
import argparse
import ctypes as C
import json
import random
import sys
import time
from pathlib import Path

import numpy as np


class Xllamacpp:
    """Through the oracle's structures, which know where this module's layout differs."""

    def __init__(self, a, cells, sequences):
        sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "oracle"))
        import llcpp

        self.lib, self.batch_type, self.extra = llcpp.lib(), llcpp.Batch, {}
        p = self.lib.llama_model_default_params()
        p.n_gpu_layers, p.use_extra_bufts = 0, bool(a.rtr)
        self.model = self.lib.llama_model_load_from_file(a.model.encode(), p)
        if not self.model:
            sys.exit(f"error: xllamacpp cannot load {a.model}")
        self.vocabulary = self.lib.llama_vocab_n_tokens(self.lib.llama_model_get_vocab(self.model))
        c = self.lib.llama_context_default_params()
        c.flash_attn_type, c.offload_kqv, c.kv_unified = int(a.fa), False, True
        self.context = context(self.lib, self.model, c, a, cells, sequences)
        memory = self.lib.llama_get_memory(self.context)
        self.lib.llama_memory_seq_cp.argtypes = [C.c_void_p] + [C.c_int32] * 4
        self.clear = lambda: self.lib.llama_memory_clear(memory, True)
        self.rewind = lambda s, cell: self.lib.llama_memory_seq_rm(memory, s, cell, -1)
        self.copy = lambda s: self.lib.llama_memory_seq_cp(memory, 0, s, -1, -1)


class IkLlamaCpp:
    def __init__(self, a, cells, sequences):
        from ik_llama_cpp import _ctypes_api as api

        self.lib, self.batch_type = api._lib, api.llama_batch
        if not a.verbose:
            self.quiet = C.CFUNCTYPE(None, C.c_int, C.c_char_p, C.c_void_p)(lambda *_: None)
            self.lib.llama_log_set(self.quiet, None)
        api.llama_backend_init()
        p = api.llama_model_default_params()
        p.n_gpu_layers, p.repack_tensors = 0, bool(a.rtr)
        self.model = api.llama_model_load_from_file(a.model.encode(), p)
        if not self.model:
            sys.exit(f"error: ik_llama_cpp cannot load {a.model}")
        self.vocabulary = self.lib.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))
        c = api.llama_context_default_params()
        c.flash_attn, c.offload_kqv = bool(a.fa), False
        self.context = context(self.lib, self.model, c, a, cells, sequences)
        self.lib.llama_kv_cache_clear.argtypes = [C.c_void_p]
        self.lib.llama_kv_cache_seq_rm.argtypes = [C.c_void_p] + [C.c_int32] * 3
        self.lib.llama_kv_cache_seq_rm.restype = C.c_bool
        self.lib.llama_kv_cache_seq_cp.argtypes = [C.c_void_p] + [C.c_int32] * 4
        self.clear = lambda: self.lib.llama_kv_cache_clear(self.context)
        self.rewind = lambda s, cell: self.lib.llama_kv_cache_seq_rm(self.context, s, cell, -1)
        self.copy = lambda s: self.lib.llama_kv_cache_seq_cp(self.context, 0, s, -1, -1)


MODULES = {"xllamacpp": Xllamacpp, "ik_llama_cpp": IkLlamaCpp}


def context(lib, model, params, a, cells, sequences):
    params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = cells, 2048, 512, sequences
    params.n_threads = params.n_threads_batch = a.threads
    made = lib.llama_init_from_model(model, params)
    if not made:
        sys.exit("error: the peer cannot make a context")
    return made


class Bench:
    def __init__(self, a, depths, prompts, batches):
        longest = max(depths) + max([a.n_gen + 1, *prompts])
        # Every sequence of a batch has its own cells behind those it shares.
        cells = max(longest, max(depths) + max(batches) * (a.n_gen + 1)) + 256
        self.peer = MODULES[a.module](a, -(-cells // 256) * 256, max(batches))
        self.random = random.Random(1)

    def tokens(self, count):
        return [self.random.randrange(self.peer.vocabulary) for _ in range(count)]

    def decode(self, rows):
        """One batch of (sequence, position, token); logits of the last row of each sequence."""
        peer, n = self.peer, len(rows)
        sequence, position, token = (np.array(column, np.int32) for column in zip(*rows))
        last = {s: i for i, (s, _, _) in enumerate(rows)}
        logits = np.zeros(n, np.int8)
        logits[list(last.values())] = 1
        ones = np.ones(n, np.int32)
        at = lambda array, kind: array.ctypes.data_as(C.POINTER(kind))
        ids = (C.POINTER(C.c_int32) * n)(*(C.cast(sequence.ctypes.data + 4 * i, C.POINTER(C.c_int32)) for i in range(n)))
        batch = peer.batch_type()
        batch.n_tokens, batch.token, batch.pos = n, at(token, C.c_int32), at(position, C.c_int32)
        batch.n_seq_id, batch.logits = at(ones, C.c_int32), at(logits, C.c_int8)
        batch.seq_id = C.cast(ids, C.POINTER(C.POINTER(C.c_int32)))
        peer.lib.llama_decode.argtypes = [C.c_void_p, peer.batch_type]
        result = peer.lib.llama_decode(peer.context, batch)
        if result != 0:
            sys.exit(f"error: the peer's llama_decode returned {result}")
        peer.lib.llama_synchronize.argtypes = [C.c_void_p]
        peer.lib.llama_synchronize(peer.context)
        return n - 1

    def read(self, tokens, first):
        """As llama-bench: batches of 2048, which the peer cuts in 512."""
        for i in range(0, len(tokens), 2048):
            self.decode([(0, first + i + j, token) for j, token in enumerate(tokens[i:i + 2048])])

    def write(self, count, first, sequences):
        for i in range(count):
            self.decode([(s, first + i, self.tokens(1)[0]) for s in range(sequences)])

    def fill(self, depth):
        self.peer.clear()
        if depth:
            self.read(self.tokens(depth), 0)

    def go_back(self, depth):
        """To the filled state; a peer whose state cannot be cut off reads it again."""
        if depth == 0:
            self.peer.clear()
        elif not self.peer.rewind(0, depth):
            self.fill(depth)

    def timed(self, work):
        began = time.perf_counter_ns()
        work()
        return time.perf_counter_ns() - began

    def prompt(self, tokens, depth, repeat):
        samples = []
        for i in range(repeat + 1):
            self.go_back(depth)
            prompt = self.tokens(tokens)
            samples.append(self.timed(lambda: self.read(prompt, depth)))
        return samples[1:]

    def generation(self, count, depth, sequences, repeat):
        samples = []
        for i in range(repeat):
            self.go_back(depth)
            for s in range(1, sequences):
                self.peer.copy(s)
            self.write(1, depth, sequences)
            samples.append(self.timed(lambda: self.write(count, depth + 1, sequences)))
            for s in range(1, sequences):
                self.peer.rewind(s, 0)
        return samples

    def greedy(self, ids):
        peer, chosen = self.peer, []
        peer.lib.llama_get_logits_ith.restype = C.POINTER(C.c_float)
        peer.lib.llama_get_logits_ith.argtypes = [C.c_void_p, C.c_int32]
        peer.clear()
        rows = [(0, i, token) for i, token in enumerate(ids)]
        for _ in range(16):
            at = self.decode(rows)
            logits = np.ctypeslib.as_array(peer.lib.llama_get_logits_ith(peer.context, at), (peer.vocabulary,))
            chosen.append(int(logits.argmax()))
            rows = [(0, len(ids) + len(chosen) - 1, chosen[-1])]
        return chosen


def arguments():
    numbers = lambda text: [int(n) for n in text.split(",")]
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("module", choices=MODULES)
    p.add_argument("-m", "--model", required=True)
    p.add_argument("-t", "--threads", type=int, default=2)
    p.add_argument("-p", type=numbers, default=[512], dest="prompts")
    p.add_argument("-n", type=int, default=128, dest="n_gen")
    p.add_argument("-d", type=numbers, default=[0], dest="depths")
    p.add_argument("-npl", type=numbers, default=[1], dest="batches")
    p.add_argument("-r", type=int, default=1, dest="repeat")
    p.add_argument("-fa", type=int, default=1)
    p.add_argument("-rtr", type=int, default=0)
    p.add_argument("-o", default="json", choices=["json"])
    p.add_argument("--greedy", type=numbers)
    p.add_argument("-v", "--verbose", action="store_true")
    return p.parse_args()


def main():
    a = arguments()
    prompts = [p for p in a.prompts if p > 0]
    bench = Bench(a, a.depths, prompts + [len(a.greedy or []) + 16], a.batches)
    if a.greedy:
        print(json.dumps(bench.greedy(a.greedy)))
        return
    results = []

    def add(n_prompt, n_gen, depth, sequences, samples):
        rates = [(n_prompt + n_gen) * sequences * 1e9 / ns for ns in samples]
        results.append(dict(n_prompt=n_prompt, n_gen=n_gen, n_depth=depth, n_sequences=sequences,
                            avg_ts=sum(rates) / len(rates), samples_ts=rates))

    for depth in a.depths:
        bench.fill(depth)
        for prompt in prompts:
            add(prompt, 0, depth, 1, bench.prompt(prompt, depth, a.repeat))
        for sequences in a.batches if a.n_gen else []:
            add(0, a.n_gen, depth, sequences, bench.generation(a.n_gen, depth, sequences, a.repeat))
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
