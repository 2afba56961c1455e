"""A second decoder: short, slow, and without a line of the package.

One sequence at a time, straight from a checkpoint's own tensors and names, float64, a Python loop
wherever there is a choice. The rules are the slow ones of `test_selection`.
"""

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Pass:
    kind: str
    window: tuple[int, int]
    commits: dict[int, int]
    fragile: bool


class NaiveModel:
    """A LLaDA, Dream, Llama, Qwen2 or Qwen3 from its config.json and its state dict."""

    def __init__(self, config: dict, state: dict[str, Tensor]) -> None:
        self.w = {k: v.double() for k, v in state.items()}
        self.llada = config["model_type"] == "llada"
        get = config.get
        self.layers = get("n_layers") or get("num_hidden_layers")
        self.heads = get("n_heads") or get("num_attention_heads")
        self.kv_heads = get("n_kv_heads") or get("num_key_value_heads") or self.heads
        self.eps, self.theta = config["rms_norm_eps"], config["rope_theta"]
        self.shift = 1 if config["model_type"] == "Dream" else 0
        self.mask_id = config["mask_token_id"]

    def name(self, layer: int, part: str) -> str:
        if self.llada:
            return f"model.transformer.blocks.{layer}.{part}"
        theirs = {
            "attn_norm": "input_layernorm", "ff_norm": "post_attention_layernorm",
            "q_proj": "self_attn.q_proj", "k_proj": "self_attn.k_proj",
            "v_proj": "self_attn.v_proj", "attn_out": "self_attn.o_proj",
            "ff_proj": "mlp.gate_proj", "up_proj": "mlp.up_proj",
            "ff_out": "mlp.down_proj", "q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm",
        }  # fmt: skip
        return f"model.layers.{layer}.{theirs[part]}"

    def linear(self, x: Tensor, name: str) -> Tensor:
        y = x @ self.w[name + ".weight"].T
        return y + self.w[name + ".bias"] if name + ".bias" in self.w else y

    def norm(self, x: Tensor, name: str) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + self.eps).sqrt() * self.w[name + ".weight"]

    def heads_of(self, h: Tensor, layer: int, part: str, count: int, start: int) -> Tensor:
        """(window, heads, head_dim); queries and keys normed and rotated."""
        x = self.linear(h, self.name(layer, part)).view(len(h), count, -1)
        if part == "v_proj":
            return x
        norm = self.name(layer, part[0] + "_norm") if not self.llada else ""
        if norm + ".weight" in self.w:
            x = self.norm(x, norm)
        angles = torch.arange(start, start + len(h)).double()
        half = x.shape[-1] // 2
        frequency = torch.tensor(
            [self.theta ** (-2 * i / (2 * half)) for i in range(half)]
        ).double()
        angle = angles[:, None, None] * frequency
        low, high = x[..., :half], x[..., half:]
        return torch.cat(
            (low * angle.cos() - high * angle.sin(), high * angle.cos() + low * angle.sin()), -1
        )

    def logits(self, ids: list[int], start: int, stop: int, kv: list) -> Tensor:
        """Of the window [start, stop), whose keys and values replace those in kv."""
        embed = "model.transformer.wte" if self.llada else "model.embed_tokens"
        x = self.w[embed + ".weight"][torch.tensor(ids[start:stop])]
        for layer in range(self.layers):
            h = self.norm(x, self.name(layer, "attn_norm"))
            q = self.heads_of(h, layer, "q_proj", self.heads, start)
            k = self.heads_of(h, layer, "k_proj", self.kv_heads, start)
            v = self.heads_of(h, layer, "v_proj", self.kv_heads, start)
            if kv[layer] is None:
                kv[layer] = [k.clone(), v.clone()]
            kv[layer][0][start:stop], kv[layer][1][start:stop] = k, v
            out = []
            for head in range(self.heads):
                mine = head // (self.heads // self.kv_heads)
                keys, values = kv[layer][0][:, mine], kv[layer][1][:, mine]
                weight = (q[:, head] @ keys.T / math.sqrt(q.shape[-1])).softmax(-1)
                out.append(weight @ values)
            x = x + self.linear(torch.cat(out, -1), self.name(layer, "attn_out"))
            h = self.norm(x, self.name(layer, "ff_norm"))
            gate = self.linear(h, self.name(layer, "ff_proj"))
            h = gate * gate.sigmoid() * self.linear(h, self.name(layer, "up_proj"))
            x = x + self.linear(h, self.name(layer, "ff_out"))
        x = self.norm(x, "model.transformer.ln_f" if self.llada else "model.norm")
        head = "model.transformer.ff_out" if self.llada else "lm_head"
        return self.linear(x, head if head + ".weight" in self.w else embed)


def naive_decode(
    model: NaiveModel, ids: list[int], holes: list[int], rule, cache: str, block_size: int
) -> tuple[list[int], list[Pass]]:
    """Algorithm 1 for one sequence whose `holes` are to be filled."""
    ids, left = list(ids), sorted(holes)
    first, end, length = left[0], left[-1] + 1, len(ids)
    passes: list[Pass] = []
    for start in range(first, end, block_size):
        stop = min(start + block_size, end)
        kv = [None] * model.layers
        opening = True
        while todo := [i for i in left if start <= i < stop]:
            if opening or cache == "none":
                kind, a, b, kv = "F", 0, length, [None] * model.layers
            elif cache == "prefix":
                kind, a, b = "S", max(0, start - model.shift), length
            else:
                kind, a, b = "B", max(0, start - model.shift), stop
            opening = False
            z = model.logits(ids, a, b, kv)
            z[:, model.mask_id] = -math.inf
            p = {i: z[i - a - model.shift].softmax(-1) for i in todo}
            top = {i: p[i].topk(2) for i in todo}
            best = {i: int(top[i].indices[0]) for i in todo}
            d = [float(p[i].sum() - p[i][best[i]]) for i in todo]
            p2 = [float(top[i].values[1]) for i in todo]
            h = [float(torch.special.entr(p[i]).sum()) for i in todo]
            chosen = rule(d, p2, h)
            near = [
                rule([x + e for x in d], [x + e for x in p2], [x + 10 * e for x in h])
                for e in (-1e-4, 1e-4)
            ]
            ranks = sorted(d), sorted(h)
            tied = any(y - x < 1e-4 for rank in ranks for x, y in itertools.pairwise(rank))
            close = any(float(top[i].values[0] - top[i].values[1]) < 1e-4 for i in todo)
            commits = {todo[j]: best[todo[j]] for j in sorted(chosen)}
            fragile = any(n != chosen for n in near) or tied or close
            passes.append(Pass(kind, (a, b), commits, fragile))
            for i, token in commits.items():
                ids[i] = token
                left.remove(i)
    return ids, passes
