# shellcheck shell=bash
# What the scripts here share, for `source`: a directory to work in, nginx and Postgres on loopback, what a command took,
# and the machine. Everything that was started ends, and the directory goes, when the script does.

project=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PATH="$PATH:/usr/sbin:/sbin" LC_ALL=C.UTF-8
export RUST_BACKTRACE=0 # what failed is told by the last lines
unset DATABASE_URL COMPACT_QUEUE "${!AWS_@}" "${!PG@}"

fail() {
    echo "${0##*/}: $*" >&2
    exit 1
}

need() {
    local program
    for program; do command -v "$program" >/dev/null || fail "there is no $program: install it"; done
}

# Makes $dir, which servers that run as nobody can enter, and $memory, which is on no disk.
work_directory() {
    dir=$(mktemp -d -t compact-local-bench.XXXXXX) memory=$(mktemp -d -p /dev/shm compact-local-bench.XXXXXX)
    chmod 755 "$dir"
    trap clean_up EXIT
    trap 'exit 130' INT TERM
}

clean_up() {
    local running
    mapfile -t running < <(jobs -pr)
    [[ ${#running[@]} -eq 0 ]] || kill "${running[@]}" || true
    wait
    rm -rf "$dir" "$memory"
}

# What every script begins with.
begin() {
    need cargo python3 /usr/bin/time
    warn_if_loaded
    work_directory
    machine >"$dir/machine"
}

# Builds a bench into an executable, and prints where it is.
bench() {
    (cd "$project" && cargo bench --locked --no-run --bench "$1" 2>&1) | sed -n 's/.*Executable .*(\(.*\))$/\1/p'
}

# Builds the program at $program. To be done after the benches: theirs has the same name, and the tests' faults in it.
build() {
    (cd "$project" && cargo build --quiet --locked --release)
    program=$dir/compact-local
    cp "$project/target/release/compact-local" "$program"
}

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# Waits until something listens.
wait_for() {
    local tries
    for tries in {1..200}; do
        (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null && return
        sleep 0.05
    done
    fail "nothing listens on port $1 after $((tries / 20)) s: see $2"
}

# Serves directory $1 at $origin; s5cmd finds it as bucket `export`, with the listing $1/listing.xml. $2 and $3: further
# directives for `http` and `server`.
start_nginx() {
    need nginx
    local port user=''
    port=$(free_port)
    [[ $EUID -ne 0 ]] || user='user nobody nogroup;'
    mkdir "$dir/nginx"
    cat >"$dir/nginx.conf" <<END
$user worker_processes 2; daemon off; pid $dir/nginx/pid; error_log $dir/nginx/error.log;
events { worker_connections 2048; }
http {
    client_body_temp_path $dir/nginx/body; proxy_temp_path $dir/nginx/proxy; fastcgi_temp_path $dir/nginx/fastcgi;
    uwsgi_temp_path $dir/nginx/uwsgi; scgi_temp_path $dir/nginx/scgi;
    ${2:-access_log off;} sendfile on; keepalive_requests 1000000; open_file_cache max=8000;
    server {
        listen 127.0.0.1:$port backlog=2048;
        root $1; ${3:-}
        location = /export { default_type application/xml; rewrite ^ /listing.xml break; }
        location /export/ { alias $1/; }
    }
}
END
    nginx -e "$dir/nginx/error.log" -c "$dir/nginx.conf" &
    wait_for "$port" "$dir/nginx/error.log"
    origin=http://127.0.0.1:$port
}

# A server of its own at $postgres, with the settings of a database that is used in earnest.
start_postgres() {
    local bin port as=()
    bin=$(printf '%s\n' /usr/lib/postgresql/*/bin | tail -n 1)
    [[ -x $bin/initdb ]] || fail "there is no /usr/lib/postgresql/*/bin/initdb: install PostgreSQL's server programs"
    PATH="$bin:$PATH"
    port=$(free_port)
    mkdir "$dir/postgres"
    if [[ $EUID -eq 0 ]]; then
        chown nobody "$dir/postgres"
        as=(setpriv --reuid nobody --regid nogroup --clear-groups)
    fi
    (cd "$dir/postgres" && "${as[@]}" initdb -D data -U postgres -A trust -E UTF8 >/dev/null)
    (cd "$dir/postgres" && exec "${as[@]}" postgres -D data -p "$port" -c listen_addresses=127.0.0.1 \
        -c unix_socket_directories="$dir/postgres" -c shared_buffers=512MB -c max_wal_size=4GB 2>"$dir/postgres.log") &
    wait_for "$port" "$dir/postgres.log"
    postgres=postgres://postgres@127.0.0.1:$port
    until psql "$postgres/postgres" -qc 'select 1' >/dev/null 2>&1; do sleep 0.05; done
}

# The manifest's tables in a new database, with what is read from standard input (as CSV with a header).
load_manifest() {
    psql "$postgres/postgres" -qc "create database $1"
    "$program" init-manifest --manifest "$postgres/$1" >/dev/null
    psql "$postgres/$1" -q -c "\\copy final_export_microshards (microshard_id, run_id, video_id, language, uri, \
segment_count, byte_size, sha256, created_at) from pstdin with (format csv, header)" -c "vacuum analyze"
}

# Runs a command and adds a line to $dir/took: name, wall, user and system seconds, peak KB of its largest process. Then lets the
# disk finish what was written, so that the next one does not pay for it.
take() {
    local name=$1
    shift
    /usr/bin/time -o "$dir/time" -f '%e\t%U\t%S\t%M' "$@" >"$dir/out.log" 2>&1 ||
        fail "$name failed: $* $(printf '\n'; tail -n 5 "$dir/out.log")"
    printf '%s\t%s\n' "$name" "$(tail -n 1 "$dir/time")" >>"$dir/took"
    sync
}

machine() {
    local model memory disk
    model=$(sed -n 's/^model name\s*: //p' /proc/cpuinfo | head -n 1)
    memory=$(awk '/^MemTotal/ { printf "%.0f", $2 / 1048576 }' /proc/meminfo)
    disk=$(df --output=fstype "$dir" | tail -n 1)
    echo "$(nproc) cores ($model), $memory GiB, Linux $(uname -r), $disk; load at the start $(cut -d' ' -f1-3 /proc/loadavg)"
}

warn_if_loaded() {
    awk -v cores="$(nproc)" '$1 > cores / 4 { exit 1 }' /proc/loadavg ||
        echo "warning: the load is $(cut -d' ' -f1 /proc/loadavg) before anything was started: numbers will be worse than they are" >&2
}
