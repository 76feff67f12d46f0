import json
import shutil
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from xcutils.core.errors import UserError
from xcutils.core.ragged import from_rows
from xcutils.model import tokens
from xcutils.model.checkpoints import checkpoint_folder
from xcutils.model.tokens import fill_empty, load_tokenizer, special_ids, tokenize

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
TEXTS = [
    "Wolf-Hirschhorn syndrome",
    "Spondyloepimetaphyseal dysplasia, Borochowitz-Cormier-Daire type " * 3,
    "  Café \u00a0 naïve\n\ttabs ",
    "短い文 и слова 🙂",
    "a",
]


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(MINILM)


def word_tokenizer(folder: Path, cls: str, sep: str, **template) -> Path:
    """A folder with a tokenizer of a few words, its special tokens named as told."""
    vocab = {word: i for i, word in enumerate([cls, "<pad>", sep, "<unk>", "red", "blue"])}
    made = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    if template:
        made.post_processor = processors.TemplateProcessing(
            **template, special_tokens=[(cls, vocab[cls]), (sep, vocab[sep])]
        )
    made.enable_padding(length=9)
    made.enable_truncation(4)
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize("max_tokens", [3, 8, 32])
def test_ids_are_those_of_transformers(tokenizer, max_tokens):
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(checkpoint_folder(MINILM))
    ours, special = tokenize(tokenizer, TEXTS, max_tokens), special_ids(tokenizer)
    for row, text in enumerate(TEXTS):
        expected = theirs(text, truncation=True, max_length=max_tokens)["input_ids"]
        assert [special["cls"], *ours[row].tolist(), special["sep"]] == expected
    assert ours.values.dtype == np.int32


def test_chunks_do_not_change_the_rows(tokenizer, monkeypatch):
    whole = tokenize(tokenizer, TEXTS, 16)
    monkeypatch.setattr(tokens, "TOKENISED", 2)
    parts = tokenize(tokenizer, TEXTS, 16)
    assert parts.values.tolist() == whole.values.tolist()
    assert parts.offsets.tolist() == whole.offsets.tolist()


def test_texts_without_a_token_give_empty_rows(tokenizer):
    made = tokenize(tokenizer, ["\x01\x02", "", "one"], 8)
    assert made.lengths.tolist() == [0, 0, 1]
    assert len(tokenize(tokenizer, [], 8)) == 0


def test_special_ids_of_bert_and_roberta_style(tokenizer, tmp_path):
    assert special_ids(tokenizer) == {"cls": 101, "sep": 102}
    folder = word_tokenizer(tmp_path / "roberta", "<s>", "</s>", single="<s> $A </s>")
    assert special_ids(load_tokenizer(str(folder))) == {"cls": 0, "sep": 2}


def test_a_tokenizer_of_another_style_is_refused(tmp_path):
    folder = word_tokenizer(tmp_path / "bare", "<s>", "</s>")
    with pytest.raises(UserError, match="0 special tokens .* choose a BERT"):
        special_ids(load_tokenizer(str(folder)))


def test_padding_and_truncation_in_the_file_are_switched_off(tmp_path):
    folder = word_tokenizer(tmp_path / "padded", "<s>", "</s>", single="<s> $A </s>")
    made = tokenize(load_tokenizer(str(folder)), ["red", "red blue red blue red blue"], 32)
    assert made.lengths.tolist() == [1, 6]


def test_missing_and_broken_tokenizer_files_are_named(tmp_path):
    with pytest.raises(UserError, match="tokenizer.json is missing"):
        load_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0"}))
    with pytest.raises(UserError, match="tokenizer.json cannot be read .* fetch it again"):
        load_tokenizer(str(tmp_path))


def test_packaged_model_and_local_folder_need_no_network(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", None)
    assert (checkpoint_folder(MINILM) / "model.safetensors").is_file()
    assert checkpoint_folder("all-MiniLM-L6-v2") == checkpoint_folder(MINILM)
    assert checkpoint_folder(str(tmp_path)) == tmp_path
    with pytest.raises(UserError, match="There is no folder ./nowhere"):
        checkpoint_folder("./nowhere")


def test_hub_is_asked_locally_first_and_without_code(tmp_path, monkeypatch):
    asked = []

    def download(name, allow_patterns, local_files_only, **_):
        asked.append(local_files_only)
        assert not any(pattern.endswith((".py", ".bin")) for pattern in allow_patterns)
        if local_files_only:
            raise FileNotFoundError("not in the cache")
        for file in ("config.json", "tokenizer.json", "model.safetensors"):
            (tmp_path / file).touch()
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert checkpoint_folder("some/model") == tmp_path
    assert asked == [True, False]


def test_a_hub_out_of_reach_is_one_sentence(tmp_path, monkeypatch):
    def download(*_, **__):
        raise RuntimeError("no route to host\nmore lines")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(UserError, match=r"'some/model' .*\(no route to host\): give the path of a folder"):
        checkpoint_folder("some/model")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(tmp_path))
    with pytest.raises(UserError, match="it has no config.json"):
        checkpoint_folder("some/model")


def test_a_copied_folder_gives_the_same_ids(tokenizer, tmp_path):
    shutil.copy(checkpoint_folder(MINILM) / "tokenizer.json", tmp_path)
    copy = load_tokenizer(str(tmp_path))
    assert tokenize(copy, TEXTS, 16).values.tolist() == tokenize(tokenizer, TEXTS, 16).values.tolist()


def test_a_row_without_tokens_gets_the_unknown_token(tiny_model):
    tokenizer = load_tokenizer(str(tiny_model))
    rows = [[5, 6], [], [7], []]
    unknown = tokenizer.token_to_id("[UNK]")
    filled = fill_empty(from_rows(rows, np.int32), tokenizer)
    assert [filled[i].tolist() for i in range(4)] == [row or [unknown] for row in rows]
    assert filled.values.dtype == np.int32
