"""The peer that DuckDB is: one COPY for each language, over the same objects, into one directory.

It compares no size, SHA-256 or row count, and keeps no shard's members. With --form parquet every line is parsed by a
given schema; with --form lines it is copied as text, as `run` does, but is not looked at.

    duckdb_compactor.py --manifest manifest.csv --source http://127.0.0.1:8080 --output DIR --form parquet
"""

import argparse
import collections
import csv
import os

import duckdb
import duckdb_extension_httpfs

COLUMNS = {
    "id": "VARCHAR", "video_id": "VARCHAR", "language": "VARCHAR", "start": "DOUBLE", "end": "DOUBLE", "speaker": "VARCHAR",
    "text": "VARCHAR", "avg_logprob": "DOUBLE", "gain": "DOUBLE", "tokens": "USMALLINT[]",
}
# A separator and no quotes: every line is one value.
LINES = "columns = {line: 'VARCHAR'}, delim = '\\x01', quote = '', escape = '', header = false, auto_detect = false"
FORMS = {
    # The schema spares DuckDB the sniffing; objects are small, so its buffers can be; a file for each thread is quickest.
    "parquet": (
        f"SELECT * FROM read_json($files, format = 'newline_delimited', columns = {COLUMNS}, maximum_object_size = 1048576)",
        "parquet",
        "FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 3, ROW_GROUP_SIZE 17000, PER_THREAD_OUTPUT true",
    ),
    "lines": (
        f"SELECT line FROM read_csv($files, {LINES}) WHERE line <> ''",
        "jsonl.zst",
        "FORMAT csv, HEADER false, QUOTE '', ESCAPE '', DELIMITER '\\x01', COMPRESSION zstd",
    ),
}


def main():
    arguments = parse()
    select, extension, options = FORMS[arguments.form]
    connection = connect(arguments.threads)
    os.makedirs(arguments.output)
    rows = 0
    for language, files in by_language(arguments).items():
        output = f"{arguments.output}/{language}.{extension}"
        copy = f"COPY ({select}) TO '{output}' ({options})".replace("$files", str(files)).replace("\\x01", "\x01")
        rows += connection.execute(copy).fetchone()[0]
    print(f"{rows} rows")


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--manifest", required=True)
    parser.add_argument("--source", required=True, help="http://host:port or a directory")
    parser.add_argument("--output", required=True)
    parser.add_argument("--form", required=True, choices=FORMS)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    return parser.parse_args()


def connect(threads):
    connection = duckdb.connect(config={"threads": threads})
    # httpfs as PyPI has it: DuckDB's own host of extensions need not be reached.
    extensions = os.path.dirname(duckdb_extension_httpfs.__file__)
    connection.load_extension(f"{extensions}/extensions/v{duckdb.__version__}/httpfs.duckdb_extension")
    # Small objects, each read once: one GET instead of a HEAD and ranges, kept connections, no cache. Halves the time.
    connection.execute("SET httpfs_connection_caching = true")
    connection.execute("SET force_download = true")
    connection.execute("SET enable_external_file_cache = false")
    return connection


def by_language(arguments):
    files = collections.defaultdict(list)
    with open(arguments.manifest, newline="") as manifest:
        for row in csv.DictReader(manifest):
            files[row["language"]].append(f"{arguments.source}/{row['uri']}")
    return files


if __name__ == "__main__":
    main()
