"""Rows of figures in a CSV, each with the day, the commit and the machine it was measured on."""
import csv
import datetime
import os
import platform
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def commit():
    words = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True).stdout.strip()


def cpu():
    """The processor's name with its family and model, since several are sold under one, and how many cores are here."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except FileNotFoundError:
        return f"{platform.processor()} x {os.cpu_count()}"
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    family, model = fields.get("cpu family", "?"), fields.get("model", "?")
    return f"{fields.get('model name', '?')} family {family} model {model} x {os.cpu_count()}"


def append(path, rows):
    """Adds rows that all have the same keys; the first line of a new file names them."""
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%MZ")
    rows = [dict(date=now, commit=commit(), cpu=cpu()) | row for row in rows]
    new = not Path(path).exists()
    with open(path, "a", newline="") as out:
        writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows(rows)
