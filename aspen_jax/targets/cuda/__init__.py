"""Program -> CUDA C++: for each op a kernel whose `tile` computes any box of its output with one thread block.

A kernel is a template in `cuda/kernels/NAME.h` over a constant shape. For `x.max` by windows Python prints

    struct Op0Program { ... };  // generated: the op's element-wise program
    using Op0 = Pool<Op0Program, Input<0, ...>, scalar::max_f, PoolShape{.rank = 4, .window = {1, 3, 3, 1}, ...}>;

To add or move a family:

1. `families/NAME.py` has a frozen dataclass `NameShape`: strides, axes, vectors, blocks. Its `of(op)` takes all decisions. The
   cost model may ask it too. It prints no C++.
2. `cuda/kernels/NAME.h` has a struct of the same name and fields, and the template. It reads top to bottom: what it computes,
   what a tile is, why so. It copies the shape to a local constant before it loops over axes (see elements.h).
3. A function under `@writes("family")` gives `Kernel("Name", [...])`: input types, instructions, `constant(shape)`.
   `families/__init__.py` imports the module; `code/source.py` (`HEADERS`) names the header.
4. `tests/targets/cuda/test_cuda_shapes.py` lists the shape, which holds the fields to those of C++, and tests its decisions.

Only element-wise programs are generated: `finish`, `run`, what attention does to a score, the stages of rows. The headers also
compile for the host: there kernels are tested.

A change keeps the registers that the assembler reports (`code/image.py`, `compile_log`), or fewer. Two things cost registers:
the bounds of a box that are kept over a whole block instead of being read again, and coordinates that are copied where they can
be changed in place, or where an offset is enough.
"""
