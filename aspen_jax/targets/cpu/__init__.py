"""CPUs: what tiles and XLA cost there, the choice between both, and what was timed."""
