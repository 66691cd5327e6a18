"""The normal form of every linear update: a Fold -> its normal form."""
