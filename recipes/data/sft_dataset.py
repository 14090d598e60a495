"""The dataset of verl's SFT trainer: `data.custom_cls.path=pkg://rufus_plugins.recipes.data.sft_dataset`,
`data.custom_cls.name=SFTConversations`.

Takes conversations (normalised or any that the chat template reads) or what `rufus data tokenise` wrote. Conversations
are tokenised once, when training starts: by the tool itself, into a cache that later starts and other ranks find, so
that a conversation that cannot be used is set aside before the first step and not met in the middle of a run. Training
reads the cache by mapping it into memory; a row costs microseconds.

verl's keys mean what they mean in its MultiTurnSFTDataset (verl 0.9.1, utils/dataset/multiturn_sft_dataset.py); ours
are under `data.rufus`, see `Settings`.
"""

from __future__ import annotations

import bisect
import hashlib
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from rufus_plugins.errors import ConfigError
from rufus_plugins.fields import Unfit, config_fields, fitted
from rufus_plugins.recipes.data import packing
from rufus_plugins.recipes.data.run import execute
from rufus_plugins.recipes.data.tokenise import Tokenise
from rufus_plugins.recipes.data.tool import parameters
from rufus_plugins.recipes.data.writing import Busy


@dataclass(frozen=True)
class Settings:
    """`data.rufus` of an SFT config."""

    mask: str = "rufus_air"
    """rufus_air, every_turn or axion (masks.py)."""
    pack_to: int | None = None
    """Tokens of a row that several conversations share; null = a row per conversation. `train_batch_size` counts rows.
    Needs `pad_mode=no_padding` and `model.use_remove_padding=true`."""
    category_weights: Mapping[str, float] | None = None
    """How often a conversation of a category is seen per epoch, as `rufus data mixture --target` prints; default 1."""
    stop_tokens: tuple[str, ...] = ()
    """As the option of `rufus data tokenise`."""
    cache_dir: str | None = None
    """Where tokens are kept; default: `.rufus_tokens` beside the first data file. Shared by the ranks of a node."""
    workers: int | None = None
    """Processes that tokenise; default: one per CPU for large data."""
    wait_s: float = 3600.0
    """How long a rank waits for the one that tokenises. Ours."""


class SFTConversations(Dataset):
    """Rows `{input_ids, position_ids, loss_mask}`, `[tokens]` each (int64), and attention_mask with `pad_mode=right`.

    Raises `ConfigError` for files or settings that cannot be used.
    """

    def __init__(
        self,
        parquet_files: str | Sequence[str],
        tokenizer: Any,
        config: Any = None,
        processor: Any = None,
        max_samples: int = -1,
    ):
        config = config or {}
        self.settings = _settings(config.get("rufus") or {})
        self.pad_mode = str(getattr(config.get("pad_mode"), "value", config.get("pad_mode") or "right"))
        self.max_length = int(config.get("max_length") or 1024)
        self.truncation = config.get("truncation", "error")
        self.pad_id = tokenizer.pad_token_id if getattr(tokenizer, "pad_token_id", None) is not None else 0
        pack_to = self.settings.pack_to
        if self.pad_mode not in ("right", "no_padding"):
            raise ConfigError(f"data.pad_mode is {self.pad_mode!r}; right or no_padding is needed.")
        if pack_to is not None and self.pad_mode != "no_padding":
            raise ConfigError("data.rufus.pack_to needs data.pad_mode=no_padding: a padded row has one attention mask.")
        if self.truncation not in ("error", "right"):
            raise ConfigError(f"data.truncation is {self.truncation!r}; error (sets aside) or right is needed.")
        paths = [parquet_files] if isinstance(parquet_files, (str, os.PathLike)) else list(parquet_files)
        longest = self.max_length if pack_to is None else min(self.max_length, pack_to)
        self._files = [self._tokens(Path(p), tokenizer, config, longest) for p in map(str, paths)]
        self._open()
        self._choose(config, max_samples)

    def _tokens(self, path: Path, tokenizer: Any, config: Any, longest: int) -> Path:
        """The file of tokens for one data file, made if it is not there."""
        if path.suffix == ".arrow":
            return path
        enable = config.get("enable_thinking_default")
        tool = Tokenise.of(
            tokenizer,
            mask=self.settings.mask,
            max_tokens=longest,
            too_long="cut" if self.truncation == "right" else "set_aside",
            template_kwargs=_plain(config.get("apply_chat_template_kwargs") or {}),
            enable_thinking=None if enable in (None, "none") else bool(enable),
            stop_tokens=self.settings.stop_tokens,
            messages_field=config.get("messages_key", "messages"),
        )
        folder = Path(self.settings.cache_dir or path.parent / ".rufus_tokens")
        parts = (str(path.absolute()), parameters(tool), sorted(tool.identity().items()))
        name = f"{path.name}.{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}.arrow"
        until = time.monotonic() + self.settings.wait_s
        while True:
            try:
                manifest = execute(tool, path, folder / name, workers=self.settings.workers, overwrite=True)
                break
            except Busy:
                if time.monotonic() > until:
                    raise ConfigError(
                        f"Another process has been tokenising {path} for {self.settings.wait_s:.0f} s "
                        f"(data.rufus.wait_s). Use `rufus data tokenise` beforehand."
                    ) from None
                time.sleep(0.5)
        if not manifest.get("already_there"):
            counts = manifest["counts"]
            aside = ", ".join(f"{reason} {n}" for reason, n in manifest["set_aside"].items()) or "none"
            print(f"{path.name}: {counts['written']} conversations, set aside: {aside}", file=sys.stderr)
        if not manifest["counts"]["written"]:
            raise ConfigError(f"{path}: no conversation can be trained on ({manifest['set_aside']}).")
        return folder / name

    def _open(self) -> None:
        import pyarrow as pa

        self._batches: list[Any] = []
        for path in self._files:
            try:
                stream = pa.ipc.open_stream(pa.memory_map(str(path)))
                needed = {"input_ids", "loss_mask", "tokens"} - set(stream.schema.names)
                if needed:
                    raise ConfigError(f"{path} has no {', '.join(sorted(needed))}: is it from `rufus data tokenise`?")
                self._batches += [b for b in stream if b.num_rows]
            except (pa.ArrowException, OSError) as error:
                raise ConfigError(f"{path} cannot be read as an Arrow stream: {error}.") from error
        self._starts = np.cumsum([0, *(b.num_rows for b in self._batches)])

    def _column(self, name: str) -> list[Any]:
        return [v for b in self._batches for v in b.column(name).to_pylist()]

    def _choose(self, config: Any, max_samples: int) -> None:
        """Which conversations are seen, how often, and which share a row."""
        seed = int(config.get("seed") or 0)
        self.lengths = np.asarray(self._column("tokens"), dtype=np.int64)
        limit = self.max_length if self.settings.pack_to is None else self.settings.pack_to
        if len(self.lengths) and self.lengths.max() > limit:
            raise ConfigError(
                f"A conversation has {self.lengths.max()} tokens, but rows hold {limit} (data.max_length, "
                f"data.rufus.pack_to): tokenise with --max-tokens {limit}."
            )
        places = np.arange(len(self.lengths))
        if self.settings.category_weights:
            ids, categories = self._column("id"), [c or "(none)" for c in self._column("category")]  # as mixture says
            places = np.asarray(packing.repeated(ids, categories, self.settings.category_weights, seed), dtype=np.int64)
        if 0 < max_samples < len(places):
            if config.get("shuffle", False):
                places = places[np.random.default_rng(seed).choice(len(places), size=max_samples, replace=False)]
            else:
                places = places[:max_samples]
        self._bounds = np.arange(len(places) + 1)
        if self.settings.pack_to is not None:
            rows = packing.packs(self.lengths[places], self.settings.pack_to, seed)
            places = places[[i for row in rows for i in row]] if rows else places
            self._bounds = np.cumsum([0, *map(len, rows)])
        self._places = places

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def row(self, item: int) -> list[int]:
        """The conversations of a row, by their places in the files of tokens."""
        return self._places[self._bounds[item] : self._bounds[item + 1]].tolist()

    def conversation(self, place: int) -> tuple[np.ndarray, np.ndarray]:
        """(input_ids, loss_mask) of one conversation, `[tokens]`, read-only views of the file."""
        number = bisect.bisect_right(self._starts, place) - 1
        batch, row = self._batches[number], place - int(self._starts[number])
        return tuple(batch.column(n)[row].values.to_numpy() for n in ("input_ids", "loss_mask"))  # type: ignore

    def __getitem__(self, item: int) -> dict[str, torch.Tensor]:
        if not -len(self) <= item < len(self):
            raise IndexError(item)
        parts = [self.conversation(p) for p in self.row(item % len(self))]
        ids = np.concatenate([p[0] for p in parts]).astype(np.int64)
        mask = np.concatenate([p[1] for p in parts]).astype(np.int64)
        positions = np.concatenate([np.arange(len(p[0])) for p in parts])
        row = {
            "input_ids": torch.from_numpy(ids),
            "position_ids": torch.from_numpy(positions),
            "loss_mask": torch.from_numpy(mask),
        }
        if self.pad_mode == "no_padding":
            return row
        missing = self.max_length - len(ids)
        row["attention_mask"] = torch.ones_like(row["input_ids"])
        fill = {"input_ids": self.pad_id, "position_ids": 0, "loss_mask": 0, "attention_mask": 0}
        return {k: torch.nn.functional.pad(v, (0, missing), value=fill[k]) for k, v in row.items()}

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_batches"}  # a spawned loader maps the files anew

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()


def _settings(given: Any) -> Settings:
    config = _plain(given)
    known = config_fields(Settings)
    unknown = sorted(set(config) - set(known))
    if unknown:
        raise ConfigError(f"data.rufus has no {unknown[0]!r}; there are {', '.join(known)}.")
    try:
        return Settings(**fitted(Settings, config))
    except Unfit as error:
        raise ConfigError(f"data.rufus: {error}") from error


def _plain(value: Any) -> Any:
    if not isinstance(value, (dict, list)) and hasattr(value, "_metadata"):  # OmegaConf
        from omegaconf import OmegaConf

        return OmegaConf.to_container(value, resolve=True)
    return value
