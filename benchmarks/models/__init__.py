"""The models that are measured, each defined once: `zoo.build(name)` gives a function, its seeded parameters and inputs."""
