"""Programs that attack the pipeline: they kill stages, damage artifacts, mutate datasets and check estimates.

Each is a command, `python -m tests.robustness.<name>`, that prints a table and ends with 1 when something was wrong.
The tests beside them run each on a few cases.
"""
