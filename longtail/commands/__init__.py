"""The commands of `xc`, which longtail/cli.py lists: what a person types and reads; the work is done elsewhere."""
