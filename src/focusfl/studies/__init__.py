"""Studies of the methods themselves, made by `focusfl study`: `cases` says what is run, `runs` runs and keeps it,
`summary` counts, `table` shows."""
