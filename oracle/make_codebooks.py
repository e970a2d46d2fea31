"""Writes crates/kernels/src/quant/codebooks.rs from the grids of the PyPI package `gguf` 0.19.0 (gguf/quants.py).

    python oracle/make_codebooks.py           writes the file
    python oracle/make_codebooks.py --check   exits with 1 when the committed file differs
"""
import sys
from pathlib import Path

import numpy as np
from gguf import quants

OUT = Path(__file__).parent.parent / "crates/kernels/src/quant/codebooks.rs"

HEAD = """\
//! Codebooks of the GGUF block formats: data of the format, generated.
//!
//! Source: the grids in `gguf/quants.py` of the Python package `gguf` 0.19.0 (MIT). Script: `oracle/make_codebooks.py`;
//! with `--check` it compares this file with what it would write. Value `j` of a grid entry is byte `j`, lowest first.
"""


def grid(doc, name, cls, word):
    cls.init_grid()
    values = cls.grid.reshape(cls.grid_shape).astype(np.int8)
    assert values.shape[1] * 8 == word and (values == cls.grid.reshape(cls.grid_shape)).all()
    entries = values.view(f"<u{word // 8}").ravel()
    return table(doc, name, f"u{word}", [f"0x{int(e):0{word // 4}x}" for e in entries], 110)


def table(doc, name, element, entries, width):
    lines, line = [], "   "
    for e in entries:
        if len(line) + len(e) + 2 > width:
            lines.append(line)
            line = "   "
        line += f" {e},"
    lines.append(line)
    return f"\n/// {doc}\n#[rustfmt::skip]\npub static {name}: [{element}; {len(entries)}] = [\n" + "\n".join(lines) + "\n];\n"


def text():
    q = quants
    assert q.IQ1_M.grid_hex == q.IQ1_S.grid_hex and q.MXFP4.kvalues == q.NVFP4.kvalues
    return HEAD + "".join([
        table("IQ4_NL and IQ4_XS: value of each 4-bit code.", "IQ4_NL_VALUES", "i8", [str(v) for v in q.IQ4_NL.kvalues], 110),
        table("MXFP4 and NVFP4: twice the E2M1 value of each 4-bit code.", "E2M1_DOUBLED", "i8", [str(v) for v in q.MXFP4.kvalues], 110),
        table("Eight signs of a 7-bit sign code (bit j set: value j is negative); their number is always even.", "SIGNS", "u8",
              [f"0x{v:02x}" for v in q.IQ2_XXS.ksigns], 110),
        grid("IQ1_S and IQ1_M: eight values of -1, 0, 1 (two's complement bytes).", "IQ1_GRID", q.IQ1_S, 64),
        grid("IQ2_XXS: eight magnitudes of 8, 25, 43.", "IQ2_XXS_GRID", q.IQ2_XXS, 64),
        grid("IQ2_XS: eight magnitudes of 8, 25, 43.", "IQ2_XS_GRID", q.IQ2_XS, 64),
        grid("IQ2_S: eight magnitudes of 8, 25, 43.", "IQ2_S_GRID", q.IQ2_S, 64),
        grid("IQ3_XXS: four magnitudes of 4, 12, .. 52, 62.", "IQ3_XXS_GRID", q.IQ3_XXS, 32),
        grid("IQ3_S: four magnitudes of 1, 3, .. 15.", "IQ3_S_GRID", q.IQ3_S, 32),
    ])


if __name__ == "__main__":
    if "--check" in sys.argv:
        same = OUT.read_text() == text()
        print("codebooks.rs is", "as generated" if same else "NOT as generated")
        sys.exit(not same)
    OUT.write_text(text())
