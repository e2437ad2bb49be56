#!/usr/bin/env python3
"""Reads one shard of each mode of `run --frames` with the readers that people use, and compares every row with the source.

    python3 -m venv venv && venv/bin/pip install zstandard pyarrow duckdb polars pandas datasets
    compact-local demo --generate-only --microshards 20000 --dir data
    for frames in single seekable splice; do
        compact-local snapshot --manifest data/manifest.csv --source data --queue $frames.db
        compact-local run --frames $frames --queue $frames.db --output $frames
        compact-local sync-back --queue $frames.db
    done
    venv/bin/python benches/read_back.py data single seekable splice

Prints a Markdown table: rows read and seconds, or what went wrong. Ends with 1 if any reader missed or changed a row. A
reader that is not installed is told, and counts as wrong. The last line of the table is not a reader to use: it shows
what python-zstandard's one-shot decompress makes of several frames.
"""

import csv
import gzip
import io
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import time

import zstandard


def decoded(path):
    """A microshard's text, by its name."""
    raw = path.read_bytes()
    if path.suffix == ".gz":
        return gzip.decompress(raw)
    if path.suffix == ".zst":
        with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(raw), read_across_frames=True) as reader:
            return reader.read()
    return raw


def source_text(data, output, shard_id):
    """The rows that a shard is to hold, one a line: of the microshards it consumed, in the order of their creation."""
    with open(output / "microshards.csv", newline="") as file:
        members = {line["microshard_id"] for line in csv.DictReader(file) if line["shard_id"] == shard_id}
    with open(data / "manifest.csv", newline="") as file:
        listed = [line for line in csv.DictReader(file) if line["microshard_id"] in members]
    listed.sort(key=lambda line: (line["created_at"], int(line["microshard_id"])))
    return b"".join(repaired(decoded(data / line["uri"])) for line in listed)


def repaired(text):
    """What of a microshard belongs into a shard: no byte order mark, no CR, no blank line, a newline after each row."""
    lines = (line.removesuffix(b"\r") for line in text.removeprefix(b"\xef\xbb\xbf").split(b"\n"))
    return b"".join(line + b"\n" for line in lines if line.strip())


def plain(value):
    """A row as a value that compares: absent and null are the same to readers with columns."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items() if not is_null(inner)}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return value


def is_same(expected, found):
    """Whether a reader kept a value. In a column of floats a whole number becomes the nearest double; nothing else may change."""
    if isinstance(expected, dict) and isinstance(found, dict):
        return expected.keys() == found.keys() and all(is_same(expected[key], found[key]) for key in expected)
    if isinstance(expected, list) and isinstance(found, list):
        return len(expected) == len(found) and all(map(is_same, expected, found))
    if type(expected) is int and type(found) is float:
        return float(expected) == found
    return type(expected) is type(found) and expected == found


def is_null(value):
    return value is None or isinstance(value, float) and math.isnan(value)


# Readers of text: every byte must be as it was.


def zstd_cli(path):
    subprocess.run(["zstd", "-tq", path], check=True)
    return subprocess.run(["zstd", "-dcq", path], check=True, capture_output=True).stdout


def zstandard_stream_reader(path):
    with open(path, "rb") as file, zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as reader:
        return reader.read()


def zstandard_open(path):
    with zstandard.open(path, "rb") as reader:
        return reader.read()


def pyarrow_stream(path):
    import pyarrow

    with pyarrow.input_stream(str(path), compression="zstd") as stream:
        return stream.read()


# Readers of rows: every value must be as it was.


def pyarrow_json(path):
    import pyarrow
    import pyarrow.json

    with pyarrow.input_stream(str(path), compression="zstd") as stream:
        return pyarrow.json.read_json(stream).to_pylist()


def duckdb_read_json(path):
    import duckdb

    found = duckdb.sql(f"SELECT * FROM read_json('{path}', format = 'newline_delimited', compression = 'zstd')")
    return [dict(zip(found.columns, row)) for row in found.fetchall()]


def polars_read_ndjson(path):
    import polars

    return polars.read_ndjson(path).to_dicts()


def polars_scan_ndjson(path):
    import polars

    return polars.scan_ndjson(path).collect().to_dicts()


def pandas_read_json(path):
    """With exact floats, which is not pandas' default: that gives 0.41240000000000004 for 0.4124."""
    import pandas

    return pandas.read_json(path, lines=True, compression="zstd", dtype=False, precise_float=True).to_dict("records")


def datasets_load(path):
    import datasets

    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as cache:
        return list(datasets.load_dataset("json", data_files=str(path), split="train", cache_dir=cache))


def datasets_streaming(path):
    import datasets

    return list(datasets.load_dataset("json", data_files=str(path), split="train", streaming=True))


READERS = [
    ("zstd CLI, `-t` and `-dc`", zstd_cli),
    ("python-zstandard `stream_reader`", zstandard_stream_reader),
    ("python-zstandard `open`", zstandard_open),
    ("pyarrow `input_stream`", pyarrow_stream),
    ("pyarrow `json.read_json`", pyarrow_json),
    ("duckdb `read_json`", duckdb_read_json),
    ("polars `read_ndjson`", polars_read_ndjson),
    ("polars `scan_ndjson`", polars_scan_ndjson),
    ("pandas `read_json`", pandas_read_json),
    ("HF datasets `load_dataset`", datasets_load),
    ("HF datasets, streaming", datasets_streaming),
]


def compare(reader, path, text):
    """What a reader made of a shard: whether it is right, and a few words."""
    started = time.monotonic()
    try:
        found = reader(path)
    except Exception as error:  # Whatever a reader does is its result.
        return False, f"{type(error).__name__}: {str(error).splitlines()[0]}"
    seconds = time.monotonic() - started
    if isinstance(found, bytes):
        same, rows = found == text, found.count(b"\n")
    else:
        expected = [plain(json.loads(line)) for line in text.split(b"\n") if line]
        same, rows = is_same(expected, [plain(row) for row in found]), len(found)
    return same, f"{rows} rows, {seconds:.2f} s" if same else f"{rows} rows, NOT THE SAME"


def one_shot(path):
    """What the trap looks like in this version."""
    raw = path.read_bytes()
    try:
        rows = zstandard.ZstdDecompressor().decompress(raw).count(b"\n")
        return f"{rows} rows, without an error"
    except zstandard.ZstdError as error:
        return f"refuses: {error}"


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    data, *outputs = map(pathlib.Path, sys.argv[1:])
    index = {output: json.loads((output / "index.json").read_text()) for output in outputs}
    uri = index[outputs[0]]["shards"][0]["uri"]
    shard_id = pathlib.PurePath(uri).name.removesuffix(".jsonl.zst")
    text = source_text(data, outputs[0], shard_id)
    rows = text.count(b"\n")
    print(f"{uri}: {rows} rows, {len(text)} bytes\n")
    print("| reader |" + "".join(f" {index[output]['options']['frames']} |" for output in outputs))
    print("|---|" + "---|" * len(outputs))
    right = bool(text)
    for name, reader in READERS:
        results = [compare(reader, output / uri, text) for output in outputs]
        right = right and all(same for same, _ in results)
        print(f"| {name} |" + "".join(f" {words} |" for _, words in results), flush=True)
    print("| python-zstandard one-shot |" + "".join(f" {one_shot(output / uri)} |" for output in outputs))
    sys.exit(0 if right else "\nsome readers did not read what was written")


if __name__ == "__main__":
    main()
