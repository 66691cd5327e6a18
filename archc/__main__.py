"""`python -m archc`, where the command `archc` is not on the path."""

from archc.cli import main

if __name__ == "__main__":
    main()
