"""DynO's experiments: what crosses a cut, how small it gets, what that costs in accuracy, and what follows for two machines."""
