"""Ids of a corpus of difficult texts by SentencePiece and by llama.cpp: the reference for crates/chat.

    python make_spm_corpus.py [train]

writes golden/spm_corpus.json; with `train`, first golden/spm_vocab.gguf: a BPE vocabulary trained by SentencePiece on the text
of this repository. The stored one counts: another state of the repository gives another vocabulary. Needs
`sentencepiece`, `protobuf` and `xllamacpp`.

The texts are those of make_tokenizer_corpus.py with this vocabulary's special tokens, made again by the same rules in
crates/chat/tests/. Per setting the JSON has 8 hex digits per text: FNV-1a 64 over the ids as u32 little-endian, its two halves xored, or 8 dashes for a text that was not asked.

Settings: `prefix` and `plain` put a space in front of a text or do not; `-specials` parses special tokens, the others take
them as text; `-trimmed` removes extra spaces; `-bytes` is a vocabulary without byte tokens. Who is asked:

    prefix-specials, plain-specials   llama.cpp: SentencePiece knows no parsing of control tokens
    prefix, plain                     both; where they differ (DIFFER) the ids are llama.cpp's
    *-trimmed, prefix-bytes           SentencePiece: llama.cpp does not read that key, and stops without byte tokens

DIFFER: behind a user-defined token llama.cpp begins the text anew, with a space in front, and at the start of a text it puts none
before such a token; SentencePiece puts one space, before everything. So they may differ where a text has a user-defined token,
and nowhere else; this script stops if they do. SentencePiece alone is therefore asked only for the other texts. From neither may
a control token come out of text.
"""
import json
import sys
import tempfile
from pathlib import Path

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as pb

import ggufio
import llcpp
from make_tokenizer_corpus import fnv, fold, texts

HERE = Path(__file__).resolve().parent
GOLDEN = HERE / "golden"
VOCAB = GOLDEN / "spm_vocab.gguf"
CONTROL = ["<|user|>", "<|assistant|>", "<|end|>"]
USER_DEFINED = ["<think>", "</think>"]
SPACE = "\u2581"


def train():
    """Trains on the sources and pages of this repository, and on the corpus's hand-made texts for other scripts."""
    from make_tokenizer_corpus import HAND
    root = HERE.parent
    files = sorted(p for d in ["crates", "xtask", "oracle", "bench", "."] for s in ["*.rs", "*.md", "*.py"]
                   for p in (root / d).glob(s if d == "." else "**/" + s))
    lines = [line for p in files for line in p.read_text().split("\n") if len(line) < 4000]
    lines += HAND * 20
    with tempfile.TemporaryDirectory() as d:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_prefix=f"{d}/spm", model_type="bpe", vocab_size=4000, byte_fallback=True,
            normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True,
            allow_whitespace_only_pieces=True, character_coverage=0.9999, control_symbols=CONTROL,
            user_defined_symbols=USER_DEFINED, num_threads=1, minloglevel=2)
        m = pb.ModelProto.FromString(Path(f"{d}/spm.model").read_bytes())
    write(VOCAB, [p.piece for p in m.pieces], [p.score for p in m.pieces], [p.type for p in m.pieces], prefix=True)
    print(VOCAB.name, len(m.pieces), "tokens from", len(files), "files")


def write(path, tokens, scores, types, prefix):
    """A file with a vocabulary alone. The numbers of token types are those of SentencePiece."""
    kv = ggufio.KV()
    kv.str("general.architecture", "llama")
    kv.str("tokenizer.ggml.model", "llama")
    kv.arr("tokenizer.ggml.tokens", 8, tokens)
    kv.arr("tokenizer.ggml.scores", 6, scores)
    kv.arr("tokenizer.ggml.token_type", 5, types)
    kv.u32("tokenizer.ggml.unknown_token_id", 0)
    kv.u32("tokenizer.ggml.bos_token_id", 1)
    kv.u32("tokenizer.ggml.eos_token_id", 2)
    kv.bool("tokenizer.ggml.add_bos_token", True)
    kv.bool("tokenizer.ggml.add_space_prefix", prefix)
    ggufio.write(path, kv, [])


class Vocabulary:
    def __init__(self):
        kv = ggufio.Reader(VOCAB).kv
        self.tokens = kv["tokenizer.ggml.tokens"]
        self.scores = kv["tokenizer.ggml.scores"]
        self.types = kv["tokenizer.ggml.token_type"]

    def of_type(self, number):
        return [t for t, n in zip(self.tokens, self.types) if n == number]

    def llama_cpp(self, prefix):
        with tempfile.TemporaryDirectory() as d:
            write(f"{d}/v.gguf", self.tokens, self.scores, self.types, prefix)
            return llcpp.Model(f"{d}/v.gguf", vocab_only=True)

    def sentencepiece(self, prefix, trimmed=False, byte_fallback=True):
        m = pb.ModelProto()
        for i, (text, score, kind) in enumerate(zip(self.tokens, self.scores, self.types)):
            if kind == 6 and not byte_fallback:
                text, kind = f"[unused {i}]", 5
            m.pieces.add(piece=text, score=score, type=kind)
        m.trainer_spec.model_type = pb.TrainerSpec.BPE
        m.trainer_spec.byte_fallback = byte_fallback
        m.trainer_spec.unk_id, m.trainer_spec.bos_id, m.trainer_spec.eos_id = 0, 1, 2
        m.normalizer_spec.name = "identity"
        m.normalizer_spec.add_dummy_prefix = prefix
        m.normalizer_spec.remove_extra_whitespaces = trimmed
        m.normalizer_spec.escape_whitespaces = True
        return sentencepiece.SentencePieceProcessor(model_proto=m.SerializeToString())


def hashes(ids):
    return "".join("-" * 8 if line is None else f"{fold(fnv(b''.join(i.to_bytes(4, 'little') for i in line))):08x}"
                   for line in ids)


def main():
    if sys.argv[1:] == ["train"]:
        train()
    v = Vocabulary()
    special = {i for i, kind in enumerate(v.types) if kind in (2, 3)}
    lines = texts(v.of_type(2) + v.of_type(3) + v.of_type(4))
    h = 0xCBF29CE484222325
    for line in lines:
        h = fnv(line.encode() + b"\xff", h)
    doc = {"texts": f"{h:016x}"}

    def keep(name, ids, note):
        doc[name] = hashes(ids)
        asked = [line for line in ids if line is not None]
        print(f"{name:16} {len(asked)} texts {sum(map(len, asked)):8} ids  {note}")

    def original(name, processor):
        keep(name, [None if any(s in t for s in USER_DEFINED) else processor.encode(t) for t in lines], "SentencePiece")

    for name, prefix in [("prefix", True), ("plain", False)]:
        model, processor = v.llama_cpp(prefix), v.sentencepiece(prefix)
        keep(f"{name}-specials", [model.tokenize(t) for t in lines], "llama.cpp")
        theirs = [model.tokenize(t, parse_special=False) for t in lines]
        originals = [processor.encode(t) for t in lines]
        differ = [i for i in range(len(lines)) if theirs[i] != originals[i]]
        for i in differ:
            assert any(s in lines[i] for s in USER_DEFINED), (lines[i], theirs[i], originals[i])
        assert not any(special & set(ids) for ids in theirs + originals)
        with_user_defined = sum(any(s in t for s in USER_DEFINED) for t in lines)
        keep(name, theirs, f"llama.cpp; SentencePiece equal in {len(lines) - len(differ)}, "
             f"different in {len(differ)} of the {with_user_defined} with a user-defined token")
        original(f"{name}-trimmed", v.sentencepiece(prefix, trimmed=True))
        model.close()
    original("prefix-bytes", v.sentencepiece(True, byte_fallback=False))
    (GOLDEN / "spm_corpus.json").write_text(json.dumps(doc, indent=0) + "\n")


if __name__ == "__main__":
    main()
