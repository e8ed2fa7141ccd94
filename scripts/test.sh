#!/usr/bin/env bash
# Runs every check of this repository, in the order of their price, and stops at the first failure.
set -euo pipefail
cd "$(dirname "$0")/.."

stage() {
    local name=$1 started=$SECONDS code=0
    shift
    printf '\n== %s: %s\n' "$name" "$*"
    "$@" || code=$?
    if ((code != 0)); then
        printf '\n== FAILED: %s, exit code %d after %d s\n' "$name" "$code" "$((SECONDS - started))" >&2
        exit 1
    fi
    printf '== %s: passed in %d s\n' "$name" "$((SECONDS - started))"
}

tests() {
    if cargo nextest --version >/dev/null 2>&1; then
        cargo nextest run --all-features
    else
        cargo test --all-features --lib --bins --tests
    fi
}

example_in_memory() {
    env -u ACEMQ_URL -u DATABASE_URL cargo run --quiet --example order_fulfilment
}

examples_of_the_outbox() {
    env -u ACEMQ_URL ACEMQ_EXAMPLE_ONCE=1 cargo run --quiet --example outbox_axum
    cargo run --quiet --example outbox_custom_table
}

example_on_servers() {
    ACEMQ_URL="${ACEMQ_TEST_AMQP:-amqp://guest:guest@127.0.0.1:5672/%2f}" \
        DATABASE_URL="${ACEMQ_TEST_POSTGRES:-postgres://postgres@127.0.0.1:5432/test}" \
        cargo run --quiet --example order_fulfilment
}

stage "services" scripts/services.sh
stage "format" cargo fmt --all --check
stage "lints" cargo clippy --all-targets --all-features -- -D warnings
stage "lints without features" cargo clippy --all-targets --no-default-features -- -D warnings
stage "docs" env RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --all-features
stage "tests" tests
stage "doctests" cargo test --doc --all-features
stage "example in memory" example_in_memory
stage "examples of the outbox" examples_of_the_outbox
stage "example on RabbitMQ and PostgreSQL" example_on_servers
printf '\n== every check passed in %d s\n' "$SECONDS"
