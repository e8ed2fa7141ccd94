#!/usr/bin/env bash
# Lints the library and its binaries under every feature alone, without any, with the default ones,
# under the pairs that share code, and with all. A new feature is found by itself.
set -euo pipefail
cd "$(dirname "$0")/.."

# Stores meet the transport in the outbox and the inbox, and each other in what they share.
readonly PAIRS=(rabbitmq,postgres rabbitmq,sqlite rabbitmq,mysql postgres,mysql postgres,sqlite mysql,sqlite)

single_features() {
    cargo metadata --no-deps --format-version 1 | python3 -c '
import json, sys
packages = json.load(sys.stdin)["packages"]
features = next(package["features"] for package in packages if package["name"] == "acemq")
print("\n".join(sorted(name for name in features if name != "default")))'
}

failed=()
check() {
    local started=$SECONDS
    if cargo clippy --quiet --lib --bins "$@" -- -D warnings; then
        printf 'features: ok in %3d s: %s\n' "$((SECONDS - started))" "${*:-the default ones}"
    else
        printf 'features: FAILED: %s\n' "${*:-the default ones}" >&2
        failed+=("${*:-the default ones}")
    fi
}

check --no-default-features
for feature in $(single_features); do
    check --no-default-features --features "$feature"
done
for pair in "${PAIRS[@]}"; do
    check --no-default-features --features "$pair"
done
check
check --all-features

if ((${#failed[@]} > 0)); then
    printf 'features: %d combinations failed\n' "${#failed[@]}" >&2
    exit 1
fi
