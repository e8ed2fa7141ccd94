"""Writes docs/benchmarks.md and its chart from what the benches printed; called by bench.sh."""

import html
import math
import pathlib
import re
import statistics
import sys

# DESIGN's targets, by the name on a bench's last line: at least, or for latencies at most.
TARGETS = {
    "relay": (">=", 0.85),
    "consume": (">=", 0.95),
    "request_reply_1": (">=", 0.90),
    "request_reply_50": (">=", 0.90),
    "request_reply_500": (">=", 0.90),
    "request_reply_latency_1": ("<=", 1.20),
    "request_reply_latency_50": ("<=", 1.20),
    "request_reply_latency_500": ("<=", 1.20),
    "inbox_transaction": (">=", 0.80),
}

SWEEPS = {
    "BODY": ("Message size", "bytes"),
    "CONSUMERS": ("Consumers", "consumers of one queue"),
    "MESSAGES": ("Backlog", "messages waiting"),
    "PARTITIONS": ("Partitions", "partitions"),
}

RESULT = re.compile(r"^(\S+)((?: \S+=[\d.]+)+)$")


class Table:
    """The rounds that a bench printed under one header."""

    def __init__(self, header):
        self.columns = re.split(r"\s{2,}", header.strip())
        self.rows = []

    def column(self, *words):
        for place, name in enumerate(self.columns):
            if all(word in name for word in words):
                return [row[place] for row in self.rows]
        return []

    def median(self, *words):
        values = self.column(*words)
        return statistics.median(values) if values else None

    def ratios(self):
        """Every ratio that a bench may draw from this table."""
        found = [self.median("ratio")] if self.column("ratio") else []
        raw, ours = self.column("raw", "p50"), self.column("acemq", "p50")
        if raw and ours:
            found.append(statistics.median(b / a for a, b in zip(raw, ours)))
        return found


def read(path):
    """One output: its command and date, its tables, and its result lines as (name, values)."""
    facts, tables, results = {}, [], []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            name, _, value = line[2:].partition(": ")
            facts[name] = value.strip()
        elif result := RESULT.match(line):
            values = dict(part.split("=") for part in result[2].split())
            results.append((result[1], {name: float(value) for name, value in values.items()}))
        elif "round" in line and "ratio" in line:
            tables.append(Table(re.sub(r"^\s*\w+:\s+", "", line)))
        elif tables and re.fullmatch(r"[\s\d.]+", line) and line.strip():
            numbers = [float(number) for number in line.split()]
            if len(numbers) == len(tables[-1].columns):
                tables[-1].rows.append(numbers)
    return facts, tables, results


def table_of(ratio, tables):
    """The table whose rounds have this median; the benches print theirs with three decimals."""
    for table in tables:
        if any(abs(found - ratio) < 0.004 * max(1, ratio) for found in table.ratios()):
            return table
    return None


def rate(value):
    return "–" if value is None else f"{value:,.0f}"


def verdict(name, ratio):
    if name not in TARGETS:
        return ""
    sign, limit = TARGETS[name]
    met = ratio >= limit if sign == ">=" else ratio <= limit
    return f"{'≥' if sign == '>=' else '≤'} {limit:.2f}: {'met' if met else '**missed**'}"


def main_rows(outputs):
    rows = []
    for path, (facts, tables, results) in outputs.items():
        left = list(tables)
        for name, values in results:
            ratio = values.get("ratio")
            table = table_of(ratio, left) if ratio is not None else None
            ours = table.median("acemq", "/s") if table else values.get("rate")
            raw = (table.median("raw", "/s") or table.median("SQL", "/s")) if table else None
            p50 = values.get("p50", table.median("acemq", "p50") if table else None)
            rows.append({
                "bench": path.stem, "name": name, "ours": ours, "raw": raw, "ratio": ratio,
                "p50": p50, "p99": values.get("p99"), "date": facts["date"], "command": facts["command"],
            })
    return rows


def sweep_rows(outputs):
    """By bench and option, the points in their order."""
    sweeps = {}
    for path, (facts, tables, results) in outputs.items():
        bench, option, value = path.stem.removeprefix("sweep-").rsplit("-", 2)
        ratios = [(name, values["ratio"]) for name, values in results if "ratio" in values]
        if not ratios:
            continue
        name, ratio = ratios[0]
        table = table_of(ratio, tables)
        raw = (table.median("raw", "/s") or table.median("SQL", "/s")) if table else None
        ours = table.median("acemq", "/s") if table else None
        sweeps.setdefault((bench, option), []).append((int(value), ours, raw, ratio, facts["command"]))
    return {key: sorted(points) for key, points in sorted(sweeps.items())}


def milliseconds(value):
    return "" if value is None else f"{value:.2f}"


def page(facts, rows, sweeps):
    yield "# Benchmarks"
    yield ""
    yield "Written by `scripts/bench.sh`; run it to get your own. Every bench does the same work twice, in turn and in the same"
    yield "run: with this crate, and by hand on lapin or on bare SQL. The ratio is the median of the rounds' ratios, so it"
    yield "means something on a machine that is busy with its own broker and database. The rates are of that machine only."
    yield ""
    yield f"- **Machine**: {facts['machine']}; broker, database and bench on it together."
    yield (f"- **Versions**: acemq {facts['crate']}, Rust {facts['rust']}, lapin {facts['lapin']}, sqlx {facts['sqlx']}, "
           f"RabbitMQ {facts['rabbitmq']}, PostgreSQL {facts['postgres']}.")
    yield "- **Messages**: 256 bytes, the full envelope, persistent, confirmed and mandatory, in quorum queues, unless it says otherwise."
    yield ""
    yield "![How near each pattern comes to hand-written code](benchmarks.svg)"
    yield ""
    yield "## Against hand-written code"
    yield ""
    yield "| Bench | This crate, /s | By hand, /s | Ratio | p50 ms | p99 ms | Target | Date |"
    yield "|---|---:|---:|---:|---:|---:|---|---|"
    for row in rows:
        ratio = "–" if row["ratio"] is None else f"{row['ratio']:.3f}"
        target = verdict(row["name"], row["ratio"]) if row["ratio"] is not None else ""
        yield (f"| `{row['name']}` | {rate(row['ours'])} | {rate(row['raw'])} | {ratio} | "
               f"{milliseconds(row['p50'])} | {milliseconds(row['p99'])} | {target} | {row['date']} |")
    yield ""
    yield "Names with `latency` are ratios of times: there, less is better."
    if sweeps:
        yield ""
        yield "## How the cost grows"
    for (bench, option), points in sweeps.items():
        title, unit = SWEEPS[option]
        yield ""
        yield f"### {title}: `{bench}`"
        yield ""
        yield f"| {unit} | This crate, /s | By hand, /s | Ratio |"
        yield "|---:|---:|---:|---:|"
        for value, ours, raw, ratio, _ in points:
            yield f"| {value:,} | {rate(ours)} | {rate(raw)} | {ratio:.3f} |"
    yield ""
    yield "## Commands"
    yield ""
    yield "```console"
    for command in sorted({row["command"] for row in rows}):
        yield f"$ {command}"
    for points in sweeps.values():
        yield f"$ {points[0][4]}"
    yield "```"


BAR, GAP, LEFT, WIDTH = 18, 8, 210, 760


def chart(rows):
    """Bars of the ratios, readable on a light and on a dark page."""
    rows = [row for row in rows if row["ratio"] is not None]
    top = max([1.0] + [row["ratio"] for row in rows])
    top = math.ceil(top * 10.5) / 10
    height = 58 + len(rows) * (BAR + GAP) + 24

    def x(ratio):
        return LEFT + (WIDTH - LEFT - 60) * ratio / top

    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" font-family="system-ui, sans-serif" font-size="13">'
    yield "<title>Ratio to hand-written code, by bench</title>"
    yield "<style>"
    yield ".t{fill:#1f2328}.m{fill:#57606a}.l{stroke:#8c959f}.b{fill:#0969da}.c{fill:#8250df}.g{fill:none}"
    yield "@media(prefers-color-scheme:dark){.t{fill:#e6edf3}.m{fill:#9198a1}.l{stroke:#6e7681}.b{fill:#4493f8}.c{fill:#ab7df8}}"
    yield "</style>"
    yield '<text class="t" x="0" y="18" font-weight="600">Ratio to hand-written code (1.0 = the same)</text>'
    yield '<rect class="b" x="0" y="28" width="12" height="12" rx="2"/><text class="m" x="18" y="39">rate: more is better</text>'
    yield '<rect class="c" x="170" y="28" width="12" height="12" rx="2"/><text class="m" x="188" y="39">latency: less is better</text>'
    y = 54
    for row in rows:
        kind = "c" if "latency" in row["name"] else "b"
        label = html.escape(row["name"])
        yield f'<text class="t" x="{LEFT - 10}" y="{y + 14}" text-anchor="end">{label}</text>'
        yield f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{max(1, x(row["ratio"]) - LEFT):.1f}" height="{BAR}" rx="3"/>'
        yield f'<text class="m" x="{x(row["ratio"]) + 6:.1f}" y="{y + 14}">{row["ratio"]:.2f}</text>'
        y += BAR + GAP
    yield f'<line class="l" x1="{x(1):.1f}" y1="46" x2="{x(1):.1f}" y2="{y}" stroke-dasharray="4 3"/>'
    yield f'<text class="m" x="{x(1):.1f}" y="{y + 16}" text-anchor="middle">1.0</text>'
    yield "</svg>"


def main():
    results, docs = map(pathlib.Path, sys.argv[1:3])
    facts = dict(line.split("=", 1) for line in (results / "facts").read_text(encoding="utf-8").splitlines())
    outputs = {path: read(path) for path in sorted(results.glob("*.txt"))}
    rows = main_rows({p: o for p, o in outputs.items() if not p.stem.startswith("sweep-")})
    sweeps = sweep_rows({p: o for p, o in outputs.items() if p.stem.startswith("sweep-")})
    (docs / "benchmarks.md").write_text("\n".join(page(facts, rows, sweeps)) + "\n", encoding="utf-8")
    (docs / "benchmarks.svg").write_text("\n".join(chart(rows)) + "\n", encoding="utf-8")


main()
