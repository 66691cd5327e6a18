"""The normal form of every linear update: a Recurrence -> its normal form."""
