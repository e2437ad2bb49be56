#!/usr/bin/env bash
# What becomes of an origin that answers 503 with `Retry-After: 1` above so many requests a second (nginx's limit_req, burst
# 50): the share of its answers that were refusals, and what was served of what could have been.
# Needs cargo, python3, nginx and GNU time.
#   benches/pushback.sh [microshards] [requests a second]
set -euo pipefail
source "$(dirname "$0")/common.sh"

microshards=${1:-20000} rate=${2:-500}

prepare() {
    begin
    echo "building ..." >&2
    build
    "$program" demo --generate-only --microshards "$microshards" --dir "$dir/data" >/dev/null
    start_nginx "$dir/data" "limit_req_zone all zone=all:32k rate=${rate}r/s; log_format status \$status; access_log off;" \
        "limit_req zone=all burst=50 nodelay; limit_req_status 503; add_header Retry-After 1 always;
        access_log $dir/answers status;"
}

# Builds everything with so many threads, and prints a line of the table.
measure() {
    local threads=$1
    rm -rf "$dir"/*.db* "$dir/shards"
    "$program" snapshot --manifest "$dir/data/manifest.csv" --source "$origin" --queue "$dir/queue.db" >/dev/null
    : >"$dir/answers"
    take "$threads" "$program" run --queue "$dir/queue.db" --output "$dir/shards" --threads "$threads"
    awk -v threads="$threads" -v seconds="$(tail -n 1 "$dir/took" | cut -f2)" -v rate="$rate" \
        '{ count[$1]++ } END { served = count[200]; refused = count[503]
         printf "| %d | %d | %d | %.2f %% | %.1f/s | %.1f %% |\n", threads, served, refused,
                100 * refused / NR, served / seconds, 100 * served / seconds / rate }' "$dir/answers"
}

prepare
echo
echo "$microshards microshards, $rate requests a second; $(<"$dir/machine")"
echo
echo "| threads | served | refused | share | served a second | of the ceiling |"
echo "|---:|---:|---:|---:|---:|---:|"
for threads in 64 256; do measure "$threads"; done
