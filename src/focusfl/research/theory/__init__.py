"""The paper's theorems 1 to 4; docs/theory.md tells which of them hold.

convergence  the bounds of theorems 1 and 2
fairness     the bounds of theorems 3 and 4
problems     agents for which every number in the theorems is known, and FOCUS and FedAvg on them
check        measures the bounds (`focusfl theory`)
"""

from focusfl.research.theory.convergence import (
    A_printed,
    B_printed,
    Bound,
    gain,
    gain_printed,
    log_odds_lower,
    natural_margin,
    pi_lower_bound,
    rate,
    rate_printed,
    separation,
    share_of_others,
    slack,
    slack_printed,
    w_upper,
    w_upper_printed,
)
from focusfl.research.theory.fairness import (
    faa_fedavg_exact,
    faa_fedavg_lower,
    faa_fedavg_lower_convex,
    faa_fedavg_lower_convex_printed,
    faa_fedavg_lower_printed,
    faa_focus_exact,
    faa_focus_upper,
    faa_focus_upper_convex,
    faa_focus_upper_convex_printed,
    faa_focus_upper_printed,
)

__all__ = [
    "A_printed",
    "B_printed",
    "Bound",
    "faa_fedavg_exact",
    "faa_fedavg_lower",
    "faa_fedavg_lower_convex",
    "faa_fedavg_lower_convex_printed",
    "faa_fedavg_lower_printed",
    "faa_focus_exact",
    "faa_focus_upper",
    "faa_focus_upper_convex",
    "faa_focus_upper_convex_printed",
    "faa_focus_upper_printed",
    "gain",
    "gain_printed",
    "log_odds_lower",
    "natural_margin",
    "pi_lower_bound",
    "rate",
    "rate_printed",
    "separation",
    "share_of_others",
    "slack",
    "slack_printed",
    "w_upper",
    "w_upper_printed",
]
