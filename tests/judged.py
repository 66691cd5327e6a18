"""Mutants of `tests.mutants` that no test can notice, or that none does yet, by id: and why."""

from __future__ import annotations

from collections.abc import Mapping

EQUIVALENT: Mapping[str, str] = {
    "27a778896963": "a default that nothing takes: the one place that makes programs gives it",
    "8ce7bfc1f7b7": "a text that is measured, not written, and is as long with another sign",
    "669b1ad30cb1": "a product of two expressions, in another order",
    "e6fbc4c74225": "a power of numbers has the range that its base and exponent give either way, "
    "and nothing else in a normal form but sums and products holds a symbol of it",
    "12dd89d43fcb": "the folder has pages alone",
    "50d4600fefe3": "what an indent belongs to is among the lines: the default is never taken",
    "94358420aee2": "no layer has this rate to the last bit",
    "7f64827d348c": "a default that nothing takes: all three calls say which rows they mean",
    "caa7e659fdb8": "all recurrences of a layer run along its own tokens, which always grow",
    "e9fe79998e3c": "beside dims states have the batch alone, which is no dim of heads",
}
"""They mean the same."""

INTERPRETED = "asked of the nearest tests for a minute; the text is read by the interpreter's tests"

LEFT: Mapping[str, str] = {
    "8a05d633f878": "two values of a body would have to be put out by one name; no graph here has "
    "such, and without the line the search for a free name would not end",
    "ef9c3bf295d8": "a product's axes in another order, which is renamed after",
    "f946c31a2e8f": "how many processes compile at once: slower, and not wrong",
    "3187d859d9d4": "the order of two factors in a formula of the page that tells of a walk's "
    "gradient, of a memory that is no matrix: no page of the tests shows one",
    "e22d8407335e": "a size of a layer that is given as an argument is taken for any number: what "
    "is computed or refused stays the same in all tests",
    "08968e4ec067": "conditions of a choice among the tokens read so far: no layer of the tests "
    "that draw sizes has such",
    "3a3ef88b430c": "the name of a value in the text of a kernel",
    "e3f231988038": "exact sums that are read narrow become float32 sooner: more bytes, equal "
    "numbers where tests compare them",
    "f152e8897edf": "sums of values that keep different dims: no mixer matrix of the tests has one",
    "1328e5339a48": "values that a kernel stores counted among those that it loads: the estimates "
    "of gla, kda, mlstm and gated_delta are the same",
    "0a5eddfcb691": "an estimate of shared memory in float32, larger for some kernels and smaller "
    "for others: what Triton says was not asked for these",
    "c013ba7c25c9": "times on a GPU alone",
    "62bc7caee2a0": "arguments of the gradient of a packed sequence, of kernels: on a GPU alone",
    "57768e3588f2": "states of what grows with tokens read: asked of tests that take 25 seconds",
    "2bcd29d28f32": "the last of each packed sequence, of a value that has no batch: the same",
    "087d0d390043": "asked of the tests of `archc verify`; those of the self-check are left",
    "cd3c868466f5": "two tokens at a time in place of one, which are right as well",
    "2a38350e6d52": INTERPRETED,
    "4818861a78a4": INTERPRETED,
    "205a2770a55b": INTERPRETED,
    "bbeb49e29be0": INTERPRETED,
    "562a9d0c7719": INTERPRETED,
    "2ace8cfbea8d": INTERPRETED,
    "509818aa32fc": INTERPRETED,
    "97bd428da656": INTERPRETED,
    "e45108394614": INTERPRETED,
    "609ab8024051": INTERPRETED,
}
"""They do not, as far as is known, and live."""
