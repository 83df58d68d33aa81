#!/usr/bin/env python3
"""Makes the tiny random models under tiny/ and their logits. Run by hand, never by CI: python3 make_tiny_models.py

Needs torch, transformers, gguf, numpy. Weights are drawn, stored in a GGUF as the public converters would, taken back as the
file rounds them, and run through transformers in float32; gguf_forward.py then reads the file and must agree. See README.md.
"""
import json
import os
import struct
import zlib

import gguf
import numpy as np
import torch
import transformers as tf
from gguf import GGMLQuantizationType as Q

import gguf_forward

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
VOCAB, HIDDEN, LENGTHS = 288, 64, (2, 33)
K_QUANTS = (Q.Q2_K, Q.Q3_K, Q.Q4_K, Q.Q5_K, Q.Q6_K)


# ---- Vocabularies: 288 entries, small but usable.
def spm_vocab(w, gemma):
    special = ["<pad>", "<eos>", "<bos>", "<unk>"] if gemma else ["<unk>", "<s>", "</s>"]
    kinds = {"<unk>": gguf.TokenType.UNKNOWN}
    tokens = special + [f"<0x{b:02X}>" for b in range(256)]
    types = [kinds.get(t, gguf.TokenType.CONTROL) for t in special] + [gguf.TokenType.BYTE] * 256
    scores = [0.0] * len(tokens)
    pieces = "\u2581t he \u2581a in \u2581the er on re nd \u2581s an".split() + list("\u2581etaoinshrldugmwc,.")
    for rank, piece in enumerate(pieces[: VOCAB - len(tokens)]):
        tokens.append(piece)
        types.append(gguf.TokenType.NORMAL)
        scores.append(-float(rank))
    w.add_tokenizer_model("llama")
    w.add_tokenizer_pre("default")
    w.add_token_list(tokens)
    w.add_token_scores(scores)
    w.add_token_types(types)
    w.add_bos_token_id(tokens.index(special[2] if gemma else "<s>"))
    w.add_eos_token_id(tokens.index(special[1] if gemma else "</s>"))
    w.add_unk_token_id(tokens.index("<unk>"))
    if gemma:
        w.add_pad_token_id(0)
        w.add_add_space_prefix(False)
    w.add_add_bos_token(True)
    w.add_add_eos_token(False)
    return len(tokens)


def bpe_vocab(w, pre, special, bos, eos):
    """Byte-level BPE; `pre` None leaves the pre-tokenizer's key out, as PowerInfer's converter does."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    tokens = [chr(b) for b in printable] + [chr(256 + i) for i in range(len(others))]
    merges = ("_ t,h e,_ a,_t he,i n,e r,o n,r e,n d,_ s,a n,_ w,o u,i s,_ o,e n,a t,_ h,o r,e s,_a nd,in g,i t,_ b,_ c,"
              "a l,_ f,e d,l l").replace("_", "\u0120").split(",")[: VOCAB - 256 - len(special)]
    tokens += [m.replace(" ", "") for m in merges] + special
    w.add_tokenizer_model("gpt2")
    if pre:
        w.add_tokenizer_pre(pre)
    w.add_token_list(tokens)
    w.add_token_types([gguf.TokenType.NORMAL] * (len(tokens) - len(special)) + [gguf.TokenType.CONTROL] * len(special))
    w.add_token_merges(merges)
    w.add_bos_token_id(tokens.index(bos))
    w.add_eos_token_id(tokens.index(eos))
    return len(tokens)


def add_vocab(w, kind):
    if kind in ("llama", "gemma"):
        count = spm_vocab(w, kind == "gemma")
    elif kind == "llama3":
        special = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]
        count = bpe_vocab(w, "llama-bpe", special, special[0], special[2])
    elif kind == "qwen2":
        count = bpe_vocab(w, "qwen2", ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], "<|endoftext|>", "<|im_end|>")
        w.add_add_bos_token(False)
    elif kind == "opt":
        count = bpe_vocab(w, None, ["<s>", "<pad>", "</s>"], "</s>", "</s>")
        w.add_add_bos_token(True)
    else:  # falcon; None as PowerInfer writes it
        count = bpe_vocab(w, kind, ["<|endoftext|>", "<|user|>", "<|assistant|>"], "<|endoftext|>", "<|endoftext|>")
    assert count == VOCAB, count


# ---- Tensors: names, and the changes that converters make to values. `undo` turns a stored tensor back.
OPT_NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "fc1": "ffn_up",
             "fc2": "ffn_down", "self_attn.out_proj": "attn_output", "self_attn_layer_norm": "attn_norm",
             "final_layer_norm": "ffn_norm"}


def stored_name(arch, name, layers):
    if arch == "opt":
        stem, suffix = name.removeprefix("model.decoder.").rsplit(".", 1)
        if stem.startswith("layers."):
            _, layer, rest = stem.split(".", 2)
            return f"blk.{layer}.{OPT_NAMES[rest]}.{suffix}"
        return {"embed_tokens": "token_embd", "embed_positions": "position_embd",
                "final_layer_norm": "output_norm"}[stem] + "." + suffix
    known = gguf.MODEL_ARCH[("llama" if arch == "bamboo" else arch).upper()]
    return gguf.get_tensor_name_map(known, layers).get_name(name, try_suffixes=(".weight", ".bias"))


def stored_value(arch, name, x, config, undo):
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_kv_heads" if arch == "falcon" else "num_key_value_heads", heads)
    if arch in ("llama", "bamboo") and ("attn_q." in name or "attn_k." in name):
        # halves (i, i + dim/2) become neighbours (2i, 2i+1)
        n = heads if "attn_q." in name else kv_heads
        half = x.shape[0] // n // 2
        return x.reshape(n, *((half, 2) if undo else (2, half)), -1).swapaxes(1, 2).reshape(x.shape)
    if arch == "gemma3" and name.endswith("norm.weight"):
        return x - 1 if undo else x + 1
    if arch == "falcon" and "attn_qkv" in name:
        # per KV group [its queries, key, value] becomes [all queries, all keys, all values]
        dim, group = config.hidden_size // heads, heads // kv_heads
        rows = np.arange(x.shape[0]).reshape(kv_heads, group + 2, dim)
        order = np.concatenate([rows[:, :-2].ravel(), rows[:, -2].ravel(), rows[:, -1].ravel()])
        return x[np.argsort(order)] if undo else x[order]
    return x


def random_blocks(rng, rows, cols, kind, std):
    """Random valid K-quant blocks whose values have mean near 0 and deviation `std`. Returns the bytes [rows, row bytes]."""
    size = gguf.GGML_QUANT_SIZES[kind][1]
    scale_at, min_at, ratio = {Q.Q2_K: (80, 82, 1.5), Q.Q3_K: (108, None, 0), Q.Q4_K: (0, 2, 7.5), Q.Q5_K: (0, 2, 15.5),
                               Q.Q6_K: (208, None, 0)}[kind]
    raw = rng.integers(0, 256, (rows * cols // 256, size), dtype=np.uint8)

    def set_scales(d):
        raw[:, scale_at:scale_at + 2] = d.astype(np.float16)[:, None].view(np.uint8)
        if min_at is not None:
            raw[:, min_at:min_at + 2] = (d * ratio).astype(np.float16)[:, None].view(np.uint8)

    spread = rng.uniform(0.5, 1.5, len(raw))
    set_scales(np.ones(len(raw)))
    set_scales(spread * std / gguf.quants.dequantize(raw, kind).std())
    return raw.reshape(rows, -1)


def encode(rng, x, kind):
    """Returns what the file holds and the float32 values that it stands for."""
    if kind == Q.F32 or x.ndim == 1:
        return x, Q.F32, x
    if kind == Q.F16:
        h = x.astype(np.float16)
        return h, kind, h.astype(np.float32)
    if kind in K_QUANTS and x.shape[1] % 256:
        kind = Q.Q8_0  # as llama.cpp does with rows that K blocks don't divide
    raw = random_blocks(rng, *x.shape, kind, x.std()) if kind in K_QUANTS else gguf.quants.quantize(x, kind)
    return raw, kind, gguf.quants.dequantize(raw, kind).reshape(x.shape)


def draw(rng, name, shape, tied, gemma):
    if "norm" in name or ".ln_" in name:
        x = 0.2 * rng.standard_normal(shape)
        return x if gemma or name.endswith("bias") else x + 1
    if name.endswith("bias"):
        return 0.3 * rng.standard_normal(shape) - (0.5 if "fc1" in name else 0)
    if any(part in name for part in ("embed", "wte", "lm_head")):
        return (2.4 / np.sqrt(shape[1]) if tied or "lm_head" in name else 1.0) * rng.standard_normal(shape)
    gain = 1.6 if any(part in name for part in ("q_proj", "k_proj", "query_key")) else 1.2
    return gain * rng.standard_normal(shape) / np.sqrt(shape[1])


class DoubleReluMlp(torch.nn.Module):
    """Bamboo's FFN in place of transformers' LlamaMLP."""

    def __init__(self, mlp):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = mlp.gate_proj, mlp.up_proj, mlp.down_proj

    def forward(self, x):
        return self.down_proj(torch.relu(self.gate_proj(x)) * torch.relu(self.up_proj(x)))


# ---- Metadata, key by key what the converters write.
def add_keys(w, arch, config, extra):
    w.add_name(f"tiny {arch}")
    if arch == "falcon":
        w.add_context_length(2048)
        w.add_tensor_data_layout("jploski")
        w.add_embedding_length(config.hidden_size)
        w.add_feed_forward_length(4 * config.hidden_size)
        w.add_block_count(config.num_hidden_layers)
        w.add_head_count(config.num_attention_heads)
        w.add_head_count_kv(config.num_kv_heads)
        w.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    w.add_context_length(config.max_position_embeddings + (2 if arch == "opt" else 0))
    w.add_embedding_length(config.hidden_size)
    w.add_block_count(config.num_hidden_layers)
    w.add_feed_forward_length(config.ffn_dim if arch == "opt" else config.intermediate_size)
    w.add_head_count(config.num_attention_heads)
    if arch == "opt":
        return
    w.add_head_count_kv(config.num_key_value_heads)
    w.add_layer_norm_rms_eps(config.rms_norm_eps)
    ropes = config.rope_parameters
    full = ropes.get("full_attention", ropes)
    w.add_rope_freq_base(full["rope_theta"])
    if full["rope_type"] == "linear":
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(full["factor"])
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if dim != config.hidden_size // config.num_attention_heads or arch in ("qwen3", "gemma3"):
        w.add_key_length(dim)
        w.add_value_length(dim)
    if arch in ("llama", "bamboo"):
        w.add_vocab_size(config.vocab_size)
        w.add_rope_dimension_count(dim)
    if arch == "gemma3":
        w.add_sliding_window(config.sliding_window)
        if "swa_base" in extra:
            w.add_rope_freq_base_swa(ropes["sliding_attention"]["rope_theta"])
    if arch == "llama" and "window" in extra:
        w.add_sliding_window(config.sliding_window)
    if "activation" in extra:
        w.add_string(f"{arch}.ffn_activation", extra["activation"])


def llama3_factors(config):
    """Divisors of the rotary frequencies, tensor rope_freqs.weight."""
    r = config.rope_parameters
    dim, old = config.hidden_size // config.num_attention_heads, r["original_max_position_embeddings"]
    wave = 2 * np.pi * r["rope_theta"] ** (np.arange(0, dim, 2) / dim)
    smooth = np.clip((old / wave - r["low_freq_factor"]) / (r["high_freq_factor"] - r["low_freq_factor"]), 0, 1)
    return (1 / ((1 - smooth) / r["factor"] + smooth)).astype(np.float32)


def add_predictors(rng, w, config, ff, threshold):
    if threshold is not None:
        w.add_float32("powerinfer.sparse_threshold", threshold)
    for layer in range(config.num_hidden_layers):
        fc1 = rng.standard_normal((32, config.hidden_size)) / np.sqrt(config.hidden_size)
        fc2 = rng.standard_normal((ff, 32)) / np.sqrt(16)
        w.add_tensor(f"blk.{layer}.fc1.weight", fc1.astype(np.float16))
        w.add_tensor(f"blk.{layer}.fc2.weight", fc2.astype(np.float16))


def make(name, arch, model_class, config, vocab, kind=Q.F16, **extra):
    """One model. extra: activation, window, swa_base, threshold (makes it PWRI), version, parts, note, seed_of."""
    rng = np.random.default_rng(zlib.crc32(extra.get("seed_of", name).encode()))
    config._attn_implementation = "eager"
    model = model_class(config).eval()
    if arch == "bamboo":
        for layer in model.model.layers:
            layer.mlp = DoubleReluMlp(layer.mlp)
    path = os.path.join(OUT, f"{name}.gguf")
    parts, pwri = extra.get("parts", 1), "threshold" in extra
    params = dict(model.named_parameters())
    per_part = -(-len(params) // parts)
    w = gguf.GGUFWriter(path, arch, split_max_tensors=per_part if parts > 1 else 0)
    add_keys(w, arch, config, extra)
    w.add_file_type(gguf.LlamaFileType[{Q.F32: "ALL_F32"}.get(kind, f"MOSTLY_{kind.name}" + {
        Q.Q3_K: "_M", Q.Q4_K: "_M", Q.Q5_K: "_M"}.get(kind, ""))])
    if kind not in (Q.F32, Q.F16, Q.BF16):
        w.add_quantization_version(gguf.GGML_QUANT_VERSION)
    add_vocab(w, vocab)
    for hf_name, p in params.items():
        x = draw(rng, hf_name, tuple(p.shape), config.tie_word_embeddings, arch == "gemma3").astype(np.float32)
        target = stored_name(arch, hf_name, config.num_hidden_layers)
        x = stored_value(arch, target, x, config, undo=False)
        if pwri and "ffn_down." in target:
            target = target.replace("ffn_down", "ffn_down_t")
            held, held_kind, values = encode(rng, np.ascontiguousarray(x.T), kind)
            values = values.T
        else:
            held, held_kind, values = encode(rng, np.ascontiguousarray(x), kind)
        w.add_tensor(target, held, raw_dtype=held_kind)
        values = stored_value(arch, target, values, config, undo=True)
        with torch.no_grad():
            p.copy_(torch.from_numpy(np.ascontiguousarray(values, np.float32)))
    if arch == "llama" and config.rope_parameters["rope_type"] == "llama3":
        w.add_tensor("rope_freqs.weight", llama3_factors(config))
    if pwri:
        ff = config.ffn_dim if arch == "opt" else config.ffn_hidden_size if arch == "falcon" else config.intermediate_size
        add_predictors(rng, w, config, ff, extra["threshold"])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    if parts > 1:
        path = path.replace(".gguf", f"-00001-of-{parts:05}.gguf")
    with open(path, "r+b") as f:
        if pwri:
            f.write(b"PWRI")
        if "version" in extra:
            f.seek(4)
            f.write(struct.pack("<I", extra["version"]))
    write_logits(name, arch, path, model, kind, pwri, extra, rng)


def write_logits(name, arch, path, model, kind, pwri, extra, rng):
    cases, rows, all_logits, masked, margin, worst = [], 0, [], [], np.inf, 0
    read = gguf_forward.Model(path)
    for length in LENGTHS:
        ids = [int(i) for i in rng.integers(3, VOCAB - 3, length)]
        with torch.no_grad():
            logits = model(torch.tensor([ids]), use_cache=False).logits[0].numpy()
        own, _ = gguf_forward.forward(read, ids)
        worst = max(worst, np.abs(own - logits).max())
        assert worst < 1e-4, f"{name}: gguf_forward differs from transformers by {worst}"
        all_logits.append(logits.astype(np.float32))
        if pwri:
            other, least = gguf_forward.forward(read, ids, predicted=True)
            masked.append(other.astype(np.float32))
            margin = min(margin, least)
        cases.append({"ids": ids, "first_row": rows, "rows": length})
        rows += length
    logits = np.concatenate(all_logits)
    np.save(os.path.join(OUT, f"{name}.npy"), logits)
    about = {"model": os.path.basename(path), "arch": arch, "weights": kind.name,
             "source": "transformers, float32, on the stored weights", "logits": f"{name}.npy",
             "shape": list(logits.shape), "cases": cases}
    if pwri:
        np.save(os.path.join(OUT, f"{name}.predicted.npy"), np.concatenate(masked))
        about["predicted_logits"] = f"{name}.predicted.npy"
        about["predicted_smallest_margin"] = float(f"{margin:.3g}")
        assert margin > 2e-6, f"{name}: a predictor score is {margin} from its threshold; draw again"
    if "note" in extra:
        about["note"] = extra["note"]
    with open(os.path.join(OUT, f"{name}.json"), "w") as f:
        f.write("{" + ",\n ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in about.items()) + "}\n")
    size = os.path.getsize(path)
    print(f"{name:22} {size:8} bytes  logits std {logits.std():.2f}  check {worst:.1e}", flush=True)


BASE = dict(vocab_size=VOCAB, hidden_size=HIDDEN, num_attention_heads=4, num_hidden_layers=2, tie_word_embeddings=True)
GLU = dict(BASE, intermediate_size=96, num_key_value_heads=2, max_position_embeddings=256, rms_norm_eps=1e-5)


def theta(base, **more):
    return {"rope_theta": base, "rope_type": "default", **more}


def llama(**more):
    return tf.LlamaConfig(**{**GLU, "rope_parameters": theta(10000.0), **more})


def make_llamas():
    def plain(name, config, *rest, vocab="llama", **extra):
        make(name, "llama", tf.LlamaForCausalLM, config, vocab, *rest, **extra)

    small = dict(hidden_size=32, num_hidden_layers=1)  # where only the format is new
    plain("llama-silu", llama(tie_word_embeddings=False))
    plain("llama-f32", llama(**small), Q.F32)
    plain("llama-split", llama(**small), parts=2)
    plain("llama-v2", llama(**small), version=2)
    plain("llama-rope-linear", llama(**small, rope_parameters=theta(10000.0, rope_type="linear", factor=4.0)))
    plain("llama-rope-llama3", llama(num_hidden_layers=1, rope_parameters=theta(
        500.0, rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=64)), vocab="llama3")
    relu = llama(num_hidden_layers=1, hidden_act="relu")
    plain("llama-relu", relu, activation="relu", seed_of="relu")
    plain("llama-relu-pwri", relu, seed_of="relu", threshold=None)
    plain("llama-relu-pwri-q4_0", llama(**small, hidden_act="relu"), Q.Q4_0, threshold=0.0)
    for kind in (Q.BF16, Q.Q8_0, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1):
        plain(f"llama-{kind.name.lower()}", llama(**small) if kind == Q.BF16 else llama(num_hidden_layers=1), kind)
    for kind in K_QUANTS:
        plain(f"llama-{kind.name.lower()}", llama(
            hidden_size=256, intermediate_size=256, head_dim=16, num_key_value_heads=1, num_hidden_layers=1), kind,
            note="attn_output is Q8_0: its rows of 64 hold no K block")
    double = dict(tie_word_embeddings=False)
    make("bamboo", "bamboo", tf.LlamaForCausalLM, llama(**small, **double), "llama", note="GGUF magic, ffn_down, no predictors")
    make("bamboo-pwri", "bamboo", tf.LlamaForCausalLM, llama(**double), "llama", threshold=0.1)
    mistral = dict(GLU, head_dim=32, rope_parameters=theta(1000000.0), tie_word_embeddings=False)
    make("mistral", "llama", tf.MistralForCausalLM, tf.MistralConfig(**{**mistral, **small}, sliding_window=None), "llama",
         note="as converters write it: no window")
    make("mistral-window", "llama", tf.MistralForCausalLM, tf.MistralConfig(
        **{**mistral, "tie_word_embeddings": True}, sliding_window=16), "llama", window=16)


def make_others():
    wide = dict(GLU, rope_parameters=theta(1000000.0), use_sliding_window=False)
    make("qwen2", "qwen2", tf.Qwen2ForCausalLM, tf.Qwen2Config(**{**wide, "num_hidden_layers": 1}), "qwen2")
    make("qwen3", "qwen3", tf.Qwen3ForCausalLM, tf.Qwen3Config(**wide, head_dim=32), "qwen2")
    gemma = dict(GLU, intermediate_size=64, num_attention_heads=2, num_key_value_heads=1, query_pre_attn_scalar=64, head_dim=64,
                 sliding_window=8, rms_norm_eps=1e-6)
    make("gemma3", "gemma3", tf.Gemma3ForCausalLM, tf.Gemma3TextConfig(**{**gemma, "num_hidden_layers": 6}, rope_parameters={
        "full_attention": theta(1000000.0), "sliding_attention": theta(10000.0)}), "gemma")
    make("gemma3-swa-base", "gemma3", tf.Gemma3ForCausalLM, tf.Gemma3TextConfig(
        **{**gemma, "num_hidden_layers": 1, "hidden_size": 32}, rope_parameters={
            "full_attention": theta(1000000.0), "sliding_attention": theta(2000.0)}), "gemma", swa_base=True)
    opt = dict(BASE, ffn_dim=96, max_position_embeddings=62, word_embed_proj_dim=HIDDEN, do_layer_norm_before=True, dropout=0.0)
    make("opt", "opt", tf.OPTForCausalLM, tf.OPTConfig(**{**opt, "num_hidden_layers": 1}), "opt",
         note="GGUF magic, ffn_down, no predictors")
    make("opt-pwri", "opt", tf.OPTForCausalLM, tf.OPTConfig(**opt), "opt", threshold=-0.2)
    falcon = dict(BASE, parallel_attn=True, bias=False, alibi=False)
    make("falcon-7b", "falcon", tf.FalconForCausalLM, tf.FalconConfig(
        **{**falcon, "tie_word_embeddings": False, "num_hidden_layers": 1}, multi_query=True, new_decoder_architecture=False,
        num_kv_heads=1), "falcon")
    new = dict(falcon, num_kv_heads=2, new_decoder_architecture=True)
    make("falcon-40b", "falcon", tf.FalconForCausalLM, tf.FalconConfig(**new), "falcon")
    make("falcon-relu-pwri", "falcon", tf.FalconForCausalLM, tf.FalconConfig(
        **{**new, "num_hidden_layers": 1, "tie_word_embeddings": False}, activation="relu"), None, threshold=0.0)


if __name__ == "__main__":
    torch.manual_seed(0)
    os.makedirs(OUT, exist_ok=True)
    make_llamas()
    make_others()
