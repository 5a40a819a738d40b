#!python
"""Becomes the program aspen-run, which lies inside the package: a script cannot know the folder of its libraries beforehand."""

import importlib.util
import os
import sys

found = importlib.util.find_spec("aspen_jax")  # without importing it, and JAX with it
for folder in found.submodule_search_locations if found is not None and found.submodule_search_locations else ():
    program = os.path.join(folder, "bin", "aspen-run")
    if os.path.exists(program):
        os.execv(program, [program, *sys.argv[1:]])
sys.exit("aspen-run: no package aspen_jax with this program is installed for this Python; run `pip install aspen_jax`")
