"""Generation by models that read another sequence too: the same tokens as reading all of it anew
at every step, and that sequence read once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import archc

TRANSLATOR = """
block Encoder(d, H, K = d / H):
    input x[d]
    param W_q, W_k, W_v[d, H, K]; W_o[H, K, d]
    q = x @ W_q; k = x @ W_k; v = x @ W_v
    attend all s over H:
        o = softmax(q[t].T @ k[s] / sqrt(K)) @ v[s]
    output y[d] = x + o @ W_o

block Decoder(d, H, K = d / H):
    input x[d]
    input e[d] along m
    param W_q, W_k, W_v, C_q, C_k, C_v[d, H, K]; W_o, C_o[H, K, d]
    q = rope_half[K](x @ W_q, 100); k = rope_half[K](x @ W_k, 100); v = x @ W_v
    attend s <= t over H:
        o = softmax(q[t].T @ k[s] / sqrt(K)) @ v[s]
    h = x + o @ W_o
    cq = h @ C_q; ck = e @ C_k; cv = e @ C_v
    attend all m over H:
        c = softmax(cq[t].T @ ck[m] / sqrt(K)) @ cv[m]
    output y[d] = h + c @ C_o

model Translator(vocab, words, d, H, L = 2):
    input source in words along m
    input tokens in vocab
    param E[vocab, d]; F[words, d]
    e = F[source]
    repeat L as l:
        e = Encoder(d, H)(e)
    x = E[tokens]
    repeat L as l:
        x = Decoder(d, H)(x, e)
    output logits[vocab] = x @ E.T
"""

BEGUN = """
layer Scan(d):
    input x[d]
    recurrence h[d]:
        h[t] = 0.7 * h[t-1] + x
    output h

layer Begun(d):
    input x[d]
    input e[d] along m
    attend all m:
        b = sum[m](e[m])
    recurrence h[d] = b:
        h[t] = 0.9 * h[t-1] + x
    output h

model Seq2Seq(vocab, words, d, length = 6):
    input tokens in vocab
    input source in words along m
    param E[vocab, d]; F[words, d]; P[length, d]
    y = Begun(d)(E[tokens] + P[t], Scan(d)(F[source]))
    output logits[vocab] = y @ E.T
"""


def drawn(most: int, *shape: int) -> Tensor:
    return torch.randint(most, shape, generator=torch.Generator().manual_seed(sum(shape)))


def translator() -> nn.Module:
    torch.manual_seed(0)
    sizes = {"vocab": 30, "words": 40, "d": 16, "H": 2}
    return archc.parse(TRANSLATOR).module(dtype=torch.float64, **sizes).eval()


def anew(model: nn.Module, tokens: Tensor, source: Tensor, count: int, limit: int = 99) -> Tensor:
    """Greedy tokens, all that there are read anew for each."""
    for _ in range(count):
        logits = model(tokens=tokens[:, -limit:], source=source)
        tokens = torch.cat([tokens, logits[:, -1:].argmax(-1)], 1)
    return tokens


def test_an_encoder_is_called_once_and_its_sequence_kept() -> None:
    model, tokens, source = translator(), drawn(30, 3, 5), drawn(40, 3, 7)
    wanted, calls = anew(model, tokens, source, 9), list[int]()
    model.layers[0].encoder.register_forward_hook(lambda *given: calls.append(1))
    how = {"beside": {"source": source}, "temperature": 0}
    assert torch.equal(archc.generate(model, tokens, 9, **how), wanted) and len(calls) == 1
    assert torch.equal(archc.generate(model, tokens, 9, chunk=2, **how), wanted)
    assert len(calls) == 2
    streamed = torch.stack([*archc.stream(model, tokens, 9, **how)], 1)
    assert torch.equal(streamed, wanted[:, 5:])
    some, state = archc.generate(model, tokens, 4, return_state=True, **how)
    rest = archc.generate(model, some[:, -1:], 5, temperature=0, state=state)
    assert torch.equal(torch.cat([some[:, :-1], rest], 1), wanted)


def test_padded_prompts_have_each_its_own() -> None:
    model, tokens, source = translator(), drawn(30, 3, 5), drawn(40, 3, 7)
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    how = {"beside": {"source": source}, "temperature": 0}
    found = archc.generate(model, tokens, 6, attention_mask=mask, **how)
    for row in range(3):
        prompt = tokens[row : row + 1, mask[row].bool()]
        alone = anew(model, prompt, source[row : row + 1], 6)
        assert torch.equal(found[row, 5:], alone[0, -6:])


def test_a_table_of_positions_that_is_used_up() -> None:
    """The latest tokens are read anew, and so is the other sequence, of which a state begins."""
    torch.manual_seed(0)
    model = archc.parse(BEGUN).module(vocab=9, words=12, d=4, dtype=torch.float64).eval()
    tokens, source = drawn(9, 2, 3), drawn(12, 2, 5)
    found = archc.generate(model, tokens, 8, beside={"source": source}, temperature=0)
    assert torch.equal(found, anew(model, tokens, source, 8, limit=6))


def test_a_pool_continues_each_beside_its_own() -> None:
    model, tokens, source = translator(), drawn(30, 2, 5), drawn(40, 2, 7)
    pool = archc.serving.Pool(model, slots=2, capacity=20)
    first = pool.add(tokens[0], 6, temperature=0, beside={"source": source[0]})
    pool.step()
    second = pool.add(tokens[1, :3], 4, temperature=0, beside={"source": source[1, :4]})
    while pool.live:
        pool.step()
    wanted = anew(model, tokens[1:, :3], source[1:, :4], 4)
    assert torch.equal(pool.tokens(first), anew(model, tokens[:1], source[:1], 6)[0])
    assert torch.equal(pool.tokens(second), wanted[0])
    with pytest.raises(ValueError, match="reads `source` too"):
        pool.add(tokens[0])
    with pytest.raises(ValueError, match="reads others too: `add` each prompt"):
        pool.add_all([tokens[0], tokens[1]])
    assert pool.live == () and len(pool.free) == 2


SOURCE = drawn(40, 2, 7)
REFUSED = [
    ({}, ValueError, "Translator reads `source` too"),
    ({"src": SOURCE}, ValueError, "reads no sequence `src` beside tokens: it has `source`"),
    ({"source": SOURCE[:1]}, ValueError, r"must have 2 rows, as `tokens`, got \[1, 7\]"),
    ({"source": SOURCE + 40}, ValueError, "`source` of Translator has 40 tokens, from 0 on"),
    ({"source": SOURCE.double()}, TypeError, "`source` must hold integers"),
    ({"source": [[1], [2]]}, TypeError, "`source` must be a tensor, got list"),
]


@pytest.mark.parametrize(("beside", "kind", "says"), REFUSED)
def test_what_is_wrong_beside(beside: dict, kind: type[Exception], says: str) -> None:
    model, tokens = translator(), drawn(30, 2, 3)
    with pytest.raises(kind, match=says):
        archc.generate(model, tokens, 2, beside=beside)
    if not beside:
        with pytest.raises(ValueError, match=says):
            archc.generate(model, tokens, 2, state=model.initial_state(2))
