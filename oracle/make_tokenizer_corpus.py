"""Ids of a corpus of difficult texts by the HF `tokenizers` library: the reference for crates/chat.

    python make_tokenizer_corpus.py SmolLM2-135M-Instruct.Q4_1.gguf

writes golden/smollm2_merges.txt (the tokenizer of SmolLM2-135M-Instruct, Apache-2.0: its vocabulary follows from its merges)
and golden/tokenizer_corpus.json. Needs `tokenizers` and `gguf`.

The texts are not stored. They are made here and, by the same rules, in crates/chat/tests/corpus.rs; `texts` in the JSON is a
hash over them all, to tell a difference in texts from a difference in ids. Per tokenizer the JSON has 8 hex digits per text:
FNV-1a 64 over the ids as u32 little-endian, its two halves xored. `classes` is FNV-1a 64 over a byte per code point: the
class that the regular expressions see, and 8 more if the `Digits` step isolates it.

No normaliser: HF's Qwen tokenizers make text NFC first; a GGUF file does not say so and llama.cpp does not do it.
"""
import json
import sys
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

HERE = Path(__file__).resolve().parent
GOLDEN = HERE / "golden"
MASK = (1 << 64) - 1

WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {
    "qwen35": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
              r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": WORDS % "",
    "llama-bpe": WORDS % "{1,3}",
}


def pre_tokenizer(name):
    if name == "gpt-2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if name == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PATTERNS[name]), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def small(name):
    """The small BPE of this folder under another pre-tokenizer."""
    t = Tokenizer.from_file(str(HERE / "tokenizer.json"))
    t.pre_tokenizer = pre_tokenizer(name)
    return t


def smollm2(path):
    """The tokenizer in a GGUF file of SmolLM2; also writes its merges."""
    from gguf import GGUFReader
    fields = GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    types = fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"].contents()]
    n = len(tokens) - len(merges)
    assert [a + b for a, b in merges] == tokens[n:]
    assert all(types[i] == (3 if i < 17 else 1) for i in range(len(tokens)))
    lines = [" ".join(tokens[:17]), " ".join(tokens[17:n])] + [" ".join(m) for m in merges]
    (GOLDEN / "smollm2_merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    t = Tokenizer(models.BPE(vocab={s: i for i, s in enumerate(tokens)}, merges=merges))
    t.pre_tokenizer = pre_tokenizer("smollm")
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in tokens[:17]])
    assert t.get_vocab_size() == len(tokens)
    return t


class Random:
    """splitmix64."""

    def __init__(self, seed):
        self.state = seed

    def below(self, n):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return ((z ^ (z >> 31)) >> 32) * n >> 32


# Ranges of code points that random texts draw from, one range per draw.
RANGES = [(0x20, 0x7E), (0x20, 0x7E), (0x61, 0x7A), (0x61, 0x7A), (0x41, 0x5A), (0x30, 0x39), (0x20, 0x20), (0x20, 0x20),
          (0x09, 0x0D), (0x0A, 0x0A), (0x0D, 0x0D), (0x27, 0x27), (0x80, 0xFF), (0x100, 0x24F), (0x300, 0x36F),
          (0x370, 0x52F), (0x590, 0x6FF), (0x900, 0x97F), (0xE00, 0xE7F), (0x1100, 0x11FF), (0x2000, 0x206F),
          (0x2150, 0x218F), (0x3000, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xFE00, 0xFE0F), (0x1F1E6, 0x1F1FF),
          (0x1F300, 0x1F64F), (0x200D, 0x200D), (0x0, 0xD7FF), (0xE000, 0x10FFFF), (0x17F, 0x17F)]
# Pieces that are drawn now and then instead.
PIECES = ["'s", "'LL", "'Ve", "'re", "'t", "'D", "'\u017f", " the", "ing", "    ", "\r\n", "\n\n", "\t\t", "don't",
          "return x", "//", "{}", "<|", "|>", "https://", "12345", "\u00a0", "e\u0301", "\u0915\u094d\u0937"]


def random_text(r):
    out = []
    for _ in range(r.below(32)):
        if r.below(8) == 0:
            out.append(PIECES[r.below(len(PIECES))])
        else:
            lo, hi = RANGES[r.below(len(RANGES))]
            out.append(chr(lo + r.below(hi - lo + 1)))
    return "".join(out)


# NFC and NFD forms are listed one after the other, written out so that no Unicode table is needed to make them.
HAND = ["", " ", "  ", "\n", "\r\n", "\r\n\r\n", " \r\n  x", "a\r\nb\r\n", "\n \n  \n   x", "\t\tif (x) {\r\n\t\t\treturn;\r\n\t\t}\r\n",
        "def f(x):\n    if x:\n        return  x  # why\n\n\n    else:\n\tpass\n", "x  =  1;\t\ty   = 22;  ", "   ", "a   ", "   a", "\u3000\u3000a",
        "\u00e9\u00e8\u00e4\u00f1\u00c5", "e\u0301e\u0300a\u0308n\u0303A\u030a", "\ud55c\uae00", "\u1112\u1161\u11ab\u1100\u1173\u11af",
        "\u1e69\u1ec7", "s\u0323\u0307e\u0323\u0302", "\u4f60\u597d\uff0c\u4e16\u754c\uff01\u3002 \u4e2d\u6587abc123", "\u3053\u3093\u306b\u3061\u306f \u30c6\u30b9\u30c8\u3001\u6f22\u5b57\u3067\u3059",
        "\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4", "\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466", "\U0001f44d\U0001f3fd ok\U0001f44d", "\u2764\ufe0f\u200d\U0001f525 \U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7",
        "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f", "1\ufe0f\u20e3 2\u20e3", "a\u0301\u0302\u0303\u0304 \u0301\u0302 \u0301", "\u0e01\u0e34\u0e19\u0e02\u0e49\u0e32\u0e27", "\u0928\u092e\u0938\u094d\u0924\u0947 \u0915\u094d\u0937",
        "\u0645\u0631\u062d\u0628\u0627 \u0628\u0650\u0633\u0652\u0645\u0650", "\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd", "1", "12", "123", "1234", "12345678901234567890", "3.14159e-10", "1,234,567.89", "0x1F4A9",
        "\u0661\u0662\u0663\u0664", "\u00bd\u00b2\u2167\u3289", "v1.2.3-rc4", "1a2b3c", " 12  345   6789", "I'm we'LL they'Re DON'T it'S 'tis 'S '", "'\u017f'\u017fx", "''s'''t",
        "\u2019s don\u2019t", "foo.bar->baz();", "#include <stdio.h>\n", "</s><s>", "<|im_start|>user\nhi<|im_end|>\n<|im_start|>", "<|endoftext|><|endoftext|>",
        "<|im_end|", "<<|im_end|>>", "<think>\n\n</think>\n\nok", "<tool_call>{}</tool_call>", "\x00\x01\x04\x7f", "!\x04=", "\ufeffbom", "\ufffd", "\u0085\u2028\u2029x",
        "$\u20ac\u00a3\u00a5", "\u2211\u222b\u221a\u2264", "C:\\Users\\x\\n", "...!?!?---___***", "a\u200bb\u00adc", "A" * 200, "ab" * 300, " " * 100, "\n" * 50, "1" * 77, "=" * 80, "e\u0301" * 40]


def texts(specials):
    out = list(HAND)
    for s in specials:
        for c in range(128):
            out += [chr(c) + s, s + chr(c)]
    r = Random(20260)
    out += [random_text(r) for _ in range(10_000)]
    # Every code point once, each after a letter and before a blank and a letter: the classes of characters.
    cps = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
    for i in range(0, len(cps), 512):
        out.append("".join("a" + chr(c) + " x" for c in cps[i:i + 512]))
    return out


def fnv(data, h=0xCBF29CE484222325):
    for b in data:
        h = ((h ^ b) * 0x100000001B3) & MASK
    return h


def classes():
    """A byte per code point but surrogates: 0 letter, 1 mark, 2 number, 3 white space, 4 other; plus 8 for a digit."""
    cps = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
    out = bytearray([4] * len(cps))
    for at in range(0, len(cps), 4096):
        text = "".join(chr(c) for c in cps[at:at + 4096])
        for k, pattern in enumerate([r"\p{L}", r"\p{M}", r"\p{N}", r"\s"]):
            rest = pre_tokenizers.Split(Regex(pattern), "removed").pre_tokenize_str(text)
            kept = {i for _, (a, b) in rest for i in range(a, b)}
            for i in range(len(text)):
                if i not in kept:
                    out[at + i] = k
    digits = pre_tokenizers.Digits(individual_digits=True)
    for i, c in enumerate(cps):
        if len(digits.pre_tokenize_str("a" + chr(c) + "a")) == 3:
            out[i] |= 8
    return bytes(out)


def fold(h):
    return (h >> 32) ^ (h & 0xFFFFFFFF)


def main():
    smol = smollm2(sys.argv[1])
    small_specials = [t["content"] for t in json.loads((HERE / "tokenizer.json").read_text())["added_tokens"]]
    smol_specials = [smol.id_to_token(i) for i in range(17)]
    runs = [("small " + p, small(p), small_specials) for p in ["qwen35", "qwen2", "llama-bpe", "gpt-2", "smollm"]]
    runs.append(("smollm2", smol, smol_specials))
    doc = {"classes": f"{fnv(classes()):016x}"}
    for name, t, specials in runs:
        lines = texts(specials)
        encoded = t.encode_batch(lines, add_special_tokens=False)
        hashes = [fold(fnv(b"".join(i.to_bytes(4, "little") for i in e.ids))) for e in encoded]
        h = 0xCBF29CE484222325
        for line in lines:
            h = fnv(line.encode() + b"\xff", h)
        doc[name] = {"texts": f"{h:016x}", "ids": "".join(f"{x:08x}" for x in hashes)}
        print(name, len(lines), "texts", sum(len(e.ids) for e in encoded), "ids")
    (GOLDEN / "tokenizer_corpus.json").write_text(json.dumps(doc, indent=0) + "\n")


if __name__ == "__main__":
    main()
