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

have_nextest() { cargo nextest --version >/dev/null 2>&1; }

# A second try keeps one race of a test from hiding what the other thousand say. nextest lists such
# a test as FLAKY, which is a bug to mend; away from this script nothing is tried twice.
tests() {
    if have_nextest; then
        cargo nextest run --all-features --retries 2
        return
    fi
    local path name others=()
    for path in tests/*.rs tests/*/main.rs; do
        name=${path#tests/}
        name=${name%/main.rs}
        name=${name%.rs}
        [[ "$name" == broker_wide ]] || others+=(--test "$name")
    done
    cargo test --all-features --lib --bins "${others[@]}"
}

# Alarms and restarts of the whole broker: after everything else that uses it, one at a time.
broker_wide() {
    if have_nextest; then
        cargo nextest run --all-features --profile broker-wide --retries 1
    else
        cargo test --all-features --test broker_wide -- --test-threads=1
    fi
}

# Every example, to its end; each says by its exit code whether it did what it promises.
examples() {
    local path
    for path in examples/*.rs; do
        path=${path#examples/}
        printf -- '-- %s\n' "${path%.rs}"
        env ACEMQ_EXAMPLE_ONCE=1 cargo run --quiet --all-features --example "${path%.rs}"
    done
}

examples_in_memory() {
    local ACEMQ_URL='' DATABASE_URL=''
    unset ACEMQ_URL DATABASE_URL
    examples
}

examples_on_servers() {
    ACEMQ_URL="${ACEMQ_TEST_AMQP:-amqp://guest:guest@127.0.0.1:5672/%2f}" \
        DATABASE_URL="${ACEMQ_TEST_POSTGRES:-postgres://postgres@127.0.0.1:5432/test}" \
        examples
}

# The application in examples/shop. Selected together with the library, so that both are built with
# the features that the stages before have built already.
shop() {
    local verb=$1
    shift
    cargo "$verb" --package acemq --package acemq-shop --all-features "$@"
}

# RabbitMQ's own tool, which some tests need, where it is in a container or belongs to root.
find_rabbitmqctl() {
    if [[ -n "${ACEMQ_TEST_RABBITMQCTL:-}" ]]; then
        return 0
    elif ! command -v rabbitmqctl >/dev/null 2>&1; then
        ACEMQ_TEST_RABBITMQCTL="docker compose --file scripts/compose.yaml exec -T rabbitmq rabbitmqctl"
    elif [[ "$(id -u)" != 0 ]]; then
        ACEMQ_TEST_RABBITMQCTL="sudo rabbitmqctl"
    else
        return 0
    fi
    export ACEMQ_TEST_RABBITMQCTL
}

stage "services" scripts/services.sh
find_rabbitmqctl
stage "format" cargo fmt --all --check
stage "lints" cargo clippy --all-targets --all-features -- -D warnings
stage "lints without features" cargo clippy --all-targets --no-default-features -- -D warnings
stage "docs" env RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --all-features
stage "tests" tests
stage "tests of broker-wide faults" broker_wide
stage "doctests" cargo test --doc --all-features
stage "lints of the shop" shop clippy --all-targets --no-deps -- -D warnings
stage "tests of the shop" shop test --bins --test shop
stage "examples in memory" examples_in_memory
stage "examples on RabbitMQ and PostgreSQL" examples_on_servers
printf '\n== every check passed in %d s\n' "$SECONDS"
