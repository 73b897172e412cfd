"""Studies of the methods themselves, made by `focusfl study`. `keeping` makes the runs and keeps each.

start  which start of FOCUS finds the clusters: `cases` says what is run, `runs` runs it, `summary` counts it,
       `table` shows it
bad    what bad agents do to the good ones: `bad`, `bad_runs`, `bad_summary`, `bad_table`; `attack` bends updates
"""
