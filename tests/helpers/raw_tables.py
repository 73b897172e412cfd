"""Tables as hospitals have them."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def write_site(path: Path, e: int, n: int = 60, regression: bool = False, **columns: list[object]) -> None:
    """A table as hospitals have them: identifiers, dates, numbers of any size, categories, missing cells."""
    rng = np.random.default_rng(e)
    age, dose = rng.normal(60 + e, 10, n), rng.normal(1e6, 1e3, n)
    sex, ward = rng.choice(["f", "m"], n), rng.choice(["A", "B", "C é", f"only at {e}"], n)
    tiny = rng.lognormal(-7, 1, n)
    z = (age - 60) / 10 + (sex == "f") + (ward == "A") + rng.normal(size=n) / 2
    table: dict[str, list[object]] = {
        "patient_id": [1000 * e + i for i in range(n)],
        "seen": [f"2024-01-{i % 28 + 1:02}" for i in range(n)],
        "ward": ["" if i % 11 == e else w for i, w in enumerate(ward)],
        "age": ["NA" if i % 9 == e else round(a, 1) for i, a in enumerate(age)],
        "dose": [round(d, 2) for d in dose],
        "sex": list(sex),
        "tiny": list(tiny),
        "country": ["CH"] * n,
        "outcome": list((1e4 * z + 3e5).round(1)) if regression else ["ill" if v > 1 else "well" for v in z],
    }
    table |= columns
    rows = zip(*table.values(), strict=True)
    path.write_text("\n".join([",".join(table), *(",".join(map(str, row)) for row in rows)]) + "\n")
