"""``python -m ringstep.hostlib.bridge``."""

from ringstep.hostlib.bridge.command import main

if __name__ == "__main__":
    main()
