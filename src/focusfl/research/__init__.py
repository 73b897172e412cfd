"""Research: the paper's tables, studies of the methods, the theorems, and the coverage of intervals.

Only the command line imports this package.
"""
