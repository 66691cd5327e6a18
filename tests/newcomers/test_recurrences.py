"""Recurrences of papers that are in no bundle, beside loops over the tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from tests.newcomers.agreement import held

Values = Mapping[str, Tensor]
X = {"x": [2, 5, 4]}


def loop(
    start: Tensor, tokens: int, step: Callable[[Tensor, int], tuple[Tensor, Tensor]]
) -> Tensor:
    """What a step gives at each token, from the state that the one before has left."""
    state, rows = start, []
    for t in range(tokens):
        state, row = step(state, t)
        rows.append(row)
    return torch.stack(rows, 1)


def heads(x: Tensor, w: Tensor) -> Tensor:
    return torch.einsum("btd,dhk->bthk", x, w)


def back(o: Tensor, w: Tensor) -> Tensor:
    return torch.einsum("bthv,hvd->btd", o, w)


def test_retention() -> None:
    def reference(inputs: Values, p: Values) -> Tensor:
        q, k, v, g = (heads(inputs["x"], p[name]) for name in ("W_q", "W_k", "W_v", "W_g"))
        gamma = 1 - 2.0 ** (-5 - torch.arange(2, dtype=q.dtype))

        def step(state: Tensor, t: int) -> tuple[Tensor, Tensor]:
            write = k[:, t, :, :, None] * v[:, t, :, None] / 3**0.5
            state = gamma[:, None, None] * state + write
            return state, torch.einsum("bhkv,bhk->bhv", state, q[:, t])

        o = loop(q.new_zeros(2, 2, 3, 2), 5, step)
        return back(silu(g) * torch.nn.functional.rms_norm(o, (2,), eps=1e-6), p["W_o"])

    held("retention", reference, X, d=4, H=2, K=3, V=2)


@pytest.mark.slow
def test_weights_of_products_and_their_squares() -> None:
    """A value meets itself under another name of its dim."""

    def reference(inputs: Values, p: Values) -> Tensor:
        q, k, v = (heads(inputs["x"], p[name]) for name in ("W_q", "W_k", "W_v"))
        score = torch.einsum("bthk,bshk->bhts", q, k) / 3**0.5
        weights = (1 + score + score**2 / 2).tril()
        o = torch.einsum("bhts,bshv->bthv", weights / weights.sum(-1, keepdim=True), v)
        return back(o, p["W_o"])

    held("based", reference, X, d=4, H=2, K=3, V=2)


def test_expanded_gates() -> None:
    def reference(inputs: Values, p: Values) -> Tensor:
        x = inputs["x"]
        f = 0.25 + 0.75 * heads(x, p["W_f"]).sigmoid()
        q, v = heads(x, p["W_o"]).sigmoid(), silu(heads(x, p["W_i"]))

        def step(state: Tensor, t: int) -> tuple[Tensor, Tensor]:
            state = f[:, t, ..., None] * state + (1 - f)[:, t, ..., None] * v[:, t, :, None]
            return state, torch.einsum("bhkv,bhk->bhv", state, q[:, t])

        return back(loop(x.new_zeros(2, 2, 3, 2), 5, step), p["W_y"])

    held("hgrn2", reference, X, d=4, H=2, K=3, V=2)


@pytest.mark.slow
def test_a_unit_without_state_in_its_gates() -> None:
    def reference(inputs: Values, p: Values) -> Tensor:
        z, new = (inputs["x"] @ p["W_z"]).sigmoid(), inputs["x"] @ p["W_h"]

        def step(state: Tensor, t: int) -> tuple[Tensor, Tensor]:
            state = torch.lerp(state, new[:, t], z[:, t])
            return state, state

        return loop(torch.zeros_like(new[:, 0]), 5, step) @ p["W_y"]

    held("min_gru", reference, X, d=4, D=3)


def test_a_diagonal_recurrence_with_a_gated_decay() -> None:
    def reference(inputs: Values, p: Values) -> Tensor:
        x = inputs["x"]
        r = (x @ p["W_a"].T + p["b_a"]).sigmoid()
        i = (x @ p["W_x"].T + p["b_x"]).sigmoid()
        a = torch.exp(-8 * softplus(p["lam"]) * r)

        def step(state: Tensor, t: int) -> tuple[Tensor, Tensor]:
            state = a[:, t] * state + (1 - a[:, t] ** 2).sqrt() * i[:, t] * x[:, t]
            return state, state

        return loop(torch.zeros_like(x[:, 0]), 5, step)

    held("rg_lru", reference, X, d=4)


@pytest.mark.slow
def test_an_online_learner() -> None:
    def reference(inputs: Values, p: Values) -> Tensor:
        x = inputs["x"]
        u, beta = x @ p["W_x"], (x @ p["W_b"]).sigmoid()
        k, q = x @ p["W_k"], x @ p["W_q"]
        eta = beta / (1 + beta * (k * k).sum(-1, keepdim=True))

        def step(state: Tensor, t: int) -> tuple[Tensor, Tensor]:
            step_size, key = eta[:, t, :, None], k[:, t, None]
            state = state - step_size * key**2 * state + step_size * u[:, t, :, None] * key
            return state, (state * q[:, t, None]).sum(-1)

        return loop(x.new_zeros(2, 3, 2), 5, step) @ p["W_o"]

    held("longhorn", reference, X, d=4, D=3, N=2)


def test_complex_numbers_in_two_states() -> None:
    """Of more tokens than go one by one: constant ones in one matrix of them, and with a step that
    the token chooses, for each channel."""

    def constant(inputs: Values, p: Values) -> Tensor:
        x = inputs["x"]
        turn = torch.polar(torch.exp(-p["nu"].exp()), p["theta"].exp())
        gain = (1 - turn.abs() ** 2).sqrt()
        u = gain * ((x + 0j) @ torch.complex(p["B_re"], p["B_im"]))
        back_to = torch.complex(p["C_re"], p["C_im"])

        def step(state: Tensor, t: int) -> tuple[Tensor, Tensor]:
            state = turn * state + u[:, t]
            return state, (state @ back_to).real + p["skip"] * x[:, t]

        return loop(torch.zeros_like(u[:, 0]), 20, step)

    def selective(inputs: Values, p: Values) -> Tensor:
        x = inputs["x"]
        dt, read = softplus(x @ p["W_dt"]), torch.complex(x @ p["W_c"], x @ p["W_e"])
        rate, b = torch.complex(-p["A"].exp(), p["w"]), x @ p["W_b"]

        def step(state: Tensor, t: int) -> tuple[Tensor, Tensor]:
            write = (dt * x)[:, t, :, None] * b[:, t, None]
            state = (dt[:, t, :, None] * rate).exp() * state + write
            return state, (state * read[:, t, None]).real.sum(-1)

        return loop(torch.zeros(2, 4, 3, dtype=torch.complex128), 20, step)

    held("lru", constant, {"x": [2, 20, 4]}, d=4, N=3)
    held("complex_scan", selective, {"x": [2, 20, 4]}, d=4, N=3)


@pytest.mark.slow
def test_slots_that_are_written_by_what_they_forget() -> None:
    """A softmax between two states of one block."""

    def reference(inputs: Values, p: Values) -> Tensor:
        x = inputs["x"]
        q, k = silu(heads(x, p["W_q"])), silu(heads(x, p["W_k"]))
        v, alpha = silu(heads(x, p["W_v"])), heads(x, p["W_a"]).sigmoid() ** (1 / 8)

        def step(state: Tensor, t: int) -> tuple[Tensor, Tensor]:
            gate, write = alpha[:, t, ..., None], torch.cat([k[:, t], v[:, t]], -1)
            state = gate * state + (1 - gate) * write[:, :, None]
            keys, values = state[..., :3], state[..., 3:]
            weights = torch.einsum("bhmk,bhk->bhm", keys, q[:, t]).softmax(-1)
            return state, torch.einsum("bhm,bhmv->bhv", weights, values)

        o = loop(x.new_zeros(2, 2, 4, 5), 5, step)
        return back(torch.nn.functional.rms_norm(silu(o), (2,), eps=1e-6), p["W_o"])

    held("gated_slots", reference, X, d=4, H=2, K=3, V=2, M=4)


def test_a_step_for_each_channel_of_the_value() -> None:
    def reference(inputs: Values, p: Values) -> Tensor:
        x = inputs["x"]
        q, k = (unit(heads(x, p[name])) for name in ("W_q", "W_k"))
        v, eta = heads(x, p["W_v"]), heads(x, p["W_eta"]).sigmoid()

        def step(state: Tensor, t: int) -> tuple[Tensor, Tensor]:
            known = torch.einsum("bhkv,bhk->bhv", state, k[:, t])
            write = eta[:, t] * (v[:, t] - known)
            state = state + k[:, t, ..., None] * write[:, :, None]
            return state, torch.einsum("bhkv,bhk->bhv", state, q[:, t])

        return back(loop(x.new_zeros(2, 2, 3, 2), 5, step), p["W_o"])

    held("learned_step", reference, X, d=4, H=2, K=3, V=2)


def test_a_memory_that_falls_back_to_a_learned_one() -> None:
    def reference(inputs: Values, p: Values) -> Tensor:
        x, prior = inputs["x"], p["P"]
        q, k, f = (heads(x, p[name]) for name in ("W_q", "W_k", "W_a"))
        k, f, v, b = unit(k), f.sigmoid(), heads(x, p["W_v"]), (x @ p["W_b"]).sigmoid()

        def step(state: Tensor, t: int) -> tuple[Tensor, Tensor]:
            state = prior + f[:, t, ..., None] * (state - prior)
            error = v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t])
            write = b[:, t, :, None] * k[:, t]
            state = state + write[..., None] * error[:, :, None]
            return state, torch.einsum("bhkv,bhk->bhv", state, q[:, t])

        return back(loop(prior.expand(2, -1, -1, -1), 9, step), p["W_o"])

    held("prior_memory", reference, {"x": [2, 9, 4]}, d=4, H=2, K=3, V=2)


def test_a_memory_that_goes_on_as_it_went() -> None:
    """The state two tokens back is one of its own, and both are one system in a chunk."""

    def reference(inputs: Values, p: Values) -> Tensor:
        x = inputs["x"]
        q, k = (unit(heads(x, p[name])) for name in ("W_q", "W_k"))
        v = heads(x, p["W_v"])
        eta, theta = ((x @ p[name]).sigmoid()[..., None, None] for name in ("w_e", "w_t"))

        def step(state: Tensor, t: int) -> tuple[Tensor, Tensor]:
            memory, before = state
            wrong = torch.einsum("bhkv,bhk->bhv", memory, k[:, t]) - v[:, t]
            slope = theta[:, t] * k[:, t, ..., None] * wrong[:, :, None]
            now = memory + eta[:, t] * (memory - before) - slope
            return torch.stack([now, memory]), torch.einsum("bhkv,bhk->bhv", now, q[:, t])

        return back(loop(x.new_zeros(2, 2, 2, 3, 2), 5, step), p["W_o"])

    held("heavy_ball", reference, X, d=4, H=2, K=3, V=2)


def test_a_vector_that_is_reflected() -> None:
    """Two corrections a token of a vector, which is no larger than what is written to it."""

    def reference(inputs: Values, p: Values) -> Tensor:
        x = inputs["x"]
        u, a = heads(x, p["W_u"]), heads(x, p["W_a"]).tanh()
        k = unit(torch.einsum("btd,dnhk->btnhk", x, p["W_k"]))
        b = torch.einsum("btd,dnh->btnh", x, p["W_b"]).sigmoid()

        def step(state: Tensor, t: int) -> tuple[Tensor, Tensor]:
            state = a[:, t] * state
            for j in range(2):
                key = k[:, t, j]
                share = 2 * b[:, t, j, :, None] * (key * state).sum(-1, keepdim=True)
                state = state - share * key
            state = state + u[:, t]
            return state, state.tanh()

        return back(loop(x.new_zeros(2, 2, 3), 9, step), p["W_o"])

    held("reflections", reference, {"x": [2, 9, 4]}, d=4, H=2, N=3)


def unit(x: Tensor) -> Tensor:
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def test_a_weight_for_each_level_of_a_tree() -> None:
    """As the authors' recurrence has it: a level is filled by all below it, every 2^l tokens. By
    pairs, and as a head for each level, which goes in chunks."""

    def reference(inputs: Values, p: Values) -> Tensor:
        x = inputs["x"]
        q, k, v = (heads(x, p[name]) for name in ("W_q", "W_k", "W_v"))
        weights = softplus(heads(x, p["W_l"]))

        def step(levels: Tensor, t: int) -> tuple[Tensor, Tensor]:
            full = (t & -t).bit_length()
            write = k[:, t, :, :, None] * v[:, t, :, None]
            rows = [write, *(torch.zeros_like(write) for _ in range(full - 1))]
            rows += [levels[:, :full].sum(1)] if t else []
            levels = torch.cat([torch.stack(rows, 1), levels[:, len(rows) :]], 1)
            return levels, torch.einsum("bhl,blhkv,bhk->bhv", weights[:, t], levels, q[:, t])

        return back(loop(x.new_zeros(2, 4, 2, 3, 2), 5, step), p["W_o"])

    held("log_linear", reference, X, d=4, H=2, K=3, V=2, L=4)
    held("log_linear_states", reference, X, d=4, H=2, K=3, V=2, L=4)


@pytest.mark.slow
def test_a_step_on_the_latest_tokens_at_once() -> None:
    """The matrix that the state is multiplied by is itself a sum, over tokens of a window."""

    def reference(inputs: Values, p: Values) -> Tensor:
        x = inputs["x"]
        q, k = (unit(heads(x, p[name])) for name in ("W_q", "W_k"))
        v, alpha = heads(x, p["W_v"]), (x @ p["W_a"]).sigmoid()
        gamma = torch.einsum("btd,dch->btch", x, p["W_g"]).sigmoid()
        early = [torch.cat([z.new_zeros(2, 2, *z.shape[2:]), z], 1) for z in (k, v)]
        ks, vs = (torch.stack([z[:, n : n + 5] for n in range(3)], 2) for z in early)

        def step(state: Tensor, t: int) -> tuple[Tensor, Tensor]:
            wrong = torch.einsum("bchk,bhkv->bchv", ks[:, t], state) - vs[:, t]
            change = torch.einsum("bchk,bch,bchv->bhkv", ks[:, t], gamma[:, t], wrong)
            state = alpha[:, t, :, None, None] * state - change
            return state, torch.einsum("bhkv,bhk->bhv", state, q[:, t])

        return back(loop(x.new_zeros(2, 2, 3, 2), 5, step), p["W_o"])

    held("omega_rule", reference, X, d=4, H=2, K=3, V=2)


@pytest.mark.slow
def test_a_memory_with_momentum() -> None:
    """A surprise that lasts is written to a memory that forgets: both are one system in a chunk."""

    def reference(inputs: Values, p: Values) -> Tensor:
        x = inputs["x"]
        q, k = (unit(heads(x, p[name])) for name in ("W_q", "W_k"))
        v = heads(x, p["W_v"])
        alpha, eta, theta = (
            (x @ p[name]).sigmoid()[..., None, None] for name in ("w_a", "w_e", "w_t")
        )

        def step(state: Tensor, t: int) -> tuple[Tensor, Tensor]:
            memory, surprise = state
            wrong = torch.einsum("bhkv,bhk->bhv", memory, k[:, t]) - v[:, t]
            slope = k[:, t, ..., None] * wrong[:, :, None]
            surprise = eta[:, t] * surprise - theta[:, t] * slope
            memory = (1 - alpha[:, t]) * memory + surprise
            o = torch.einsum("bhkv,bhk->bhv", memory, q[:, t])
            return torch.stack([memory, surprise]), o

        return back(loop(x.new_zeros(2, 2, 2, 3, 2), 5, step), p["W_o"])

    held("titans", reference, X, d=4, H=2, K=3, V=2)


@pytest.mark.slow
def test_a_memory_with_momentum_of_several_keys() -> None:
    """The latest tokens at once, each a row of the system in a chunk."""

    def reference(inputs: Values, p: Values) -> Tensor:
        x = inputs["x"]
        q, k = (unit(heads(x, p[name])) for name in ("W_q", "W_k"))
        alpha, eta = ((x @ p[name]).sigmoid()[..., None, None] for name in ("W_a", "W_e"))
        gamma = torch.einsum("btd,dch->btch", x, p["W_g"]).sigmoid()
        v = heads(x, p["W_v"])
        early = [torch.cat([z.new_zeros(2, 2, *z.shape[2:]), z], 1) for z in (k, v)]
        ks, vs = (torch.stack([z[:, n : n + 5] for n in range(3)], 2) for z in early)

        def step(state: Tensor, t: int) -> tuple[Tensor, Tensor]:
            memory, surprise = state
            wrong = torch.einsum("bchk,bhkv->bchv", ks[:, t], memory) - vs[:, t]
            slope = torch.einsum("bchk,bch,bchv->bhkv", ks[:, t], gamma[:, t], wrong)
            surprise = eta[:, t] * surprise - slope
            memory = alpha[:, t] * memory + surprise
            o = torch.einsum("bhkv,bhk->bhv", memory, q[:, t])
            return torch.stack([memory, surprise]), o

        return back(loop(x.new_zeros(2, 2, 2, 3, 2), 5, step), p["W_o"])

    held("omega_momentum", reference, X, d=4, H=2, K=3, V=2)


def test_a_memory_that_erases_at_another_key_while_values_fade() -> None:
    """What is erased is read before the keys fade, and after the values do."""

    def reference(inputs: Values, p: Values) -> Tensor:
        x = inputs["x"]
        q, k, v = (heads(x, p[name]) for name in ("W_q", "W_k", "W_v"))
        alpha, gamma = (heads(x, p[name]).sigmoid() for name in ("W_a", "W_c"))
        beta, erase = (x @ p["W_b"]).sigmoid()[..., None, None], unit(heads(x, p["W_e"]))

        def step(state: Tensor, t: int) -> tuple[Tensor, Tensor]:
            read = torch.einsum("bhkv,bhk->bhv", state, erase[:, t])
            state = state - beta[:, t] * erase[:, t, :, :, None] * read[:, :, None]
            state = alpha[:, t, :, :, None] * state * gamma[:, t, :, None]
            state = state + k[:, t, :, :, None] * v[:, t, :, None]
            return state, torch.einsum("bhkv,bhk->bhv", state, q[:, t])

        return back(loop(x.new_zeros(2, 2, 3, 2), 5, step), p["W_o"])

    held("erase_elsewhere", reference, X, d=4, H=2, K=3, V=2)


@pytest.mark.slow
def test_a_memory_that_moves_at_the_end_of_blocks() -> None:
    def reference(inputs: Values, p: Values) -> Tensor:
        x = inputs["x"]
        q, k, v = heads(x, p["W_q"]), unit(heads(x, p["W_k"])), heads(x, p["W_v"])
        state, rows = x.new_zeros(2, 2, 3, 2), list[Tensor]()
        for first in range(0, 5, 2):
            own = slice(first, first + 2)
            rows.append(torch.einsum("bthk,bhkv->bthv", q[:, own], state))
            wrong = v[:, own] - torch.einsum("bthk,bhkv->bthv", k[:, own], state)
            state = state + torch.einsum("bthk,bthv->bhkv", k[:, own], wrong)
        return back(torch.cat(rows, 1), p["W_o"])

    held("block_memory", reference, X, d=4, H=2, K=3, V=2, C=2)


@pytest.mark.slow
def test_a_decay_that_may_be_negative() -> None:
    """It has no logarithm, and is a number for each head: products of decays stay products."""

    def reference(inputs: Values, p: Values) -> Tensor:
        x = inputs["x"]
        q, k = (unit(heads(x, p[name])) for name in ("W_q", "W_k"))
        v, a = heads(x, p["W_v"]), (x @ p["w_a"]).tanh()[..., None, None]
        beta = (x @ p["w_b"]).sigmoid()[..., None]

        def step(state: Tensor, t: int) -> tuple[Tensor, Tensor]:
            known = torch.einsum("bhkv,bhk->bhv", state, k[:, t])
            write = beta[:, t] * (v[:, t] - a[:, t, ..., 0] * known)
            state = a[:, t] * state + k[:, t, ..., None] * write[:, :, None]
            return state, torch.einsum("bhkv,bhk->bhv", state, q[:, t])

        return back(loop(x.new_zeros(2, 2, 3, 2), 5, step), p["W_o"])

    held("signed_decay", reference, X, d=4, H=2, K=3, V=2)


def test_a_cell_that_weighs_its_input_itself() -> None:
    def reference(inputs: Values, p: Values) -> Tensor:
        cell = torch.nn.GRU(4, 3, batch_first=True, dtype=torch.float64)
        weights = {
            "weight_ih_l0": torch.cat([p["W_r"].T, p["W_z"].T, p["W_n"].T]),
            "weight_hh_l0": torch.cat([p["U_r"].T, p["U_z"].T, p["U_n"].T]),
            "bias_ih_l0": torch.zeros(9, dtype=torch.float64),
            "bias_hh_l0": torch.cat([torch.zeros(6, dtype=torch.float64), p["b_n"]]),
        }
        return torch.func.functional_call(cell, weights, (inputs["x"],))[0]

    held("gru", reference, X, d=4, N=3)


@pytest.mark.slow
def test_complex_states_that_are_turned() -> None:
    """Beside numbers that torch knows to be complex."""

    def reference(inputs: Values, p: Values) -> Tensor:
        x = inputs["x"]
        alpha, lam = torch.exp(-softplus(x @ p["W_a"])), (x @ p["W_l"]).sigmoid()
        turn = torch.polar(alpha[..., None].expand(2, 5, 2, 3), heads(x, p["W_t"]))
        q = torch.complex(heads(x, p["Q_r"]), heads(x, p["Q_i"]))
        k = torch.complex(heads(x, p["K_r"]), heads(x, p["K_i"]))
        write = k[..., None] * heads(x, p["W_v"])[..., None, :]

        def step(state: Tensor, t: int) -> tuple[Tensor, Tensor]:
            share = lam[:, t, :, None, None]
            if t > 0:
                state = state + (1 - share) * write[:, t - 1]
            state = turn[:, t, :, :, None] * state + share * write[:, t]
            return state, (state * q[:, t, :, :, None].conj()).sum(2).real

        return back(loop(q.new_zeros(2, 2, 3, 2), 5, step), p["W_o"])

    held("turned_states", reference, X, d=4, H=2, R=3, V=2)


def test_states_of_spans_that_are_merged() -> None:
    """The levels are a list, of which a token empties those that are full."""

    def reference(inputs: Values, p: Values) -> Tensor:
        x, levels = inputs["x"], 4
        q, k, v, w = (heads(x, p[name]) for name in ("W_q", "W_k", "W_v", "W_w"))
        k = k / (k.square().sum(-1, keepdim=True) + 1e-6).sqrt()
        alpha, beta = ((x @ p[name]).sigmoid()[..., None, None] for name in ("w_a", "w_b"))
        states, rows = [x.new_zeros(2, 2, 3, 2)] * levels, []
        for t in range(x.shape[1]):
            own = k[:, t, ..., None]
            new = beta[:, t] * own * v[:, t, :, None]
            states = [
                alpha[:, t] * (s - beta[:, t] * own * (own * s).sum(-2, True)) for s in states
            ]
            first = next(i for i in range(levels) if (t + 1) >> i & 1)
            merged = sum(states[: first + 1], new)
            states = [*[torch.zeros_like(new)] * first, merged, *states[first + 1 :]]
            read = [torch.einsum("bhkv,bhk->bhv", s, q[:, t]) for s in states]
            rows.append(sum(softplus(w[:, t, :, i, None]) * o for i, o in enumerate(read)))
        return back(torch.stack(rows, 1), p["W_o"])

    held("merged_states", reference, {"x": [2, 9, 4]}, d=4, H=2, K=3, V=2, L=4)


@pytest.mark.slow
def test_a_gain_that_follows_a_variance() -> None:
    def reference(inputs: Values, p: Values) -> Tensor:
        q, k, v, a = (heads(inputs["x"], p[name]) for name in ("W_q", "W_k", "W_v", "W_a"))
        k = k / (k.square().sum(-1, keepdim=True) + 1e-6).sqrt()
        f, r = a.sigmoid(), softplus(inputs["x"] @ p["w_r"])[..., None]

        def step(state: Tensor, t: int) -> tuple[Tensor, Tensor]:
            variance, memory = state[..., 0], state[..., 1:]
            m = f[:, t] ** 2 * variance + 0.1
            gain = m * k[:, t] / ((k[:, t] ** 2 * m).sum(-1, keepdim=True) + r[:, t])
            memory = f[:, t, ..., None] * memory
            error = v[:, t] - torch.einsum("bhkv,bhk->bhv", memory, k[:, t])
            memory = memory + gain[..., None] * error[:, :, None]
            left = m * (1 - gain * k[:, t])
            state = torch.cat([left[..., None], memory], -1)
            return state, torch.einsum("bhkv,bhk->bhv", memory, q[:, t])

        start = torch.cat([q.new_ones(2, 2, 3, 1), q.new_zeros(2, 2, 3, 2)], -1)
        return back(loop(start, 5, step), p["W_o"])

    held("kalman", reference, X, d=4, H=2, K=3, V=2)


@pytest.mark.slow
def test_a_softmax_of_a_state() -> None:
    """The numbers of a function over a dim of a matrix meet it by name."""

    def reference(inputs: Values, p: Values) -> Tensor:
        x = inputs["x"]
        q, k = (heads(x, p[name]) for name in ("W_q", "W_k"))
        q, k = (y / (y.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt() for y in (q, k))
        v, alpha, eta = heads(x, p["W_v"]), (x @ p["w_a"]).sigmoid(), (x @ p["w_e"]).sigmoid()

        def step(state: Tensor, t: int) -> tuple[Tensor, Tensor]:
            error = torch.einsum("bhkv,bhk->bhv", state.softmax(2), k[:, t]) - v[:, t]
            write = eta[:, t, :, None, None] * k[:, t, :, :, None] * error[:, :, None]
            state = alpha[:, t, :, None, None] * state - write
            return state, torch.einsum("bhkv,bhk->bhv", state.softmax(2), q[:, t])

        return back(loop(x.new_zeros(2, 2, 3, 2), 5, step), p["W_o"])

    held("memora", reference, X, d=4, H=2, K=3, V=2)
