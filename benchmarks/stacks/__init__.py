"""BrainSlug's experiments: stacks of layers without convolutions and products."""
