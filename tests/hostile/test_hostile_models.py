"""Model folders of strangers: one sentence in bounded time and memory, and nothing of them runs."""

import base64
import json
import os
import pickle
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import save_tiny_model
from tiny_models import save_tiny_causal_lm
from tokenizers.pre_tokenizers import ByteLevel

from agent_rl.errors import CheckpointError
from agent_rl.policies.hf_loading import load_hf_tokenizer
from agent_rl.policies.hf_policy import HuggingFaceModel
from agent_rl.policies.minimind_policy import MiniMindModel
from agent_rl.policies.model_files.tokenizer_file import check_tokenizer_file

MARK = Path("/tmp/hostile_model_was_here")
WEIGHTS = "model.safetensors"


class Gadget:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {MARK}",)


def config(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def text(name: str, content: str | bytes) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)

    return write


def pickled(value: Any, *, by_torch: bool = False) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / WEIGHTS).unlink()
        path = folder / "pytorch_model.bin"
        torch.save(value, path) if by_torch else path.write_bytes(pickle.dumps(value))

    return write


def index(content: Any, **files: bytes) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / WEIGHTS).rename(folder / "shard.safetensors")
        (folder / "model.safetensors.index.json").write_text(
            content if isinstance(content, str) else json.dumps(content)
        )
        for name, data in files.items():
            (folder / name).write_bytes(data)

    return write


def header(about: Any, size: int | None = None, rest: bytes = b"") -> Callable[[Path], None]:
    head = about if isinstance(about, bytes) else json.dumps(about).encode()
    return text(WEIGHTS, struct.pack("<Q", len(head) if size is None else size) + head + rest)


def sparse(name: str, size: int) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        with (folder / name).open("wb") as file:
            file.truncate(size)

    return write


TENSOR = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
FOLDERS: dict[str, Callable[[Path], None]] = {
    "a pickle that runs": pickled(Gadget()),
    "a pickle that runs in a state dict": pickled({"a": Gadget()}, by_torch=True),
    "a pickle of another kind": pickled([1, 2]),
    "config: deep": text("config.json", "[" * 100_000),
    "config: no JSON": text("config.json", b"\xff\xfe"),
    "config: a list": text("config.json", "[]"),
    "config: many values": text("config.json", "[" + "1," * 3_000_000 + "1]"),
    "config: many digits": text("config.json", '{"hidden_size": ' + "9" * 100_000 + "}"),
    "config: large": sparse("config.json", 2**34),
    "config: a wide model": config(hidden_size=10**9),
    "config: a deep model": config(num_hidden_layers=10**6),
    "config: a large vocabulary": config(vocab_size=10**9),
    "config: a negative size": config(hidden_size=-1),
    "config: a text as size": config(hidden_size="x"),
    "config: a list as size": config(num_hidden_layers=[1]),
    "config: an unknown kind": config(model_type="nothing"),
    "config: code of its own": config(model_type="x", auto_map={"AutoConfig": "evil.Config"}),
    "config: odd heads": config(num_attention_heads=7),
    "index: outside": index({"weight_map": {"a": "../x/shard.safetensors"}}),
    "index: absolute": index({"weight_map": {"a": "/etc/passwd"}}),
    "index: missing": index({"weight_map": {"a": "nothing.safetensors"}}),
    "index: a number": index({"weight_map": {"a": 7}}),
    "index: a list": index([1]),
    "index: no map": index({}),
    "index: deep": index("[" * 100_000),
    "index: nothing": index(""),
    "header: longer than the file": header({}, size=2**60),
    "header: a gigabyte": header({}, size=2**30),
    "header: no JSON": header(b"\xff" * 50),
    "header: deep": header(b"[" * 50_000),
    "header: offsets beyond": header({"a": TENSOR | {"data_offsets": [0, 2**50]}}),
    "header: offsets backwards": header({"a": TENSOR | {"data_offsets": [8, 0]}}, rest=bytes(8)),
    "header: overlapping": header({"a": TENSOR, "b": TENSOR}, rest=bytes(8)),
    "header: a shape of 10^12": header({"a": TENSOR | {"shape": [10**6, 10**6]}}, rest=bytes(8)),
    "header: a shape that overflows": header({"a": TENSOR | {"shape": [2**62, 8]}}, rest=bytes(8)),
    "header: an unknown dtype": header({"a": TENSOR | {"dtype": "X"}}, rest=bytes(8)),
    "weights: nothing": text(WEIGHTS, b""),
    "weights: other names": header({"a": TENSOR}, rest=bytes(8)),
    "tokenizer: deep": text("tokenizer.json", "[" * 100_000),
    "tokenizer: no JSON": text("tokenizer.json", "{"),
    "tokenizer: large": sparse("tokenizer.json", 2**34),
    "tokenizer: a list": text("tokenizer.json", "[]"),
    "tokenizer config: large": sparse("tokenizer_config.json", 2**34),
    "template: large": sparse("chat_template.jinja", 2**32),
}


def _load(model: Any, folder: Path) -> None:
    MARK.unlink(missing_ok=True)
    tracemalloc.start()
    started = time.perf_counter()
    try:
        with pytest.raises(CheckpointError, match=r"\A[^\n]{10,1200}\Z"):
            model.from_pretrained(folder, max_context=16)
        seconds, (_, peak) = time.perf_counter() - started, tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert seconds < 10.0 and peak < 200 * 2**20, (seconds, peak)
    assert not MARK.exists()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", FOLDERS)
def test_a_hostile_folder_for_transformers_is_one_sentence(tmp_path: Path, name: str) -> None:
    folder = save_tiny_causal_lm(tmp_path / "model")
    FOLDERS[name](folder)
    _load(HuggingFaceModel, folder)


OWN = [name for name in FOLDERS if not name.startswith(("index", "template", "tokenizer config", "config: code"))]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", OWN)
def test_a_hostile_folder_for_minimind_is_one_sentence(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "model"
    save_tiny_model(folder)
    FOLDERS[name](folder)
    _load(MiniMindModel, folder)


# ---------------------------------------------------------------- tokenizers


def replace(text: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": text}, "content": content}


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def charsmap(text: bytes) -> dict[str, Any]:
    table = struct.pack("<I", 4) + bytes(4) + text + b"\0"
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}


def in_sequence(kind: str, parts: list[Any]) -> dict[str, Any]:
    return {"type": "Sequence", kind: parts}


TOKENIZERS: dict[str, dict[str, Any]] = {
    "a text doubled 28 times": {"normalizer": in_sequence("normalizers", [replace("a", "aa")] * 28)},
    "a rare letter doubled 28 times": {
        "normalizer": in_sequence("normalizers", [replace("\u0436", "\u0436\u0436")] * 28)
    },
    "a megabyte for each letter": {
        "normalizer": {"type": "Replace", "pattern": {"Regex": "[a-z]"}, "content": "x" * 5_000_000}
    },
    "a megabyte for a rare character": {"normalizer": charsmap(b"x" * 1_000_000)},
    "a pattern that searches on": {"pre_tokenizer": split("(a|aa)+$(?<=b)")},
    "a pattern that searches on over words": {"pre_tokenizer": split("(zq|zqzq|zqzqzq)+$(?<=b)")},
    "a long pattern": {"pre_tokenizer": split("a|" * 100_000)},
    "a pattern of 28,000 characters that searches on": {
        "pre_tokenizer": split(f"({'|'.join('zq' * num for num in range(1, 168))})+$(?<=b)")
    },
    "a megabyte in front": {"normalizer": {"type": "Prepend", "prepend": "x" * 50_000_000}},
    "texts that grow as they are read": {"decoder": in_sequence("decoders", [replace("a", "aa")] * 28)},
    "parts without end": {"normalizer": in_sequence("normalizers", [{"type": "NFC"}] * 100_000)},
    "parts within parts": {"normalizer": json.loads('{"type":"Sequence","normalizers":[' * 100 + "]}" * 100)},
    "many tokens around": {
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "a", "type_id": 0}}] * 100_000,
            "pair": [],
            "special_tokens": {"a": {"id": "a", "ids": [0], "tokens": ["a"]}},
        }
    },
    "padding without end": {
        "padding": {
            "strategy": {"Fixed": 10**12},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "a",
        }
    },
    "a long prefix": {
        "model": {"type": "BPE", "vocab": {"a": 0}, "merges": [], "continuing_subword_prefix": "x" * 10**6}
    },
    "no model": {"model": None},
    "an unknown part": {"normalizer": {"type": "Nothing"}},
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_tokenizer_that_takes_all_time_or_memory_is_one_sentence(tmp_path: Path, name: str) -> None:
    folder = save_tiny_causal_lm(tmp_path / "model")
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | TOKENIZERS[name]))
    tracemalloc.start()
    started = time.perf_counter()
    with pytest.raises(CheckpointError, match=r"\A[^\n]{20,700}\Z"):
        load_hf_tokenizer(folder)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert time.perf_counter() - started < 30.0 and peak < 50 * 2**20


SHIPPED = sorted(Path(__file__).parents[2].glob("model/*/tokenizer.json"))
SENTENCEPIECE: dict[str, Any] = {
    "normalizer": in_sequence("normalizers", [{"type": "Prepend", "prepend": "\u2581"}, replace(" ", "\u2581")]),
    "pre_tokenizer": None,
    "decoder": in_sequence(
        "decoders",
        [
            replace("\u2581", " "),
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    ),
}
HONEST: dict[str, dict[str, Any]] = {
    "as it is": {},
    "like Llama 2": SENTENCEPIECE,
    "like Llama 3": {
        "pre_tokenizer": in_sequence(
            "pretokenizers",
            [
                split(
                    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
                ),
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
            ],
        )
    },
    "a list of 3,000 known words": {
        "pre_tokenizer": in_sequence(
            "pretokenizers",
            [
                split(rf" (?=[a-z])(?!(?:{'|'.join(f'word{num}' for num in range(3_000))})(?!\w))"),
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
            ],
        )
    },
    "like BERT": {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
    },
}


@pytest.mark.parametrize("name", HONEST)
def test_an_everyday_tokenizer_is_taken(tmp_path: Path, name: str) -> None:
    path = save_tiny_causal_lm(tmp_path / "model") / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | HONEST[name]))
    check_tokenizer_file(path)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.parent.name)
def test_the_shipped_tokenizers_are_taken(path: Path) -> None:
    check_tokenizer_file(path)


@pytest.mark.slow
def test_a_large_tokenizer_is_taken(tmp_path: Path) -> None:
    path = save_tiny_causal_lm(tmp_path / "model") / "tokenizer.json"
    described, letters = json.loads(path.read_text()), sorted(ByteLevel.alphabet())
    pairs = [(left, right) for left in letters for right in letters]
    triples = [(left + right, last) for left, right in pairs for last in letters[::50]]
    tokens = [*letters, *map("".join, [*pairs, *triples])]
    described["model"] |= {
        "vocab": {token: number for number, token in enumerate(tokens)},
        "merges": [list(parts) for parts in [*pairs, *triples]],
    }
    described["added_tokens"], described["post_processor"] = [], None
    path.write_text(json.dumps(described))
    assert path.stat().st_size > 8 * 2**20
    check_tokenizer_file(path)
