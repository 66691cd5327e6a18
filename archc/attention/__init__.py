"""An `attend` as a weighted sum over blocks of the tokens read: found from the algebra of its body.

`weighted_sum.py` has the description, `recognise.py` finds it, `bounds.py` reads ranges of tokens
off the mask's inequalities. No backend is known here.
"""
