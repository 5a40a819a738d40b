"""Bolt's case study of a model made for its compiler: RepVGG with other activations and with 1x1 convolutions (section 4.3)."""
