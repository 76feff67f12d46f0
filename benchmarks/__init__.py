"""Speed and memory at the sizes of published datasets, and other tools on exactly our split.

Each is a command, `python -m benchmarks.<name>`, that prints a table.
"""
