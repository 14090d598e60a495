"""verl's own reward-model path against a loopback server with the same tiny model: it ends, and the scores agree."""

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForSequenceClassification

from rufus_plugins.rewards.preference import Preference
from rufus_plugins.types import Task, Trajectory

WORDS = ["<pad>", "<end>", "<user>", "<assistant>", *"abcdefghijklmnopqrstuvwxyz", "?"]
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<pad>"))
    core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    core.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<end>", pad_token="<pad>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<user>", "<assistant>"]})
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(path)
    torch.manual_seed(9)
    config = Qwen3Config(
        vocab_size=len(WORDS), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, num_labels=1, pad_token_id=0, initializer_range=0.5,
    )  # fmt: skip
    Qwen3ForSequenceClassification(config).save_pretrained(path)
    return str(path)


@pytest.fixture
def server(folder):
    """`POST /classify` in vLLM's shape, without activation: the raw logit."""
    model = Qwen3ForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert self.path == "/classify" and asked["use_activation"] is False
            with torch.no_grad():
                logit = float(model(**tokenizer(asked["input"], return_tensors="pt")).logits[0, 0])
            raw = json.dumps({"data": [{"probs": [logit]}]}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_verls_path_returns_extra_info_and_the_score_of_the_path_in_this_process(folder, server):
    from verl import DataProto
    from verl.experimental.reward_loop.reward_loop import RewardLoopWorker

    tokenizer = AutoTokenizer.from_pretrained(folder)
    worker = object.__new__(RewardLoopWorker)  # without the reward manager, which this path does not use
    worker.config = OmegaConf.create(
        {
            "reward": {
                "custom_reward_function": {"path": None},
                "reward_model": {"enable": True, "model_path": folder, "rollout": {"name": "vllm"}},
            }
        }
    )
    worker.reward_router_address = server
    worker.input_tokenizer = worker.reward_model_tokenizer = tokenizer
    prompt, answer = [{"role": "user", "content": "who?"}], "me"
    ids = [WORDS.index(c) for c in answer] + [WORDS.index("<end>"), 0, 0]
    raw_prompt = np.empty(1, dtype=object)
    raw_prompt[0] = prompt
    data = DataProto.from_dict(
        tensors={"responses": torch.tensor([ids]), "attention_mask": torch.tensor([[1, 1, 1, 1, 1, 1, 0, 0]])},
        non_tensors={"raw_prompt": raw_prompt},
    )
    found = asyncio.run(worker.compute_score(data))

    trajectory = Trajectory(Task("1", "hh", prompt), messages=[{"role": "assistant", "content": answer}])
    here = asyncio.run(Preference(folder)(trajectory)).value
    assert found["reward_score"] == pytest.approx(here, abs=1e-5)
    assert found["reward_extra_info"] == {"score": found["reward_score"]}
