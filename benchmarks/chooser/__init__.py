"""How good the choice between tiles and XLA is: generated parts, timed on both sides, and the rates fitted to such times."""
