"""The CPU collective engine on real TCP links: network namespaces, limited rates, rival flows."""
