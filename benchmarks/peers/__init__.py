"""Other people's runtimes beside aspen, on networks with the same weights; see docs/how-to/peers.md."""
