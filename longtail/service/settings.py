"""What one service is told when it starts."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """A service: its models, who may change labels, and how much it takes.

    bundle       the model: a bundle, or a run's data folder;  compare  another one to show beside it
    token        who knows it may change labels; None: nobody may
    max_body     bytes of a request
    max_texts    texts of a request;  max_length  characters of a text;  max_k  labels of a text
    max_running  requests that a worker answers at once; more are refused
    read_time    seconds that a request may take to arrive;  answer_time  to be answered
    look_every   seconds between two looks whether a model's files have changed
    """

    bundle: Path
    compare: Path | None = None
    token: str | None = None
    max_body: int = 4 << 20
    max_texts: int = 1000
    max_length: int = 20_000
    max_k: int = 1000
    max_running: int = 256
    read_time: float = 15.0
    answer_time: float = 30.0
    look_every: float = 0.5
