"""What the service counts, in Prometheus' form; several workers count together.

Imported only after PROMETHEUS_MULTIPROC_DIR is set, where there are several processes: the library reads it then.
"""

import os

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # where the processes of one service keep their numbers
FORM = CONTENT_TYPE_LATEST

TIMES = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)

REQUESTS = Counter("longtail_requests", "Requests answered.", ["method", "path", "status"])
SECONDS = Histogram(
    "longtail_request_seconds", "Seconds from a request's first byte to its answer.", ["path"], buckets=TIMES
)
RUNNING = Gauge("longtail_running", "Requests being answered now.", multiprocess_mode="livesum")
TEXTS = Counter("longtail_texts", "Texts labelled.")
BATCH = Histogram("longtail_batch_texts", "Texts that the model was asked at once.", buckets=SIZES)
RELOADS = Counter("longtail_reloads", "Models read anew because their files had changed.", ["outcome"])
LABELS = Gauge("longtail_labels", "Labels of the model.", multiprocess_mode="livemax")


def exposition() -> bytes:
    """The numbers of all workers, as Prometheus reads them."""
    registry = REGISTRY
    if os.environ.get(FOLDER):
        registry = CollectorRegistry()
        MultiProcessCollector(registry)
    return generate_latest(registry)


def forget(pid: int) -> None:
    """Count a worker that has ended no longer among those that live; what it counted stays."""
    if os.environ.get(FOLDER):
        mark_process_dead(pid)
