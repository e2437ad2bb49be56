"""The peer that a fleet's worker would be: processes, each with a pool of threads for the downloads, in Python.

It checks what `run` checks (size, SHA-256, row count, every line a JSON object) and writes the same shards: so many
microshards of one language, in the order of (created_at, microshard_id), one zstd frame. It keeps no queue, claims
nothing and writes nothing back.

    compactor.py --manifest manifest.csv --source http://127.0.0.1:8080 --output DIR
"""

import argparse
import collections
import concurrent.futures
import csv
import dataclasses
import gzip
import hashlib
import itertools
import multiprocessing
import os
import threading

import orjson
import urllib3
import zstandard

BOM = b"\xef\xbb\xbf"
ZSTD, GZIP = b"\x28\xb5\x2f\xfd", b"\x1f\x8b"


@dataclasses.dataclass(frozen=True)
class Microshard:
    uri: str
    rows: int
    bytes: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class Shard:
    name: str
    microshards: list


def main():
    arguments = parse()
    shards = plan(arguments.manifest, arguments.per_shard)
    for language in {os.path.dirname(shard.name) for shard in shards}:
        os.makedirs(os.path.join(arguments.output, language), exist_ok=True)
    # Forked, so that workers need not import anything again; a shard goes to whoever is free.
    todo = multiprocessing.Value("L", 0)
    fork = multiprocessing.get_context("fork")
    workers = [fork.Process(target=work, args=(arguments, shards, todo)) for _ in range(arguments.processes)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        raise SystemExit("a worker failed")


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--manifest", required=True)
    parser.add_argument("--source", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--threads", type=int, default=12)
    parser.add_argument("--per-shard", type=int, default=250)
    parser.add_argument("--level", type=int, default=3)
    return parser.parse_args()


def plan(manifest, per_shard):
    """The shards that `snapshot --shard-microshards N --partial-shards emit` plans, the largest first."""
    groups = collections.defaultdict(list)
    with open(manifest, newline="") as file:
        for row in csv.DictReader(file):
            order = row["created_at"], int(row["microshard_id"])
            microshard = Microshard(row["uri"], int(row["segment_count"]), int(row["byte_size"]), row["sha256"])
            groups[row["run_id"], row["language"]].append((order, microshard))
    shards = []
    for (run_id, language), members in groups.items():
        members.sort(key=lambda member: member[0])
        for number, first in enumerate(range(0, len(members), per_shard)):
            name = f"{language}/{run_id}-{language}-000-{number:05}.jsonl.zst"
            shards.append(Shard(name, [microshard for _, microshard in members[first:first + per_shard]]))
    shards.sort(key=lambda shard: -len(shard.microshards))
    return shards


def work(arguments, shards, todo):
    """One process: downloads the next shard while it encodes this one."""
    source = Source(arguments.source, arguments.threads)
    encoder = zstandard.ZstdCompressor(level=arguments.level, write_checksum=True, write_content_size=False)
    with concurrent.futures.ThreadPoolExecutor(arguments.threads) as pool:
        fetching = collections.deque()
        claims = iter(lambda: claim(todo), None)
        for shard in itertools.takewhile(lambda index: index < len(shards), claims):
            shard = shards[shard]
            fetching.append((shard, [pool.submit(source.text_of, microshard) for microshard in shard.microshards]))
            if len(fetching) > 1:
                publish(arguments.output, encoder, *fetching.popleft())
        while fetching:
            publish(arguments.output, encoder, *fetching.popleft())


def claim(todo):
    with todo.get_lock():
        todo.value += 1
        return todo.value - 1


def publish(output, encoder, shard, texts):
    path = os.path.join(output, shard.name)
    with open(path + ".tmp", "wb") as file:
        with encoder.stream_writer(file, closefd=False) as stream:
            for text in texts:
                stream.write(text.result())
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + ".tmp", path)


class Source:
    """Pooled connections, and each thread's own decoder."""

    def __init__(self, base, threads):
        retries = urllib3.Retry(total=5, backoff_factor=0.2, status_forcelist=[429, 500, 502, 503, 504])
        self.pool = urllib3.connection_from_url(base, maxsize=threads, block=False, retries=retries, timeout=30)
        self.prefix = urllib3.util.parse_url(base).path or ""
        self.local = threading.local()

    def text_of(self, microshard):
        """Downloads, verifies, decodes and checks one microshard: its rows, each ending in one newline."""
        body = self.pool.request("GET", f"{self.prefix}/{microshard.uri}").data
        if len(body) != microshard.bytes:
            raise ValueError(f"{microshard.uri}: has {len(body)} bytes, the manifest says {microshard.bytes}")
        if hashlib.sha256(body).hexdigest() != microshard.sha256:
            raise ValueError(f"{microshard.uri}: has another SHA-256 than the manifest says")
        text, rows = checked(self.decoded(body), microshard.uri)
        if rows != microshard.rows:
            raise ValueError(f"{microshard.uri}: has {rows} rows, the manifest says {microshard.rows}")
        return text

    def decoded(self, body):
        if body.startswith(ZSTD):
            if not hasattr(self.local, "decoder"):
                self.local.decoder = zstandard.ZstdDecompressor()
            return self.local.decoder.decompress(body)
        return gzip.decompress(body) if body.startswith(GZIP) else body


def checked(text, uri):
    """The text, repaired where it needs that, and its rows; every line must be a JSON object."""
    lines = text.removeprefix(BOM).replace(b"\r\n", b"\n").split(b"\n")
    lines = [line for line in lines if line]
    loads = orjson.loads
    for number, line in enumerate(lines, 1):
        if type(loads(line)) is not dict:
            raise ValueError(f"{uri}: line {number} is no JSON object")
    lines.append(b"")
    return b"\n".join(lines), len(lines) - 1


if __name__ == "__main__":
    main()
