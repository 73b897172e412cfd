"""compare(): several methods with several seeds on one federation, from Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from focusfl.algorithms import with_common_weights
from focusfl.core import Algorithm
from focusfl.data.federation import Federation
from focusfl.report.comparison import Comparison
from focusfl.run.fit import fit
from focusfl.run.result import Result, rows_for_comparison
from focusfl.run.settings import takes_settings
from focusfl.util.errors import InputError, whole_number


@takes_settings
def compare(
    algorithms: Sequence[Algorithm],
    fed: Federation | Callable[[int], Federation],
    *,
    seeds: Sequence[int] = (0, 1, 2),
    **options: Any,
) -> Comparison:
    """Train several methods with the same seeds and compare them: who gains, who loses, and how sure that is.

    Args:
        algorithms: The methods; the first is compared with the others.
        fed: The agents and their data, or a function that makes them from a seed, such as ``ff.data.synthetic``:
            the seeds then also draw other data or other test examples.
        seeds: Every method runs once per seed.
        **options: As for `ff.fit`: ``rounds=60``, ``model="mlp:64"``, ``validation=0.2`` and so on.

    Returns:
        The tables over the seeds: a notebook shows them, `print` writes them, and `plot()` draws the first seed.

    Raises:
        InputError: As for `ff.fit`, or a method is there twice with the same options.

    Example:
        >>> import focusfl as ff
        >>> found = ff.compare([ff.Focus(M=2), ff.FedAvg()], ff.data.synthetic, seeds=[0, 1], rounds=5)
        >>> len(found.rows), [who for who in found.gains]
        (4, ['fedavg'])
    """
    if isinstance(algorithms, Algorithm) or not len(algorithms):
        raise InputError("algorithms: expected a list of methods, such as [ff.Focus(), ff.FedAvg()]")
    if "seed" in options:
        raise InputError(f"seed: compare runs every method with several: seeds=[{options['seed']}]")
    if options.keys() & {"out", "resume"}:
        raise InputError(
            "out: compare keeps nothing; focusfl compare --out on the command line does, or ff.fit(out=)"
        )
    if not isinstance(seeds, Iterable) or isinstance(seeds, str):
        raise InputError(f"seeds = {seeds!r}: expected a list, such as [{seeds}]")
    numbers = [whole_number("seeds", seed, 0) for seed in seeds]
    if not numbers or len(set(numbers)) < len(numbers):
        raise InputError(f"seeds = {list(seeds)}: expected one seed or more, each once")
    algorithms = with_common_weights(algorithms)
    results: list[list[Result]] = []  # one list per seed
    for seed in numbers:
        data = fed(seed) if callable(fed) else fed
        results.append([fit(algorithm, data, seed=seed, **options) for algorithm in algorithms])
    by_seed = [rows_for_comparison(each) for each in results]
    rows = [rows[k] for k in range(len(algorithms)) for rows in by_seed]
    return Comparison(rows, results[0][0].history)
