"""``python -m ringstep.cli`` is ``ringstep``."""

from ringstep.cli.main import main

if __name__ == "__main__":
    main()
