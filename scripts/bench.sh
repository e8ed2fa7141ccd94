#!/usr/bin/env bash
# Runs the benches and writes docs/benchmarks.md and docs/benchmarks.svg from what they print.
#
#   scripts/bench.sh                 every bench, then the sweeps
#   scripts/bench.sh publish relay   these only; the page keeps the last results of the others
#   scripts/bench.sh --no-sweeps …   without the sweeps (size, backlog, consumers)
#   scripts/bench.sh --page          writes the page again from the results that are there
#
# A bench is a file in benches/; a new one is found by itself. Each alternates with hand-written
# code in the same run, so its ratio means something on a machine that is busy with its own servers;
# the rates do not. Results are kept in $ACEMQ_BENCH_RESULTS (default: target/benchmarks).
set -euo pipefail
cd "$(dirname "$0")/.."

results="${ACEMQ_BENCH_RESULTS:-target/benchmarks}"
mkdir -p "$results"

say() { printf 'bench: %s\n' "$*"; }

# run FILE BENCH [NAME=VALUE…]: runs one bench and keeps what it printed.
run() {
    local file=$1 bench=$2 started=$SECONDS
    shift 2
    say "$bench ${*:-}"
    {
        printf '# command: %s\n# date: %s\n' \
            "$(printf '%s ' "$@")cargo bench --all-features --bench $bench" "$(date -u +%F)"
        env "$@" cargo bench --quiet --all-features --bench "$bench"
    } >"$results/$file.part"
    # A run that failed leaves the last good one.
    mv -- "$results/$file.part" "$results/$file.txt"
    say "$bench took $((SECONDS - started)) s"
}

# sweep BENCH OPTION VALUE: one point of a sweep; fewer messages where they are large.
sweep() {
    local bench=$1 option=$2 value=$3 messages=5000
    case "$option" in
        BODY) messages=$((33554432 / (value + 4096))) ;;
        MESSAGES) messages=$value ;;
    esac
    run "sweep-$bench-$option-$value" "$bench" "ACEMQ_BENCH_$option=$value" \
        "ACEMQ_BENCH_MESSAGES=$messages" ACEMQ_BENCH_ROUNDS=5 ACEMQ_BENCH_FORMS=postgres
}

sweeps() {
    local bench=$1 value
    case "$bench" in
        publish) for value in 64 1024 16384 131072 1048576; do sweep "$bench" BODY "$value"; done ;;
        consume)
            for value in 64 1024 16384 131072 1048576; do sweep "$bench" BODY "$value"; done
            for value in 1 2 4 8; do sweep "$bench" CONSUMERS "$value"; done
            for value in 1000 10000 100000; do sweep "$bench" MESSAGES "$value"; done
            ;;
        relay)
            for value in 64 1024 16384 131072 1048576; do sweep "$bench" BODY "$value"; done
            for value in 1000 10000 100000; do sweep "$bench" MESSAGES "$value"; done
            ;;
        ordered)
            if grep -q ACEMQ_BENCH_PARTITIONS benches/ordered.rs; then
                for value in 1 2 4 8 16 32; do sweep "$bench" PARTITIONS "$value"; done
            fi
            ;;
    esac
}

with_sweeps=true
benches=()
for argument in "$@"; do
    case "$argument" in
        --no-sweeps) with_sweeps=false ;;
        --page) benches=(none) ;;
        *) benches+=("$argument") ;;
    esac
done
if ((${#benches[@]} == 0)); then
    for path in benches/*.rs; do
        path=${path#benches/}
        benches+=("${path%.rs}")
    done
fi

if [[ "${benches[0]}" != none ]]; then
    cargo bench --quiet --all-features --no-run
    for bench in "${benches[@]}"; do
        run "$bench" "$bench"
        [[ "$with_sweeps" == false ]] || sweeps "$bench"
    done
fi

{
    printf 'machine=%s\n' "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | sort | uniq -c | sed 's/^ *\([0-9]*\) /\1 × /' | head -n 1), $(awk '/MemTotal/ { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo), $(uname -s)"
    printf 'rust=%s\n' "$(rustc --version | cut -d' ' -f2)"
    printf 'crate=%s\n' "$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)"
    printf 'lapin=%s\n' "$(awk '/^name = "lapin"/ { getline; gsub(/"/, "", $3); print $3 }' Cargo.lock)"
    printf 'sqlx=%s\n' "$(awk '/^name = "sqlx"/ { getline; gsub(/"/, "", $3); print $3 }' Cargo.lock)"
    printf 'rabbitmq=%s\n' "$(${ACEMQ_TEST_RABBITMQCTL:-rabbitmqctl} --quiet version 2>/dev/null || echo unknown)"
    printf 'postgres=%s\n' "$(psql --no-psqlrc -At "${DATABASE_URL:-postgres://postgres@127.0.0.1:5432/test}" -c 'SHOW server_version' 2>/dev/null | cut -d' ' -f1 || echo unknown)"
} >"$results/facts"
python3 scripts/bench_page.py "$results" docs
say "wrote docs/benchmarks.md and docs/benchmarks.svg"
