"""Layer IR -> what kind of recurrence it holds, its chunked form, and its composition law.

`analysis` says how values depend on states, `affine` has the normal form, `chunk` derives from it
what is computed for many tokens at once, and `law` what a run of tokens does to a state.
"""
