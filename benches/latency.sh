#!/usr/bin/env bash
# What --threads is good for where the origin is far away: microshards/s of `run` against an origin that waits before every
# answer. It cannot be more than threads / delay, nor than what the cores can do, which is measured in the same session
# with the same origin and no delay. Needs cargo, python3 and GNU time.
#   benches/latency.sh [microshards] [delay in ms] [rounds]
set -euo pipefail
source "$(dirname "$0")/common.sh"

microshards=${1:-20000} delay_ms=${2:-30} rounds=${3:-3}
all_threads=(16 64 256 512)

prepare() {
    # Each connection is a descriptor, on either side.
    ulimit -n 4096
    begin
    echo "building ..." >&2
    origin_bench=$(bench origin)
    build
    "$program" demo --generate-only --microshards "$microshards" --dir "$dir/data" >/dev/null
    start_origin 0ms
    near=$origin
    start_origin "${delay_ms}ms"
    far=$origin
}

# Starts an origin with this delay, and sets $origin.
start_origin() {
    local port
    port=$(free_port)
    "$origin_bench" "$dir/data" --delay "$1" --port "$port" >/dev/null &
    wait_for "$port" "its messages above"
    origin=http://127.0.0.1:$port
}

# Builds everything with so many threads from an origin.
measure() {
    local name=$1 threads=$2 from=$3
    rm -rf "$dir"/*.db* "$dir/shards"
    "$program" snapshot --manifest "$dir/data/manifest.csv" --source "$from" --queue "$dir/queue.db" >/dev/null
    take "$name $threads" "$program" run --queue "$dir/queue.db" --output "$dir/shards" --threads "$threads"
}

print_table() {
    python3 - "$dir/took" "$microshards" "$delay_ms" <<'PYTHON'
import collections, statistics, sys
took, microshards, delay_ms = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
walls = collections.defaultdict(list)
for line in open(took):
    name, wall_s, *_ = line.split("\t")
    walls[name].append(float(wall_s))
rate = {name: microshards / statistics.median(wall_s) for name, wall_s in walls.items()}
cores = max(rate[name] for name in rate if name.startswith("near"))
print(f"| threads | no delay | {delay_ms:g} ms | threads / {delay_ms:g} ms | of what is possible |")
print("|---:|---:|---:|---:|---:|")
for threads in [int(name.split()[1]) for name in rate if name.startswith("far")]:
    near, far, wire = rate[f"near {threads}"], rate[f"far {threads}"], threads / delay_ms * 1000
    print(f"| {threads} | {near:,.0f}/s | {far:,.0f}/s | {wire:,.0f}/s | {far / min(wire, cores):.0%} |")
print(f"\nPossible: the lower of threads / delay and {cores:,.0f}/s, the best without a delay.")
PYTHON
}

prepare
for ((round = 1; round <= rounds; round++)); do
    echo "round $round of $rounds ..." >&2
    for threads in "${all_threads[@]}"; do
        measure near "$threads" "$near"
        measure far "$threads" "$far"
    done
done
echo
echo "$microshards microshards, medians of $rounds rounds; $(<"$dir/machine")"
echo
print_table
