"""Models of language and speech."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.clients.program import NARROW, Client, Program, add, cast, client, integers, library, normal, weights


@client("haiku", is_faster=True)
def whisper_encoder(batch: int) -> Program:
    """The encoder of Whisper's tiny model on ten seconds of sound."""
    hk = library("haiku")
    width, heads, layers = 384, 6, 4

    def encoder(sound: Any) -> Any:
        def norm(x: Any) -> Any:
            return hk.LayerNorm(-1, create_scale=True, create_offset=True)(x)

        gelu = functools.partial(jax.nn.gelu, approximate=False)
        x = gelu(hk.Conv1D(width, 3, padding="SAME")(sound))
        x = gelu(hk.Conv1D(width, 3, stride=2, padding="SAME")(x))
        rates = np.exp(-np.log(10000) * np.arange(width // 2) / (width // 2 - 1))
        angles = np.arange(x.shape[1])[:, None] * rates[None]
        x = x + jnp.asarray(np.concatenate([np.sin(angles), np.cos(angles)], 1), x.dtype)
        for _ in range(layers):
            y = norm(x)
            x = x + hk.MultiHeadAttention(heads, width // heads, w_init=hk.initializers.VarianceScaling(1.0))(y, y, y)
            x = x + hk.Linear(width)(gelu(hk.Linear(4 * width)(norm(x))))
        return norm(x)

    model = hk.without_apply_rng(hk.transform(encoder))
    sound = normal(0, batch, 1000, 80)
    return model.apply, (model.init(jax.random.key(1), sound), sound)


def _t5(dtype: Any, batch: int) -> Program:
    """An encoder of T5's small kind: norms without means, biases of relative positions, gated products."""
    width, heads, layers, hidden, length = 512, 8, 6, 1024, 128
    seeds = iter(range(1000))

    def layer() -> dict[str, Any]:
        shapes = {"query": width, "key": width, "value": width, "out": width, "gate": hidden, "up": hidden}
        made: dict[str, Any] = {name: weights(next(seeds), width, outputs) for name, outputs in shapes.items()}
        made["query"] *= (width // heads) ** -0.5  # scores are not scaled, so the weights are drawn so much smaller
        return {**made, "down": weights(next(seeds), hidden, width), "norm": jnp.ones(width), "second_norm": jnp.ones(width)}

    params: Any = {
        "words": normal(next(seeds), 2000, width),
        "bias": normal(next(seeds), heads, 2 * length),
        "layers": [layer() for _ in range(layers)],
    }

    def norm(x: Any, scale: Any) -> Any:
        wide = x.astype(jnp.float32)
        return (wide * lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype) * scale

    def split(x: Any) -> Any:
        return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)

    def encode(params: Any, tokens: Any) -> Any:
        x = params["words"][tokens]
        apart = jnp.arange(length)[:, None] - jnp.arange(length)[None] + length
        bias = params["bias"][:, apart]
        for layer in params["layers"]:
            y = norm(x, layer["norm"])
            query, key, value = (split(y @ layer[name]) for name in ("query", "key", "value"))
            scores = jax.nn.softmax((query @ key.swapaxes(2, 3) + bias).astype(jnp.float32)).astype(x.dtype)
            x = x + (scores @ value).swapaxes(1, 2).reshape(x.shape) @ layer["out"]
            y = norm(x, layer["second_norm"])
            x = x + (jax.nn.gelu(y @ layer["gate"]) * (y @ layer["up"])) @ layer["down"]
        return x

    return encode, (cast(params, dtype), integers(0, 2000, batch, length))


add(Client("t5", functools.partial(_t5, jnp.float32), is_faster=True))
add(Client("t5-bfloat16", functools.partial(_t5, jnp.bfloat16), is_faster=True, tolerance=NARROW))


def _mamba(associative: bool, batch: int) -> Program:
    """Two blocks of Mamba, whose recurrence is an associative scan or a loop."""
    nn = library("flax.linen")
    width, hidden, states = 256, 512, 16

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            u, gate = jnp.split(nn.Dense(2 * hidden, use_bias=False)(nn.RMSNorm()(x)), 2, -1)
            u = nn.silu(nn.Conv(hidden, (4,), padding="CAUSAL", feature_group_count=hidden)(u))
            rate, enter, leave = jnp.split(nn.Dense(16 + 2 * states, use_bias=False)(u), [16, 16 + states], -1)
            rate = nn.softplus(nn.Dense(hidden)(rate))

            def decays(_: Any, shape: Any) -> Any:
                return jnp.log(jnp.broadcast_to(jnp.arange(1, states + 1, dtype=jnp.float32), shape))

            decay = jnp.exp(-rate[..., None] * jnp.exp(self.param("decay", decays, (hidden, states))))
            driven = (rate * u)[..., None] * enter[:, :, None, :]
            if associative:
                _, state = lax.associative_scan(lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]), (decay, driven), axis=1)
            else:

                def step(state: Any, item: Any) -> Any:
                    state = item[0] * state + item[1]
                    return state, state

                _, state = lax.scan(step, jnp.zeros_like(decay[:, 0]), (decay.swapaxes(0, 1), driven.swapaxes(0, 1)))
                state = state.swapaxes(0, 1)
            y = jnp.einsum("blen,bln->ble", state, leave) + u * self.param("direct", nn.initializers.ones, (hidden,))
            return x + nn.Dense(width, use_bias=False)(y * nn.silu(gate))

    class Model(nn.Module):
        @nn.compact
        def __call__(self, tokens: Any) -> Any:
            block: Any = Block
            embed = nn.Embed(1000, width)
            x = embed(tokens)
            for _ in range(2):
                x = block()(x)
            return embed.attend(nn.RMSNorm()(x))

    model: Any = Model()
    tokens = integers(0, 1000, batch, 128)
    return model.apply, (model.init(jax.random.key(1), tokens), tokens)


add(Client("mamba", functools.partial(_mamba, True), ("flax",), is_faster=True))
add(Client("mamba-loop", functools.partial(_mamba, False), ("flax",), is_faster=True))


@client()
def rwkv(batch: int) -> Program:
    """Three layers of RWKV, token by token."""
    width, heads, layers, length = 256, 4, 3, 64
    seeds = iter(range(1000))

    def layer() -> dict[str, Any]:
        square = {name: weights(next(seeds), width, width) for name in ("receive", "key", "value", "gate", "out", "gate_of_mlp")}
        return {
            **square,
            "decay": jnp.linspace(-6, 1, width),
            "bonus": jnp.full(width, 0.3),
            "mix": jnp.full((4, width), 0.5),
            "up": weights(next(seeds), width, 4 * width),
            "down": weights(next(seeds), 4 * width, width),
        }

    params: Any = {
        "words": normal(next(seeds), 1000, width),
        "layers": [layer() for _ in range(layers)],
        "out": weights(next(seeds), width, 1000),
    }

    def norm(x: Any) -> Any:
        mean = x.mean(-1, keepdims=True)
        return (x - mean) * lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5)

    def step(params: Any, state: Any, token: Any) -> Any:
        x = params["words"][token]
        new = []
        for layer, (last, last_of_mlp, memory) in zip(params["layers"], state, strict=True):
            y = norm(x)
            mixed = [y * share + last * (1 - share) for share in layer["mix"]]
            receive, key, value = (
                (item @ layer[name]).reshape(-1, heads, width // heads)
                for item, name in zip(mixed, ("receive", "key", "value"), strict=False)
            )
            gate = jax.nn.silu(mixed[3] @ layer["gate"])
            pairs = key[..., :, None] * value[..., None, :]
            bonus = layer["bonus"].reshape(heads, -1, 1)
            decay = jnp.exp(-jnp.exp(layer["decay"])).reshape(heads, -1, 1)
            read = jnp.einsum("bhk,bhkv->bhv", receive, memory + bonus * pairs)
            x = x + (norm(read).reshape(-1, width) * gate) @ layer["out"]
            z = norm(x)
            mixed_z = z * 0.5 + last_of_mlp * 0.5
            hidden = jnp.square(jax.nn.relu(mixed_z @ layer["up"])) @ layer["down"]
            x = x + jax.nn.sigmoid(mixed_z @ layer["gate_of_mlp"]) * hidden
            new.append((y, z, decay * memory + pairs))
        return new, norm(x) @ params["out"]

    def run(params: Any, tokens: Any) -> Any:
        rows = jnp.zeros((len(tokens), width))
        state = [(rows, rows, jnp.zeros((len(tokens), heads, width // heads, width // heads))) for _ in range(layers)]
        return lax.scan(functools.partial(step, params), state, tokens.T)[1].swapaxes(0, 1)

    return run, (params, integers(1, 1000, batch, length))


# Adam makes steps of the same size for all gradients, so small ones are rounded visibly. There are no biases of keys, because
# theirs are 0 but for rounding.
@client("flax", "optax", tolerance=1e-2)
def transformer_training(batch: int) -> Program:
    """A training step of a causal transformer by AdamW, with the gradient's norm clipped."""
    nn, optax = library("flax.linen"), library("optax")
    width, length = 256, 128

    class Model(nn.Module):
        @nn.compact
        def __call__(self, tokens: Any) -> Any:
            embed = nn.Embed(2000, width)
            x = embed(tokens) + self.param("positions", nn.initializers.normal(0.02), (tokens.shape[1], width))
            mask = nn.make_causal_mask(tokens)
            for _ in range(4):
                x = x + nn.MultiHeadDotProductAttention(8, use_bias=False)(nn.LayerNorm()(x), mask=mask)
                x = x + nn.Dense(width)(nn.gelu(nn.Dense(4 * width)(nn.LayerNorm()(x))))
            return embed.attend(nn.LayerNorm()(x))

    model: Any = Model()
    tokens = integers(0, 2000, batch, length + 1)
    params = model.init(jax.random.key(1), tokens[:, :-1])
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(1e-3, 1000)))

    def loss(params: Any, tokens: Any) -> Any:
        logits = model.apply(params, tokens[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    def step(params: Any, state: Any, tokens: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(params, tokens)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    return step, (params, optimizer.init(params), tokens)


@client()
def causal_attention(batch: int) -> Program:
    """Attention of 4096 tokens to those before them."""
    length = 4096

    def attend(query: Any, key: Any, value: Any) -> Any:
        scores = query @ key.swapaxes(1, 2) * query.shape[-1] ** -0.5
        earlier = jnp.arange(length)[:, None] >= jnp.arange(length)[None]
        return jax.nn.softmax(jnp.where(earlier, scores, -jnp.inf)) @ value

    return attend, tuple(normal(i, 4 * batch, length, 64) for i in range(3))
