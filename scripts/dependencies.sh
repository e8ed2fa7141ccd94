#!/usr/bin/env bash
# Checks what this crate builds on, without asking anybody outside: licences, sources, the Rust
# version each dependency needs against the one that Cargo.toml promises, and which dependencies
# appear in the public interface.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
cargo metadata --quiet --locked --format-version 1 --all-features >"$work/metadata.json"
# The interface as data comes from rustdoc's JSON, which stable compilers give on request only.
RUSTC_BOOTSTRAP=1 cargo rustdoc --quiet --locked --lib --all-features -- \
    -Z unstable-options --output-format json --cap-lints allow
target=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["target_directory"])' "$work/metadata.json")
python3 scripts/dependencies.py "$work/metadata.json" "$target/doc/acemq.json"
