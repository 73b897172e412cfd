"""python -m tests.fuzz --cases 10000 --seed 0: run many cases, and count the faults of each kind."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from itertools import takewhile

from . import replies  # noqa: F401  # adds its kinds
from .harness import FAULTS
from .kinds import KINDS
from .process import outcomes


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=1000, help="how many, over all kinds in turn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first case of each kind")
    parser.add_argument("--kind", choices=sorted(KINDS), action="append", help="only this kind; may be repeated")
    parser.add_argument("--seconds", type=float, default=30, help="a case that takes longer hangs")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after that time")
    parser.add_argument("--verbose", action="store_true", help="print every fault, not only the first of a place")
    options = parser.parse_args()
    names = options.kind or list(KINDS)
    counts: dict[str, Counter[str]] = {name: Counter() for name in names}
    seen: set[tuple[str, str]] = set()
    turns = range(options.first * len(names), options.first * len(names) + options.cases)
    cases = [(names[i % len(names)], options.seed, i // len(names)) for i in turns]
    end = time.monotonic() + 60 * options.minutes
    for (name, seed, number), faults in takewhile(
        lambda _: time.monotonic() < end, outcomes(cases, options.seconds)
    ):
        counts[name]["cases"] += 1
        for fault in {fault for fault, _ in faults}:
            counts[name][fault] += 1
        for fault, text in faults:
            place = (name, text.split(": ")[1] if fault == "traceback" else fault)
            if options.verbose or place not in seen:
                print(f"{text}\n    --kind {name} --seed {seed} --first {number} --cases 1", flush=True)
            seen.add(place)
    columns = ("cases", *FAULTS)
    print(" ".join(["kind".ljust(28), *columns]))
    total: Counter[str] = sum(counts.values(), Counter())
    for name, found in {**counts, "total": total}.items():
        print(" ".join([name.ljust(28), *(str(found[column]).rjust(len(column)) for column in columns)]))
    return int(any(total[fault] for fault in FAULTS))


if __name__ == "__main__":
    sys.exit(main())
