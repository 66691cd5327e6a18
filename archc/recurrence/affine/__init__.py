"""What every linear update comes down to: a Fold -> its normal form."""
