"""The application: the command `xc`, predictions, estimates, recipes. It may import everything; nothing imports it."""

__version__ = "0.2.0"
