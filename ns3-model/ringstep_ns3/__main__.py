"""``python -m ringstep_ns3``: the commands of ``ringstep sim``."""

from ringstep_ns3.cli import main

if __name__ == "__main__":
    main()
