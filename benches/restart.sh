#!/usr/bin/env bash
# How long after a `kill -9` the next `run` has its shards again: the time from its start to its first claim, and to the
# claim of the last shard that the dead runner held, with every builder decoding at the kill. Must stay below 0.5 s.
# Needs python3 and a release build.
#   benches/restart.sh [microshards] [threads] [builders] [latency of the origin in ms] [rounds]
set -euo pipefail
cd "$(dirname "$0")/.."
program=${COMPACT_LOCAL:-$PWD/target/release/compact-local}
[ -x "$program" ] || { echo "no $program: cargo build --release" >&2; exit 1; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
"$program" demo --generate-only --microshards "${1:-20000}" --dir "$dir/input" >/dev/null
exec 3<<'PYTHON'
import contextlib, http.server, json, shutil, signal, socketserver, sqlite3, struct, subprocess, sys, tempfile, threading
import time

program, dir, threads, builders, latency_ms, rounds = sys.argv[1:4] + [int(word) for word in sys.argv[4:]]
LEASE_MS = 600_000  # queue/src/service.rs
queue = f"{dir}/queue.db"


class Handler(http.server.BaseHTTPRequestHandler):
    """A far origin: every answer takes its time."""
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        time.sleep(latency_ms / 1000)
        with open(f"{dir}/input{self.path}", "rb") as file:
            body = file.read()
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    def log_message(self, *_):
        pass


class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads, request_queue_size = True, 1024

    def handle_error(self, *_):
        pass  # clients are killed here


def start():
    command = [program, "run", "--queue", queue, "--output", f"{dir}/out", "--threads", threads, "--builders", str(builders)]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def kill(runner):
    runner.send_signal(signal.SIGKILL)
    runner.wait()


def read(sql):
    """From a new copy of the dead runner's file and log: an older SQLite than the queue's must never write to them."""
    with tempfile.TemporaryDirectory(dir=dir) as copies:
        for end in ["", "-wal"]:
            shutil.copy(queue + end, f"{copies}/copy.db{end}")
        with contextlib.closing(sqlite3.connect(f"{copies}/copy.db")) as copy:
            return copy.execute(sql).fetchall()


def claims():
    return {shard: (attempt, at - LEASE_MS) for shard, attempt, at in
            read("SELECT shard, attempt, lease_expires_at FROM shards WHERE state = 2")}


def suspect_all(round):
    """The worst moment for a kill: every builder was decoding a microshard, each of which is now tried alone."""
    members = [seq for first, last in read("SELECT first, last FROM shards WHERE state = 2") for seq in range(first, last + 1)]
    with open(queue + ".slots", "r+b") as slots:
        slots.write(struct.pack(f"<{builders}Q", *members[round::len(members) // (builders + 1)][:builders]))


def wait_until_busy(runner, lanes, published=0):
    """Until every lane holds a shard, and so many are published: too many deaths in a row would end it."""
    while runner.poll() is None:
        status = json.loads(subprocess.check_output([program, "status", "--json", "--queue", queue]))
        shards, is_ours = status["shards"], status["runner"]["pid"] == runner.pid
        if is_ours and shards["claimed"] == lanes and shards["published"] >= published:
            return shards["published"]
    sys.exit("the run is over: give it more microshards")


server = Server(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
subprocess.check_call([program, "snapshot", "--manifest", f"{dir}/input/manifest.csv", "--source",
                       f"http://127.0.0.1:{server.server_address[1]}", "--queue", queue], stdout=subprocess.DEVNULL)
lanes = builders + max(-(-int(threads) // 64), 2)  # src/config.rs
print(f"{threads} threads, {builders} builders, {lanes} lanes, {latency_ms} ms a request; times in ms after the start")
print("round  shards held  runner started  first claim  last claim of a held shard  held shards claimed later or not at all")
worst = 0
runner, published = start(), 0
for round in range(1, rounds + 1):
    published = wait_until_busy(runner, lanes, published + 1)
    time.sleep(1 + round % 7 / 7)  # not always in the same phase of their work
    kill(runner)
    held = claims()
    suspect_all(round)
    started = time.time() * 1000
    runner = start()
    wait_until_busy(runner, lanes)
    kill(runner)
    again = claims()
    [(runner_started,)] = read("SELECT started_at FROM runner")
    firsts = sorted(again, key=lambda shard: again[shard][1])[:len(held)]
    others = len(set(held) - set(firsts))
    times = [again[shard][1] - started for shard in held if shard in again]
    first, last = min(at for _, at in again.values()) - started, max(times)
    worst = max(worst, last if others == 0 else float("inf"))
    print(f"{round:5}  {len(held):11}  {runner_started - started:14.0f}  {first:11.0f}  {last:26.0f}  {others:43}")
    runner = start()
kill(runner)
print(f"worst: {worst:.0f} ms")
sys.exit(worst > 500)
PYTHON
cores=$(nproc)
python3 /dev/fd/3 "$program" "$dir" "${2:-256}" "${3:-$cores}" "${4:-100}" "${5:-10}"
