"""The models that are measured, each defined once: `zoo.build(name)` gives a function, its seeded parameters and inputs."""

from benchmarks.zoo.catalogue import FUNCTIONS, NETWORKS, WORKLOADS, build, describe

__all__ = ["FUNCTIONS", "NETWORKS", "WORKLOADS", "build", "describe"]
