"""A plain numpy forward pass (float64) over a GGUF file, read back from disk.

It checks make_tiny_models.py independently of transformers, and gives the logits that transformers cannot: PowerInfer files in
predicted mode. It knows the file formats only, nothing of how the models were made. Facts: README.md beside this file.
"""
import glob
import math
import os
import re
import tempfile

import gguf
import numpy as np


class Model:
    """Metadata and dequantised tensors [rows, cols] of a file, all parts of it; powerinfer says whether its magic is PWRI."""

    def __init__(self, path):
        self.keys, self.tensors = {}, {}
        with open(path, "rb") as f:
            data = f.read()
        self.powerinfer = data[:4] == b"PWRI"
        split = re.match(r"(.*)-00001-of-(\d{5})\.gguf$", path)
        for part in sorted(glob.glob(f"{split[1]}-?????-of-{split[2]}.gguf")) if split else [path]:
            self._read(part, self.powerinfer)
        self.arch = self.keys["general.architecture"]

    def _read(self, path, powerinfer):
        if powerinfer:  # same layout, but the reader insists on the magic
            with open(path, "rb") as f, tempfile.NamedTemporaryFile(suffix=".gguf", delete=False) as t:
                t.write(b"GGUF" + f.read()[4:])
            path = t.name
        reader = gguf.GGUFReader(path)
        self.keys.update({k: v.contents() for k, v in reader.fields.items() if "." in k})
        for t in reader.tensors:
            self.tensors[t.name] = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float64).reshape(t.shape[::-1])
        if powerinfer:
            os.unlink(path)

    def key(self, name, fallback=None):
        return self.keys.get(f"{self.arch}.{name}", fallback)

    def tensor(self, name, layer=None):
        return self.tensors.get(name if layer is None else f"blk.{layer}.{name}")


def gelu_exact(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS = {"relu": lambda x: np.maximum(x, 0), "silu": lambda x: x / (1 + np.exp(-x)), "gelu": gelu_exact,
               "gelu_tanh": gelu_tanh}


def activation(m):
    if m.powerinfer or m.arch in ("opt", "bamboo"):
        return ACTIVATIONS["relu"]
    fallback = {"falcon": "gelu", "gemma3": "gelu_tanh"}.get(m.arch, "silu")
    return ACTIVATIONS[m.key("ffn_activation", fallback)]


def norm(m, x, name, layer=None):
    w, b = m.tensor(f"{name}.weight", layer), m.tensor(f"{name}.bias", layer)
    if m.arch in ("opt", "falcon"):
        eps = m.key("attention.layer_norm_epsilon", 1e-5)
        x = x - x.mean(-1, keepdims=True)
    else:
        eps = m.key("attention.layer_norm_rms_epsilon")
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w
    return x if b is None else x + b


def linear(m, x, name, layer):
    y = x @ m.tensor(f"{name}.weight", layer).T
    b = m.tensor(f"{name}.bias", layer)
    return y if b is None else y + b


def rope(m, x, base):
    """x [tokens, heads, head_dim]. llama and bamboo rotate (2i, 2i+1), the others (i, i + head_dim/2)."""
    n, _, dim = x.shape
    if m.arch == "opt":
        return x
    freq = base ** (-np.arange(0, dim, 2) / dim)
    if m.key("rope.scaling.type", "none") == "linear":
        freq = freq / m.key("rope.scaling.factor")
    if (factors := m.tensor("rope_freqs.weight")) is not None:
        freq = freq / factors
    angle = np.arange(n)[:, None, None] * freq
    c, s = np.cos(angle), np.sin(angle)
    neighbours = m.arch in ("llama", "bamboo")
    even, odd = (slice(0, None, 2), slice(1, None, 2)) if neighbours else (slice(dim // 2), slice(dim // 2, None))
    y = np.empty_like(x)
    y[..., even] = x[..., even] * c - x[..., odd] * s
    y[..., odd] = x[..., even] * s + x[..., odd] * c
    return y


def attention(m, x, layer):
    n, d = x.shape
    heads = m.key("attention.head_count")
    kv_heads = m.key("attention.head_count_kv", heads)
    dim = m.key("attention.key_length", d // heads)
    if m.tensor("attn_qkv.weight", layer) is not None:
        q, k, v = np.split(linear(m, x, "attn_qkv", layer), [heads * dim, (heads + kv_heads) * dim], axis=1)
    else:
        q, k, v = (linear(m, x, f"attn_{p}", layer) for p in "qkv")
    q, k, v = q.reshape(n, heads, dim), k.reshape(n, kv_heads, dim), v.reshape(n, kv_heads, dim)
    if m.tensor("attn_q_norm.weight", layer) is not None:
        q, k = norm(m, q, "attn_q_norm", layer), norm(m, k, "attn_k_norm", layer)
    window, base = m.key("attention.sliding_window", 0), m.key("rope.freq_base", 10000.0)
    if m.arch == "gemma3":
        if layer % 6 == 5:
            window = 0
        else:
            base = m.key("rope.freq_base_swa", 10000.0)
    q, k = rope(m, q, base), rope(m, k, base)
    k, v = np.repeat(k, heads // kv_heads, axis=1), np.repeat(v, heads // kv_heads, axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(dim)
    back = np.arange(n)[:, None] - np.arange(n)[None, :]
    scores[:, (back < 0) | ((back >= window) if window else False)] = -np.inf
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return linear(m, np.einsum("hqk,khd->qhd", p, v).reshape(n, -1), "attn_output", layer)


def ffn(m, x, layer, mask):
    act = activation(m)
    h = linear(m, x, "ffn_up", layer)
    if m.tensor("ffn_gate.weight", layer) is not None:
        h = act(linear(m, x, "ffn_gate", layer)) * (act(h) if m.arch == "bamboo" else h)
    else:
        h = act(h)
    if mask is not None:
        h = h * mask
    if m.tensor("ffn_down_t.weight", layer) is None:
        return linear(m, h, "ffn_down", layer)
    b = m.tensor("ffn_down_t.bias", layer)
    return h @ m.tensor("ffn_down_t.weight", layer) + (0 if b is None else b)


def forward(m, ids, predicted=False):
    """Logits [tokens, vocab] of one sequence, and the smallest |score - threshold| of the predictors (inf without them)."""
    x = m.tensor("token_embd.weight")[np.array(ids)]
    if m.arch == "gemma3":
        x = x * math.sqrt(x.shape[1])
    if m.arch == "opt":
        x = x + m.tensor("position_embd.weight")[np.arange(len(ids)) + 2]
    threshold, margin = m.keys.get("powerinfer.sparse_threshold", 0.0), np.inf

    def predict(p, layer):
        nonlocal margin
        if not predicted:
            return None
        score = np.maximum(p @ m.tensor("fc1.weight", layer).T, 0) @ m.tensor("fc2.weight", layer).T - threshold
        margin = min(margin, np.abs(score).min())
        return score >= 0

    for layer in range(m.key("block_count")):
        h = norm(m, x, "attn_norm", layer)
        if m.arch == "falcon":
            second = m.tensor("attn_norm_2.weight", layer) is not None
            a = attention(m, norm(m, x, "attn_norm_2", layer) if second else h, layer)
            x = x + a + ffn(m, h, layer, predict(x, layer))
            continue
        a = attention(m, h, layer)
        if m.arch == "gemma3":
            a = norm(m, a, "post_attention_norm", layer)
        x = x + a
        f = ffn(m, norm(m, x, "ffn_norm", layer), layer, predict(x, layer))
        if m.arch == "gemma3":
            f = norm(m, f, "post_ffw_norm", layer)
        x = x + f
    x = norm(m, x, "output_norm")
    output = m.tensor("output.weight")
    return x @ (m.tensor("token_embd.weight") if output is None else output).T, margin
