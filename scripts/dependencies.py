"""Judges the dependencies: called by dependencies.sh with cargo's metadata and rustdoc's JSON."""

import json
import re
import sys

# What may be linked into somebody's service without more duties than naming its authors.
LICENCES = {
    "0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause",
    "BSL-1.0", "CC0-1.0", "CDLA-Permissive-2.0", "ISC", "MIT", "MIT-0", "Unicode-3.0",
    "Unlicense", "Zlib",
}

# A new major version of one of these is a breaking release of this crate.
PUBLIC = {
    "bytes": "bodies",
    "chrono": "points in time",
    "futures_core": "streams and boxed futures of the store traits",
    "serde": "payload types",
    "serde_core": "payload types",
    "sqlx_core": "pools and the caller's transaction",
    "sqlx_mysql": "pools and the caller's transaction",
    "sqlx_postgres": "pools and the caller's transaction",
    "sqlx_sqlite": "pools and the caller's transaction",
    "uuid": "claim tokens",
}


def is_allowed(expression):
    """Whether an SPDX expression leaves a way through that is allowed."""
    expression = expression.replace("/", " OR ")
    if "(" in expression:
        inner = re.search(r"\(([^()]*)\)", expression)
        verdict = "MIT" if is_allowed(inner.group(1)) else "refused"
        return is_allowed(expression[: inner.start()] + verdict + expression[inner.end() :])
    if " OR " in expression:
        return any(is_allowed(part) for part in expression.split(" OR "))
    return all(part.strip() in LICENCES for part in expression.split(" AND "))


def version(text):
    return tuple(int(part) for part in text.split(".")[:2])


def shipped(metadata):
    """The packages that a user of the crate builds: no development dependencies."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    found, waiting = set(), [metadata["resolve"]["root"]]
    while waiting:
        package = waiting.pop()
        if package in found:
            continue
        found.add(package)
        for dependency in nodes[package]["deps"]:
            if any(kind["kind"] != "dev" for kind in dependency["dep_kinds"]):
                waiting.append(dependency["pkg"])
    return found


def judge_packages(metadata):
    root = metadata["resolve"]["root"]
    packages = {package["id"]: package for package in metadata["packages"]}
    promised = version(packages[root]["rust_version"])
    ships = shipped(metadata)
    complaints = []
    for package in packages.values():
        name = f"{package['name']} {package['version']}"
        licence = package["license"]
        if licence is None or not is_allowed(licence):
            complaints.append(f"{name}: licence {licence}")
        if package["id"] != root and not (package["source"] or "").startswith("registry+"):
            complaints.append(f"{name}: comes from {package['source']}")
        needs = package["rust_version"]
        # Tests and tools may need a newer compiler, users must not.
        if package["id"] in ships and needs and version(needs) > promised:
            complaints.append(f"{name}: needs Rust {needs}")
    others = [packages[id] for id in ships if id != root]
    needs = max((version(package["rust_version"] or "0.0"), package["name"]) for package in others)
    print(f"dependencies: {len(ships) - 1} are shipped, {len(packages) - 1} with those of tests and tools")
    print("dependencies: the highest Rust version that one needs is %d.%d (%s)" % (*needs[0], needs[1]))
    return complaints


def named_paths(value):
    """The ids of all types and traits that a piece of the interface names."""
    if isinstance(value, dict):
        if "id" in value and "path" in value and "args" in value:
            yield value["id"]
        for inner in value.values():
            yield from named_paths(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from named_paths(inner)


def judge_interface(doc):
    standard = {"std", "core", "alloc"}
    seen = {}
    for item in doc["index"].values():
        if item["crate_id"] != 0:
            continue
        implementation = item["inner"].get("impl")
        if implementation and (implementation["blanket_impl"] or implementation["is_synthetic"]):
            continue
        for id in named_paths(item["inner"]):
            path = doc["paths"].get(str(id))
            if path is None or path["crate_id"] == 0:
                continue
            crate = doc["external_crates"][str(path["crate_id"])]["name"]
            if crate not in standard:
                seen.setdefault(crate, set()).add("::".join(path["path"]))
    for crate in sorted(seen):
        print(f"dependencies: public: {crate}: {', '.join(sorted(seen[crate]))}")
    unknown = [crate for crate in sorted(seen) if crate not in PUBLIC]
    return [f"{crate} is in the public interface and not expected there" for crate in unknown]


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        complaints = judge_packages(json.load(file))
    with open(sys.argv[2], encoding="utf-8") as file:
        complaints += judge_interface(json.load(file))
    for complaint in complaints:
        print(f"dependencies: FAILED: {complaint}", file=sys.stderr)
    sys.exit(1 if complaints else 0)


main()
